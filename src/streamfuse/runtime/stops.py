"""Counts calls of `stop`, so that one which comes before a generation starts is not lost."""

from __future__ import annotations

import threading
from collections.abc import Callable


class StopCount:
    """How often `stop` was called on a session, on a chat or on a whole model.

    The core forgets stops when it starts a text. Between the request of a generation and its start, an engine may be
    loaded or another generation may run. What was counted in that time has to be repeated after the start. Any thread
    may call the methods, and a signal handler `add`.

    Args:
        outer: another count that includes this one: that of the model of a session, for example.
    """

    def __init__(self, outer: StopCount | None = None) -> None:
        self._outer, self._count, self._lock = outer, 0, threading.RLock()

    def add(self) -> None:
        """`stop` was called."""
        with self._lock:
            self._count += 1

    def watch(self) -> Callable[[], bool]:
        """Call this when a generation is requested. The returned function tells whether `stop` was called since."""
        before = self._counts()
        return lambda: self._counts() != before

    def _counts(self) -> tuple[int, ...]:
        return (self._count, *(() if self._outer is None else self._outer._counts()))
