"""Memory in use over time, for the soak of tools/equality.py (Linux with glibc).

A leak is memory that stays after everything has been released, so that is what a sample counts. Before each one the
engines drop their caches, Python collects its garbage and the heap returns its free pages. Otherwise the longest text
so far sets the size of a cache, and what the heap keeps depends on the order of sizes: both rise for hours without a
leak. Pages of mapped files (weights, drafting tables, libraries) are not counted: they become resident when they are
first read, and the system may drop them.

After the warm-up its cases are repeated and counted apart. New ones would need new sizes of buffers for hours, which a
leak cannot be told from.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

WARM_UP = 0.2  # of the time: engines are loaded, caches of compiled schemas and grammars fill
_APART = 200  # samples in all


def can_measure() -> bool:
    """Whether `memory_mb` works here."""
    return Path("/proc/self/status").is_file() and hasattr(ctypes.CDLL(None), "malloc_trim")


def memory_mb() -> float:
    """Resident memory of this process that no file backs, in MB of 2^20 bytes, after free memory was returned."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) / 1024


@dataclass
class Soak:
    """Samples of the memory for `seconds`; those after the warm-up must not rise by more than `most_growth` MB.

    Attributes:
        release: called before each sample, to drop what is kept only for speed.
        samples: seconds from the start, texts written so far, MB.
    """

    seconds: float
    most_growth: float
    release: Callable[[], None] = lambda: None
    samples: list[tuple[float, int, float]] = field(default_factory=list)
    _start: float | None = None
    _first_cases: int | None = None  # those of the warm-up

    def goes_on(self, now: float) -> bool:
        """`now` in seconds; the time begins at the first call."""
        self._start = now if self._start is None else self._start
        return now - self._start < self.seconds

    def case(self, done: int, now: float) -> int:
        """The number of the case that follows `done` others."""
        if self._first_cases is None and done and now - (self._start or 0.0) >= WARM_UP * self.seconds:
            self._first_cases = done
        return done if self._first_cases is None else done % self._first_cases

    def sample(self, now: float, generations: int, mb: float | None = None) -> str | None:
        """Take one if it is time for it; then a line about it."""
        at = now - (self._start or 0.0)
        if self.samples and at - self.samples[-1][0] < self.seconds / _APART:
            return None
        self.release()
        self.samples.append((at, generations, memory_mb() if mb is None else mb))
        return f"{at:.0f} s: {generations} generations, {self.samples[-1][2]:.1f} MB"

    @property
    def mb_per_hour(self) -> float:
        """Slope of the least-squares line after the warm-up."""
        at, _, mb = self._warm()
        return 3600 * _slope(at, mb)

    @property
    def kb_per_1000_generations(self) -> float:
        """The same slope by texts written, in kB of 1024 bytes."""
        _, generations, mb = self._warm()
        return 1024 * 1000 * _slope(generations, mb)

    @property
    def growth_mb(self) -> float:
        """By how much the line over time rises."""
        at, _, mb = self._warm()
        return _slope(at, mb) * float(at[-1] - at[0]) if len(at) > 1 else 0.0

    @property
    def grows(self) -> bool:
        """Also where there are too few samples to know."""
        return len(self._warm()[0]) < 2 or self.growth_mb > self.most_growth

    def _warm(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        table = np.array([one for one in self.samples if one[0] >= WARM_UP * self.seconds]).reshape(-1, 3)
        return table[:, 0], table[:, 1], table[:, 2]

    def to_dict(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "samples": self.samples, "mb_per_hour": self.mb_per_hour,
                "kb_per_1000_generations": self.kb_per_1000_generations, "growth_mb": self.growth_mb,
                "most_growth_mb": self.most_growth}  # fmt: skip

    def line(self) -> str:
        _, _, mb = self._warm()
        if len(mb) < 2:
            return "too few samples after the warm-up; raise --soak"
        return (
            f"memory after the first {WARM_UP:.0%}: {mb[0]:.1f} to {mb[-1]:.1f} MB in {len(mb)} samples, growth "
            f"{self.growth_mb:+.1f} MB, at most {self.most_growth:g}; {self.mb_per_hour:+.1f} MB per hour, "
            f"{self.kb_per_1000_generations:+.0f} kB per 1,000 generations"
        )


def _slope(x: np.ndarray, y: np.ndarray) -> float:
    """Of the least-squares line; 0 where there is none."""
    return float(np.polyfit(x, y, 1)[0]) if len(np.unique(x)) > 1 else 0.0
