"""Passes with cold caches: on a phone the processor's caches hold a tenth of the weights, on a server maybe all."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from streamfuse.runtime.clock import cold_clock
from streamfuse.runtime.core import load_core
from streamfuse.runtime.cores import allowed, cores

PASS_S = 0.0005  # what takes longer was a pass, and has filled the caches with weights
_UNKNOWN_BYTES = 128 * 1024 * 1024
_CPUS = Path("/sys/devices/system/cpu")


class ColdCaches:
    """A clock in seconds that evicts the processor's caches after each pass and does not count the eviction.

    A reading more than PASS_S after the last one follows a pass: it calls `evict`, by default a read of twice as many
    bytes as the largest caches hold together. So each pass reads its weights from memory. Readings must come right
    before and right after a pass, as a session's do.
    """

    def __init__(self, evict: Callable[[], object] | None = None) -> None:
        self.evict, self.pass_s = evict or reader(2 * largest_caches_bytes()), PASS_S
        self._failure: list[BaseException] = []
        self._now, self._clock = load_core().sf_cold_clock_now, cold_clock(self, self._failure)

    def __call__(self) -> float:
        now = float(self._now(ctypes.byref(self._clock)))
        if self._failure:
            raise self._failure.pop()
        return now


def reader(size: int) -> Callable[[], object]:
    """A function that reads this many bytes of memory, in one equal part and thread per core that this process may use.

    Threads are not bound to cores. If the system runs each on its own core, no CPU limit leaves fewer threads than
    cores, and all caches have the same size and number of cores, twice as many bytes as each cache holds pass through
    it.
    """
    threads = cores()
    parts = np.array_split(np.ones(size // 4, np.float32), threads)
    pool = ThreadPoolExecutor(threads)
    return lambda: list(pool.map(np.maximum.reduce, parts))


def largest_caches_bytes(folder: Path = _CPUS) -> int:
    """Total bytes of each core's largest cache, with shared caches counted once; 128 MiB where the system does not
    report them (Linux does)."""
    caches: dict[str, int] = {}  # by the cores that share it
    for core in allowed():
        found = (folder / f"cpu{core}" / "cache").glob("index*")
        if largest := max(((_bytes(cache), _text(cache / "shared_cpu_list")) for cache in found), default=None):
            caches[largest[1]] = largest[0]
    return sum(caches.values()) or _UNKNOWN_BYTES


def _bytes(cache: Path) -> int:
    units = {"K": 1024, "M": 1024**2, "G": 1024**3}
    text = _text(cache / "size")
    return int(text[:-1]) * units[text[-1]] if text[-1:] in units else int(text or 0)


def _text(path: Path) -> str:
    return path.read_text(encoding="ascii").strip() if path.is_file() else ""
