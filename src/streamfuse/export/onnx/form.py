"""The parts for ONNX Runtime, with operators that ONNX has for a whole part; and the storage of their weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from streamfuse.model.families import Activation
from streamfuse.model.streams import StreamAdapters
from streamfuse.model.transformer import Block, RMSNorm, ShortConvolution, normed

from .. import layers
from ..schemes import Part, PartScheme
from .blocks import Blocks, to_blocks
from .operators import ops


@dataclass
class PartReport:
    """How one part's matrices were stored: how many, how many bit for bit, and their total error."""

    matrices: int = 0
    exact: int = 0
    parameters: int = 0
    bytes: int = 0
    noise: float = 0.0  # sum of squared differences
    signal: float = 0.0

    def add(self, weight: Tensor, blocks: Blocks) -> None:
        self.matrices += 1
        self.exact += blocks.exact
        self.parameters += weight.numel()
        self.bytes += blocks.bytes
        self.signal += float(weight.pow(2).sum())
        if not blocks.exact:
            self.noise += float((blocks.dequantized() - weight).pow(2).sum())

    def to_dict(self) -> dict[str, Any]:
        error = (self.noise / self.signal) ** 0.5 if self.signal else 0.0
        return {"matrices": self.matrices, "exact": self.exact, "relative_error": round(error, 6)}


class Form(layers.Form):
    """Builds the parts; `scheme_of` gives the scheme of a part's weights, `report` collects the results."""

    def __init__(self, scheme_of: Callable[[Part], PartScheme]) -> None:
        self._scheme_of = scheme_of
        self.report: dict[str, PartReport] = {}
        self._tables: dict[tuple[int, PartScheme], Blocks] = {}  # vocabulary tables, which may be tied

    def embedding(self, weight: Tensor) -> nn.Module:
        blocks = self._table(weight, "embedding")
        return BlockEmbedding(blocks) if blocks else super().embedding(weight)

    def norm(self, norm: RMSNorm, axis: int = 1) -> nn.Module:
        return Norm(norm)

    def linear(self, part: Part, linear: nn.Linear) -> nn.Module:
        blocks = self._blocks(linear.weight, part)
        return BlockLinear(blocks, linear.bias) if blocks else linear

    def vocabulary(self, part: Part, weight: Tensor) -> nn.Module:
        blocks = self._table(weight, part) if part == "head" else self._blocks(weight, part)
        return BlockLinear(blocks, None) if blocks else layers.linear_of(weight)

    def activation(self, kind: Activation) -> nn.Module:
        return super().activation(kind) if kind == "silu" else Gelu()

    def gated(self, gate_up: Tensor, size: int, activation: nn.Module) -> Tensor:
        gate, up = gate_up.chunk(2, dim=1)
        gated: Tensor = activation(gate) * up
        return gated

    def opening(self, block: Block, adapters: StreamAdapters | None) -> nn.Module:
        return Opening(self, block, adapters)

    def top_k(self, ids: Tensor, top_k: int) -> nn.Module:
        return TopK(ids, top_k)

    def attention(self, capacity: int, cache_size: int, scale: float, window: int | None) -> nn.Module:
        return Attention(capacity, cache_size, scale, window)

    def convolution(self, capacity: int, cache_size: int, convolution: ShortConvolution) -> nn.Module:
        return GatedConvolution(capacity, cache_size, convolution)

    def _table(self, weight: Tensor, part: Part) -> Blocks | None:
        """A tied head shares the embedding's table if their schemes are the same."""
        key = weight.data_ptr(), self._scheme_of(part)
        if key not in self._tables:
            blocks = self._blocks(weight, part, is_table=True)
            if blocks is None:
                return None
            self._tables[key] = blocks
        return self._tables[key]

    def _blocks(self, weight: Tensor, part: Part, is_table: bool = False) -> Blocks | None:
        """None for float weights."""
        scheme = self._scheme_of(part)
        if scheme.bits >= 16:
            return None
        blocks = to_blocks(weight.detach(), scheme, is_table)
        self.report.setdefault(part, PartReport()).add(weight.detach(), blocks)
        return blocks


class _Stored(nn.Module):
    """The fields of `Blocks` as buffers."""

    values: Tensor
    scales: Tensor
    zero_points: Tensor | None
    offsets: Tensor | None

    def __init__(self, blocks: Blocks) -> None:
        super().__init__()
        self.bits, self.block_size = blocks.bits, blocks.block_size
        for name in ("values", "scales", "zero_points", "offsets"):
            self.register_buffer(name, getattr(blocks, name))


class BlockEmbedding(_Stored):
    def forward(self, ids: Tensor) -> Tensor:
        rows: Tensor = ops.block_embedding(ids, self.values, self.scales, self.zero_points, self.bits)
        return rows


class BlockLinear(_Stored):
    """A product with integer weights; the blocks' offsets, if any, are a small second product."""

    bias: Tensor | None

    def __init__(self, blocks: Blocks, bias: Tensor | None) -> None:
        super().__init__(blocks)
        self.register_buffer("bias", None if bias is None else bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = ops.block_linear(x, self.values, self.scales, self.zero_points, self.bias, self.bits)
        if self.offsets is not None:
            y = torch.addmm(y, x.view(x.shape[0], -1, self.block_size).sum(2), self.offsets)
        return y


class Norm(nn.Module):
    """RMSNorm over the last axis."""

    def __init__(self, norm: RMSNorm) -> None:
        super().__init__()
        self.weight, self.eps = norm.weight, norm.eps

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = ops.rms_norm(x, self.weight, self.eps)
        return normed


class Gelu(nn.Module):
    """The approximation with tanh, as a sigmoid, which all providers have."""

    def forward(self, gate: Tensor) -> Tensor:
        linear, cubic = layers.GELU
        return gate * torch.sigmoid(gate * (linear + cubic * (gate * gate)))


class Opening(layers.Opening):
    """q, k and v separate, for ONNX's Split and RotaryEmbedding."""

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, first: int) -> tuple[Tensor, ...]:
        sizes = [count * self.dim for count in (self.heads, self.kv_heads, self.kv_heads)]
        q, k, v = self.qkv_proj(normed(self.norm, x), first).split(sizes, dim=1)
        if self.convolves:
            halves = (k * v).chunk(2, dim=1)
            return tuple(t.view(x.shape[0], -1, self.dim) for t in (q, *halves))
        if self.norm_wide:
            q, k = normed(self.q_norm, q), normed(self.k_norm, k)
        q, k, v = (t.view(x.shape[0], -1, self.dim) for t in (q, k, v))
        if not (self.norm_wide or self.norm_after_rope):
            q, k = normed(self.q_norm, q), normed(self.k_norm, k)
        q, k = ops.rotary(q, cos, sin), ops.rotary(k, cos, sin)
        if self.norm_after_rope:
            q, k = normed(self.q_norm, q), normed(self.k_norm, k)
        return q, k, v


class TopK(layers.TopK):
    """Looks ids up with a single Gather."""

    def forward(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        log_probs, columns = torch.topk(torch.log_softmax(logits, dim=1), self.top_k)
        return self.ids[columns], log_probs


class Attention(nn.Module):
    lap_starts: Tensor | None

    def __init__(self, capacity: int, cache_size: int, scale: float, window: int | None) -> None:
        super().__init__()
        self.scale, self.window = scale, window
        self.register_buffer("lap_starts", layers.lap_starts(capacity, cache_size))

    def forward(self, *tensors: Tensor) -> Tensor:
        if self.window is None:
            attended: Tensor = ops.attention(*tensors[:-1], None, None, self.scale, 0)
        else:
            attended = ops.attention(*tensors, self.lap_starts, self.scale, self.window)
        return attended


class GatedConvolution(nn.Module):
    taps: Tensor  # [L, h]
    lap_starts: Tensor | None

    def __init__(self, capacity: int, cache_size: int, convolution: ShortConvolution) -> None:
        super().__init__()
        self.register_buffer("taps", layers.taps_of(convolution))
        self.register_buffer("lap_starts", layers.lap_starts(capacity, cache_size))

    def forward(self, *tensors: Tensor) -> Tensor:
        convolved: Tensor = ops.short_convolution(*tensors, self.lap_starts, self.taps)
        return convolved
