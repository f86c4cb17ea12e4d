"""Weights as integers, in the form that the XNNPACK delegate recognises: explicit quantized_decomposed operators.

`8da4w`: int8 activations, quantized per row at run time (a row's scale depends on that row only, so rows stay independent), and int4
symmetric weights with one scale per group of inputs. The head uses int8 weights with one scale per output (`8da8w`), the embedding int8
weights in groups (`8w`), which loses nothing of a Q8_0 table.
"""

from __future__ import annotations

import torch
import torch.ao.quantization.fx._decomposed  # noqa: F401  registers torch.ops.quantized_decomposed.*
from torch import Tensor, nn
from torch.nn import functional as F

from .graphs import Weights

_ops = torch.ops.quantized_decomposed


def symmetric_groups(weight: Tensor, bits: int, group_size: int) -> tuple[Tensor, Tensor]:
    """weight [N, K] -> int8 values [N, K] and float32 scales [N, K / group_size].

    The scale of a group is the one of a small search that leaves the least squared error: for four bits clipping the extremes a little
    is better than stretching the grid to them, and a negative extreme can use the grid's -8.
    """
    if weight.shape[1] % group_size:
        raise ValueError(f"group_size {group_size} does not divide the {weight.shape[1]} inputs of a weight")
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    groups = weight.float().unflatten(1, (-1, group_size))
    extreme = groups.abs().amax(-1, keepdim=True).clamp(min=1e-9)
    best_error = torch.full_like(extreme, float("inf"))
    best_scale = extreme / high
    for step in torch.linspace(0.75, 1.0, 11) if bits < 8 else (torch.tensor(1.0),):
        for reach in {high, -low} if bits < 8 else {high}:
            scale = extreme * step / reach
            error = ((groups / scale).round().clamp(low, high) * scale - groups).square().sum(-1, keepdim=True)
            better = error < best_error
            best_error, best_scale = torch.where(better, error, best_error), torch.where(better, scale, best_scale)
    values = (groups / best_scale).round().clamp(low, high)
    return values.flatten(1).to(torch.int8), best_scale.squeeze(-1)


class QuantizedLinear(nn.Module):
    """A linear layer with int8 activations per row and `bits`-bit weights; group_size 0 is one scale per output."""

    def __init__(self, linear: nn.Linear, bits: int, group_size: int) -> None:
        super().__init__()
        self.bits, self.group_size = bits, group_size
        values, scales = symmetric_groups(linear.weight, bits, group_size or linear.in_features)
        self.register_buffer("weight", values)
        self.register_buffer("scales", scales if group_size else scales[:, 0].clone())
        self.register_buffer("zeros", torch.zeros(self.scales.shape, dtype=torch.int32 if group_size else torch.int64))
        self.register_buffer("bias", linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        scale, zero = _ops.choose_qparams_per_token_asymmetric(x, torch.int8)
        x = _ops.quantize_per_token(x, scale, zero, -128, 127, torch.int8)
        x = _ops.dequantize_per_token(x, scale, zero, -128, 127, torch.int8, torch.float32)
        low, high = -(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1
        if self.group_size:
            weight = _ops.dequantize_per_channel_group(
                self.weight, self.scales, self.zeros, low, high, torch.int8, self.group_size, torch.float32
            )
        else:
            weight = _ops.dequantize_per_channel(self.weight, self.scales, self.zeros, 0, low, high, torch.int8)
        return F.linear(x, weight, self.bias)


class QuantizedEmbedding(nn.Module):
    """An embedding table in int8 with one scale per group of columns; lookups are dequantized row by row."""

    def __init__(self, table: Tensor, group_size: int) -> None:
        super().__init__()
        values, scales = symmetric_groups(table, 8, group_size)
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
            setattr(block, name, QuantizedLinear(getattr(block, name), 4, group_size))
    weights.head = QuantizedLinear(weights.head, 8, 0)
    weights.stream_head = QuantizedLinear(weights.stream_head, 8, 0)
    table = weights.embedding.weight
    weights.embedding = QuantizedEmbedding(table, group_size)
    if weights.candidate_embedding is not None:
        weights.candidate_embedding = QuantizedEmbedding(weights.candidate_embedding.weight, group_size)
    return {
        "embedding": {"scheme": "8w", "bits": 8, "group_size": group_size, "symmetric": True},
        "attention": {"scheme": "8da4w", "bits": 4, "group_size": group_size, "symmetric": True},
        "mlp": {"scheme": "8da4w", "bits": 4, "group_size": group_size, "symmetric": True},
        "head": {"scheme": "8da8w", "bits": 8, "group_size": 0, "symmetric": True},
        "streams": {"scheme": "float32 adapters, 8da8w head", "bits": 8, "group_size": 0, "symmetric": True},
    }
