"""From a row of logits to a token: greedy, or the inverse of the cumulative distribution at `uniform(seed, position)`.

The filters act in the order of Hugging Face transformers: repetition penalty, temperature, top-k, top-p, min-p. Ties go
to the smaller token id. All arithmetic is float64; docs/random.md defines it to the bit, up to the exponential of libm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from streamfuse.runtime.backend import FloatArray, IntArray
from streamfuse.runtime.random import uniform

Float64Array = npt.NDArray[np.float64]

# A choice is a near tie when an engine's rounding could turn it: the best two logits closer than this, or the uniform
# number closer than this (in probability) to the edge between two tokens.
NEAR_TIE_LOGIT = 1e-3
NEAR_TIE_PROBABILITY = 1e-5

LANES = 256  # part of the definition in docs/random.md
_BLOCK = 64  # scores that are looked at together where only a few of very many are wanted
_FIRST_NUCLEUS = 64  # tokens sorted first for top-p; four times as many whenever they do not reach it


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """How the next token is chosen. Temperature 0 is greedy. ValueError names the flag and its range."""

    temperature: float = 0.0
    top_k: int = 0  # 0 = off
    top_p: float = 1.0  # 1 = off
    min_p: float = 0.0  # 0 = off
    repetition_penalty: float = 1.0  # 1 = off
    seed: int = 0

    def __post_init__(self) -> None:
        _demand(0 <= self.temperature < math.inf, "temperature", "a number of at least 0", self.temperature)
        _demand(self.top_k >= 0, "top-k", "an integer of at least 0 (0 = off)", self.top_k)
        _demand(0 < self.top_p <= 1, "top-p", "above 0 and at most 1 (1 = off)", self.top_p)
        _demand(0 <= self.min_p <= 1, "min-p", "from 0 (off) to 1", self.min_p)
        penalty = self.repetition_penalty
        _demand(0 < penalty < math.inf, "repetition-penalty", "a number above 0 (1 = off)", penalty)
        _demand(0 <= self.seed < 1 << 64, "seed", "from 0 to 2**64 - 1", self.seed)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


def _demand(holds: bool, flag: str, range_: str, value: object) -> None:
    if not holds:
        raise ValueError(f"--{flag} must be {range_}, not {value}")


# (scores [V] after a penalty, settings, number in [0, 1)) -> token and distance, as `draw`; None: `draw` decides
Draw: TypeAlias = Callable[[FloatArray | Float64Array, SamplingConfig, float], tuple[int, float] | None]


class Sampler:
    """Picks tokens and counts near ties, the choices that a less exact engine might make otherwise.

    `fast` is a faster way to the same tokens (runtime/native_sample.py); None: the arithmetic of this file.
    """

    def __init__(self, config: SamplingConfig, fast: Draw | None = None) -> None:
        self.config = config
        self.near_ties = 0
        self._fast = fast
        self._space: Float64Array = np.empty(0)

    @property
    def needs_logits(self) -> bool:
        """Greedy without a penalty is the engine's own best token; everything else needs the distribution."""
        return not self.config.greedy or self.config.repetition_penalty != 1

    def pick(self, logits: FloatArray, history: Sequence[int], position: int) -> int:
        """The token at `position`, from logits float32 [V] and all tokens before it (prompt included).

        Raises ValueError where the best logit is not a finite number.
        """
        scores = penalise(logits, history, self.config.repetition_penalty)
        if self.config.greedy:
            return self._best(scores)
        number = uniform(self.config.seed, position)
        found = self._fast(scores, self.config, number) if self._fast is not None else None
        token, distance = found if found is not None else self._draw(scores, number)
        self.near_ties += distance < NEAR_TIE_PROBABILITY
        return token

    def _draw(self, scores: FloatArray | Float64Array, number: float) -> tuple[int, float]:
        if len(self._space) != len(scores):  # fresh memory of this size costs more than the arithmetic in it
            self._space = np.empty(len(scores))
        ids, weights = distribution(scores, self.config, self._space)
        place, distance = draw(weights, number)
        return (place if ids is None else int(ids[place])), distance

    def _best(self, scores: FloatArray | Float64Array) -> int:
        best = int(np.argmax(scores))
        top = float(scores[best])
        _demand_finite(top)
        self.near_ties += int(np.count_nonzero(scores >= top - NEAR_TIE_LOGIT)) > 1
        return best


def draw(weights: Float64Array, number: float) -> tuple[int, float]:
    """The index that a number in [0, 1) falls on, and how near it lies to the next or the last token, of the total.

    Weights float64 [n] lie along the line by lanes (index modulo LANES), in a lane by index: 256 short sums that a
    processor adds side by side, where one long sum would wait for each addition.
    """
    lanes = lane_ends(weights)
    total = float(lanes[-1])
    target = number * total
    lane = int(np.searchsorted(lanes, target, side="right"))
    if lane == len(lanes):  # the product was rounded up to the total
        lane = int(np.flatnonzero(np.diff(lanes, prepend=0.0))[-1])
    start = float(lanes[lane - 1]) if lane else 0.0
    own = weights[lane::LANES]
    ends = np.cumsum(np.concatenate(([start], own)))
    place = int(np.searchsorted(ends[1:], target, side="right"))
    if place == len(own):
        place = int(np.flatnonzero(own)[-1])
    index = lane + LANES * place
    below = target - float(ends[place]) if index else math.inf
    above = float(ends[place + 1]) - target if lane < len(lanes) - 1 or place < len(own) - 1 else math.inf
    return index, min(below, above) / total


def lane_ends(weights: Float64Array) -> Float64Array:
    """float64 [min(n, LANES)]: running sum of the lanes' sums, each of them summed in index order."""
    rows = len(weights) // LANES
    if not rows:
        return np.cumsum(weights)
    sums = np.add.reduce(weights[: rows * LANES].reshape(rows, LANES), axis=0)  # row after row, by definition of axis 0
    sums[: len(weights) - rows * LANES] += weights[rows * LANES :]
    return np.cumsum(sums)


def distribution(
    penalised: FloatArray | Float64Array, config: SamplingConfig, space: Float64Array | None = None
) -> tuple[IntArray | None, Float64Array]:
    """The tokens that may be sampled, ascending, and their weights (not normalised; the best score weighs 1).

    Scores [V] are logits after `penalise`. Ids are int64 [n], or None for the whole vocabulary; weights float64 [n],
    which may lie in `space` (float64 [V]). Temperature is not 0.
    """
    top = float(penalised.max())
    _demand_finite(top)
    scores = np.empty(len(penalised)) if space is None else space
    scores[:] = penalised  # then in place: converting while subtracting takes half as long again
    scores -= top
    if config.temperature != 1:
        scores /= config.temperature
    ids: IntArray | None = None
    if 0 < config.top_k < len(scores):
        ids = largest(scores, config.top_k)
        scores = scores[ids]
    if config.top_p == 1 and config.min_p == 0:
        return ids, np.exp(scores, out=scores)
    weights = np.exp(scores)
    if config.top_p < 1:
        ids, scores, weights = _narrow(ids, scores, weights, nucleus(scores, weights, config.top_p))
    if config.min_p > 0:
        ids, scores, weights = _narrow(ids, scores, weights, np.flatnonzero(weights >= config.min_p))
    return ids, weights


def penalise(logits: FloatArray, history: Sequence[int], penalty: float) -> FloatArray | Float64Array:
    """Make the tokens of the history less likely: a positive logit is divided by the penalty, a negative multiplied.

    The rule of CTRL (Keskar et al., 2019) as Hugging Face applies it. Unchanged float32 when there is nothing to do.
    """
    if penalty == 1 or not len(history):
        return logits
    scores = logits.astype(np.float64)
    seen = np.asarray(history, np.int64)
    values = scores[seen]
    scores[seen] = np.where(values < 0, values * penalty, values / penalty)
    return scores


def largest(scores: Float64Array, count: int) -> IntArray:
    """Indices of the `count` largest of scores [n], ascending; of equal ones, the smaller indices."""
    blocks = len(scores) // _BLOCK
    if 2 * count <= blocks:  # as many blocks reach the count-th largest block's best, so no smaller score is needed
        best = scores[: blocks * _BLOCK].reshape(blocks, _BLOCK).max(axis=1)
        some = np.flatnonzero(scores >= np.partition(best, blocks - count)[blocks - count])
        chosen: IntArray = some[largest(scores[some], count)]
        return chosen
    threshold = np.partition(scores, len(scores) - count)[len(scores) - count]
    above = np.flatnonzero(scores > threshold)
    level = np.flatnonzero(scores == threshold)[: count - len(above)]
    return np.sort(np.concatenate((above, level)))


def nucleus(scores: Float64Array, weights: Float64Array, top_p: float) -> IntArray:
    """Indices, ascending, of the shortest best-first prefix that weighs at least top_p of all (scores, weights [n]).

    Best first is by score, then by smaller index. The total is summed by lanes, the prefix best first.
    """
    total = float(lane_ends(weights)[-1])
    goal, light = top_p * total, 0.5 * (1 - top_p) * total / len(weights)
    some = np.flatnonzero(weights > light)  # the others together weigh too little to be needed, but for rounding
    chosen = _reaching(scores[some], weights[some], goal)
    if chosen is not None:
        return some[chosen]
    chosen = _reaching(scores, weights, goal)
    return np.arange(len(scores)) if chosen is None else chosen


def _reaching(scores: Float64Array, weights: Float64Array, goal: float) -> IntArray | None:
    """Indices, ascending, of the shortest best-first prefix that weighs at least `goal`; None where all weigh less."""
    count = _FIRST_NUCLEUS
    while True:
        count = min(count, len(scores))
        best = largest(scores, count)
        best = best[np.argsort(-scores[best], kind="stable")]
        reached = int(np.searchsorted(np.cumsum(weights[best]), goal, side="left"))
        if reached < count:
            return np.sort(best[: reached + 1])
        if count == len(scores):
            return None
        count *= 4


def _narrow(
    ids: IntArray | None, scores: Float64Array, weights: Float64Array, keep: IntArray
) -> tuple[IntArray, Float64Array, Float64Array]:
    return (keep if ids is None else ids[keep]), scores[keep], weights[keep]


def _demand_finite(top: float) -> None:
    if not math.isfinite(top):
        raise ValueError(f"the model's best logit is {top}: the graph or its weights are damaged")
