"""The generator and the noise of tokens, to the bit. Run: pytest tests/runtime/test_runtime_random.py"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamfuse.runtime.reference.noise import gumbel
from streamfuse.runtime.reference.random import philox4x32, uniform

VECTORS = json.loads((Path(__file__).parents[1] / "traces" / "random.json").read_text(encoding="utf-8"))

# https://github.com/DEShawResearch/random123, tests/kat_vectors, "philox4x32 10"
PUBLISHED = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> tuple[int, ...]:
    return tuple(int(word, 16) for word in text.split())


@pytest.mark.parametrize(("counter", "key", "output"), PUBLISHED)
def test_philox_gives_the_published_answers(counter: str, key: str, output: str) -> None:
    assert philox4x32(words(counter), words(key)) == words(output)


@pytest.mark.parametrize("vector", VECTORS["philox4x32"], ids=lambda vector: vector["output"][0])
def test_philox_gives_the_answers_of_the_trace(vector: dict[str, list[str]]) -> None:
    output = philox4x32(words(" ".join(vector["counter"])), words(" ".join(vector["key"])))
    assert output == words(" ".join(vector["output"]))


@pytest.mark.parametrize("vector", VECTORS["noise"], ids=lambda vector: vector["seed"] + "@" + vector["position"])
def test_the_noise_has_the_values_of_the_trace(vector: dict[str, Any]) -> None:
    seed, position = int(vector["seed"]), int(vector["position"])
    assert gumbel(seed, position, vector["tokens"], vector["vocab_size"]).tolist() == vector["values"]


def test_the_noise_of_a_token_does_not_depend_on_the_other_tokens_that_are_asked_for() -> None:
    whole = gumbel(3, 9, np.arange(700), 700)
    for some in ([5], [699, 0, 300], [255, 256]):
        assert gumbel(3, 9, some, 700).tolist() == whole[some].tolist()


@pytest.mark.parametrize("vocab_size", [1, 40, 256, 300])
def test_the_noise_has_the_gumbel_distribution_for_each_token_and_its_maximum_too(vocab_size: int) -> None:
    """Kolmogorov-Smirnov: the largest distance is below 1.95 / sqrt(n) in 999 of 1,000 samples."""
    rows = np.stack([gumbel(1, position, np.arange(vocab_size), vocab_size) for position in range(1500)])
    for values in (rows[:, 0], rows[:, -1], rows[:3].ravel(), rows.max(axis=1) - np.log(vocab_size)):
        ranks = np.exp(-np.exp(-np.sort(values)))
        distance = np.abs(ranks - (np.arange(len(ranks)) + 0.5) / len(ranks)).max()
        assert distance < 1.95 / np.sqrt(len(ranks))


def test_the_noise_of_two_tokens_of_a_block_is_independent() -> None:
    """Both are truncated by the block's largest; together they are independent again, also at different positions."""
    rows = np.stack([gumbel(7, position, [3, 4, 5], 6) for position in range(6000)])
    ranks = np.exp(-np.exp(-rows))
    pairs = [(ranks[:, 0], ranks[:, 1]), (ranks[:, 0], ranks[:, 2]), (ranks[:-1, 0], ranks[1:, 0])]
    for a, b in pairs:
        counts, _, _ = np.histogram2d(a, b, bins=6, range=[[0, 1], [0, 1]])
        expected = len(a) / 36
        assert ((counts - expected) ** 2 / expected).sum() < 73  # chi-square with 35 degrees of freedom, p = 0.0002


@pytest.mark.parametrize(("seed", "position"), [(-1, 0), (2**64, 0), (0, -1), (0, 2**64)])
@pytest.mark.parametrize("draw", [uniform, lambda seed, position: gumbel(seed, position, [0], 1)])
def test_a_seed_or_position_beyond_64_bits_is_refused(
    draw: Callable[[int, int], object], seed: int, position: int
) -> None:
    with pytest.raises(ValueError, match="must be from 0 to"):
        draw(seed, position)


def test_uniform_numbers_look_uniform_and_stay_below_one() -> None:
    values = np.array([uniform(1, position) for position in range(4000)])
    assert 0 <= values.min() < 0.01
    assert 0.99 < values.max() < 1
    assert abs(values.mean() - 0.5) < 0.02
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.05
