"""Where words go: answers and tables to standard output, everything about the work to standard error."""

from __future__ import annotations

import os
import sys
from typing import Any

from rich.console import Console

from streamfuse.runtime.strict_json import dump_strict
from streamfuse.text_io import TextError

_NO_COLOR = bool(os.environ.get("NO_COLOR"))  # then no escape codes for styles either, such as bold
out = Console(highlight=False, color_system=None if _NO_COLOR else "auto")
err = Console(stderr=True, highlight=False, color_system=None if _NO_COLOR else "auto")

MOST_BYTES = 4 << 20  # of a prompt; no context holds that much text


def say(line: str, style: str = "dim") -> None:
    """A line about the work; never wrapped, never read as markup."""
    err.print(line, style=style, markup=False, soft_wrap=True)


def print_json(data: Any) -> None:
    """One line of JSON. What is not a number there (NaN, infinity) is null."""
    print(dump_strict(data, ensure_ascii=False))


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
