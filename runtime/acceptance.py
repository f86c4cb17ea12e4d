"""What the streams promise against what the model then says, followed while running.

A drafted path has a probability; how often such paths come true depends on text and temperature. Per depth, the ratio
of hits to promised hits corrects the promise; per method, the ratio of accepted to expected tokens corrects the rest,
above all what the pruner loses.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import accumulate
from operator import mul

from streamfuse.runtime.tree import Tree

_FORGET = 0.97  # of what was seen, per new sight: about the last thirty count
_PRIOR_WEIGHT = 3.0  # promised hits that the prior counts for
RANKS = 4  # children that are told apart, best first
_COMMON_WEIGHT = 8.0  # expected tokens that all methods together count for, in the ratio of one


class Calibration:
    """Hits per promised hit at each depth, with priors from the bundle's calibration (1: the promise is kept)."""

    def __init__(self, priors: Sequence[float], depths: int, forget: float = _FORGET) -> None:
        """`forget`: what is left of earlier sights at each new one."""
        self._forget = forget
        self._priors = [*priors, *[1.0] * depths][:depths]
        self._hits = [0.0] * depths
        self._promised = [0.0] * depths
        self._ratios: list[float] | None = None  # of what is known by now

    def ratios(self) -> list[float]:
        """[d]: what to multiply the probability of a path of depth d with; 1 for the root."""
        if self._ratios is None:
            self._ratios = list(accumulate(self.per_depth(), mul, initial=1.0))
        return self._ratios

    def per_depth(self) -> list[float]:
        """[d]: hits per promised hit among the children of nodes of depth d."""
        return [
            (hits + _PRIOR_WEIGHT * prior) / (promised + _PRIOR_WEIGHT)
            for prior, hits, promised in zip(self._priors, self._hits, self._promised, strict=True)
        ]

    @property
    def sights(self) -> bool:
        """Whether anything was promised so far."""
        return any(self._promised)

    def learn(self, tree: Tree, chosen: Sequence[int]) -> None:
        """The model chose these tokens after the root, one after the other; the tree need not have been verified."""
        tokens, parents, log_probs = tree.tokens.tolist(), tree.parents.tolist(), tree.log_probs.tolist()
        row, self._ratios = 0, None
        for depth, token in enumerate(chosen[: len(self._hits)]):
            promised, child = 0.0, 0
            for other in range(row + 1, len(tokens)):
                if parents[other] == row:
                    promised += math.exp(log_probs[other] - log_probs[row])
                    if tokens[other] == token:
                        child = other
            if not promised:
                return
            self._hits[depth] = self._forget * self._hits[depth] + (child > 0)
            self._promised[depth] = self._forget * self._promised[depth] + min(promised, 1.0)
            if not child:
                return
            row = child

    def doubt(self) -> None:
        """Half of what was seen is forgotten: the text may have changed since."""
        self._ratios = None
        self._hits = [value / 2 for value in self._hits]
        self._promised = [value / 2 for value in self._promised]


class RankShares:
    """Per depth and rank: of the accepted paths that could go on, the share that did with this child, best first."""

    def __init__(self, depths: int) -> None:
        self._sights = [0] * depths
        self._hits = [[0] * RANKS for _ in range(depths)]

    def learn(self, tree: Tree, chosen: Sequence[int]) -> None:
        """As `Calibration.learn`. Rows are best first, so the first child of a row is that of rank 0."""
        tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
        row = 0
        for depth, token in enumerate(chosen[: len(self._hits)]):
            children = [other for other in range(row + 1, len(tokens)) if parents[other] == row]
            if not children:
                return
            self._sights[depth] += 1
            rank = next((rank for rank, child in enumerate(children) if tokens[child] == token), None)
            if rank is None:
                return
            if rank < RANKS:
                self._hits[depth][rank] += 1
            row = children[rank]

    def shares(self) -> list[list[float]]:
        """[depths][RANKS]; zeros where nothing was seen."""
        return [[hit / max(1, seen) for hit in hits] for hits, seen in zip(self._hits, self._sights, strict=True)]


def best_paths(shares: Sequence[Sequence[float]], count: int) -> list[float]:
    """Probabilities of the `count` likeliest paths of a tree whose acceptance per depth and rank is `shares`."""
    paths, found = [1.0], []
    for level in shares:
        paths = sorted((path * share for path in paths for share in level), reverse=True)[:count]
        found += paths
    return sorted(found, reverse=True)[:count]


class Yields:
    """Accepted tokens per expected one: of all methods together, and of each, which leans on that of all."""

    def __init__(self, methods: Sequence[str]) -> None:
        self._all = [0.0, 0.0]  # accepted, expected
        self._of = {method: [0.0, 0.0] for method in methods}

    def ratio(self, method: str) -> float:
        common = (self._all[0] + _PRIOR_WEIGHT) / (self._all[1] + _PRIOR_WEIGHT)
        accepted, expected = self._of[method]
        return (accepted + _COMMON_WEIGHT * common) / (expected + _COMMON_WEIGHT)

    def learn(self, method: str, accepted: int, expected: float) -> None:
        """What was seen of the other methods fades, so that one bad pass does not put a method aside for good."""
        self._scale(_FORGET)
        for sums in (self._all, self._of[method]):
            sums[0] += accepted
            sums[1] += expected

    def doubt(self) -> None:
        """Half of what was seen is forgotten: the text may have changed since."""
        self._scale(0.5)

    def _scale(self, factor: float) -> None:
        for sums in (self._all, *self._of.values()):
            sums[0] *= factor
            sums[1] *= factor


def expected_hits(tree: Tree, ratios: Sequence[float], exact: Collection[int] = ()) -> list[float]:
    """[i]: probability that row i + 1 is accepted, at most 1; rows in `exact` are not corrected by depth."""
    # Plain floats: a tree is small, and cold array code is slow.
    probs, depths = list(map(math.exp, tree.log_probs.tolist())), tree.depths.tolist()
    deepest = len(ratios) - 1
    found = [min(1.0, p * ratios[d if d < deepest else deepest]) for p, d in zip(probs, depths, strict=True)]
    for row in exact:
        found[row] = probs[row]
    return found[1:]
