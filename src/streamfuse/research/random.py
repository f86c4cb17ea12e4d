"""More numbers of one run, by the generator of tests/traces/README.md.

A number is named by its use, so drafting and accepting never share one, and none is one of sampling's noise: the
purposes here are below those of `runtime.reference.noise.Use`.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from streamfuse.runtime.reference.numbers import Float64Array
from streamfuse.runtime.reference.random import fraction, philox4x32

_MASK = 0xFFFFFFFF


class Purpose(IntEnum):
    """What a number decides, in the third word of the counter."""

    DRAFT = 1  # which token a drafter proposes
    ACCEPT = 2  # whether a draw is accepted
    RESIDUAL = 3  # which token follows where no draw was accepted


def uniform(seed: int, position: int, purpose: Purpose, place: int = 0, depth: int = 0) -> float:
    """The number in [0, 1) for a token at `position` (0 = first of the context), a multiple of 2**-53.

    `place` (below 2**32) tells numbers of one purpose and position apart. `depth` (below 2**24) is the token's depth in
    its tree: a position is drafted anew by each later tree, at a smaller depth, and must then be drawn anew.
    ValueError beyond these ranges; seed and position are unsigned 64-bit integers.
    """
    for name, value, bits in (
        ("seed", seed, 64),
        ("position", position, 64),
        ("place", place, 32),
        ("depth", depth, 24),
    ):
        if not 0 <= value < 1 << bits:
            raise ValueError(f"{name} must be from 0 to 2**{bits} - 1, not {value}")
    counter = (position & _MASK, position >> 32, purpose | depth << 8, place)
    return fraction(philox4x32(counter, (seed & _MASK, seed >> 32)))


def draw(weights: Float64Array, number: float) -> int:
    """The index of the weight, of float64 [n], at a number in [0, 1): the inverse of the cumulative distribution."""
    ends = np.cumsum(weights)
    place = int(np.searchsorted(ends, number * ends[-1], side="right"))
    return place if place < len(ends) else int(np.flatnonzero(weights)[-1])  # the product was rounded up to the total
