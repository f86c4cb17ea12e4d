"""From a row of logits to a token: greedy, or the inverse of the cumulative distribution at `uniform(seed, position)`.

The filters act in the order of Hugging Face transformers: repetition penalty, temperature, top-k, top-p, min-p. Ties go
to the smaller token id. All arithmetic is float64; docs/random.md defines it to the bit. core/sample.cpp is the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from streamfuse.runtime.backend import BoolArray, FloatArray, IntArray
from streamfuse.runtime.config import SamplingConfig
from streamfuse.runtime.reference.numbers import exponential
from streamfuse.runtime.reference.random import uniform

Float64Array = npt.NDArray[np.float64]

# A choice is a near tie when an engine's rounding could turn it: the best two logits closer than this, or the uniform
# number closer than this (in probability) to the edge between two tokens.
NEAR_TIE_LOGIT = 1e-3
NEAR_TIE_PROBABILITY = 1e-5

LANES = 256  # part of the definition in docs/random.md


class Sampler:
    """Picks tokens and counts near ties, the choices that a less exact engine might make otherwise."""

    def __init__(self, config: SamplingConfig) -> None:
        self.config = config
        self._near: dict[int, bool] = {}  # by position, of its last choice

    def near_ties_before(self, position: int) -> int:
        """How many of the tokens before `position` were near ties when they were last chosen."""
        return sum(near for place, near in self._near.items() if place < position)

    @property
    def needs_logits(self) -> bool:
        """Greedy without a penalty is the engine's own best token; everything else needs the distribution."""
        return not self.config.greedy or self.config.repetition_penalty != 1

    def pick(self, logits: FloatArray, history: Sequence[int], position: int, allowed: BoolArray | None = None) -> int:
        """The token at `position`, from logits float32 [V] and all tokens before it (prompt included).

        `allowed`, bool [V], are the tokens that a constraint allows; the others have no probability. Raises ValueError
        where the best logit is not a finite number.
        """
        scores = penalise(logits, history, self.config.repetition_penalty)
        if allowed is not None:
            scores = np.where(allowed, scores.astype(np.float64), -np.inf)
        if self.config.greedy:
            return self._best(scores, position)
        ids, weights = distribution(scores, self.config)
        place, distance = draw(weights, uniform(self.config.seed, position))
        self._near[position] = distance < NEAR_TIE_PROBABILITY
        return place if ids is None else int(ids[place])

    def _best(self, scores: FloatArray | Float64Array, position: int) -> int:
        best = int(np.argmax(scores))
        top = float(scores[best])
        _demand_finite(top)
        self._near[position] = int(np.count_nonzero(scores >= top - NEAR_TIE_LOGIT)) > 1
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


def distribution(penalised: FloatArray | Float64Array, config: SamplingConfig) -> tuple[IntArray | None, Float64Array]:
    """The tokens that may be sampled, ascending, and their weights (not normalised; the best score weighs 1).

    Scores [V] are logits after `penalise`. Ids are int64 [n], or None for the whole vocabulary; weights float64 [n].
    Temperature is not 0.
    """
    top = float(penalised.max())
    _demand_finite(top)
    scores: Float64Array = (penalised.astype(np.float64) - top) / config.temperature
    ids: IntArray | None = None
    if 0 < config.top_k < len(scores):
        ids = largest(scores, config.top_k)
        scores = scores[ids]
    weights = exponential(scores)
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
    return np.sort(np.argsort(-scores, kind="stable")[:count])


def nucleus(scores: Float64Array, weights: Float64Array, top_p: float) -> IntArray:
    """Indices, ascending, of the shortest best-first prefix that weighs at least top_p of all (scores, weights [n]).

    Best first is by score, then by smaller index. The total is summed by lanes, the prefix best first.
    """
    goal = top_p * float(lane_ends(weights)[-1])
    best = np.argsort(-scores, kind="stable")
    reached = int(np.searchsorted(np.cumsum(weights[best]), goal, side="left"))
    return np.sort(best[: reached + 1])


def _narrow(
    ids: IntArray | None, scores: Float64Array, weights: Float64Array, keep: IntArray
) -> tuple[IntArray, Float64Array, Float64Array]:
    return (keep if ids is None else ids[keep]), scores[keep], weights[keep]


def _demand_finite(top: float) -> None:
    if not math.isfinite(top):
        raise ValueError(f"the model's best logit is {top}: the graph or its weights are damaged")
