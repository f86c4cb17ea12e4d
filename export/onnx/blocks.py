"""Weights as ONNX Runtime's block-wise integers: what MatMulNBits and GatherBlockQuantized read.

A checkpoint that was a GGUF lies on a grid already (grid.py). Such weights are carried over as they are: Q8_0 is
MatMulNBits' own symmetric form, and Q4_1 (w = d q + m) is its symmetric form d (q - 8) plus an offset m + 8 d per
block. MatMulNBits could take the offset as a float zero point, but its CPU kernel then unpacks the whole matrix in
every call (170 times slower, docs/onnx.md), so the graph adds it as a thin product. Every other weight goes through
ONNX Runtime's quantizer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, DefaultWeightOnlyQuantizer
from torch import Tensor

from ..grid import GROUP, to_q4_1, to_q8_0
from ..schemes import PartScheme

DEFAULT_BLOCK = 32  # where a scheme asks for one scale per channel, which the operators do not have


@dataclass(frozen=True, slots=True)
class Blocks:
    """A matrix [N, K] in blocks of b inputs.

    Attributes:
        values: uint8 [N, K / b, b * bits / 8], low nibble first.
        scales: float32 [N, K / b].
        zero_points: uint8 [N, ceil(K / b * bits / 8)], packed like the values; None: 2 ** (bits - 1).
        offsets: float32 [K / b, N], added to every weight of a block; None: none.
        exact: whether every weight came back bit for bit.
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

    @property
    def bytes(self) -> int:
        stored = (self.values, self.scales, self.zero_points, self.offsets)
        return sum(t.numel() * t.element_size() for t in stored if t is not None)


def to_blocks(weight: Tensor, scheme: PartScheme, is_table: bool = False) -> Blocks:
    """weight [N, K] as `scheme` says: carried over where it lies on the scheme's grid, else quantized.

    Rows of a table are looked up too, which leaves no place for offsets.

    Raises:
        ValueError: the block size does not divide K.
    """
    size = scheme.group_size or DEFAULT_BLOCK
    if weight.shape[1] % size:
        raise ValueError(f"--group-size {size} does not divide the {weight.shape[1]} inputs of a weight")
    if size == GROUP and scheme.bits == 8 and scheme.symmetric:
        found = _of_q8_0(weight)
    elif size == GROUP and scheme.bits == 4 and not scheme.symmetric and not is_table:
        found = _of_q4_1(weight)
    else:
        found = None
    return found or _quantized(weight, scheme, size)


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


def _of_q8_0(weight: Tensor) -> Blocks | None:
    """None where a group does not lie on the grid."""
    grid = to_q8_0(weight)
    values = (grid.q.to(torch.int16) + 128).to(torch.uint8).unflatten(1, (-1, GROUP))
    return Blocks(8, values, grid.d.float(), None, None, True) if bool(grid.exact.all()) else None


def _of_q4_1(weight: Tensor) -> Blocks | None:
    """None where a group does not lie on the grid."""
    grid = to_q4_1(weight)
    q, offsets = grid.q.unflatten(1, (-1, GROUP)), grid.m.float() + 8 * grid.d.float()
    values = q[..., ::2] | q[..., 1::2] << 4
    found = Blocks(4, values, grid.d.float(), None, offsets.T.contiguous(), True)
    return found if bool(grid.exact.all()) else None


def _quantized(weight: Tensor, scheme: PartScheme, size: int) -> Blocks:
    config = DefaultWeightOnlyQuantConfig(block_size=size, is_symmetric=scheme.symmetric, bits=scheme.bits)
    columns = weight.detach().float().T.contiguous().numpy()
    values, scales, zero_points = map(torch.from_numpy, DefaultWeightOnlyQuantizer(config).qbits_block_quant(columns))
    return Blocks(scheme.bits, values, scales, None if scheme.symmetric else zero_points, None, False)
