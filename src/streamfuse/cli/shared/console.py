"""Where words go: answers and tables to standard output, everything about the work to standard error.

Words of a model or of a bundle are shown to a terminal as they are but for control characters, which could move its
cursor, change its title or answer its questions. Files and pipes get every character.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from streamfuse.json_text import dump_strict
from streamfuse.runtime.text import TextError

_NO_COLOR = bool(os.environ.get("NO_COLOR"))  # then no escape codes for styles either, such as bold
# All but tab and line feed; and what breaks lines or turns the order of characters round.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_UNSAFE_IN_JSON = re.compile(r"[\x7f-\x9f]")  # what JSON does not escape by itself


def visible(text: str) -> str:
    """The text with control characters as `\\x1b`: what a terminal may be sent."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


class SafeConsole(Console):
    """A console whose terminal gets no control characters but its own styles."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(visible(text) if self.is_terminal and control is None else text, style, control)


out = SafeConsole(highlight=False, emoji=False, color_system=None if _NO_COLOR else "auto")
err = SafeConsole(stderr=True, highlight=False, emoji=False, color_system=None if _NO_COLOR else "auto")

MOST_BYTES = 4 << 20  # of a prompt; no context holds that much text


def say(line: str, style: str = "dim") -> None:
    """A line about the work; never wrapped, never read as markup."""
    err.print(line, style=style, markup=False, soft_wrap=True)


def write(text: str) -> None:
    """A model's text to standard output, at once and without a line end of its own."""
    sys.stdout.write(visible(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def print_json(data: Any) -> None:
    """One line of JSON. What is not a number there (NaN, infinity) is null."""
    write_json(dump_strict(data, ensure_ascii=False) + "\n")


def write_json(text: str) -> None:
    """JSON whose strings hold any characters; those that standard output's encoding lacks are escaped."""
    text = _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "json_escape").decode(encoding))


def _escape(error: UnicodeError) -> tuple[str, int]:
    """For `codecs`: characters as JSON escapes, those beyond U+FFFF as a pair of surrogates."""
    assert isinstance(error, UnicodeEncodeError), "it is registered for encoding"
    lacking = error.object[error.start : error.end]
    return json.dumps(lacking)[1:-1], error.end


codecs.register_error("json_escape", _escape)


def read_input(line: bool = False) -> bytes:
    """All of standard input, or its next line with its end. TextError where it has none in sight."""
    read = sys.stdin.buffer.readline if line else sys.stdin.buffer.read
    data = read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        what = "a line of standard input" if line else "standard input"
        raise TextError(
            f"{what} is longer than {MOST_BYTES >> 20} MiB, more than any context holds; give a shorter text"
        )
    return data


def as_text(data: bytes) -> str:
    """TextError for what is not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TextError(
            f"standard input is not UTF-8 text (byte 0x{data[error.start]:02x} at place {error.start + 1}); convert it"
        ) from None
