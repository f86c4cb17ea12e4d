"""`--show-drafts`: every token in the colour of who drafted it, a status line below that stays, and no code where there
is no colour. The terminal is screen.py's.

Run: python -m pytest tests/cli/test_cli_drafts.py
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import fakes
import pytest
from bundle_samples import PrintableBackend, fake_engines, write_bundle
from rich.console import Console
from screen import Screen
from typer.testing import CliRunner

from streamfuse import engines
from streamfuse.cli import app
from streamfuse.cli.shared import drafts
from streamfuse.runtime.session import Piece

GREEN, CYAN, MAGENTA = "32", "36", "35"


@pytest.fixture(autouse=True)
def _a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the tests themselves run in none that moves its cursor."""
    monkeypatch.setenv("TERM", "xterm")


class Told:
    """A generation that says what it was told; with `fails`, an error at its end."""

    def __init__(self, pieces: list[tuple[str, str]], fails: BaseException | None = None) -> None:
        self.pieces, self.fails = pieces, fails
        self.statistics = fakes.statistics_of(mean_accepted_tokens=2.5, decode_token_per_sec=123.4)

    def __iter__(self) -> Iterator[Piece]:
        for number, (text, source) in enumerate(self.pieces):
            yield Piece(text, number, source)
        yield Piece("", None)
        if self.fails is not None:
            raise self.fails


WORDS = [("The", "model"), (" sky is", "streams"), (" blue", "lookup"), (", and", "table"), (" deep", "model")]


def shown(monkeypatch: pytest.MonkeyPatch, generation: Told, width: int = 40, seconds: float = 0.0) -> Screen:
    """The screen after the text; `seconds` between two drawings."""
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system="standard", highlight=False)
    monkeypatch.setattr(drafts, "out", console)
    monkeypatch.setattr(drafts, "SECONDS", seconds)
    screen = Screen(width)
    try:
        drafts.write(generation, show_drafts=True)  # type: ignore[arg-type]
    finally:
        screen.feed(console.file.getvalue())  # type: ignore[attr-defined]
    return screen


@pytest.mark.parametrize("seconds", [0.0, 99.0])
def test_each_token_has_the_colour_of_its_source_and_the_legend_too(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = shown(monkeypatch, Told(WORDS), 80, seconds)
    assert screen.lines == [
        "The sky is blue, and deep",
        "streams 1  look-up 1  table 1  plain 2  | 2.50 tokens per pass, 123 tokens/s",
        "",
    ]
    assert screen.coloured(GREEN) == " sky isstreams 1"
    assert screen.coloured(CYAN) == " bluelook-up 1"
    assert screen.coloured(MAGENTA) == ", andtable 1"
    assert screen.coloured("").split() == ["The", "deep", "plain", "2"]


@pytest.mark.parametrize("width", [20, 31, 60])
@pytest.mark.parametrize("seconds", [0.0, 99.0])
def test_a_long_text_is_whole_and_the_status_stays_below_it(
    width: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = ["model", "streams", "lookup", "table"]
    ends = ["\n\n" if n % 9 == 8 else "" for n in range(60)]
    words = [(f"{' ' if n else ''}word{n * n}{end}", sources[n % 4]) for n, end in enumerate(ends)]
    screen = shown(monkeypatch, Told(words), width, seconds)
    *text, status, last = screen.lines
    assert last == ""
    assert status.startswith("streams 15  look-up")
    assert sum("streams 15" in line for line in screen.lines) == 1
    assert " ".join(" ".join(text).split()) == " ".join("".join(word for word, _ in words).split())
    assert text.count("") == 6  # the empty lines of the text
    assert screen.cursor_shown


def test_an_end_at_any_moment_leaves_the_terminal_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    console_texts: list[str] = []

    class Watched(io.StringIO):
        def write(self, text: str) -> int:
            console_texts.append(text)
            return super().write(text)

    monkeypatch.setattr(io, "StringIO", Watched)
    with pytest.raises(KeyboardInterrupt):
        shown(monkeypatch, Told(WORDS, KeyboardInterrupt()), 80)
    written = ""
    for text in console_texts[1:]:  # the first hides the cursor for no longer than itself
        written += text
        screen = Screen(80).feed(console_texts[0] + written)
        assert (screen.cursor_shown, screen.colour) == (True, "")
    assert "The sky is blue, and deep" in screen.lines


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (WORDS, "The[streams: sky is] [look-up: blue] [table:, and] deep\n"),
        ([("a", "model"), ("b", "streams"), ("c", "streams")], "a[streams:bc]\n"),
        ([("a", "streams"), ("", "model"), ("b", "streams")], "[streams:ab]\n"),
        ([], "\n"),
    ],
)
def test_without_colour_drafted_tokens_stand_in_brackets(
    pieces: list[tuple[str, str]], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    drafts.write(Told(pieces), show_drafts=True)  # type: ignore[arg-type]
    captured = capsys.readouterr()
    assert captured.out == text
    assert "streams" in captured.err
    assert captured.err.endswith("| 2.50 tokens per pass, 123 tokens/s\n")
    assert "\x1b" not in captured.out + captured.err


@pytest.mark.parametrize("command", [["run", "hello"], ["chat"]])
def test_the_commands_take_the_flag(command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, new = fake_engines(PrintableBackend)
    monkeypatch.setattr(engines, "engines_of", new)
    bundle = str(write_bundle(tmp_path / "demo"))
    flags = ["--show-drafts", "--width", "4", "--max-new-tokens", "12"]
    result = CliRunner().invoke(app, [command[0], bundle, *command[1:], *flags], input="hello\n")
    assert result.exit_code == 0, result.stderr
    plain = CliRunner().invoke(app, [command[0], bundle, *command[1:], "--max-new-tokens", "12"], input="hello\n")
    shown_text = result.stdout.replace("[streams:", "").replace("]", "").replace(" ", "")
    assert shown_text == plain.stdout.replace(" ", "")
    assert "tokens per pass" in result.stderr
    assert all(backend.closed for backend in made)


@pytest.mark.parametrize("flag", ["--json", "--compare"])
def test_a_text_that_is_not_shown_has_no_colours(flag: str, tmp_path: Path) -> None:
    bundle = str(write_bundle(tmp_path / "demo"))
    result = CliRunner().invoke(app, ["run", bundle, "hi", "--show-drafts", flag])
    assert result.exit_code == 2
    assert f"--show-drafts colours a text, so {flag} does not go with it" in result.stderr


SLOW = """
import sys, time
sys.path.append({tests!r})
from bundle_samples import PrintableBackend, fake_engines
from streamfuse import engines
from streamfuse.cli import main

class Slow(PrintableBackend):
    def run(self, *args):
        time.sleep(0.05)
        return super().run(*args)

_, engines.engines_of = fake_engines(Slow)
main()
"""


@pytest.mark.parametrize(("environment", "codes"), [({}, True), ({"NO_COLOR": "1"}, False)])
def test_an_error_in_a_terminal_is_red_unless_no_colour_is_asked_for(
    environment: dict[str, str], codes: bool, tmp_path: Path
) -> None:
    import pty

    settings = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    program = [sys.executable, "-m", "streamfuse", "run", str(tmp_path / "nowhere"), "hi"]
    outer, inner = pty.openpty()
    settings |= {"TERM": "xterm", **environment}
    done = subprocess.run(program, stderr=inner, stdin=subprocess.DEVNULL, env=settings)
    os.close(inner)
    written = os.read(outer, 4096).decode()
    os.close(outer)
    assert done.returncode == 1
    assert "error: " in written
    assert ("\x1b" in written) is codes


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals")
@pytest.mark.parametrize(("environment", "codes"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_ctrl_c_in_a_real_terminal(environment: dict[str, str], codes: bool, tmp_path: Path) -> None:
    """The answer ends, the status stands below it, the cursor is there, and what has no colour has no codes."""
    import pty

    bundle = write_bundle(tmp_path / "demo")
    program = [sys.executable, "-u", "-c", SLOW.format(tests=str(Path(__file__).parents[1] / "helpers"))]
    program += ["run", str(bundle), "hi", "--raw", "--max-new-tokens", "50", "--width", "4", "--show-drafts"]
    settings = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    settings |= {"TERM": "xterm-256color", "COLUMNS": "80", **environment}
    outer, inner = pty.openpty()
    with subprocess.Popen(program, stdout=inner, stderr=inner, stdin=inner, env=settings) as process:
        os.close(inner)
        written, interrupted = b"", False
        while True:
            try:
                block = os.read(outer, 4096)
            except OSError:  # the other end is closed
                break
            if not block:
                break
            written += block
            if (not interrupted and b"plain 2" in written) or (not codes and len(written) > 3 and not interrupted):
                process.send_signal(signal.SIGINT)
                interrupted = True
                time.sleep(0.01)
        process.wait(60)
    os.close(outer)
    assert process.returncode == 130
    text = written.decode()
    assert ("\x1b" in text) is codes, text
    screen = Screen(80).feed(text)
    assert (screen.cursor_shown, screen.colour) == (True, "")
    (status,) = [line for line in screen.lines if "tokens per pass" in line]
    assert status.startswith("streams ")
