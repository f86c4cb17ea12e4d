"""From a row of logits to a token: the one with the largest logit, or with the largest sum of logit / temperature and
Gumbel noise, which is a sample from softmax(logits / temperature).

The filters act in the order of Hugging Face transformers: repetition penalty, temperature, top-k, top-p, min-p. Ties go
to the smaller token id. All arithmetic is float64; tests/traces/README.md defines it to the bit. core/sample.cpp is the
same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from streamfuse.runtime.backend import BoolArray, FloatArray, IntArray
from streamfuse.runtime.config import SamplingConfig
from streamfuse.runtime.reference.noise import gumbel
from streamfuse.runtime.reference.numbers import Float64Array, exponential

# A choice is a near tie when an engine's rounding could turn it: the second best token would need a logit larger by at
# most this.
NEAR_TIE = 1e-3

LANES = 256  # part of the definition in tests/traces/README.md


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
        ids, kept, _ = distribution(scores, self.config)
        with_noise = kept + gumbel(self.config.seed, position, ids, len(scores))
        best = int(np.argmax(with_noise))
        margin = NEAR_TIE / self.config.temperature
        self._near[position] = int(np.count_nonzero(with_noise >= with_noise[best] - margin)) > 1
        return int(ids[best])

    def _best(self, scores: FloatArray | Float64Array, position: int) -> int:
        best = int(np.argmax(scores))
        top = float(scores[best])
        _demand_finite(top)
        self._near[position] = int(np.count_nonzero(scores >= top - NEAR_TIE)) > 1
        return best


def lane_ends(weights: Float64Array) -> Float64Array:
    """float64 [min(n, LANES)]: running sum of the lanes' sums, each of them summed in index order."""
    rows = len(weights) // LANES
    if not rows:
        return np.cumsum(weights)
    sums = np.add.reduce(weights[: rows * LANES].reshape(rows, LANES), axis=0)  # row after row, by definition of axis 0
    sums[: len(weights) - rows * LANES] += weights[rows * LANES :]
    return np.cumsum(sums)


def distribution(
    penalised: FloatArray | Float64Array, config: SamplingConfig
) -> tuple[IntArray, Float64Array, Float64Array]:
    """The tokens that may be sampled, int64 [n] ascending, with their scores and weights, float64 [n].

    Takes [V] logits after `penalise`. Scores are below those of the best token, by the temperature, which is not 0;
    weights are their exponentials, so the best weighs 1.
    """
    top = float(penalised.max())
    _demand_finite(top)
    scores: Float64Array = (penalised.astype(np.float64) - top) / config.temperature
    ids: IntArray = np.arange(len(scores))
    if 0 < config.top_k < len(scores):
        ids = largest(scores, config.top_k)
        scores = scores[ids]
    weights = exponential(scores)
    if config.top_p < 1:
        keep = nucleus(scores, weights, config.top_p)
        ids, scores, weights = ids[keep], scores[keep], weights[keep]
    if config.min_p > 0:
        keep = np.flatnonzero(weights >= config.min_p)
        ids, scores, weights = ids[keep], scores[keep], weights[keep]
    return ids, scores, weights


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


def _demand_finite(top: float) -> None:
    if not math.isfinite(top):
        raise ValueError(f"the model's best logit is {top}: the graph or its weights are damaged")
