"""Resident memory over time, for the soak of tools/equality.py (Linux)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streamfuse.bench.shared.machine import resident_bytes

WARM_UP = 0.2  # of the time: engines are loaded, caches fill
_APART = 200  # samples in all


def resident_mb() -> float:
    """Of this process, now."""
    found = resident_bytes()
    assert found is not None, "only Linux reports it"
    return found / (1 << 20)


@dataclass
class Soak:
    """Samples of the memory for `seconds`; those after the warm-up must not rise by more than `most_growth` MB."""

    seconds: float
    most_growth: float
    samples: list[tuple[float, float]] = field(default_factory=list)  # seconds from the start, MB
    _start: float | None = None

    def goes_on(self, now: float) -> bool:
        """`now` in seconds; the time begins at the first call."""
        self._start = now if self._start is None else self._start
        return now - self._start < self.seconds

    def sample(self, now: float, cases: int, mb: float | None = None) -> str | None:
        """Take one if it is time for it; then a line about it."""
        at = now - (self._start or 0.0)
        if self.samples and at - self.samples[-1][0] < self.seconds / _APART:
            return None
        self.samples.append((at, resident_mb() if mb is None else mb))
        return f"{at:.0f} s: {cases} cases, {self.samples[-1][1]:.1f} MB"

    @property
    def mb_per_hour(self) -> float:
        """Slope of the least-squares line after the warm-up."""
        at, mb = self._warm()
        return 3600 * float(np.polyfit(at, mb, 1)[0]) if len(at) > 1 else 0.0

    @property
    def growth_mb(self) -> float:
        """By how much that line rises."""
        at, _ = self._warm()
        return self.mb_per_hour * float(at[-1] - at[0]) / 3600 if len(at) > 1 else 0.0

    @property
    def grows(self) -> bool:
        """Also where there are too few samples to know."""
        return len(self._warm()[0]) < 2 or self.growth_mb > self.most_growth

    def _warm(self) -> tuple[np.ndarray, np.ndarray]:
        table = np.array([one for one in self.samples if one[0] >= WARM_UP * self.seconds]).reshape(-1, 2)
        return table[:, 0], table[:, 1]

    def to_dict(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "samples": self.samples, "mb_per_hour": self.mb_per_hour,
                "growth_mb": self.growth_mb, "most_growth_mb": self.most_growth}  # fmt: skip

    def line(self) -> str:
        _, mb = self._warm()
        if len(mb) < 2:
            return "too few samples after the warm-up; raise --soak"
        return (
            f"memory after the first {WARM_UP:.0%}: {mb[0]:.1f} to {mb[-1]:.1f} MB in {len(mb)} samples, slope "
            f"{self.mb_per_hour:+.1f} MB per hour, growth {self.growth_mb:+.1f} MB, at most {self.most_growth:g}"
        )
