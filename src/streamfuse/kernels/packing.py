"""Group-wise 4-bit and 8-bit weights as the operators read them: tiles of 16 outputs by 32 inputs.

Nothing is rounded here: a GGUF's Q4_1 and Q8_0 blocks go in and come out bit for bit. Layout: docs/contracts.md,
section 7. The scheme of a packed tensor is told by its last dimension.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

GROUP = 32  # inputs that share a scale
TILE = 16  # outputs that lie side by side
Q4_1_BYTES = 4 * 64 + 2 * 2 * TILE  # nibbles, then d and m of the tile's rows in float16
Q8_0_BYTES = 8 * 64 + 2 * TILE  # bytes, then d
_Q8_OFFSET = 128  # Q8_0 values are stored unsigned, as the products of every instruction set take them


@dataclass(frozen=True, slots=True)
class Unpacked:
    """w[n, k] = d[n, k // 32] * q[n, k] + m[n, k // 32]; rows past the matrix's own are zeros."""

    q: Tensor  # int16 [N', K], N' a multiple of 16
    d: Tensor  # float32 [N', K / 32]
    m: Tensor | None  # float32 [N', K / 32]; None for Q8_0

    def dequantized(self) -> Tensor:
        """float32 [N', K]."""
        weight = self.q.float() * self.d.repeat_interleave(GROUP, 1)
        return weight if self.m is None else weight + self.m.repeat_interleave(GROUP, 1)


def pack_q4_1(q: Tensor, d: Tensor, m: Tensor) -> Tensor:
    """q uint8 [N, K] in 0..15, d and m float16 [N, K / 32] -> uint8 [ceil(N / 16), K / 32, 320].

    Raises ValueError where shapes, dtypes or values do not fit.
    """
    _check(q, torch.uint8, d, m)
    if int(q.max()) > 15:
        raise ValueError("4-bit values must lie between 0 and 15")
    tiles = _tiled(q)  # [T, 16, G, 32]
    low, high = (_interleaved(tiles[..., half]) for half in (slice(0, 16), slice(16, 32)))
    return torch.cat([low | (high << 4), _scale_bytes(d), _scale_bytes(m)], dim=-1)


def pack_q8_0(q: Tensor, d: Tensor) -> Tensor:
    """q int8 [N, K], d float16 [N, K / 32] -> uint8 [ceil(N / 16), K / 32, 544]. Raises ValueError as pack_q4_1."""
    _check(q, torch.int8, d)
    unsigned = (_tiled(q).to(torch.int16) + _Q8_OFFSET).to(torch.uint8)
    return torch.cat([_interleaved(unsigned), _scale_bytes(d)], dim=-1)


def unpack(weight: Tensor) -> Unpacked:
    """The parts of a packed weight, uint8 [T, G, 320 or 544]. ValueError for any other shape."""
    if weight.dim() != 3 or weight.dtype != torch.uint8 or weight.shape[2] not in (Q4_1_BYTES, Q8_0_BYTES):
        raise ValueError(
            f"a packed weight is uint8 [tiles, groups, {Q4_1_BYTES} or {Q8_0_BYTES}], "
            f"not {weight.dtype} {list(weight.shape)}"
        )
    if weight.shape[2] == Q8_0_BYTES:
        q = _rows_of(weight[..., :512], 8) - _Q8_OFFSET
        return Unpacked(q, _scales(weight[..., 512:]), None)
    nibbles = weight[..., :256]
    low, high = _rows_of(nibbles & 15, 4), _rows_of(nibbles >> 4, 4)
    tiles, groups = weight.shape[:2]
    halves = [half.view(tiles * TILE, groups, 16) for half in (low, high)]
    q = torch.cat(halves, dim=2).view(tiles * TILE, groups * GROUP)
    return Unpacked(q, _scales(weight[..., 256:288]), _scales(weight[..., 288:]))


def interleave_gate_up(gate: Tensor, up: Tensor) -> Tensor:
    """Rows of gate and up [I, ...], I a multiple of 16, in turns of 16 -> [2 I, ...], as `gated_mlp` takes them."""
    if gate.shape != up.shape or gate.shape[0] % TILE:
        raise ValueError(f"gate and up must have one shape and a multiple of {TILE} rows, not {gate.shape}, {up.shape}")
    blocks = [half.reshape(-1, 1, TILE, *half.shape[1:]) for half in (gate, up)]
    return torch.cat(blocks, dim=1).reshape(-1, *gate.shape[1:])


def tile_adapters(up: Tensor) -> Tensor:
    """The second matrix of low-rank adapters, up [N, r], rows as the weight's: float16 [ceil(N / 16), r, 16]."""
    return _padded(up).reshape(-1, TILE, up.shape[1]).transpose(1, 2).contiguous().half()


def _check(q: Tensor, dtype: torch.dtype, *scales: Tensor) -> None:
    if q.dim() != 2 or q.dtype != dtype or q.shape[0] < 1 or q.shape[1] < GROUP or q.shape[1] % GROUP:
        raise ValueError(f"q must be {dtype} [N, a multiple of {GROUP}], not {q.dtype} {list(q.shape)}")
    wanted = (q.shape[0], q.shape[1] // GROUP)
    for scale in scales:
        if scale.dtype != torch.float16 or tuple(scale.shape) != wanted:
            raise ValueError(f"scales must be float16 {list(wanted)}, not {scale.dtype} {list(scale.shape)}")


def _padded(x: Tensor) -> Tensor:
    """x [N, ...] with rows of zeros up to a multiple of 16."""
    return F.pad(x, (0, 0, 0, -x.shape[0] % TILE))


def _tiled(q: Tensor) -> Tensor:
    """[N, K] -> [T, 16, G, 32]."""
    return _padded(q).reshape(-1, TILE, q.shape[1] // GROUP, GROUP)


def _interleaved(part: Tensor) -> Tensor:
    """[T, 16 rows, G, 4 v + b] -> bytes [T, G, 64 v + 4 row + b]."""
    tiles, _, groups, width = part.shape
    return part.reshape(tiles, TILE, groups, width // 4, 4).permute(0, 2, 3, 1, 4).reshape(tiles, groups, -1)


def _rows_of(packed: Tensor, vectors: int) -> Tensor:
    """The inverse of `_interleaved`: [T, G, 64 v + 4 row + b] -> int16 [16 T, G * 4 v]."""
    tiles, groups = packed.shape[:2]
    rows = packed.reshape(tiles, groups, vectors, TILE, 4).permute(0, 3, 1, 2, 4)
    return rows.reshape(tiles * TILE, groups * vectors * 4).to(torch.int16)


def _scale_bytes(scale: Tensor) -> Tensor:
    """float16 [N, G] -> bytes [T, G, 32]."""
    return _padded(scale).reshape(-1, TILE, scale.shape[1]).transpose(1, 2).contiguous().view(torch.uint8)


def _scales(packed: Tensor) -> Tensor:
    """Bytes [T, G, 32] -> float32 [16 T, G]."""
    scales = packed.contiguous().view(torch.float16).transpose(1, 2)
    return scales.reshape(-1, packed.shape[1]).float()
