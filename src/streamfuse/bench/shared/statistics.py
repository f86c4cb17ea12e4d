"""What repeated measurements say, and how sure they are: medians with quartiles, rates with bootstrap intervals.

A rate over a data set has two sources of chance: which prompts were in it, and what else the machine did meanwhile.
So a resample draws prompts, and for each of them repetitions, both with replacement (Davison and Hinkley, Bootstrap
Methods and their Application, section 3.8). Systems that took turns are resampled together: what slowed both cancels
in their ratio.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

LEVEL = 0.95
RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and quartiles of one measure, in its own unit."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """ValueError where there are no values."""
        if not values:
            raise ValueError("a median needs at least one value")
        low, median, high = np.percentile(np.asarray(values, np.float64), [25, 50, 75])
        return cls(float(median), float(low), float(high), len(values))


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def interval(self) -> list[float]:
        return [self.low, self.high]


@dataclass(frozen=True, slots=True)
class Timings:
    """One system over a data set: `tokens` float64 [prompts], `ms` float64 [prompts, repetitions]."""

    tokens: FloatArray
    ms: FloatArray

    def __post_init__(self) -> None:
        if self.ms.ndim != 2 or self.tokens.shape != self.ms.shape[:1] or not self.ms.size:
            raise ValueError(f"timings are tokens [P] and ms [P, R], not {self.tokens.shape} and {self.ms.shape}")

    def of(self, places: npt.NDArray[np.intp]) -> Timings:
        """Those of some prompts."""
        return Timings(self.tokens[places], self.ms[places])

    @property
    def tokens_per_second(self) -> float:
        """All tokens over the sum of each prompt's median time."""
        return _rate(self.tokens.sum(), np.median(self.ms, axis=1).sum())


class Bootstrap:
    """The same resamples for every system of one run; deterministic in `seed`."""

    def __init__(self, prompts: int, repetitions: int, resamples: int = RESAMPLES, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self._prompts = random.integers(prompts, size=(resamples, prompts))
        self._repetitions = random.integers(repetitions, size=(resamples, prompts, repetitions))

    def rate(self, timings: Timings) -> Estimate:
        """Tokens per second."""
        return _estimate(timings.tokens_per_second, self._rates(timings))

    def ratio(self, timings: Timings, baseline: Timings) -> Estimate:
        """How many times as fast as `baseline`; NaN or infinite if that has no tokens."""
        with np.errstate(divide="ignore", invalid="ignore"):
            value = np.float64(timings.tokens_per_second) / baseline.tokens_per_second
            return _estimate(float(value), self._rates(timings) / self._rates(baseline))

    def _rates(self, timings: Timings) -> FloatArray:
        """Tokens per second of each resample [resamples]."""
        ms = np.median(timings.ms[self._prompts[:, :, None], self._repetitions], axis=2).sum(axis=1)
        rates: FloatArray = 1000 * timings.tokens[self._prompts].sum(axis=1) / ms
        return rates


def _estimate(value: float, resampled: FloatArray) -> Estimate:
    tail = 50 * (1 - LEVEL)
    low, high = np.percentile(resampled, [tail, 100 - tail])
    return Estimate(value, float(low), float(high))


def _rate(tokens: float, ms: float) -> float:
    return float(1000 * tokens / ms)
