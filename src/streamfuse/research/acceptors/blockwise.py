"""The criteria of blockwise parallel decoding (Stern et al. 1811.03115, sections 3 and 5). Greedy only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from streamfuse.research.acceptors.base import Float64Array
from streamfuse.research.acceptors.longest import LongestAcceptor
from streamfuse.runtime.backend import PassOutput
from streamfuse.runtime.reference.accept import MatchAcceptor, Target, Walk
from streamfuse.runtime.reference.tree import Tree


class Criterion(Protocol):
    """Which tokens the verifier accepts."""

    def __call__(self, p: Float64Array, tokens: Sequence[int]) -> npt.NDArray[np.bool_]:
        """bool [tokens], for the verifier's distribution p, float64 [V]."""
        ...


@dataclass(frozen=True, slots=True)
class Exact:
    """The verifier's best token only (section 3): lossless."""

    def __call__(self, p: Float64Array, tokens: Sequence[int]) -> npt.NDArray[np.bool_]:
        passed: npt.NDArray[np.bool_] = np.asarray(tokens, np.int64) == np.argmax(p)
        return passed


@dataclass(frozen=True, slots=True)
class TopK:
    """One of the verifier's k best (section 5.1); ties by smaller id. ValueError unless k is 1 or more."""

    k: int

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k must be at least 1, not {self.k}")

    def __call__(self, p: Float64Array, tokens: Sequence[int]) -> npt.NDArray[np.bool_]:
        return np.isin(tokens, np.argsort(-p, kind="stable")[: self.k])


def id_difference(drafted: int, best: int) -> float:
    """|a - b| of token ids, which is only meaningful if ids are ordered values, like the paper's pixels."""
    return abs(drafted - best)


@dataclass(frozen=True, slots=True)
class Within:
    """At most epsilon from the verifier's best token (section 5.2), by a given distance.

    The default is the difference of ids, for ordinal outputs such as intensities. For text, pass a suitable distance,
    for example between embeddings. ValueError for a negative epsilon.
    """

    epsilon: float
    distance: Callable[[int, int], float] = id_difference

    def __post_init__(self) -> None:
        if self.epsilon < 0:
            raise ValueError(f"epsilon must not be negative, but is {self.epsilon}")

    def __call__(self, p: Float64Array, tokens: Sequence[int]) -> npt.NDArray[np.bool_]:
        best = int(np.argmax(p))
        return np.array([self.distance(int(token), best) <= self.epsilon for token in tokens], np.bool_)


class BlockwiseAcceptor(LongestAcceptor):
    """The longest path whose tokens meet the criterion, and the verifier's best token after it. Greedy only.

    `min_block` (section 5.3) is the minimum number of tokens in a block, including the one after the path: drafts of
    smaller depth are accepted in any case. The paper's block is a chain; in a tree the longest path is taken, then the
    most probable. Lossless with the exact criterion and `min_block` 1, lossy otherwise.
    ValueError if the temperature is not 0, or for a `min_block` below 1.
    """

    def __init__(self, criterion: Criterion | None = None, min_block: int = 1) -> None:
        if min_block < 1:
            raise ValueError(f"min_block must be at least 1, not {min_block}")
        self.criterion: Criterion = criterion or Exact()
        self.min_block = min_block
        self.lossless = isinstance(self.criterion, Exact) and min_block == 1
        self.needs_logits = not self.lossless
        least = f", at least {min_block}" if min_block > 1 else ""
        self.name = f"blockwise, {criterion or 'exact'}{least}"

    def passes(self, p: Float64Array, tokens: Sequence[int], depth: int) -> npt.NDArray[np.bool_]:
        return np.ones(len(tokens), np.bool_) if depth < self.min_block else self.criterion(p, tokens)

    def distribution(self, index: int, history: Sequence[int], pick: Target) -> Float64Array:
        scores = pick.scores(index, history)
        weights = np.exp(scores - scores.max())
        softmax: Float64Array = weights / weights.sum()
        return softmax

    def plain(self, p: Float64Array) -> Float64Array:
        certain = np.zeros(len(p))
        certain[np.argmax(p)] = 1
        return certain

    def accept(self, tree: Tree, output: PassOutput, history: Sequence[int], pick: Target) -> Walk:
        if not pick.greedy:
            raise ValueError("blockwise decoding is greedy: the temperature must be 0")
        if self.lossless:
            return MatchAcceptor().accept(tree, output, history, pick)
        return super().accept(tree, output, history, pick)
