"""Packs group-wise 4-bit and 8-bit weights for the operators, in tiles of 16 outputs by 32 inputs; and caches.

No weight is quantized here: a GGUF's Q4_1 and Q8_0 blocks are packed and unpacked bit for bit. Layout:
docs/contracts.md, section 7. The last dimension of a packed weight identifies its scheme.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from streamfuse.export.operators.layout import GROUP, Q4_1_BYTES, Q8_0_BYTES, TILE

_Q8_OFFSET = 128  # Q8_0 values are stored unsigned, for the products of all instruction sets


@dataclass(frozen=True, slots=True)
class Unpacked:
    """w[n, k] = d[n, k // 32] * q[n, k] + m[n, k // 32]; padding rows are zeros."""

    q: Tensor  # int16 [N', K], N' a multiple of 16
    d: Tensor  # float32 [N', K / 32]
    m: Tensor | None  # float32 [N', K / 32]; None for Q8_0

    def dequantized(self) -> Tensor:
        """float32 [N', K]."""
        weight = self.q.float() * self.d.repeat_interleave(GROUP, 1)
        return weight if self.m is None else weight + self.m.repeat_interleave(GROUP, 1)


def pack_q4_1(q: Tensor, d: Tensor, m: Tensor) -> Tensor:
    """q uint8 [N, K] in 0..15, d and m float16 [N, K / 32] -> uint8 [ceil(N / 16), K / 32, 320].

    Raises ValueError if shapes, dtypes or values are invalid.
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
    """The parts of a packed weight, uint8 [T, G, 320 or 544]. ValueError for other shapes."""
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


@dataclass(frozen=True, slots=True)
class RoundedKeys:
    """Keys in int8 per position, head and group of 32 dimensions: d * q. Dimensions are padded with zeros."""

    q: Tensor  # float32 [T, Hkv, G, 32], integers in -127..127
    d: Tensor  # float32 [T, Hkv, G], values of float16

    @classmethod
    def of(cls, key: Tensor) -> RoundedKeys:
        """Symmetric, d = largest magnitude / 127 in float16, half to even. key float32 [T, Hkv, D]."""
        groups = F.pad(key, (0, -key.shape[-1] % GROUP)).unflatten(-1, (-1, GROUP))
        d = (groups.abs().amax(-1) / 127).clamp(max=torch.finfo(torch.float16).max).half().float()
        most = (127 * d)[..., None]
        inverse = torch.where(d == 0, d, 1 / d)[..., None]
        return cls(torch.round(torch.maximum(-most, torch.minimum(most, groups)) * inverse), d)

    def packed(self) -> Tensor:
        """uint8 [Hkv, T, 34 G], the cache format of `tree_attention`; T must be a multiple of 32."""
        heads = [pack_q8_0(q.flatten(1).to(torch.int8), d.half()) for q, d in _by_head(self.q, self.d)]
        return torch.stack(heads).view(len(heads), self.q.shape[0], -1)

    @classmethod
    def unpack(cls, cache: Tensor) -> RoundedKeys:
        """The inverse of `packed`."""
        positions = cache.shape[1]
        tiles = [unpack(head.view(positions // TILE, -1, Q8_0_BYTES)) for head in cache]
        q = torch.stack([tile.q.view(positions, -1, GROUP).float() for tile in tiles], 1)
        return cls(q, torch.stack([tile.d for tile in tiles], 1))


@dataclass(frozen=True, slots=True)
class RoundedValues:
    """Values in int8 per position and head: scale * q."""

    q: Tensor  # float32 [T, Hkv, D], integers in -127..127
    scale: Tensor  # float32 [T, Hkv]

    @classmethod
    def of(cls, value: Tensor) -> RoundedValues:
        """Symmetric, scale = largest magnitude / 127, half to even. value float32 [T, Hkv, D]."""
        scale = value.abs().amax(-1) / 127
        scale = torch.where(scale < torch.finfo(torch.float32).tiny, torch.zeros_like(scale), scale)
        inverse = torch.where(scale == 0, scale, 1 / scale)[..., None]
        return cls(torch.round(value * inverse), scale)

    def packed(self) -> Tensor:
        """uint8 [Hkv, T, 17 D / 16 + 4], the cache format of `tree_attention`; T must be a multiple of 32, D of 16."""
        heads = []
        for q, scale in _by_head(self.q, self.scale):
            tiles = pack_q8_0(q.T.to(torch.int8).contiguous(), torch.ones(q.shape[1], q.shape[0] // GROUP).half())
            heads.append(torch.cat([tiles.flatten(), scale.contiguous().view(torch.uint8)]))
        return torch.stack(heads).view(len(heads), self.q.shape[0], -1)

    @classmethod
    def unpack(cls, cache: Tensor) -> RoundedValues:
        """The inverse of `packed`."""
        heads, positions, each = cache.shape
        flat = cache.reshape(heads, -1)
        tiles, scales = flat[:, : positions * (each - 4)], flat[:, positions * (each - 4) :]
        q = [unpack(head.reshape(-1, positions // GROUP, Q8_0_BYTES)).q.T.float() for head in tiles]
        return cls(torch.stack(q, 1), scales.contiguous().view(torch.float32).T.contiguous())


def _by_head(*parts: Tensor) -> zip[tuple[Tensor, ...]]:
    return zip(*(part.unbind(1) for part in parts), strict=True)


def interleave_gate_up(gate: Tensor, up: Tensor) -> Tensor:
    """Alternating blocks of 16 rows of gate and up [I, ...], I a multiple of 16 -> [2 I, ...], for `gated_mlp`."""
    if gate.shape != up.shape or gate.shape[0] % TILE:
        raise ValueError(f"gate and up must have one shape and a multiple of {TILE} rows, not {gate.shape}, {up.shape}")
    blocks = [half.reshape(-1, 1, TILE, *half.shape[1:]) for half in (gate, up)]
    return torch.cat(blocks, dim=1).reshape(-1, *gate.shape[1:])


def tile_adapters(up: Tensor) -> Tensor:
    """The second matrix of low-rank adapters, up [N, r], with the weight's rows: [ceil(N / 16), r, 16], float16 or,
    of int8, int8."""
    tiled = _padded(up).reshape(-1, TILE, up.shape[1]).transpose(1, 2).contiguous()
    return tiled if up.dtype == torch.int8 else tiled.half()


def integer_adapters(down: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """A low-rank product up (down x) in int8: down float [r, K] and up float [N, r] -> int8 [r, K + 4] and [N, r].

    Each row of down and each column of up is symmetric, its largest magnitude 127. The product of both scales is one
    factor of an inner value: a float32 in the last four bytes of the row of down.
    """
    scales = [part.abs().amax(axis, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny) / 127
              for part, axis in ((down, 1), (up, 0))]  # fmt: skip
    integers = [torch.round(part / scale).to(torch.int8) for part, scale in zip((down, up), scales, strict=True)]
    factors = (scales[0].flatten() * scales[1].flatten()).float().contiguous()
    return torch.cat([integers[0], factors.view(torch.int8).view(-1, 4)], 1), integers[1]


def float_adapters(down: Tensor, up: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The numbers of adapters in either dtype as float32: down [parts r, K], the factors of its rows, up as tiled."""
    if down.dtype != torch.int8:
        return down.float(), torch.ones(len(down)), up.float()
    factors = down[:, -4:].contiguous().view(torch.float32).flatten()
    return down[:, :-4].float(), factors, up.float()


def _check(q: Tensor, dtype: torch.dtype, *scales: Tensor) -> None:
    if q.dim() != 2 or q.dtype != dtype or q.shape[0] < 1 or q.shape[1] < GROUP or q.shape[1] % GROUP:
        raise ValueError(f"q must be {dtype} [N, a multiple of {GROUP}], not {q.dtype} {list(q.shape)}")
    wanted = (q.shape[0], q.shape[1] // GROUP)
    for scale in scales:
        if scale.dtype != torch.float16 or tuple(scale.shape) != wanted:
            raise ValueError(f"scales must be float16 {list(wanted)}, not {scale.dtype} {list(scale.shape)}")


def _padded(x: Tensor) -> Tensor:
    """x [N, ...] padded with zero rows to a multiple of 16."""
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
