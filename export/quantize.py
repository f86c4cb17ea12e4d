"""Weights of `--backend xnnpack` as integers, as the XNNPACK delegate recognises them: quantized_decomposed operators.

`8da4w`: int8 activations, quantized per row at run time (a row's scale depends on that row only, so rows stay
independent), and int4 weights in groups. The delegate's int4 grid is symmetric, s (q - 8), but weights that come from a
GGUF lie on d q + m, and rounding them to another grid costs more than the first quantization did
(docs/quantization.md). So a group keeps its own offset: the product is the delegate's symmetric one plus, per group,
(m + 8 d) times the sum of the group's inputs, two thin float32 products. The head uses int8 weights with one scale per
output (`8da8w`), the embedding int8 weights in groups (`8w`), which loses nothing of a Q8_0 table.
"""

from __future__ import annotations

from typing import cast

# Two modules register torch.ops.quantized_decomposed.*: torch's the products, ExecuTorch's the embeddings.
import executorch.exir.passes._quant_patterns_and_replacements  # noqa: F401
import torch
import torch.ao.quantization.fx._decomposed
from torch import Tensor, nn
from torch.nn import functional as F

from .stock import Closing, Head, Opening, StreamHead
from .weights import Weights

_ops = torch.ops.quantized_decomposed


def symmetric_int8(weight: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
    """weight [N, K] -> int8 values [N, K] and scales [N, K / group_size]; a group's largest magnitude is at 127."""
    groups = _groups(weight, group_size)
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-9) / 127
    return (groups / scale).round().flatten(1).to(torch.int8), scale.squeeze(-1)


def affine_int4(weight: Tensor, group_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """weight [N, K] -> int8 values q - 8 in [-8, 7] [N, K], scales d and offsets m + 8 d [N, K / group_size].

    A weight is d (q - 8) + offset. A group's least weight is at q = 0 and its greatest at 15, as in a GGUF's Q4_1, so
    the q of such a group come back unchanged.
    """
    groups = _groups(weight, group_size)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    scale = ((high - low) / 15).clamp(min=1e-9)
    # The delegate keeps scales as bfloat16; rounded here, so that values and offsets fit the scale that will be used.
    scale = scale.to(torch.bfloat16).float()
    values = ((groups - low) / scale).round().clamp(0, 15) - 8
    offset = (groups - values * scale).mean(-1)
    return values.flatten(1).to(torch.int8), scale.squeeze(-1), offset


def _groups(weight: Tensor, group_size: int) -> Tensor:
    if weight.shape[1] % group_size:
        raise ValueError(f"--group-size {group_size} does not divide the {weight.shape[1]} inputs of a weight")
    groups: Tensor = weight.float().unflatten(1, (-1, group_size))
    return groups


def _int8_rows(x: Tensor) -> Tensor:
    """x [R, K] through int8 and back, one scale and zero point per row: what the delegate does to activations."""
    scale, zero = _ops.choose_qparams_per_token_asymmetric(x, torch.int8)
    x = _ops.quantize_per_token(x, scale, zero, -128, 127, torch.int8)
    rounded: Tensor = _ops.dequantize_per_token(x, scale, zero, -128, 127, torch.int8, torch.float32)
    return rounded


class Int4Linear(nn.Module):
    """`8da4w` with an offset per group: x [R, K] -> [R, N]."""

    weight: Tensor  # int8 [N, K], values in [-8, 7]
    scales: Tensor  # [N, K / group_size]
    zeros: Tensor  # int32, likewise
    offsets: Tensor  # likewise
    group_sum: Tensor  # [K / group_size, K], sums the inputs of a group
    bias: Tensor | None

    def __init__(self, linear: nn.Linear, group_size: int) -> None:
        super().__init__()
        self.group_size = group_size
        values, scales, offsets = affine_int4(linear.weight, group_size)
        self.register_buffer("weight", values)
        self.register_buffer("scales", scales)
        self.register_buffer("zeros", torch.zeros(scales.shape, dtype=torch.int32))
        self.register_buffer("offsets", offsets)
        groups = torch.eye(linear.in_features // group_size).repeat_interleave(group_size, dim=1)
        self.register_buffer("group_sum", groups)
        self.register_buffer("bias", linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        weight = _ops.dequantize_per_channel_group(
            self.weight, self.scales, self.zeros, -8, 7, torch.int8, self.group_size, torch.float32
        )
        # XNNPACK's form takes no bias beside rows that are quantized at run time, so the float32 product has it.
        return F.linear(_int8_rows(x), weight) + F.linear(F.linear(x, self.group_sum), self.offsets, self.bias)


class Int8Linear(nn.Module):
    """`8da8w`, one scale per output: x [R, K] -> [R, N]."""

    weight: Tensor  # int8 [N, K]
    scales: Tensor  # [N]
    zeros: Tensor  # int64 [N]
    bias: Tensor | None

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        values, scales = symmetric_int8(linear.weight, linear.in_features)
        self.register_buffer("weight", values)
        self.register_buffer("scales", scales[:, 0].clone())
        self.register_buffer("zeros", torch.zeros(len(values), dtype=torch.int64))
        self.register_buffer("bias", linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        weight = _ops.dequantize_per_channel(self.weight, self.scales, self.zeros, 0, -127, 127, torch.int8)
        return F.linear(_int8_rows(x), weight, self.bias)


class QuantizedEmbedding(nn.Module):
    """An embedding table in int8 with one scale per group of columns; lookups are dequantized row by row."""

    weight: Tensor  # int8 [V, h]
    scales: Tensor  # [V, h / group_size]

    def __init__(self, table: Tensor, group_size: int) -> None:
        super().__init__()
        values, scales = symmetric_int8(table, group_size)
        self.register_buffer("weight", values)
        self.register_buffer("scales", scales)

    def forward(self, ids: Tensor) -> Tensor:
        rows: Tensor = _ops.embedding_byte.dtype(self.weight, self.scales, None, -128, 127, ids, dtype=torch.float32)
        return rows


def quantize_weights(weights: Weights, group_size: int) -> None:
    """Replace the products and the embeddings of `weights` in place; `parts.schemes` says the same for the manifest.

    Adapters of stream rows, the pruner and the norms stay in float32: they are small, and rounding them gains nothing.
    """
    for opening, closing in zip(weights.openings, weights.closings, strict=True):
        first, last = cast("Opening", opening).part, cast("Closing", closing).part
        for adapted in (first.qkv_proj, last.o_proj, last.gate_up_proj, last.down_proj):
            adapted.product = Int4Linear(cast("nn.Linear", adapted.product), group_size)
    for head in (cast("Head", weights.head), cast("StreamHead", weights.stream_head)):
        head.part.product = Int8Linear(cast("nn.Linear", head.part.product))
    weights.embedding = _quantize_table(weights.embedding, group_size)
    if weights.candidates is not None:
        weights.candidates = _quantize_table(weights.candidates, group_size)


def _quantize_table(embedding: nn.Module, group_size: int) -> QuantizedEmbedding:
    return QuantizedEmbedding(cast("nn.Embedding", embedding).weight, group_size)
