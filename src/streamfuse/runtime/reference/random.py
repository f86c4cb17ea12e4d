"""The counter-based generator: one number in [0, 1) for each (seed, position), the same bits in every language.

Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011). The key is the
seed, the counter is the position, so a number does not depend on how many were drawn before it: that is why drafting
cannot change a sampled text. docs/random.md defines every bit; tests/traces/random.json holds known answers.
"""

from __future__ import annotations

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

Words4 = tuple[int, int, int, int]


def philox4x32(counter: Words4, key: tuple[int, int]) -> Words4:
    """Philox4x32-10: four counter words and two key words (unsigned, 32 bits) to four random words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0, product1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (product1 >> 32) ^ c1 ^ k0, product1 & _MASK, (product0 >> 32) ^ c3 ^ k1, product0 & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, position: int) -> float:
    """The number in [0, 1), a multiple of 2**-53, that decides the token at `position` (0 = first of the context).

    Seed and position are unsigned 64-bit integers; anything else raises ValueError.
    """
    for name, value in (("seed", seed), ("position", position)):
        if not 0 <= value < 1 << 64:
            raise ValueError(f"{name} must be from 0 to 2**64 - 1, not {value}")
    first, second, _, _ = philox4x32((position & _MASK, position >> 32, 0, 0), (seed & _MASK, seed >> 32))
    return ((first >> 5) * 67108864 + (second >> 6)) / 9007199254740992.0
