"""The parts for XNNPACK, with integer weights as quantized_decomposed operators.

`8da4w`: int8 activations, quantized per row at run time (a row's scale depends on that row only, so rows stay
independent), and int4 weights in groups. The delegate's int4 format is symmetric, s (q - 8), but weights from a GGUF
are on a grid d q + m, and requantizing them loses more than the first quantization did (docs/export.md). So each
group keeps its offset: the product is the delegate's symmetric one plus, per group, (m + 8 d) times the sum of the
group's inputs, two small float32 products. The head has int8 weights with one scale per output (`8da8w`), the embedding
int8 weights in groups (`8w`), which stores a Q8_0 table without loss.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamfuse.model.transformer import RMSNorm

from ...integers import Integers, groups_of
from ...schemes import Part
from .. import decomposed, stock
from ..decomposed import QuantizedEmbedding, ops


def affine_int4(weight: Tensor, group_size: int) -> Integers:
    """weight [N, K]: q int8 in [-8, 7] and an offset per group; d float32, m float32 [N, K / group_size].

    The minimum of a group is at -8 and the maximum at 7, so that a GGUF's Q4_1 gives its own q minus 8.
    """
    groups = groups_of(weight, group_size)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    scale = ((high - low) / 15).clamp(min=1e-9)
    # The delegate stores scales as bfloat16; they are rounded first, so that values and offsets match these scales.
    scale = scale.to(torch.bfloat16).float()
    values = ((groups - low) / scale).round().clamp(0, 15) - 8
    offset = (groups - values * scale).mean(-1)
    return Integers(values.flatten(1).to(torch.int8), scale.squeeze(-1), offset)


def _int8_rows(x: Tensor) -> Tensor:
    """x [R, K] quantized to int8 and back, one scale and zero point per row, like the delegate's activations."""
    scale, zero = ops.choose_qparams_per_token_asymmetric(x, torch.int8)
    x = ops.quantize_per_token(x, scale, zero, -128, 127, torch.int8)
    rounded: Tensor = ops.dequantize_per_token(x, scale, zero, -128, 127, torch.int8, torch.float32)
    return rounded


class Int4Linear(nn.Module):
    """`8da4w` with an offset per group: x [R, K] -> [R, N]."""

    weight: Tensor  # int8 [N, K], values in [-8, 7]
    scales: Tensor  # [N, K / group_size]
    zeros: Tensor  # int32 [N, K / group_size]
    offsets: Tensor  # [N, K / group_size]
    group_sum: Tensor  # [K / group_size, K], sums the inputs of a group
    bias: Tensor | None

    def __init__(self, linear: nn.Linear, group_size: int) -> None:
        super().__init__()
        self.group_size = group_size
        found = affine_int4(linear.weight, group_size)
        self.register_buffer("weight", found.q)
        self.register_buffer("scales", found.d)
        self.register_buffer("zeros", torch.zeros(found.d.shape, dtype=torch.int32))
        self.register_buffer("offsets", found.m)
        groups = torch.eye(linear.in_features // group_size).repeat_interleave(group_size, dim=1)
        self.register_buffer("group_sum", groups)
        self.register_buffer("bias", linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        weight = ops.dequantize_per_channel_group(
            self.weight, self.scales, self.zeros, -8, 7, torch.int8, self.group_size, torch.float32
        )
        # XNNPACK's product with dynamically quantized rows has no bias, so the float32 product has it.
        return F.linear(_int8_rows(x), weight) + F.linear(F.linear(x, self.group_sum), self.offsets, self.bias)


class Int8Linear(decomposed.Int8Linear):
    """`8da8w`: int8 weights, one scale per output, with int8 activations."""

    def activations(self, x: Tensor) -> Tensor:
        return _int8_rows(x)


class Norm(stock.Norm):
    """The mean is a product with a row of 1/h, since means are often not delegated.

    XNNPACK's cache of packed weights frees constants that are not part of a product. So the epsilon is the product's
    bias, and delegates.py makes the weight an input.
    """

    mean: Tensor
    eps: Tensor

    def __init__(self, norm: RMSNorm) -> None:
        super().__init__(norm)
        size = norm.weight.shape[0]
        self.register_buffer("mean", torch.full((1, size), 1.0 / size))
        self.register_buffer("eps", torch.full((1,), norm.eps))

    def rows(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(F.linear(x * x, self.mean, self.eps)) * self.weight


class Form(stock.Form):
    """Integer products and embeddings with the schemes of the manifest (`sizes.schemes`); floats without a group size.
    Adapters of stream rows, the pruner and the norms stay floats: they are small, and quantizing them gains nothing."""

    NORM = Norm

    def __init__(self, group_size: int | None) -> None:
        self.group_size = group_size

    def linear(self, part: Part, linear: nn.Linear) -> nn.Module:
        if self.group_size is None:
            return linear
        return Int4Linear(linear, self.group_size) if part in ("attention", "mlp") else Int8Linear(linear)

    def embedding(self, weight: Tensor) -> nn.Module:
        return super().embedding(weight) if self.group_size is None else QuantizedEmbedding(weight, self.group_size)
