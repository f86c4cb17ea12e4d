"""The site's page of all commands has every command, its examples, and every flag with its help.

Run: python -m pytest tests/docs/test_command_reference.py
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from typer.main import get_command

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import command_reference  # noqa: E402 (a program in tools/, not a package)
from streamfuse.cli import app  # noqa: E402
from streamfuse.export.config import ExportConfig  # noqa: E402
from streamfuse.model.config import StreamConfig  # noqa: E402
from streamfuse.options import declared, flag_of  # noqa: E402
from streamfuse.serve.options import ServeOptions  # noqa: E402
from streamfuse.train.config import TrainConfig  # noqa: E402

COMMANDS = get_command(app).commands  # type: ignore[attr-defined]


def flags(row: str) -> list[str]:
    """The names of the flag in a row of a table."""
    cell = re.match(r"\| `(.*?)` \|", row)
    return re.findall(r"(?:^|, )(--?[a-z][a-z-]*)", cell[1]) if cell else []


@pytest.mark.parametrize(
    ("command", "configs"),
    [("export", (ExportConfig,)), ("serve", (ServeOptions,)), ("train", (TrainConfig, StreamConfig))],
    ids=["export", "serve", "train"],
)
def test_every_declared_option_has_a_row_with_its_help(command: str, configs: tuple[type, ...]) -> None:
    rows = command_reference.table(COMMANDS[command]).splitlines()
    for config in configs:
        for name, facts in declared(config).items():
            (row,) = [row for row in rows if flag_of(name) in flags(row)]
            assert row.endswith(" | " + facts.help.replace("|", r"\|") + " |")


def test_every_flag_has_a_row_whether_or_not_the_short_help_shows_it() -> None:
    root = get_command(app)
    groups = [command.commands for command in (root, *COMMANDS.values()) if hasattr(command, "commands")]
    leaves = [command for group in groups for command in group.values() if not hasattr(command, "commands")]
    assert sum(len(command.left_out()) for command in leaves) > 100
    for command in leaves:
        options = [one for one in command.params if one.param_type_name == "option"]
        found = [flag for row in command_reference.table(command).splitlines() for flag in flags(row)]
        assert sorted(found) == sorted(flag for one in options for flag in (*one.opts, *one.secondary_opts))


def test_every_command_has_a_section() -> None:
    headings = re.findall(r"^## (.+)$", command_reference.page(), re.MULTILINE)
    assert len(headings) == len(set(headings)) > 40
    assert {f"streamfuse {name}" for name in COMMANDS} < set(headings)
    assert "streamfuse bench tasks" in headings


def test_examples_are_blocks_and_nothing_of_the_terminals_markup_is_left() -> None:
    page = command_reference.page()
    assert "```sh\nstreamfuse bench tasks build/demo --data question.jsonl --limit 20\n" in page
    assert "A request:\n\n```sh\ncurl " in page
    assert "[bold]" not in page
    assert "pip install 'streamfuse[llama-cpp]'" in page


def test_a_flag_that_may_be_left_out_without_a_value_in_its_place_has_the_default_none() -> None:
    for command, row in (
        ("serve", "`--cors-origin ORIGIN`"),
        ("export", "`--task NAME=FILE`"),
        ("run", "`--regex PATTERN`"),
    ):
        assert f"| {row} | none | " in command_reference.table(COMMANDS[command])


def test_arguments_have_their_names() -> None:
    assert "| `BUNDLE` | required | " in command_reference.table(COMMANDS["serve"])
    assert "| `MODEL` | " in command_reference.table(COMMANDS["quickstart"])
