"""Look-up by the core's index drafts what a search of the whole text finds, however long the text is.

Run: pytest tests/core/test_core_lookup.py
"""

from __future__ import annotations

import ctypes
import time

import numpy as np
import pytest

from streamfuse.runtime.config import SamplingConfig
from streamfuse.runtime.core import load_core
from streamfuse.runtime.reference.coupling import Coupling
from streamfuse.runtime.reference.lookup import PLACES, LookUpDrafter, find
from streamfuse.runtime.reference.tree import Tree
from streamfuse.runtime.structures import Options

VOCAB = 10_000  # of all texts
GREEDY = SamplingConfig()


def drafted(text: list[int], width: int, depth: int, sampling: SamplingConfig = GREEDY) -> Tree:
    given = np.array(text, np.int64)
    tokens, parents, log_probs = np.empty(width, np.int64), np.empty(width, np.int64), np.empty(width)
    outputs = (array.ctypes.data for array in (tokens, parents, log_probs))
    options = Options(
        temperature=sampling.temperature, top_p=1, repetition_penalty=1, seed=sampling.seed, max_new_tokens=1
    )
    rows = load_core().sf_grow_lookup(
        given.ctypes.data, len(given), VOCAB, ctypes.byref(options), width, depth, *outputs
    )
    assert rows >= 1
    return Tree.of(tokens[:rows].tolist(), parents[:rows].tolist(), log_probs[:rows].tolist())


def repetitive(rng: np.random.Generator, size: int, vocab: int) -> list[int]:
    """Copies of earlier parts with a few other tokens between them."""
    text = rng.integers(0, vocab, 8).tolist()
    while len(text) < size:
        begin = int(rng.integers(len(text)))
        text += text[begin : begin + int(rng.integers(1, 30))]
        text += rng.integers(0, vocab, int(rng.integers(0, 3))).tolist()
    return text[:size]


@pytest.mark.parametrize("vocab", [1, 2, 5, 40, 10_000])
def test_trees_are_those_of_a_search_of_the_whole_text(rng: np.random.Generator, vocab: int) -> None:
    for _ in range(15):
        text = repetitive(rng, int(rng.integers(1, 700)), vocab)
        width, depth = int(rng.integers(1, 18)), int(rng.integers(0, 9))
        sampling = SamplingConfig(temperature=float(rng.choice([0, 0.7, 1])), seed=int(rng.integers(2**62)))
        drafter = LookUpDrafter()
        drafter.coupling = Coupling.of(sampling, VOCAB)
        found, expected = drafted(text, width, depth, sampling), drafter.draft(text, width, depth)
        assert found.tokens.tolist() == expected.tokens.tolist()
        assert found.parents.tolist() == expected.parents.tolist()
        assert found.log_probs.tobytes() == expected.log_probs.tobytes()


def test_the_longest_match_is_found_behind_any_number_of_shorter_ones() -> None:
    phrase = [1, 2, 3, 4]
    text = [*phrase, 50, *[7, 4, 8] * (20 * PLACES), *phrase]
    assert find(text, text).length == len(phrase)
    assert drafted(text, 2, 1).tokens.tolist() == [4, 50]


def test_a_long_repetitive_text_takes_no_longer_per_token(rng: np.random.Generator) -> None:
    """A second is a hundred times what it takes; a search of the whole text for each token would take minutes."""
    text = repetitive(rng, 32_000, 40)
    start = time.perf_counter()
    drafted(text, 16, 15)
    drafted([5] * 32_000, 16, 15)
    assert time.perf_counter() - start < 1
