"""The generator and the sampler, to the bit. Run: pytest tests/runtime/test_runtime_random.py"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

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


@pytest.mark.parametrize("vector", VECTORS["uniform"], ids=lambda vector: vector["seed"] + "@" + vector["position"])
def test_uniform_gives_the_answers_of_the_trace(vector: dict[str, str | int | float]) -> None:
    value = uniform(int(vector["seed"]), int(vector["position"]))
    assert value == vector["value"]
    assert value * 2**53 == vector["numerator"]


def test_uniform_numbers_look_uniform_and_stay_below_one() -> None:
    values = np.array([uniform(1, position) for position in range(4000)])
    assert 0 <= values.min() < 0.01
    assert 0.99 < values.max() < 1
    assert abs(values.mean() - 0.5) < 0.02
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.05


@pytest.mark.parametrize(("seed", "position"), [(-1, 0), (2**64, 0), (0, -1), (0, 2**64)])
def test_a_seed_or_position_beyond_64_bits_is_refused(seed: int, position: int) -> None:
    with pytest.raises(ValueError, match="must be from 0 to"):
        uniform(seed, position)
