"""Lossy acceptance by a test of each token: the longest path whose tokens all pass is accepted."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from streamfuse.research.acceptors.base import Float64Array, Verdict
from streamfuse.research.proposal import Proposal
from streamfuse.runtime.backend import PassOutput
from streamfuse.runtime.reference.accept import Target, Walk
from streamfuse.runtime.reference.tree import Tree


class LongestAcceptor(ABC):
    """Of the paths whose tokens all pass, the longest; ties by higher probability under p, then the first.

    The token after it is p's most probable one, which is the root of the next tree. No random numbers are used.
    """

    name: str

    @abstractmethod
    def passes(self, p: Float64Array, tokens: Sequence[int], depth: int) -> npt.NDArray[np.bool_]:
        """bool [tokens]: which tokens may follow, `depth` levels below the root, for the target's distribution p
        [V]."""

    @abstractmethod
    def distribution(self, index: int, history: Sequence[int], pick: Target) -> Float64Array:
        """float64 [V], sum 1: the p of a kept node."""

    def verdict(self, p: Float64Array, proposal: Proposal) -> Verdict:
        """Of one node's draws, the most probable one that passes is accepted with certainty."""
        passed = self.passes(p, proposal.draws, 1)
        accept = np.zeros(len(proposal.draws))
        if passed.any():
            accept[np.argmax(np.where(passed, p[list(proposal.draws)], -1.0))] = 1
        certain = np.zeros(len(p))
        certain[np.argmax(p)] = 1
        return Verdict(accept, certain)

    def accept(self, tree: Tree, output: PassOutput, history: Sequence[int], pick: Target) -> Walk:
        """See `Acceptor`. Only kept rows are on a path."""
        kept = output.kept.tolist()
        open_paths: list[tuple[list[int], list[int], float]] = [([0], [], 0.0)]  # rows, tokens after the root, log p
        best: tuple[int, float] = (-1, -math.inf)
        while open_paths:
            rows, tokens, log_prob = open_paths.pop(0)
            before = [*history, *tokens]
            p = self.distribution(kept.index(rows[-1]), before, pick)
            if (len(tokens), log_prob) > best:
                best, chosen, bonus = (len(tokens), log_prob), (rows, tokens), int(np.argmax(p))
            children = [row for row in np.flatnonzero(tree.parents == rows[-1]).tolist() if row in kept]
            drafted = tree.tokens[children].tolist()
            for row, token, passed in zip(children, drafted, self.passes(p, drafted, len(rows)), strict=True):
                if passed:
                    step = math.log(p[token]) if p[token] else -math.inf
                    open_paths.append(([*rows, row], [*tokens, token], log_prob + step))
        rows, tokens = chosen
        walk = Walk(rows, [*tokens, bonus], kept.index(rows[-1]))
        for row in rows:
            siblings = np.flatnonzero(tree.parents == row).tolist()
            walk.offers.append(len(siblings))
            walk.ranks += [siblings.index(child) for child in siblings if child in rows]
        return walk
