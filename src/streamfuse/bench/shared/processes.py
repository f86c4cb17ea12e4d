"""How a child process ends: with its parent, and in words."""

from __future__ import annotations

import ctypes
import signal
import sys
from collections.abc import Callable

_END_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux: a signal for the child when its parent is gone


def ending(code: int) -> str:
    """An exit code as `subprocess` gives it, in words that follow the name of the process."""
    if code >= 0:
        return f"ended with code {code}"
    name = signal.Signals(-code).name if -code in signal.valid_signals() else f"signal {-code}"
    return f"was ended by {name}" + (", as the system does where memory runs out" if name == "SIGKILL" else "")


def end_with_parent() -> Callable[[], None] | None:
    """For `preexec_fn`. On Linux a parent that is killed takes the child with it; elsewhere only its code ends it."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl  # found before the fork, after which nothing may be loaded
    return lambda: prctl(_END_WITH_PARENT, signal.SIGKILL)
