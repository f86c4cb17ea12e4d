"""Flags, files and checks that follow from the declaration of an option (streamfuse/options.py).

Run: python -m pytest tests/cli/test_cli_declared.py
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import pytest
import typer
from typer.testing import CliRunner

from streamfuse.cli.shared.declared import given, with_options
from streamfuse.cli.shared.errors import usage_errors
from streamfuse.cli.shared.groups import register_all
from streamfuse.options import OptionError, check, converted, option


@dataclass(frozen=True)
class Oven:
    """One option of each kind."""

    shelf: str = "middle"  # no option
    heat: int = option(180, "Degrees.", "Heat", least=50, most=300)
    share: float = option(0.5, "Of the time.", "Heat", above=0, below=1)
    mode: Literal["auto", "fan", "grill"] = option("auto", "How it heats.", shown="fan")
    timer: int | None = option(None, "Minutes.", least=1)
    trays: tuple[int, ...] = option((), "Which trays.", shown="all")
    notes: tuple[str, ...] = option((), "Notes; repeatable.")
    at: int | Mapping[int, int] | Literal["all"] = option(8, "Per tray.", metavar="N|TRAY:N,...")
    parts: Mapping[str, str] = option({}, "Parts; repeatable.", metavar="PART=SCHEME")
    place: Path | None = option(None, "Where.")
    loud: bool = option(False, "Ring at the end.")


def run(*arguments: str, defaults: Any = Oven) -> tuple[Any, dict[str, Any], str]:
    """What a command with these flags gets: the oven, the flags that were given, and standard error."""
    made: dict[str, Any] = {}
    app = typer.Typer()

    @app.command()
    @with_options(defaults)
    @usage_errors()
    def bake(dish: str = "bread", *, late: bool = False, **flags: Any) -> None:
        made.update(given(Oven, flags))
        made["oven"] = Oven(**given(Oven, flags))
        check(made["oven"])

    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code in (0, 2), result.output
    return made.pop("oven", None), made, " ".join(result.output.split())


def test_an_options_error_in_a_registered_command_is_an_error_of_its_use(monkeypatch: pytest.MonkeyPatch) -> None:
    def bake(heat: int = 180) -> None:
        check(Oven(heat=heat))

    module = ModuleType("kitchen.bake")
    monkeypatch.setattr(module, "register", lambda app: app.command("bake")(bake), raising=False)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    app = typer.Typer()
    register_all(app, "kitchen", ["bake"])
    result = CliRunner().invoke(app, ["--heat", "20"])
    assert (result.exit_code, "--heat must be from 50 to 300, not 20" in " ".join(result.output.split())) == (2, True)


def test_flags_have_the_types_and_defaults_of_the_fields() -> None:
    oven, _, _ = run()
    assert oven == Oven()
    oven, _, _ = run(
        "--heat", "200", "--share", "0.25", "--mode", "grill", "--timer", "5", "--trays", "1,3", "--notes", "a",
        "--notes", "b", "--at", "1:2,3:4", "--parts", "top=x:32", "--place", "here", "--loud",
    )  # fmt: skip
    wanted = {"heat": 200, "share": 0.25, "mode": "grill", "timer": 5, "trays": (1, 3), "notes": ("a", "b")}
    assert oven == Oven(**wanted, at={1: 2, 3: 4}, parts={"top": "x:32"}, place=Path("here"), loud=True)
    assert run("--at", "all")[0].at == "all"
    assert run("--at", "3")[0].at == 3


def test_the_values_of_an_instance_are_shown_and_not_passed_on() -> None:
    _, chosen, _ = run("--heat", "90", defaults=Oven(share=0.75))
    assert chosen == {"heat": 90}
    help_ = run("--help", defaults=Oven(share=0.75))[2]
    assert "0.75" in help_
    assert not any(part in help_ for part in ("()", "{}", "None"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--heat", "301"), "--heat must be from 50 to 300, not 301"),
        (("--share", "0"), "--share must be above 0 and below 1, not 0"),
        (("--share", "nan"), "--share must be above 0 and below 1, not nan"),
        (("--timer", "0"), "--timer must be at least 1, not 0"),
        (("--mode", "steam"), "--mode must be one of fan, grill, not steam"),
        (("--trays", "1,x"), "--trays must be numbers with commas between, for example 4,8,16, not 1,x"),
        (("--at", "1:x"), "--at must be a number, or like 8:4,16:8, not 1:x"),
        (("--parts", "top"), "--parts must be PART=SCHEME, for example head=q4_1 or mlp=int4:64, not top"),
    ],
)
def test_a_wrong_value_names_the_flag_and_its_range(arguments: tuple[str, ...], words: str) -> None:
    output = run(*arguments)[2]
    assert words in " ".join(output.replace("│", " ").split())


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"heat": "hot"}, "heat must be a number, not 'hot'"),
        ({"heat": True}, "heat must be a number, not True"),
        ({"heat": 10**400}, "heat must be from 50 to 300, not 1000"),
        ({"share": float("inf")}, "share must be above 0 and below 1, not inf"),
    ],
)
def test_python_callers_read_keywords(values: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError) as error:
        check(Oven(**values))
    assert str(error.value).startswith(words)
    assert error.value.flags.startswith(f"--{words}")


def test_lists_and_paths_of_callers_become_what_the_fields_hold() -> None:
    found = converted(Oven, {"trays": [1, 2], "notes": "a", "place": "here", "heat": 90, "timer": None})
    assert found == {"trays": (1, 2), "notes": ("a",), "place": Path("here"), "heat": 90, "timer": None}
    with pytest.raises(TypeError, match="there is no option heet; the options are heat, share, mode"):
        converted(Oven, {"heet": 1})
