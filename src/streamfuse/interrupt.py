"""Ctrl-C while an answer is written: the first one ends the answer at its next token, the second one the program."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted:
    """Whether Ctrl-C was pressed inside the block."""

    def __init__(self) -> None:
        self.happened = False

    def __bool__(self) -> bool:
        return self.happened


@contextmanager
def stop_on_interrupt(stop: Callable[[], None]) -> Iterator[Interrupted]:
    """Call `stop` at the first Ctrl-C. Does nothing outside the main thread, where Python cannot set signal
    handlers, or if SIGINT is ignored."""
    interrupted = Interrupted()
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield interrupted
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if interrupted.happened:
            raise KeyboardInterrupt
        interrupted.happened = True
        stop()

    before = signal.signal(signal.SIGINT, handle)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)
