"""The Gumbel noise that sampling adds to the score of each token: a function of seed, position and token.

Gumbel noise is -ln(t) for the time t of the first event of a Poisson process of rate 1. The first event among the n
tokens of a block has an exponentially distributed time with mean 1 / n, and each of them is its token with the same
probability; the time from there to the first event of another token is exponentially distributed again. So the largest
noise of a block is known without the other ones: the top-down construction of Maddison, Tarlow and Minka, "A* sampling"
(2014). core/noise.h is the same; it computes the noise of those tokens only that can win.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from streamfuse.runtime.backend import IntArray
from streamfuse.runtime.reference.numbers import Float64Array, logarithm
from streamfuse.runtime.reference.random import check_64_bits, philox4x32

_MASK = 0xFFFFFFFF
BLOCK = 256  # tokens; part of the definition in tests/traces/README.md


class Use(IntEnum):
    """What a random number is for: the third word of its counter. Smaller ones are those of `streamfuse.research`."""

    BLOCK = 4
    TOKEN = 5


def gumbel(seed: int, position: int, tokens: npt.ArrayLike, vocab_size: int) -> Float64Array:
    """float64 [n]: noise of these tokens [n] at `position` (0 = first of the context).

    Seed and position are unsigned 64-bit integers, else ValueError.
    """
    check_64_bits(seed=seed, position=position)
    ids = np.asarray(tokens, np.int64)
    blocks, of_token = np.unique(ids // BLOCK, return_inverse=True)
    sizes = np.minimum(BLOCK, vocab_size - blocks * BLOCK)
    first, second, third = _words(seed, position, Use.BLOCK, blocks)
    times = _waiting_times(first, second) / sizes
    largest = -logarithm(times)
    winners = blocks * BLOCK + (third * sizes.astype(np.uint64) >> np.uint64(32)).astype(np.int64)
    others = -logarithm(times[of_token] + _waiting_times(*_words(seed, position, Use.TOKEN, ids)[:2]))
    return np.where(ids == winners[of_token], largest[of_token], np.minimum(others, largest[of_token]))


def _words(seed: int, position: int, use: Use, indices: IntArray) -> list[npt.NDArray[np.uint64]]:
    """The first three of the random words of each index."""
    low, high, kind = (np.full(len(indices), word, np.uint64) for word in (position & _MASK, position >> 32, use))
    counter = (low, high, kind, indices.astype(np.uint64))
    return list(philox4x32(counter, (seed & _MASK, seed >> 32))[:3])


def _waiting_times(first: npt.NDArray[np.uint64], second: npt.NDArray[np.uint64]) -> Float64Array:
    """-ln(u) for u an odd multiple of 2**-53 in (0, 1): exponentially distributed, with mean 1."""
    steps = (first >> np.uint64(6)).astype(np.float64) * 67108864.0 + (second >> np.uint64(6)).astype(np.float64)
    return -logarithm((steps + 0.5) * 2.0**-52)
