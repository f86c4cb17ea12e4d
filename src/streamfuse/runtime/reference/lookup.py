"""Prompt look-up (Saxena 2023): what followed the last few tokens when they stood in the text before.

core/lookup.* is the same with hash tables. There it also counts how often its chains come true, and joins other trees.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streamfuse.runtime.backend import PassOutput
from streamfuse.runtime.reference.numbers import logarithm
from streamfuse.runtime.reference.tree import Tree

SHORTEST, LONGEST = 2, 4  # tokens that must be equal; one alone says too little
MOST_TOKENS = 8  # proposed at once
_HITS, _TRIALS = (0.6, 1.2, 1.8), 3.0  # the first guess of how often a token comes true, per length of the match


class LookUpDrafter:
    """Drafts a chain from the text alone, prompt included; what a bundle without streams drafts from."""

    def reset(self) -> None:
        """Nothing is kept between texts."""

    def learn(self, output: PassOutput, index: int) -> None:
        """The text says everything."""

    def draft(self, tokens: Sequence[int], width: int, depth: int) -> Tree:
        match, chain = continuation(tokens)
        chain = chain[: min(width - 1, depth)]
        lengths = [min(match + i, LONGEST) - SHORTEST for i in range(len(chain))]
        steps = logarithm(np.array([_HITS[length] / _TRIALS for length in lengths], np.float64))
        return Tree.of(
            [tokens[-1], *chain], [row - 1 for row in range(len(chain) + 1)], [0.0, *np.cumsum(steps).tolist()]
        )


def continuation(tokens: Sequence[int]) -> tuple[int, list[int]]:
    """How many tokens at the end of the text stood in it before, and what followed them there; (0, []) for none.

    The longest match wins, and of equally long ones the latest.
    """
    text = list(tokens)
    for length in range(min(LONGEST, len(text) - 1), SHORTEST - 1, -1):
        end = text[-length:]
        for place in range(len(text) - 1, length - 1, -1):
            if text[place - length : place] == end:
                return length, text[place : place + MOST_TOKENS]
    return 0, []
