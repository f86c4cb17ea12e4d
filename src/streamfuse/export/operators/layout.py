"""The memory layout of the operators' weights and caches, in numbers. docs/contracts.md, sections 6 and 7. No torch."""

from __future__ import annotations

# Positions of a ring buffer in addition to its window. At least one block is needed, because the block that is being
# filled must lie outside the window. The others let a sequence be truncated, for example to generate an answer again,
# without prefilling it from the beginning.
REWINDABLE = 256
GROUP = 32  # inputs that share a scale; positions of a block of the cache
TILE = 16  # outputs per tile
Q4_1_BYTES = 4 * 64 + 2 * 2 * TILE  # per group of a tile: nibbles, then d and m of the tile's rows in float16
Q8_0_BYTES = 8 * 64 + 2 * TILE  # bytes, then d


def cache_shapes(capacity: int, kv_heads: int, head_dim: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Shapes of a layer's key and value cache, uint8 [kv heads, positions, bytes of a position] (ops/kv_cache.h).

    Raises:
        ValueError: the capacity is not a multiple of the block size.
    """
    if capacity % GROUP:
        raise ValueError(f"the capacity of a cache must be a multiple of {GROUP}, not {capacity}")
    groups, tiles = -(-head_dim // GROUP), -(-head_dim // TILE)
    keys, values = groups * Q8_0_BYTES // TILE, tiles * Q8_0_BYTES // GROUP + 4
    return (kv_heads, capacity, keys), (kv_heads, capacity, values)


def cache_positions(capacity: int, window: int | None) -> int:
    """Positions of every ring buffer of a model whose longest window is `window`, a multiple of the block size;
    `capacity` if that is not less, or if no layer has a window."""
    if window is None:
        return capacity
    return min(capacity, -(-(window + REWINDABLE) // GROUP) * GROUP)


def cache_bytes(capacity: int, kv_heads: int, head_dim: int) -> int:
    """Bytes of both caches of a layer."""
    return sum(heads * positions * each for heads, positions, each in cache_shapes(capacity, kv_heads, head_dim))
