"""Weights as ONNX Runtime's block-wise integers, for MatMulNBits and GatherBlockQuantized.

The weights of a GGUF are on a grid already and are stored without change: Q8_0 is MatMulNBits' own symmetric format,
and Q4_1 (w = d q + m) is its symmetric format d (q - 8) plus an offset m + 8 d per block. MatMulNBits accepts the
offset as a float zero point, but its CPU kernel then unpacks the whole matrix in every call (170 times slower), so the
graph adds it with a small product. Other weights use ONNX Runtime's quantizer. Schemes with one scale per channel,
which the operators do not support, use blocks of 32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, DefaultWeightOnlyQuantizer
from torch import Tensor
from torch.nn import functional as F

from ..integers import Integers, to_integers
from ..schemes import GROUP, PartScheme

_MOSTLY = 0.5  # a matrix with a larger share of groups on the scheme's grid keeps it


@dataclass(frozen=True, slots=True)
class Blocks:
    """A matrix [N, K] in blocks of b inputs.

    Attributes:
        values: uint8 [N, K / b, b * bits / 8], low nibble first.
        scales: float32 [N, K / b].
        zero_points: uint8 [N, ceil(K / b * bits / 8)], packed like the values; None: 2 ** (bits - 1).
        offsets: float32 [K / b, N], added to every weight of a block; None: none.
        exact: whether every weight is reproduced bit for bit.
    """

    bits: int
    values: Tensor
    scales: Tensor
    zero_points: Tensor | None
    offsets: Tensor | None
    exact: bool

    @property
    def block_size(self) -> int:
        return int(self.values.shape[2]) * 8 // self.bits

    def dequantized(self) -> Tensor:
        """float [N, K], offsets included."""
        found = dequantized(self.values, self.scales, self.zero_points, self.bits)
        return found if self.offsets is None else found + self.offsets.T.repeat_interleave(self.block_size, 1)

    @property
    def bytes(self) -> int:
        stored = (self.values, self.scales, self.zero_points, self.offsets)
        return sum(t.numel() * t.element_size() for t in stored if t is not None)


def to_blocks(weight: Tensor, scheme: PartScheme, is_table: bool = False) -> Blocks:
    """weight [N, K] in this scheme. If most groups of a matrix are already on the scheme's grid, those are kept
    exactly; otherwise ONNX Runtime quantizes the whole matrix.

    Rows of a table (`is_table`) are also looked up, which does not support offsets.

    Raises:
        ValueError: the block size does not divide K.
    """
    scheme = replace(scheme, group_size=scheme.group_size or GROUP)
    found = to_integers(weight, scheme, _rounded)
    on_grid = found.exact is None or float(found.exact.float().mean()) > _MOSTLY
    if not on_grid or (found.m is not None and is_table):
        found = _rounded(weight.detach().float(), scheme)
    return _encoded(found, scheme.bits)


def _encoded(found: Integers, bits: int) -> Blocks:
    middle, groups = 1 << (bits - 1), found.d.shape[1]
    q = (found.q.to(torch.int16) + middle).to(torch.uint8) if found.q.dtype == torch.int8 else found.q
    zero_points = None
    if found.z is not None:
        zero_points = _packed(F.pad(found.z, (0, -groups % (8 // bits)), value=middle), bits)
    offsets = None if found.m is None else (found.m.float() + middle * found.d.float()).T.contiguous()
    values = _packed(q, bits).unflatten(1, (groups, -1))
    exact = found.exact is not None and bool(found.exact.all())
    return Blocks(bits, values, found.d.float(), zero_points, offsets, exact)


def _packed(q: Tensor, bits: int) -> Tensor:
    """uint8 [..., n] -> uint8 [..., n * bits / 8]: the inverse of `unpacked`."""
    return q if bits == 8 else q[..., ::2] | q[..., 1::2] << 4


def dequantized(values: Tensor, scales: Tensor, zero_points: Tensor | None, bits: int) -> Tensor:
    """float [N, K] of the fields of `Blocks`, without offsets."""
    q = unpacked(values, bits)
    zeros: Tensor | int = 1 << (bits - 1)
    if zero_points is not None:
        zeros = unpacked(zero_points, bits)[:, : scales.shape[1], None]
    return ((q.to(scales.dtype) - zeros) * scales.unsqueeze(-1)).flatten(1)


def unpacked(packed: Tensor, bits: int) -> Tensor:
    """uint8 [..., n] -> uint8 [..., n * 8 / bits]."""
    return packed if bits == 8 else torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2)


def _rounded(weight: Tensor, scheme: PartScheme) -> Integers:
    """Quantized by ONNX Runtime."""
    size = scheme.group_size or GROUP
    config = DefaultWeightOnlyQuantConfig(block_size=size, is_symmetric=scheme.symmetric, bits=scheme.bits)
    columns = weight.T.contiguous().numpy()
    values, d, zeros = map(torch.from_numpy, DefaultWeightOnlyQuantizer(config).qbits_block_quant(columns))
    q = unpacked(values, scheme.bits).flatten(1)
    if scheme.symmetric:
        return Integers((q.to(torch.int16) - (1 << (scheme.bits - 1))).to(torch.int8), d)
    return Integers(q, d, z=unpacked(zeros, scheme.bits)[:, : d.shape[1]])
