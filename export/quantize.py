"""Weights as integers, in the form that the XNNPACK delegate recognises: explicit quantized_decomposed operators.

`8da4w`: int8 activations, quantized per row at run time (a row's scale depends on that row only, so rows stay independent), and int4
weights in groups. The delegate's int4 grid is symmetric, s (q - 8), but weights that come from a GGUF lie on d q + m, and rounding
them to another grid costs more than the first quantization did (docs/quantization.md). So a group keeps its own offset: the product is
the delegate's symmetric one plus, per group, (m + 8 d) times the sum of the group's inputs, two thin float32 products. The head uses int8
weights with one scale per output (`8da8w`), the embedding int8 weights in groups (`8w`), which loses nothing of a Q8_0 table.
"""

from __future__ import annotations

import torch
import torch.ao.quantization.fx._decomposed  # noqa: F401  registers torch.ops.quantized_decomposed.*
from torch import Tensor, nn
from torch.nn import functional as F

from .graphs import Weights

_ops = torch.ops.quantized_decomposed


def symmetric_int8(weight: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
    """weight [N, K] -> int8 values [N, K] and float32 scales [N, K / group_size], the largest magnitude of a group at 127."""
    groups = _groups(weight, group_size)
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-9) / 127
    return (groups / scale).round().flatten(1).to(torch.int8), scale.squeeze(-1)


def affine_int4(weight: Tensor, group_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """weight [N, K] -> int8 values q - 8 in [-8, 7] [N, K], scales d and offsets m + 8 d [N, K / group_size], with w = d (q - 8) + offset.

    The least weight of a group is at q = 0 and the greatest at 15, as in a GGUF's Q4_1, so the values of such a group come back unchanged.
    """
    groups = _groups(weight, group_size)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    scale = ((high - low) / 15).clamp(min=1e-9)
    # The delegate keeps scales as bfloat16; rounding them here lets the offsets and values fit the scale that will be used.
    scale = scale.to(torch.bfloat16).float()
    values = ((groups - low) / scale).round().clamp(0, 15) - 8
    offset = (groups - values * scale).mean(-1)
    return values.flatten(1).to(torch.int8), scale.squeeze(-1), offset


def _groups(weight: Tensor, group_size: int) -> Tensor:
    if weight.shape[1] % group_size:
        raise ValueError(f"--group-size {group_size} does not divide the {weight.shape[1]} inputs of a weight")
    return weight.float().unflatten(1, (-1, group_size))


def _int8_rows(x: Tensor) -> Tensor:
    scale, zero = _ops.choose_qparams_per_token_asymmetric(x, torch.int8)
    x = _ops.quantize_per_token(x, scale, zero, -128, 127, torch.int8)
    return _ops.dequantize_per_token(x, scale, zero, -128, 127, torch.int8, torch.float32)


class Int4Linear(nn.Module):
    """`8da4w` with an offset per group."""

    def __init__(self, linear: nn.Linear, group_size: int) -> None:
        super().__init__()
        self.group_size = group_size
        values, scales, offsets = affine_int4(linear.weight, group_size)
        self.register_buffer("weight", values)
        self.register_buffer("scales", scales)
        self.register_buffer("zeros", torch.zeros(scales.shape, dtype=torch.int32))
        self.register_buffer("offsets", offsets)
        groups = torch.eye(linear.in_features // group_size).repeat_interleave(group_size, dim=1)
        self.register_buffer("group_sum", groups)  # [K / group_size, K]
        self.register_buffer("bias", linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        weight = _ops.dequantize_per_channel_group(
            self.weight, self.scales, self.zeros, -8, 7, torch.int8, self.group_size, torch.float32
        )
        return F.linear(_int8_rows(x), weight, self.bias) + F.linear(F.linear(x, self.group_sum), self.offsets)


class Int8Linear(nn.Module):
    """`8da8w`: one scale per output."""

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

    def __init__(self, table: Tensor, group_size: int) -> None:
        super().__init__()
        values, scales = symmetric_int8(table, group_size)
        self.register_buffer("weight", values)
        self.register_buffer("scales", scales)

    def forward(self, ids: Tensor) -> Tensor:
        return _ops.embedding_byte.dtype(self.weight, self.scales, None, -128, 127, ids, dtype=torch.float32)


def quantize_weights(weights: Weights, group_size: int) -> dict[str, dict[str, object]]:
    """Replace the products and the embedding of `weights` in place; returns what each part uses, for the manifest.

    Adapters of stream rows, the pruner and the norms stay in float32: they are small, and nothing is gained by rounding them.
    """
    for block in weights.blocks:
        for name in ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"):
            setattr(block, name, Int4Linear(getattr(block, name), group_size))
    weights.head = Int8Linear(weights.head)
    weights.stream_head = Int8Linear(weights.stream_head)
    table = weights.embedding.weight
    weights.embedding = QuantizedEmbedding(table, group_size)
    if weights.candidate_embedding is not None:
        weights.candidate_embedding = QuantizedEmbedding(weights.candidate_embedding.weight, group_size)
    return {
        "embedding": {"scheme": "8w", "bits": 8, "group_size": group_size, "symmetric": True},
        "attention": {"scheme": "8da4w", "bits": 4, "group_size": group_size, "symmetric": False},
        "mlp": {"scheme": "8da4w", "bits": 4, "group_size": group_size, "symmetric": False},
        "head": {"scheme": "8da8w", "bits": 8, "group_size": None, "symmetric": True},
        "streams": {"scheme": "8da8w head, float32 adapters", "bits": 8, "group_size": None, "symmetric": True},
    }
