"""Text between two marks of a page, which a program writes."""

from __future__ import annotations

END = "<!-- end of the table -->"


def replaced(page: str, begin: str, text: str) -> str:
    """The page with `text` between the line `begin` and the next END. ValueError if it does not have both."""
    before, found, rest = page.partition(begin)
    _, end, after = rest.partition(END)
    if not found or not end:
        raise ValueError(f"no lines {begin!r} and {END!r}")
    return f"{before}{begin}\n{text}\n{end}{after}"
