"""Accept: walk the verified tree for as long as the model's own choice was drafted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from streamfuse.runtime.backend import PassOutput
from streamfuse.runtime.reference.guide import FREE, Guide, Path
from streamfuse.runtime.reference.sampling import Sampler, distribution, penalise
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

    def until(self, room: int, stop_ids: Collection[int], kept: Sequence[int]) -> Walk:
        """The same as far as the text goes: to a stop token, and to `room` tokens; `kept` are the pass's survivors."""
        ends = (place for place, token in enumerate(self.tokens, start=1) if token in stop_ids or place == room)
        count = next(ends, len(self.tokens))
        if count == len(self.tokens):
            return self
        rows = self.rows[:count]
        return Walk(rows, self.tokens[:count], kept.index(rows[-1]), self.ranks[: count - 1], self.offers[:count])


@dataclass(frozen=True, slots=True)
class Target:
    """What the model says at the surviving nodes of a pass. Called, it is a `Pick`: the model's own next token.

    Under a constraint it is the token that plain decoding chooses from those that may follow, and the constraint has
    accepted it. So a failure of the constraint belongs to the token that it failed at, with drafts and without.
    """

    sampler: Sampler
    output: PassOutput
    guide: Guide = FREE
    text: int = 0  # tokens of the history that the guide has behind it

    def __call__(self, index: int, history: Sequence[int], position: int) -> int:
        path = tuple(history[self.text :])
        token = self._choose(index, history, position, path)
        self.guide.follow((*path, token))
        return token

    def _choose(self, index: int, history: Sequence[int], position: int, path: Path) -> int:
        restricted, best = self.guide.restricts(path), int(self.output.best[index])
        if not self.sampler.needs_logits and (not restricted or self.guide.allows(path, [best]) == [True]):
            return best  # the engine's own; a mask of the vocabulary costs more than this question
        allowed = self.guide.mask(path) if restricted else None
        return self.sampler.pick(self._logits(index), history, position, allowed)

    @property
    def greedy(self) -> bool:
        return self.sampler.config.greedy

    @property
    def seed(self) -> int:
        return self.sampler.config.seed

    def scores(self, index: int, history: Sequence[int]) -> npt.NDArray[np.float64]:
        """float64 [V]: logits after the repetition penalty. The pass must have been asked for logits."""
        return penalise(self._logits(index), history, self.sampler.config.repetition_penalty).astype(np.float64)

    def distribution(self, index: int, history: Sequence[int]) -> npt.NDArray[np.float64]:
        """float64 [V], sum 1: what plain decoding draws from, all filters applied. The temperature is not 0."""
        scores = penalise(self._logits(index), history, self.sampler.config.repetition_penalty)
        ids, _, weights = distribution(scores, self.sampler.config)
        probs = np.zeros(len(scores))
        probs[ids] = weights / weights.sum()
        return probs

    def _logits(self, index: int) -> npt.NDArray[np.float32]:
        assert self.output.logits is not None, "logits were asked for"
        row: npt.NDArray[np.float32] = self.output.logits[index]
        return row


class Acceptor(Protocol):
    """Decides how much of a verified tree becomes text."""

    @property
    def needs_logits(self) -> bool:
        """Whether it needs logits where choosing the model's own token does not: greedy without a penalty."""
        ...

    def accept(self, tree: Tree, output: PassOutput, history: Sequence[int], pick: Target) -> Walk:
        """History holds every token up to and with the root of the tree."""
        ...


class MatchAcceptor:
    """Sample and match: draw the next token as plain decoding would; walk where a child carries it, else emit and stop.

    Lossless by construction, greedy or sampled: each token comes from the model's distribution at its node and from the
    noise of its position, neither of which depends on the tree. A pruned child simply is not there. Where no
    token can be chosen the walk ends, unless it is the first one: the next pass begins there and fails. So it does at
    an end token under a constraint, after which nothing follows.
    """

    needs_logits = False

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
            try:
                token = pick(index, before, len(before))
            except Exception:  # what the model says there are no numbers, or the constraint fails
                if not walk.tokens:
                    raise
                walk.rows.pop()
                walk.ranks.pop()
                return walk
            walk.last = index
            walk.tokens.append(token)
            child, rank, offers = 0, 0, 0
            for other in range(row + 1, count):
                if parents[other] == row:
                    if drafted[other] == token:
                        child, rank = other, offers
                    offers += 1
            walk.offers.append(offers)
            if not child or child not in kept:
                return walk
            row, index = child, kept.index(child)
            walk.rows.append(row)
            walk.ranks.append(rank)
            before.append(token)
