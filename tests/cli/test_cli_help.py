"""Help: `--help` of every command fits on one screen, and `--help-all` has every flag, paragraph and example.

Run: python -m pytest tests/cli/test_cli_help.py
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from streamfuse.cli import app
from streamfuse.cli.shared.declared import with_options
from streamfuse.cli.shared.help import COMMON, Command
from streamfuse.options import option

SCREEN = 48  # lines of 100 columns
MAIN = {"quickstart", "pull", "train", "export", "run", "chat", "doctor", "data", "bundle", "bench"}


def commands(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and group, with the words that are typed for it."""
    command = command or get_command(app)
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))


EVERY = dict(commands())
SHORTENED = [path for path, command in EVERY.items() if getattr(command, "left_out", list)()]
LEAVES = [path for path, command in EVERY.items() if not hasattr(command, "commands")]


@functools.cache
def shown(*arguments: str, columns: int = 100) -> str:
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, result.output
    return result.output


def words(text: str) -> str:
    """On one line, as a reader sees them."""
    return " ".join(text.replace("│", " ").split())


def flags(text: str) -> set[str]:
    """The flags that have a row."""
    rows = re.findall(r"^│[ *]+(-\S+(?: +-\S+)*)", text, re.MULTILINE)
    return {flag for row in rows for flag in re.split(r"[ ,]+", row)}


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_help_fits_on_one_screen(path: tuple[str, ...]) -> None:
    assert len(shown(*path, "--help").splitlines()) <= SCREEN


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_all_of_the_help_has_every_flag_paragraph_and_example(path: tuple[str, ...]) -> None:
    text = shown(*path, "--help-all", columns=300)
    options = [one for one in EVERY[path].params if one.param_type_name == "option"]
    assert {flag for one in options for flag in (*one.opts, *one.secondary_opts)} < flags(text)
    for panel in {one.rich_help_panel for one in options} - {None}:
        assert f"─ {panel} ─" in text
    for paragraph in EVERY[path].help.split("\n\n"):
        assert words(re.sub(r"\[/?bold\]", "", paragraph).replace("\\[", "[")) in words(text)


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_flags_without_a_value_have_no_type(path: tuple[str, ...]) -> None:
    assert "bool" not in shown(*path, "--help-all" if path in LEAVES else "--help", columns=300).lower()


def test_long_helps_are_shortened_and_short_ones_are_whole() -> None:
    assert {("export",), ("train",), ("run",), ("chat",), ("serve",), ("bench", "tasks")} <= set(SHORTENED)
    assert flags(shown("pull", "--help")) == flags(shown("pull", "--help-all"))
    assert "more flag" not in shown("pull", "--help")


@pytest.mark.parametrize("path", SHORTENED, ids=" ".join)
def test_the_last_line_says_how_many_flags_are_left_out_and_how_to_see_them(path: tuple[str, ...]) -> None:
    text, command = shown(*path, "--help"), EVERY[path]
    left_out = {flag for one in command.left_out() for flag in one.opts}
    assert not left_out & flags(text)
    assert flags(text) | left_out | {"-h", "--help"} == {
        flag for one in command.params for flag in one.opts if flag[0] == "-"
    } | {"-h", "--help"}
    more = len(command.left_out())
    assert words(text).endswith(
        f"{more} more flag{'s' if more > 1 else ''}: {' '.join(('streamfuse', *path))} --help-all"
    )
    examples = command.help.partition("[bold]Examples[/bold]")[2].split("\n\n")
    assert words(examples[1]) in words(text)


def test_an_unknown_flag_suggests_one_that_the_help_leaves_out() -> None:
    result = CliRunner().invoke(app, ["export", "-o", "x", "--prune-treshold", "1"])
    assert "--prune-threshold" in result.stderr
    assert "(see streamfuse export --help-all)" in result.stderr
    assert "(see streamfuse pull --help)" in CliRunner().invoke(app, ["pull", "--ofline"]).stderr


def test_the_shell_offers_flags_that_the_help_leaves_out() -> None:
    command = EVERY["export",]
    found = {item.value for item in command.shell_complete(typer.Context(command), "--")}
    assert {flag for one in command.params for flag in one.opts if flag.startswith("--")} | {"--help-all"} <= found


def test_the_main_commands_come_first() -> None:
    first, _, rest = shown("--help").partition("Main commands")[2].partition("More commands")
    assert set(re.findall(r"^│ ([a-z]+) ", first, re.MULTILINE)) == MAIN
    assert set(re.findall(r"^│ ([a-z]+) ", rest, re.MULTILINE)) == {path[0] for path in EVERY if path} - MAIN


@dataclass(frozen=True)
class Oven:
    """Options, of which most people need one."""

    heat: int = option(180, "Degrees. Not of Fahrenheit.", "Heat", common=True)
    mode: str = option("fan", "How it heats.", "Heat")


def test_a_flag_is_common_where_it_is_declared() -> None:
    made = typer.Typer(add_completion=False)

    @made.command(cls=Command)
    @with_options(Oven)
    def bake(
        dish: Annotated[str | None, typer.Option(help="What. Or whom."), COMMON] = None,
        late: bool = False,
        **flags: Any,
    ) -> None:
        """Bake.

        For some time.
        """

    short, whole = (words(CliRunner().invoke(made, [flag]).output) for flag in ("--help", "--help-all"))
    assert all(
        part in short
        for part in ("Bake.", "--heat", "Degrees. [default: 180]", "--dish", "What.", "2 more flags: bake --help-all")
    )
    assert not any(part in short for part in ("time", "--late", "--mode", "Fahrenheit", "whom", "None", "─ Heat"))
    assert all(
        part in whole for part in ("For some time.", "--late", "--mode", "Not of Fahrenheit.", "whom.", "─ Heat")
    )
