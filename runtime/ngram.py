"""Drafts without training: what followed the last few tokens when they stood in the text before (prompt lookup).

After Saxena's prompt lookup decoding (2023), over prompt and generated text. The latest occurrence wins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from streamfuse.runtime.tree import Tree

MIN_MATCH, MAX_MATCH = 2, 4  # tokens that must be equal; a single equal token says too little
MAX_CHAIN = 8  # tokens proposed at most
_PRIOR_HITS, _PRIOR_TRIALS = (0.6, 1.2, 1.8), 3.0  # by match length: a match of two is right in a fifth of cases
_FORGET = 0.98


@dataclass(frozen=True, slots=True)
class Chain:
    """A continuation that was seen before: its tokens, and how many tokens before it were equal."""

    tokens: list[int]
    match: int


class NgramIndex:
    """Where each run of MIN_MATCH to MAX_MATCH tokens stood last. Grows with the text."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._after: dict[tuple[int, ...], int] = {}  # run of tokens -> place of the token that followed it last

    def begin(self, tokens: Sequence[int]) -> None:
        """A new generation after `tokens`. What does not continue the text so far begins a new index."""
        if self._tokens != list(tokens[: len(self._tokens)]):
            self._tokens.clear()
            self._after.clear()
        self.follow(tokens)

    def follow(self, tokens: Sequence[int]) -> None:
        """The text has grown to `tokens`."""
        own, after = self._tokens, self._after
        for place in range(len(own), len(tokens)):
            last = tuple(own[-MAX_MATCH:])
            for match in range(MIN_MATCH, len(last) + 1):
                after[last[-match:]] = place
            own.append(tokens[place])

    @property
    def repeats(self) -> bool:
        """Whether the end of the text stood in it before; where its last few tokens did not, nothing longer did."""
        return tuple(self._tokens[-MIN_MATCH:]) in self._after

    def chain(self, length: int) -> Chain | None:
        """What followed the longest match of the text's end, at most `length` tokens; None where nothing matches."""
        own = self._tokens
        if not self.repeats:
            return None
        for match in range(min(MAX_MATCH, len(own) - 1), MIN_MATCH - 1, -1):
            place = self._after.get(tuple(own[-match:]))
            if place is not None and length > 0:
                return Chain(own[place : place + length], match)
        return None


class ChainOdds:
    """How often chains come true: per length of the match, which grows by one with each token that did."""

    def __init__(self) -> None:
        self._hits = list(_PRIOR_HITS)
        self._trials = [_PRIOR_TRIALS] * len(_PRIOR_HITS)

    def log_probs(self, chain: Chain) -> list[float]:
        """Of each path from the root to a token of the chain, natural log."""
        rates = [math.log(hits / trials) for hits, trials in zip(self._hits, self._trials, strict=True)]
        return list(accumulate(rates[self._slot(chain, depth)] for depth in range(len(chain.tokens))))

    def learn(self, chain: Chain, chosen: Sequence[int]) -> None:
        """The model chose these tokens after the root, one after the other, while they were on the chain."""
        for depth, (drafted, token) in enumerate(zip(chain.tokens, chosen, strict=False)):
            slot = self._slot(chain, depth)
            self._hits[slot] = _FORGET * self._hits[slot] + (drafted == token)
            self._trials[slot] = _FORGET * self._trials[slot] + 1
            if drafted != token:
                return

    @staticmethod
    def _slot(chain: Chain, depth: int) -> int:
        return min(chain.match + depth, MAX_MATCH) - MIN_MATCH


def merge(tree: Tree, chain: Chain, log_probs: Sequence[float], width: int) -> tuple[Tree, list[int], list[int]]:
    """The tree with the chain in it, best-first again, at most `width` nodes; the chain's rows; those it alone has.

    A node that both propose takes the larger of its two probabilities, which keeps parents before children. A chain
    node has no other children than the chain's next.
    """
    tokens, parents, probs = tree.tokens.tolist(), tree.parents.tolist(), tree.log_probs.tolist()
    row, rows = 0, []
    for token, log_prob in zip(chain.tokens, log_probs, strict=True):
        log_prob = min(log_prob, probs[row])
        child = next((r for r in range(row + 1, len(tokens)) if parents[r] == row and tokens[r] == token), None)
        if child is None:
            child = len(tokens)
            tokens.append(token)
            parents.append(row)
            probs.append(log_prob)
        probs[child] = max(probs[child], log_prob)
        row = child
        rows.append(row)
    order = sorted(range(len(tokens)), key=lambda r: (-probs[r], r))[:width]
    place = {row: index for index, row in enumerate(order)}
    merged = Tree.of(
        [tokens[row] for row in order],
        [-1 if row == 0 else place[parents[row]] for row in order],
        [probs[row] for row in order],
    )
    kept = [row for row in rows if row in place]
    return merged, [place[row] for row in kept], [place[row] for row in kept if row >= len(tree)]
