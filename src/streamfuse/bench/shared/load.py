"""How busy a machine is with other work while a benchmark runs (Linux)."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

_STAT = Path("/proc/stat")
_BUSY = (0, 1, 2, 5, 6, 7)  # user, nice, system, irq, softirq, steal: columns of the line `cpu`


class OtherLoad:
    """The average number of cores used since construction by other programs and, where the host reports it (steal), by
    other virtual machines.

    The time of a child process counts as our own once it has ended and was waited for.

    Args:
        stat: the kernel's counters of processor time.
    """

    def __init__(self, stat: Path = _STAT) -> None:
        self._stat = stat
        self._began, self._busy, self._own = time.monotonic(), _busy_s(stat), _own_s()

    def cores(self) -> float | None:
        """The number; None without these counters."""
        now, wall = _busy_s(self._stat), time.monotonic() - self._began
        if now is None or self._busy is None or wall <= 0:
            return None
        return max(0.0, now - self._busy - (_own_s() - self._own)) / wall


def _busy_s(stat: Path) -> float | None:
    """Busy seconds of all cores since the machine started."""
    try:
        line = stat.read_text(encoding="ascii").partition("\n")[0].split()
        return sum(int(line[1 + column]) for column in _BUSY) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def _own_s() -> float:
    """Processor seconds of this process and its children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
