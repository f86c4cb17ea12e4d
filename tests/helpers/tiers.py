"""How many cases a test draws at random: a share of them, unless pytest runs with --full (tests/README.md)."""

from __future__ import annotations

_full = False


def run_in_full(full: bool) -> None:
    """Set by tests/conftest.py before any test is collected."""
    global _full
    _full = full


def cases(few: int, full: int) -> int:
    """`few`, or `full` with --full."""
    return full if _full else few
