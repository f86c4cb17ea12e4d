"""Prompt look-up (Saxena 2023): what followed the end of the text where it stood in the text before, as a tree.

core/lookup.* is the same with an index (core/suffix_index.*). There it also counts how often its drafts come true, and
joins other trees.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from streamfuse.runtime.backend import PassOutput
from streamfuse.runtime.reference.coupling import GREEDY
from streamfuse.runtime.reference.guide import FORCED_LOG_PROB, FREE, Path
from streamfuse.runtime.reference.ngram_table import LEAST
from streamfuse.runtime.reference.numbers import logarithm
from streamfuse.runtime.reference.tree import Tree

LONGEST = 8  # tokens of a match that are compared
OFFERS = 3  # different tokens that are drafted after one node
PLACES = 64  # places of the longest match that are read, the latest first

ALONE, DIFFER, TWICE, THRICE = range(4)  # one place; the latest two differ; two agree; three agree
# The first guess of how often a token comes true: rank 0 by length of the match and kind, the others by kind alone.
_FIRST = (
    (0.30, 0.13, 0.42, 0.66), (0.57, 0.27, 0.72, 0.87), (0.67, 0.27, 0.79, 0.90), (0.73, 0.33, 0.84, 0.92),
    (0.76, 0.33, 0.86, 0.93), (0.78, 0.38, 0.89, 0.95), (0.81, 0.40, 0.92, 0.97), (0.90, 0.43, 0.97, 0.99),
)  # fmt: skip
_OTHERS = ((0.0, 0.17, 0.12, 0.05), (0.0, 0.09, 0.06, 0.02))
_DRAFTS = 5.0  # that the first guess counts for


class LookUpDrafter:
    """Drafts from the text alone, prompt included, and what a constraint forces; what a bundle without streams drafts
    from."""

    def __init__(self) -> None:
        self.guide, self.coupling = FREE, GREEDY

    def reset(self) -> None:
        """Nothing is kept between texts."""

    def learn(self, output: PassOutput, index: int) -> None:
        """The text says everything."""

    def draft(self, tokens: Sequence[int], width: int, depth: int) -> Tree:
        """The most probable tree of `width` nodes and `depth` levels at most; equal paths as they were found."""
        text = list(tokens)
        drafted, parents, probs = [text[-1]], [-1], [0.0]
        paths = [Path()]
        heap: list[tuple[float, int, int, int]] = []  # (-log-probability, order, parent's row, token)
        count = 0

        def offer(row: int) -> None:
            nonlocal count
            if (forced := self.guide.forced(paths[row])) is not None:
                offers = [(forced, FORCED_LOG_PROB)]
            else:
                match = find(text, [*text, *paths[row]][-LONGEST:])
                allowed = self.guide.may_follow(paths[row], match.tokens)
                log_probs = np.array([match.log_prob(rank) for rank in range(len(match.tokens))])
                coupled = self.coupling.apply(len(text) + len(paths[row]), match.tokens, log_probs).tolist()
                offers = [(match.tokens[rank], coupled[rank]) for rank, ok in enumerate(allowed) if ok]
            for token, log_prob in offers:
                path = probs[row] + log_prob
                if path > LEAST:
                    heapq.heappush(heap, (-path, count, row, token))
                    count += 1

        if depth > 0:
            offer(0)
        while heap and len(drafted) < width:
            path, _, parent, token = heapq.heappop(heap)
            drafted.append(token)
            parents.append(parent)
            probs.append(-path)
            paths.append((*paths[parent], token))
            if len(paths[-1]) < depth:
                offer(len(drafted) - 1)
        return Tree.of(drafted, parents, probs)


@dataclass(frozen=True, slots=True)
class Match:
    """Where the end of a text stood before: how many tokens are the same, how these places went on, with what."""

    length: int
    kind: int
    tokens: tuple[int, ...]  # different ones, the latest first

    def log_prob(self, rank: int) -> float:
        """The first guess of how often the token of this rank comes true, natural logarithm."""
        share = _FIRST[self.length - 1][self.kind] if rank == 0 else _OTHERS[rank - 1][self.kind]
        return float(logarithm(np.array([_DRAFTS * share / _DRAFTS]))[0])


def find(text: Sequence[int], path: Sequence[int]) -> Match:
    """The longest match of the last tokens of `path` in the text; of length 0 where nothing matches.

    Of equally long ones the latest `PLACES` count, the latest first. The end of the text itself is none: nothing
    follows there yet.
    """
    ends = [end for end in range(len(text) - 1, 0, -1) if text[end - 1] == path[-1]]
    lengths = [_common(text, end, path) for end in ends]
    longest = max(lengths, default=0)
    nexts = [text[end] for end, length in zip(ends, lengths, strict=True) if length == longest][:PLACES]
    if not nexts:
        return Match(0, ALONE, ())
    agree = next((n for n, token in enumerate(nexts) if token != nexts[0]), len(nexts))
    kind = ALONE if len(nexts) < 2 else (DIFFER, TWICE, THRICE)[min(agree, 3) - 1]
    return Match(longest, kind, tuple(dict.fromkeys(nexts))[:OFFERS])


def _common(text: Sequence[int], end: int, path: Sequence[int]) -> int:
    """How many tokens before `end` are the last ones of the path, at most `LONGEST`."""
    length = 0
    while length < min(LONGEST, end, len(path)) and text[end - 1 - length] == path[-1 - length]:
        length += 1
    return length
