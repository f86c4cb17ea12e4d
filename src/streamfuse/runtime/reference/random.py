"""The counter-based generator: random words of a key and a counter, the same bits in every language.

Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011). The key is the
seed, the counter begins with the position, so a number does not depend on how many were drawn before it: that is why
drafting cannot change a sampled text. tests/traces/README.md defines every bit; tests/traces/random.json has answers.
"""

from __future__ import annotations

from typing import Any

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

Words4 = tuple[Any, Any, Any, Any]  # unsigned 32-bit integers, or arrays uint64 [n] of them


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
    """A number in [0, 1), a multiple of 2**-53, for batched generation (`train.generate`). Sampling in the runtime uses
    `noise.gumbel`.

    Seed and position are unsigned 64-bit integers, else ValueError.
    """
    check_64_bits(seed=seed, position=position)
    return fraction(philox4x32((position & _MASK, position >> 32, 0, 0), (seed & _MASK, seed >> 32)))


def fraction(words: Words4) -> float:
    """A multiple of 2**-53 in [0, 1), of 53 bits of the first two words."""
    first, second = int(words[0]), int(words[1])
    return ((first >> 5) * 67108864 + (second >> 6)) / 9007199254740992.0


def check_64_bits(**values: int) -> None:
    """ValueError, naming the value, unless all of them are unsigned 64-bit integers."""
    for name, value in values.items():
        if not 0 <= value < 1 << 64:
            raise ValueError(f"{name} must be from 0 to 2**64 - 1, not {value}")
