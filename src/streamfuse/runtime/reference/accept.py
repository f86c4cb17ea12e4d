"""Accept: walk the verified tree for as long as the model's own choice was drafted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from streamfuse.runtime.backend import PassOutput
from streamfuse.runtime.reference.tree import Tree

# (which survivor of the pass, all tokens up to its own, position of the token to choose) -> token
Pick = Callable[[int, Sequence[int], int], int]


@dataclass(slots=True)
class Walk:
    """An accepted path: `tokens[i]` was chosen after `rows[i]`, and all but the last of them are on the path."""

    rows: list[int]  # tree rows, rows[0] = 0 is the root
    tokens: list[int]  # as many as rows; tokens[i] is the token of rows[i + 1], the last one is the bonus token
    last: int  # where rows[-1] stands among the surviving nodes of the pass
    ranks: list[int] = field(default_factory=list)  # of rows[i + 1] among the children of rows[i], 0 the most probable
    offers: list[int] = field(default_factory=list)  # children that rows[i] had in the tree, as many as rows


class Acceptor(Protocol):
    """Decides how much of a verified tree becomes text."""

    def accept(self, tree: Tree, output: PassOutput, history: Sequence[int], pick: Pick) -> Walk:
        """History holds every token up to and with the root of the tree."""
        ...


class MatchAcceptor:
    """Sample and match: draw the next token as plain decoding would; walk where a child carries it, else emit and stop.

    Lossless by construction, greedy or sampled: each token comes from the model's distribution at its node and from the
    uniform number of its position, neither of which depends on the tree. A pruned child simply is not there.
    """

    def accept(self, tree: Tree, output: PassOutput, history: Sequence[int], pick: Pick) -> Walk:
        if not len(output.kept):
            raise ValueError("a pass without survivors has nothing to accept")
        if len(tree) == 1:  # nothing was drafted
            return Walk([0], [pick(0, history, len(history))], 0, [], [0])
        kept = output.kept.tolist()
        drafted, parents, count = tree.tokens.tolist(), tree.parents.tolist(), len(tree)
        before = list(history)
        walk = Walk([0], [], 0)
        row, index = 0, kept.index(0)
        while True:
            token = pick(index, before, len(before))
            walk.tokens.append(token)
            child, rank, offers = 0, 0, 0
            for other in range(row + 1, count):
                if parents[other] == row:
                    if drafted[other] == token:
                        child, rank = other, offers
                    offers += 1
            walk.offers.append(offers)
            if not child or child not in kept:
                walk.last = index
                return walk
            row, index = child, kept.index(child)
            walk.rows.append(row)
            walk.ranks.append(rank)
            before.append(token)
