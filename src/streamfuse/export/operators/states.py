"""The states of layers with linear attention in exported graphs.

A state is float32 [2, HEADER + n]: of two lengths of the sequence, the length, zeros, and the n numbers of the state
after as many tokens. The newer one is that of the last pass. The older one is `rewindable` tokens behind, so that a
sequence can be truncated: the states in between are computed again from the cached rows. A pass brings both up to date
in place, from rows that the last commits wrote; it never sees a rejected draft. So a state follows from the cache
length and the rows alone, and passes can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

HEADER = 16  # numbers before a state, so that it begins with a cache line


def update(states: Tensor, length: int, rewindable: int, advance: Callable[[Tensor, int, int], Tensor]) -> Tensor:
    """Bring `states` [2, HEADER + n] up to date; returns the numbers [n] of the state after `length` tokens.

    Args:
        rewindable: how many tokens the sequence can be truncated by.
        advance: state [n], first, last -> the state after rows first to last - 1.

    Raises:
        ValueError: the sequence was truncated further.
    """
    older, newer = states
    if length == 0:
        states.zero_()
    if length < older[0]:
        raise ValueError(f"the state after {length} tokens is lost: the oldest one is after {int(older[0])}")
    if length < newer[0]:
        newer.copy_(older)
    for state, goal in ((newer, length), (older, max(int(older[0]), length - rewindable))):
        if goal > (at := int(state[0])):
            state[HEADER:] = advance(state[HEADER:], at, goal)
            state[0] = goal
    numbers: Tensor = newer[HEADER:]
    return numbers
