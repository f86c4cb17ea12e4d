"""Text between two marks of a page, which a program writes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from streamfuse.durable import write_text

END = "<!-- end of the table -->"


def update(path: Path, texts: Mapping[str, str], check: bool = False) -> bool:
    """Replace the text after each mark of a page, up to the next END; with `check`, only compare.

    Args:
        texts: by the line that is the mark before them.

    Returns:
        Whether the page differed.

    Raises:
        ValueError: the page has no such marks.
    """
    page = new = path.read_text(encoding="utf-8")
    for begin, text in texts.items():
        before, found, rest = new.partition(begin)
        _, end, after = rest.partition(END)
        if not found or not end:
            raise ValueError(f"{path}: no lines {begin!r} and {END!r}")
        new = f"{before}{begin}\n{text}\n{end}{after}"
    if new != page and not check:
        write_text(path, new)
    return new != page
