"""Shared code of acceptors: a verdict on the draws of one node, and the walk down the tree by such verdicts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from streamfuse.research.proposal import Proposal, proposal_at
from streamfuse.research.random import Purpose, draw, uniform
from streamfuse.runtime.backend import PassOutput
from streamfuse.runtime.reference.accept import Acceptor, MatchAcceptor, Target, Walk
from streamfuse.runtime.reference.tree import Tree

Float64Array = npt.NDArray[np.float64]


class NamedAcceptor(Acceptor, Protocol):
    """An acceptor with a name for tables. Lossless: its texts have the distribution of plain decoding."""

    @property
    def name(self) -> str: ...

    @property
    def lossless(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """An acceptor's decision at one node, as probabilities for given draws.

    The draws are tried in order: draw i is accepted with probability accept[i] if none before it was. If none is
    accepted, the token is drawn from `otherwise`. Walks sample this, and `exact.outcome` integrates it.
    """

    accept: Float64Array  # [draws]
    otherwise: Float64Array  # [V], sum 1

    @property
    def rejected(self) -> float:
        """The probability that no draw is accepted."""
        return float(np.prod(1 - self.accept))

    def outcome(self, draws: Sequence[int]) -> Float64Array:
        """float64 [V]: the distribution of the node's next token, given the draws."""
        before = np.cumprod(np.concatenate(([1.0], 1 - self.accept)))[:-1]
        result = self.otherwise * self.rejected
        np.add.at(result, list(draws), before * self.accept)
        return result


class Rule(Protocol):
    """An acceptor that decides node by node."""

    def verdict(self, p: Float64Array, proposal: Proposal) -> Verdict:
        """For the target's distribution p, float64 [V], sum 1, and the draws at a node."""
        ...

    def plain(self, p: Float64Array) -> Float64Array:
        """float64 [V]: the distribution of plain decoding for the node's next token."""
        ...


class DrawAcceptor(ABC):
    """Walks down the tree for as long as a draw is accepted; the first rejection ends the block.

    Random numbers are those of `random.py`, by seed, position and draw, so runs are reproducible. A node without draws
    gets plain decoding's token. An accepted draw without a kept row is emitted and ends the block, so neither a pruner
    nor a narrow tree changes the distribution. With greedy decoding, the walk is the same as match's.
    """

    name: str
    lossless = True
    needs_logits = False

    @abstractmethod
    def verdict(self, p: Float64Array, proposal: Proposal) -> Verdict:
        """See `Rule`. ValueError for draws that were made differently than the method assumes."""

    def plain(self, p: Float64Array) -> Float64Array:
        return p

    def accept(self, tree: Tree, output: PassOutput, history: Sequence[int], pick: Target) -> Walk:
        """See `Acceptor`. ValueError for a tree that the method does not support."""
        if pick.greedy:
            return MatchAcceptor().accept(tree, output, history, pick)
        kept = output.kept.tolist()
        before = list(history)
        walk = Walk([0], [], 0)
        row, index = 0, kept.index(0)
        while True:
            proposal = proposal_at(tree, row)
            children = np.flatnonzero(tree.parents == row).tolist()
            walk.offers.append(len(children))
            token = self._next(proposal, index, before, pick)
            walk.tokens.append(token)
            child = tree.child(row, token)  # the residual excludes rejected draws, so this one was accepted
            if child is None or child not in kept:
                walk.last = index
                return walk
            row, index = child, kept.index(child)
            walk.rows.append(row)
            walk.ranks.append(children.index(child))
            before.append(token)

    def _next(self, proposal: Proposal, index: int, before: Sequence[int], pick: Target) -> int:
        """The token after a kept node."""
        position = len(before)
        if not proposal.draws:
            return pick(index, before, position)
        verdict = self.verdict(pick.distribution(index, before), proposal)
        for place, (token, probability) in enumerate(zip(proposal.draws, verdict.accept.tolist(), strict=True)):
            if uniform(pick.seed, position, Purpose.ACCEPT, place) < probability:
                return token
        return draw(verdict.otherwise, uniform(pick.seed, position, Purpose.RESIDUAL))


class Match(MatchAcceptor):
    """Sample and match, the runtime's own (`runtime/reference/accept.py`). Lossless, token for token."""

    name = "match"
    lossless = True
