"""Integer weights as ExecuTorch's quantized_decomposed operators, which XNNPACK's and Vulkan's delegates recognise."""

from __future__ import annotations

# Both modules register torch.ops.quantized_decomposed.*: torch's the products, ExecuTorch's the embeddings.
import executorch.exir.passes._quant_patterns_and_replacements  # noqa: F401
import torch
import torch.ao.quantization.fx._decomposed
from torch import Tensor, nn
from torch.nn import functional as F

from ..integers import symmetric_int8

ops = torch.ops.quantized_decomposed


class Int8Linear(nn.Module):
    """int8 weights (or fewer bits in int8), one scale per output; activations stay floats: x [R, K] -> [R, N]."""

    weight: Tensor  # int8 [N, K]
    scales: Tensor  # [N]
    zeros: Tensor  # int64 [N]
    bias: Tensor | None

    def __init__(self, linear: nn.Linear, bits: int = 8) -> None:
        super().__init__()
        self.most = (1 << (bits - 1)) - 1
        found = symmetric_int8(linear.weight, linear.in_features, bits)
        self.register_buffer("weight", found.q)
        self.register_buffer("scales", found.d[:, 0].clone())
        self.register_buffer("zeros", torch.zeros(linear.out_features, dtype=torch.int64))
        self.register_buffer("bias", linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        weight = ops.dequantize_per_channel(self.weight, self.scales, self.zeros, 0, -self.most, self.most, torch.int8)
        return F.linear(self.activations(x), weight, self.bias)

    def activations(self, x: Tensor) -> Tensor:
        """x in the form in which the product takes it."""
        return x


class QuantizedEmbedding(nn.Module):
    """An embedding table in int8 with one scale per group of columns; lookups are dequantized row by row."""

    weight: Tensor  # int8 [V, h]
    scales: Tensor  # [V, h / group_size]

    def __init__(self, table: Tensor, group_size: int) -> None:
        super().__init__()
        found = symmetric_int8(table, group_size)
        self.register_buffer("weight", found.q)
        self.register_buffer("scales", found.d)

    def forward(self, ids: Tensor) -> Tensor:
        rows: Tensor = ops.embedding_byte.dtype(self.weight, self.scales, None, -128, 127, ids, dtype=torch.float32)
        return rows
