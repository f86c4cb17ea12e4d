"""Drafts that cost no pass: what followed these tokens in the text before, and what the model usually says after them.

The first is n-gram look-up (runtime/ngram.py), the second the table that was counted in the model's own text
(runtime/ngram_table.py). Both are there before any stream, and a look-up joins the streams' tree too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from streamfuse.runtime.acceptance import Calibration
from streamfuse.runtime.draft import NgramGrower
from streamfuse.runtime.ngram import MAX_CHAIN, Chain, ChainOdds, NgramIndex, merge
from streamfuse.runtime.ngram_table import MAX_DEPTH
from streamfuse.runtime.tree import Tree

_LONGEST_REST = 16  # steps


@dataclass(slots=True)
class Draft:
    """A tree and who proposed it.

    Attributes:
        tree: of all together.
        place: tokens of the context that it continues.
        depth: levels that it was allowed.
        streams: what the streams proposed; None where there are none.
        table: what the n-gram table proposed; None where it was not asked.
        chain: what was looked up; None where nothing matched.
        exact: rows whose probability needs no correction by depth: the chain's.
        alone: rows that the streams did not propose.
        best: the pass that the plan would take with it, where it has looked.
    """

    tree: Tree
    place: int
    depth: int
    streams: Tree | None = None
    table: Tree | None = None
    chain: Chain | None = None
    exact: Collection[int] = ()
    alone: Collection[int] = ()
    best: tuple[str, int, float, float] | None = None


class FreeDrafts:
    """Makes drafts without streams, joins look-ups to those with, and learns how often both come true."""

    def __init__(self, table: NgramGrower | None, widest: int) -> None:
        self._table, self._widest = table, widest
        self._calibration = Calibration((), MAX_DEPTH)
        self._index, self._odds = NgramIndex(), ChainOdds()
        self._rest, self._left = 1, 0  # length of the table's next rest, and what is left of this one

    def begin(self, tokens: Sequence[int]) -> None:
        """A new generation after these tokens."""
        self._index.begin(tokens)

    def idle(self, tokens: Sequence[int]) -> bool:
        """Whether `draft` would find nothing: the table rests, and the text ends as it never did before.

        Then this was the draft; it is what a pass costs where nothing is drafted.
        """
        self._index.follow(tokens)
        if not self._left or self._index.repeats:
            return False
        self._left -= 1
        return True

    def draft(self, tokens: Sequence[int], depth: int, streams: Tree | None) -> Draft:
        """The best tree of `streams`, else of the table where it does not rest, with what is looked up."""
        self._index.follow(tokens)
        draft = Draft(Tree.root(tokens[-1]), len(tokens), depth, streams)
        if streams is not None:
            draft.tree = streams
        elif self._left:
            self._left -= 1
        elif self._table is not None:
            draft.tree = draft.table = self._table.grow(tokens, self._widest, depth)
        draft.chain = self._index.chain(min(depth, MAX_CHAIN))
        if draft.chain is not None:
            log_probs = self._odds.log_probs(draft.chain)
            draft.tree, draft.exact, draft.alone = merge(draft.tree, draft.chain, log_probs, self._widest)
        if streams is None:
            draft.alone = range(1, len(draft.tree))
        return draft

    def ratios(self) -> list[float]:
        """[d]: what to multiply the probability of a path of the table of depth d with."""
        return self._calibration.ratios()

    def learn(self, draft: Draft, chosen: Sequence[int]) -> None:
        """The model chose these tokens after the root, whether the draft was verified or not."""
        if draft.table is not None:
            self._calibration.learn(draft.table, chosen)
        if draft.chain is not None:
            self._odds.learn(draft.chain, chosen)

    def used(self, draft: Draft, verified: bool) -> None:
        """Where the table's drafts are not worth a pass it rests, longer each time, so that it costs no time either."""
        if verified:
            self._rest = 1
        elif draft.table is not None:
            self._left, self._rest = self._rest, min(2 * self._rest, _LONGEST_REST)
