"""Clocks that a session can use instead of the system's."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from streamfuse.runtime.structures import CLOCK, RELEASE, ColdClock, SequenceOptions

Clock = Callable[[], float]  # monotonic seconds


@runtime_checkable
class EvictingClock(Protocol):
    """A clock that calls `evict` when more than `pass_s` seconds have passed since the last reading, and does not count
    the eviction. The core reads it without Python, whose code would be evicted as well and delay every reading. Each
    session has a state of its own, so the clock itself does not know of a session's evictions and counts their time."""

    evict: Callable[[], object]
    pass_s: float

    def __call__(self) -> float: ...


def cold_clock(clock: EvictingClock, failure: list[BaseException]) -> ColdClock:
    """The state of `clock` for sf_cold_clock_now. Exceptions of `evict` go to `failure`."""

    def evict(_: object) -> None:
        try:
            clock.evict()
        except BaseException as error:
            failure.append(error)

    return ColdClock(evict=RELEASE(evict), pass_s=clock.pass_s)


def set_clock(options: SequenceOptions, clock: Clock, library: ctypes.CDLL, failure: list[BaseException]) -> Any:
    """Sets the clock of `options` and returns what must live as long as the session. Exceptions go to `failure`."""
    if isinstance(clock, EvictingClock):
        cold = cold_clock(clock, failure)
        options.clock = ctypes.cast(library.sf_cold_clock_now, CLOCK)
        options.clock_context = ctypes.addressof(cold)
        return cold

    last = [0.0]

    def now(_: object) -> float:
        """The clock's time; the last one again if it raises."""
        try:
            last[0] = clock()
        except BaseException as error:
            failure.append(error)
        return last[0]

    options.clock = CLOCK(now)
    return options.clock
