"""The states of layers with linear attention in exported graphs.

A layer has two states, float32 [2, HEADER + n]: each has the number of its tokens, zeros, and n numbers. The newer one
is the state after `cache_length` tokens. The older one is at most `rewindable` tokens behind: after a truncation, the
newer state is computed again from it and the cached rows. A pass first updates both in place, from committed rows only.
So they do not depend on rejected drafts, and a pass can be repeated.
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
