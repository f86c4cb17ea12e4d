"""An answer as it streams. With `--show-drafts` each token has the colour of who drafted it, and counts and speed stand
in a line below that is rewritten in place.

rich draws it. The cursor stays visible and no mode of the terminal is changed, so an end at any moment leaves it as it
was. Where there is no colour (no terminal, NO_COLOR, a dumb one) drafted tokens stand in brackets instead.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from streamfuse.cli.shared.console import err, out, say, visible
from streamfuse.cli.shared.console import write as write_text

if TYPE_CHECKING:
    from streamfuse.api import Generation, Piece

# Who drafted a token: as people read it, and its colour. The model's own tokens keep the terminal's.
SOURCES = {
    "streams": ("streams", "green"),
    "lookup": ("look-up", "cyan"),
    "table": ("table", "magenta"),
    "grammar": ("grammar", "yellow"),
    "memory": ("memory", "blue"),
    "model": ("plain", ""),
}
SECONDS = 0.05  # between two drawings: fast enough for eyes, and a hundredth of the time


def write(generation: Generation, show_drafts: bool = False) -> None:
    """Stream the answer to standard output, with its last newline, and what the model thinks to standard error. With
    `show_drafts` all is on standard output, tool calls too."""
    if not show_drafts:
        _plain(generation)
    elif out.is_interactive and out.color_system is not None:
        _coloured(generation, out)
    else:
        say(_bracketed(generation).plain)


def _plain(generation: Generation) -> None:
    channels = [""]  # in turn
    for piece in generation:
        if piece.text and piece.channel != channels[-1]:
            if channels[-1] == "thinking":
                err.print()
            channels.append(piece.channel)
        if piece.channel == "thinking":
            err.print(piece.text, end="", style="dim", markup=False, soft_wrap=True)
        elif piece.channel == "answer":
            write_text(piece.text)
    if "answer" in channels or "tool_call" not in channels:
        print()


def status(counts: Counter[str], generation: Generation) -> Text:
    """The line below: how many tokens each source drafted, which is the legend too, and what that gave."""
    facts = generation.statistics
    per_pass, speed = facts.mean_accepted_tokens, facts.decode_token_per_sec
    line = Text(no_wrap=True, overflow="ellipsis", end="")
    for source, (name, colour) in SOURCES.items():
        if source in ("grammar", "memory") and not counts[source]:  # most answers have none
            continue
        line.append(f"{name} {counts[source]}", colour).append("  ")
    return line.append(f"| {per_pass:.2f} tokens per pass, {speed:.0f} tokens/s", "dim")


def _bracketed(generation: Generation) -> Text:
    """`The sky is [streams: blue because] it`; the status to say when it has ended."""
    counts: Counter[str] = Counter()
    last = "model"
    try:
        for piece in generation:
            _count(counts, piece)
            if piece.token is not None and piece.text and piece.source != last:
                close = "]" if last != "model" else ""
                open_ = f"[{SOURCES[piece.source][0]}:" if piece.source != "model" else ""
                sys.stdout.write(close + (" " if close and open_ else "") + open_)
                last = piece.source
            write_text(piece.text)
    finally:
        print("]" if last != "model" else "")
    return status(counts, generation)


def _coloured(generation: Generation, console: Console) -> None:
    """Whole lines are printed for good; the one that grows and the status are drawn anew."""
    counts: Counter[str] = Counter()
    tail, drawn = Text(), 0.0
    with Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:
        console.show_cursor(True)  # nothing to give back if the process is killed
        try:
            for piece in generation:
                _count(counts, piece)
                tail.append(visible(piece.text), SOURCES[piece.source][1])
                if time.monotonic() - drawn >= SECONDS:
                    tail = _draw(live, tail, status(counts, generation))
                    drawn = time.monotonic()
        finally:
            _draw(live, tail, status(counts, generation))


def _draw(live: Live, tail: Text, below: Text) -> Text:
    """What is left of `tail`: its last line, as this terminal breaks it."""
    console = live.console
    tail.expand_tabs(8)
    *whole, last = tail.wrap(console, console.width) or [Text()]
    with console:  # one write: no picture between the two
        for line in whole:
            console.print(line, soft_wrap=True)
        live.update(Group(last, below), refresh=True)
    start = tail.plain.rfind(last.plain)  # with the spaces at its end, which a broken line does not show
    return tail[start:] if last.plain else Text()


def _count(counts: Counter[str], piece: Piece) -> None:
    if piece.token is not None:
        counts[piece.source] += 1
