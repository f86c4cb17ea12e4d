"""What a terminal is sent: no control characters of a model or a bundle. Files and pipes get every character.

Run: python -m pytest tests/cli/test_cli_terminal.py
"""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import fakes
import pytest
from bundle_samples import edit_manifest, write_bundle

from streamfuse.cli.shared import console, drafts, tables
from streamfuse.cli.shared.console import SafeConsole, visible
from streamfuse.runtime.session import Piece

TITLE = "\x1b]0;owned\x07"  # sets a window's title
CLEAR = "\x1b[2J\x9b31m"  # clears the screen, and a colour by a single control character of C1
HOSTILE = f"a{TITLE}b{CLEAR}\r\x08c\td\né"
SEEN = r"a\x1b]0;owned\x07b\x1b[2J\x9b31m\r\x08c" + "\td\né"


@pytest.fixture(autouse=True)
def _a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the tests themselves run in none that moves its cursor."""
    monkeypatch.setenv("TERM", "xterm")


class Stream(io.StringIO):
    """Standard output, a terminal or not."""

    def __init__(self, terminal: bool, encoding: str = "utf-8") -> None:
        super().__init__()
        self._terminal, self._encoding = terminal, encoding

    def isatty(self) -> bool:
        return self._terminal

    @property
    def encoding(self) -> str:
        return self._encoding


class Told:
    """A generation of pieces, control characters cut in two between them."""

    statistics = fakes.statistics_of()

    def __iter__(self) -> Any:
        for place in range(0, len(HOSTILE), 2):
            yield Piece(HOSTILE[place : place + 2], place, "model")


def in_terminal(*arguments: object, **environment: str) -> str:
    """What the command writes to a terminal, with the terminal's line ends as `\\n`."""
    leader, follower = pty.openpty()
    variables = {**os.environ, "COLUMNS": "200", "TERM": "xterm", **environment}
    command = [sys.executable, "-m", "streamfuse", *map(str, arguments)]
    with subprocess.Popen(
        command, stdout=follower, stderr=follower, stdin=subprocess.DEVNULL, env=variables
    ) as process:
        os.close(follower)
        written = b""
        try:
            while more := os.read(leader, 1 << 16):
                written += more
        except OSError:  # how Linux says that the other end is closed
            pass
        process.wait()
    os.close(leader)
    return written.decode("utf-8").replace("\r\n", "\n")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "demo")


def test_control_characters_but_tab_and_line_feed_are_written_out() -> None:
    assert visible(HOSTILE) == SEEN
    assert visible("a\u202eb\u2066c") == r"a\u202eb\u2066c", "these turn the order of what follows round"
    assert visible("plain é 漢 \t\n") == "plain é 漢 \t\n"


@pytest.mark.parametrize("terminal", [True, False])
def test_an_answer_keeps_every_character_where_no_terminal_reads_it(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(terminal)
    monkeypatch.setattr(sys, "stdout", stream)
    drafts.write(Told())  # type: ignore[arg-type]
    assert stream.getvalue() == (SEEN if terminal else HOSTILE) + "\n"


def test_coloured_drafts_send_styles_and_nothing_of_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = SafeConsole(file=io.StringIO(), force_terminal=True, width=200, color_system="standard", highlight=False)
    monkeypatch.setattr(drafts, "out", screen)
    drafts.write(Told(), show_drafts=True)  # type: ignore[arg-type]
    written = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b]" not in written
    assert "\x9b" not in written
    assert "\x1b[2J" not in written
    assert r"a\x1b]0;owned" in written


def test_tables_show_names_as_they_stand() -> None:
    for terminal in (True, False):
        screen = SafeConsole(file=io.StringIO(), force_terminal=terminal, width=200, color_system=None)
        screen.print(tables.facts([[f"name{TITLE}", "[red]x[/red]"]]))
        screen.print(tables.figures(["a[b]", "c"], [[f"row{CLEAR}", "[link=https://example.org]y[/link]"]]))
        written = screen.file.getvalue()  # type: ignore[attr-defined]
        assert "[red]x[/red]" in written
        assert "[link=https://example.org]y[/link]" in written
        assert "\x1b" not in written
        assert r"row\x1b[2J\x9b31m" in written


def test_a_manifest_cannot_reach_the_terminal(bundle: Path) -> None:
    edit_manifest(bundle, lambda manifest: manifest["model"].update(name="[link=https://example.org]name[/link]"))
    assert "[link=https://example.org]name[/link]" in in_terminal("bundle", "inspect", bundle, "--no-verify")
    edit_manifest(bundle, lambda manifest: manifest["model"].update(name=f"name{TITLE}{CLEAR}"))
    for flags in ((), ("--json",)):
        written = in_terminal("bundle", "inspect", bundle, "--no-verify", *flags)
        assert "\x1b]" not in written
        assert "\x1b[2J" not in written
        assert "\x9b" not in written


def test_an_error_that_quotes_a_file_cannot_either(tmp_path: Path) -> None:
    written = in_terminal("bundle", "inspect", tmp_path / f"none{TITLE}")
    assert r"none\x1b]0;owned\x07: " in written
    assert "\x1b]" not in written


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_json_says_every_character_in_every_encoding(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    document = {"text": 'é 漢 𝄞 \x1b \x9b \x7f \ud800 quoted " and \\'}
    stream = Stream(False, encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    console.print_json(document)
    written = stream.getvalue()
    assert json.loads(written.encode(encoding).decode(encoding)) == document
    assert ("é" in written) is (encoding != "ascii")
    assert "\x9b" not in written


def test_an_ascii_terminal_gets_json_with_escapes(bundle: Path) -> None:
    edit_manifest(bundle, lambda manifest: manifest["model"].update(name="café"))
    written = in_terminal(
        "bundle", "inspect", bundle, "--no-verify", "--json", PYTHONIOENCODING="ascii", PYTHONUTF8="0"
    )
    assert r"caf\u00e9" in written
