"""More numbers of one run: the generator of docs/random.md, whose counter has two words that the runtime keeps 0.

A number is named by its use, so drafting and accepting never share one, and none is that of `runtime`'s own
`uniform(seed, position)`: purposes begin at 1.
"""

from __future__ import annotations

from enum import IntEnum

from streamfuse.runtime.reference.random import philox4x32

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
    first, second, _, _ = philox4x32(counter, (seed & _MASK, seed >> 32))
    return ((first >> 5) * 67108864 + (second >> 6)) / 9007199254740992.0
