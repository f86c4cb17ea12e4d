"""What a drafter drew at each node of its tree, and from which distribution: all that an acceptor must know of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import numpy.typing as npt

from streamfuse.research.random import Purpose, draw, uniform
from streamfuse.runtime.backend import IntArray
from streamfuse.runtime.reference.tree import Tree

Float64Array = npt.NDArray[np.float64]

_HALF = 1 << 16  # rows of a tree and draws of a row, each a half of one word of the generator's counter


class How(Enum):
    """How the draws of a node came about."""

    INDEPENDENT = "independent"  # each from q, whatever the others are (SpecTr, SpecInfer)
    WITHOUT_REPLACEMENT = "without replacement"  # each from q without the earlier ones, normalised (Sequoia)
    CHOSEN = "chosen"  # by a rule, not at random: the best few, look-up (EAGLE-2, Medusa)


@dataclass(frozen=True, slots=True)
class Proposal:
    """The draws of one node, and the distribution q that they were drawn from.

    `ids` are distinct tokens, int64 [n], or None for the whole vocabulary in order; `probs` float64 [n] sum to 1, and a
    token that is not listed has none. Draws that a rule chose need no probabilities.
    ValueError where these do not fit one another, or where a draw cannot have come from them.
    """

    draws: tuple[int, ...]
    how: How = How.CHOSEN
    ids: IntArray | None = None
    probs: Float64Array | None = None

    def __post_init__(self) -> None:
        if self.how is not How.INDEPENDENT and len(set(self.draws)) < len(self.draws):
            raise ValueError(f"draws that are {self.how.value} must differ, but are {self.draws}")
        if self.how is not How.CHOSEN and self.probs is None:
            raise ValueError(f"draws that are {self.how.value} need the probabilities that they were drawn with")
        if self.probs is None:
            return
        if self.probs.ndim != 1 or (self.ids is not None and self.ids.shape != self.probs.shape):
            raise ValueError("a proposal has one probability for each id")
        if (self.probs < 0).any() or abs(float(self.probs.sum()) - 1) > 1e-6:
            raise ValueError(f"draft probabilities must sum to 1, not {float(self.probs.sum())}")
        if self.how is not How.CHOSEN:
            likely = self.probs[self._places(len(self.draws))] > 0
            first = len(self.draws) if self.how is How.INDEPENDENT else np.count_nonzero(self.probs)
            if not likely[:first].all():
                raise ValueError(f"the draws {self.draws} have probability 0")

    def distribution(self, vocab_size: int) -> Float64Array:
        """q, float64 [V]. ValueError where a rule chose the draws and no probabilities are known."""
        if self.probs is None:
            raise ValueError("draws that a rule chose have no distribution")
        return self._dense(self.probs, vocab_size)

    def conditional(self, index: int, vocab_size: int) -> Float64Array:
        """float64 [V]: the distribution that draw `index` came from, given the earlier ones; certain where chosen."""
        if self.how is How.CHOSEN or self.probs is None:
            certain = np.zeros(vocab_size)
            certain[self.draws[index]] = 1.0
            return certain
        if self.how is How.INDEPENDENT:
            return self._dense(self.probs, vocab_size)
        return self._dense(without(self.probs, self._places(index)), vocab_size)

    def log_prob(self, token: int) -> float:
        """Natural log of q of one token; 0 where no probabilities are known, minus infinity where q is 0."""
        if self.probs is None:
            return 0.0
        found = self.probs[token : token + 1] if self.ids is None else self.probs[self.ids == token]
        return math.log(float(found[0])) if len(found) and found[0] else -math.inf

    def _places(self, count: int) -> list[int]:
        """Where the first draws stand among the candidates."""
        if self.ids is None:
            assert self.probs is not None
            places, known = list(self.draws[:count]), len(self.probs)
            if any(not 0 <= place < known for place in places):
                raise ValueError(f"a draw of {self.draws} is outside the {known} candidates")
            return places
        place_of = {token: place for place, token in enumerate(self.ids.tolist())}
        if foreign := [token for token in self.draws[:count] if token not in place_of]:
            raise ValueError(f"the draw {foreign[0]} is not among the candidates")
        return [place_of[token] for token in self.draws[:count]]

    def _dense(self, probs: Float64Array, vocab_size: int) -> Float64Array:
        dense = np.zeros(vocab_size)
        dense[slice(len(probs)) if self.ids is None else self.ids] = probs
        return dense


def without(probs: Float64Array, places: list[int]) -> Float64Array:
    """float64 [n]: what is left of q [n] when these places are taken, normalised (Sequoia, algorithm 2).

    Once all that had a probability is taken, the others are equally likely; all 0 where none is left.
    """
    left = probs.copy()
    left[places] = 0
    if not left.any():
        left[:] = 1
        left[places] = 0
    normalised: Float64Array = left / max(float(left.sum()), math.ulp(0.0))
    return normalised


def propose(
    probs: Float64Array, count: int, how: How, seed: int, position: int, *, ids: IntArray | None = None,
    depth: int = 0, row: int = 0,
) -> Proposal:  # fmt: skip
    """Draw `count` tokens for `position` from q, float64 [n] over `ids` or the whole vocabulary; CHOSEN: the best few.

    Depth and row are those of the node that they follow: they tell its numbers from those of other nodes and of later
    trees. Fewer draws are made without replacement, or chosen, where there are fewer candidates.
    ValueError for a seed, position, row or count out of range, or probabilities that do not sum to 1.
    """
    if not (0 <= row < _HALF and 0 <= count < _HALF):
        raise ValueError(f"row {row} and count {count} must be below {_HALF}")
    if how is How.CHOSEN:
        places = np.argsort(-probs, kind="stable")[:count].tolist()
    else:
        places = []
        limit = count if how is How.INDEPENDENT else min(count, len(probs))
        for index in range(limit):
            left = probs if how is How.INDEPENDENT else without(probs, places)
            number = uniform(seed, position, Purpose.DRAFT, row * _HALF + index, depth)
            places.append(draw(left, number))
    draws = places if ids is None else ids[places].tolist()
    return Proposal(tuple(draws), how, ids, probs)


@dataclass(frozen=True, slots=True)
class ProposedTree(Tree):
    """A tree with the draws of its rows. A row that is not named has children that a rule chose, in row order."""

    proposals: Mapping[int, Proposal] = field(default_factory=dict)

    def first(self, count: int) -> ProposedTree:
        """The tree of the first `count` rows. Their draws stay, also those whose rows are gone."""
        tree = super(ProposedTree, self).first(count)
        kept = {row: proposal for row, proposal in self.proposals.items() if row < count}
        return ProposedTree(tree.tokens, tree.parents, tree.depths, tree.log_probs, tree.visible, kept)


def proposal_at(tree: Tree, row: int) -> Proposal:
    """The draws of a row: what the drafter says, else its children as chosen by a rule."""
    if isinstance(tree, ProposedTree) and row in tree.proposals:
        return tree.proposals[row]
    return Proposal(tuple(tree.tokens[tree.parents == row].tolist()))


class Grower:
    """Grows a tree draw by draw. `position` is that of the root, the last token of the text."""

    def __init__(self, root: int, seed: int = 0, position: int = 0) -> None:
        self.seed = seed
        self.position = position
        self.tokens, self.parents, self.depths, self.log_probs = [root], [-1], [0], [0.0]
        self.proposals: dict[int, Proposal] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    def propose(self, row: int, probs: Float64Array, count: int, how: How, ids: IntArray | None = None) -> list[int]:
        """Draw `count` children of a row from q (see the function `propose`); their rows, without repeats."""
        depth = self.depths[row]
        position = self.position + depth + 1
        return self.add(row, propose(probs, count, how, self.seed, position, ids=ids, depth=depth, row=row))

    def add(self, row: int, proposal: Proposal) -> list[int]:
        """The rows of a proposal's different draws, below `row`. ValueError where the row has its draws already."""
        if row in self.proposals:
            raise ValueError(f"row {row} has its draws already")
        self.proposals[row] = proposal
        first = len(self)
        for token in dict.fromkeys(proposal.draws):
            self.tokens.append(token)
            self.parents.append(row)
            self.depths.append(self.depths[row] + 1)
            self.log_probs.append(self.log_probs[row] + proposal.log_prob(token))
        return list(range(first, len(self)))

    def done(self) -> ProposedTree:
        """The tree so far."""
        return ProposedTree(
            np.array(self.tokens, np.int64), np.array(self.parents, np.int64), np.array(self.depths, np.int64),
            np.array(self.log_probs), None, dict(self.proposals),
        )  # fmt: skip
