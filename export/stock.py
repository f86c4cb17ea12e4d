"""The parts of a graph on ExecuTorch's own operators: what `--backend xnnpack` exports, and the float32 reference.

A `Part` becomes one XNNPACK delegate. Its operators are those that the delegate takes: 2-D products, slices,
concatenations and element-wise arithmetic. docs/export.md says why norm weights are inputs of delegates and why
projections that share an input are one matrix. Attention, top-k and gathers lie outside.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamfuse.model.streams import LowRank, StreamAdapters
from streamfuse.model.transformer import Block, RMSNorm

_HIDDEN = -1e4  # finite, as engines without infinities need it


class Form:
    """Float32 weights; `quantize.py` puts integers in their places."""

    def embedding(self, weight: Tensor) -> nn.Module:
        table: nn.Module = nn.Embedding.from_pretrained(weight)
        return table

    def opening(self, block: Block, adapters: StreamAdapters | None) -> nn.Module:
        return Opening(block, adapters)

    def closing(self, block: Block, adapters: StreamAdapters | None) -> nn.Module:
        return Closing(block, adapters)

    def head(self, norm: RMSNorm, weight: Tensor) -> nn.Module:
        return Head(norm, weight)

    def stream_head(self, norm: RMSNorm, weight: Tensor, ids: Tensor, top_k: int) -> nn.Module:
        return StreamHead(norm, weight, ids, top_k)

    def attention(self, capacity: int, scale: float) -> nn.Module:
        return Attention(capacity, scale)


class Norm(nn.Module):
    """RMSNorm over rows [R, h], its mean taken by a product with a row of 1/h (means are often not delegated).

    Its weight is an argument: XNNPACK's cache of packed weights frees constants that are not part of a product, so a
    delegate gets such constants as inputs. The epsilon is the product's bias for the same reason.
    """

    mean: Tensor
    eps: Tensor

    def __init__(self, norm: RMSNorm) -> None:
        super().__init__()
        self.weight = norm.weight
        size = norm.weight.shape[0]
        self.register_buffer("mean", torch.full((1, size), 1.0 / size))
        self.register_buffer("eps", torch.full((1,), norm.eps))

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(F.linear(x * x, self.mean, self.eps)) * weight


class FusedAdapter(nn.Module):
    """Low-rank adapters of projections that share an input, as one pair of matrices: x [R, n_in] -> [R, n_out]."""

    def __init__(self, adapters: StreamAdapters, *names: str) -> None:
        super().__init__()
        parts = [cast("LowRank", adapters[name]) for name in names]
        self.down = nn.Linear(parts[0].down.shape[1], sum(p.down.shape[0] for p in parts), bias=False)
        self.up = nn.Linear(self.down.out_features, sum(p.up.shape[0] for p in parts), bias=False)
        self.down.weight = nn.Parameter(torch.cat([p.down for p in parts]), requires_grad=False)
        self.up.weight = nn.Parameter(torch.block_diag(*(p.up * p.scale for p in parts)), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = self.up(self.down(x))
        return added


class Adapted(nn.Module):
    """A product, plus a low-rank adapter in the rows from `first` on.

    `product` is a `nn.Module`, because quantization puts modules of its own in its place.
    """

    def __init__(self, product: nn.Linear, adapters: StreamAdapters | None, *names: str) -> None:
        super().__init__()
        self.product: nn.Module = product
        self.adapter = None if adapters is None else FusedAdapter(adapters, *names)

    def forward(self, x: Tensor, first: int) -> Tensor:
        y: Tensor = self.product(x)
        if self.adapter is None or first >= x.shape[0]:
            return y
        if first == 0:
            y = y + self.adapter(x)
            return y
        adapted: Tensor = y[first:] + self.adapter(x[first:])
        return torch.cat([y[:first], adapted])


class Part(nn.Module):
    """What one delegate computes. Lowering puts a delegate in its place."""

    def norms(self) -> list[Tensor]:
        """The norm weights that `compute` takes."""
        raise NotImplementedError

    def compute(self, first: int, inputs: tuple[Tensor, ...], norms: list[Tensor]) -> tuple[Tensor, ...]:
        """Outputs for rows of which those from `first` on are adapted."""
        raise NotImplementedError

    def forward(self, first: int, *inputs: Tensor) -> tuple[Tensor, ...]:
        return self.compute(first, inputs, self.norms())


class OpeningPart(Part):
    """Norm, q, k and v in one product, head norms, rotary embedding; cos and sin are [R, 1, D]."""

    def __init__(self, block: Block, adapters: StreamAdapters | None) -> None:
        super().__init__()
        a = block.self_attn
        self.heads, self.kv_heads, self.dim = a.num_heads, a.num_kv_heads, a.head_dim
        self.norm, self.qk_norm = Norm(block.input_layernorm), a.qk_norm
        self.qkv_proj = Adapted(joined(a.q_proj, a.k_proj, a.v_proj), adapters, "q_proj", "k_proj", "v_proj")
        if self.qk_norm:
            self.q_norm, self.k_norm = Norm(a.q_norm), Norm(a.k_norm)

    def norms(self) -> list[Tensor]:
        return [self.norm.weight, *([self.q_norm.weight, self.k_norm.weight] if self.qk_norm else [])]

    def compute(self, first: int, inputs: tuple[Tensor, ...], norms: list[Tensor]) -> tuple[Tensor, ...]:
        x, cos, sin = inputs
        qkv = self.qkv_proj(self.norm(x, norms[0]), first).view(x.shape[0], -1, self.dim)
        qk, v = qkv[:, : -self.kv_heads], qkv[:, -self.kv_heads :]
        if self.qk_norm:
            q, k = qk[:, : self.heads], qk[:, self.heads :]
            qk = torch.cat([_per_head(self.q_norm, q, norms[1]), _per_head(self.k_norm, k, norms[2])], 1)
        half = self.dim // 2
        qk = qk * cos + torch.cat([-qk[..., half:], qk[..., :half]], dim=-1) * sin
        return qk[:, : self.heads], qk[:, self.heads :], v


class ClosingPart(Part):
    """Output projection, the gated MLP with gate and up in one product, and both residual additions."""

    def __init__(self, block: Block, adapters: StreamAdapters | None) -> None:
        super().__init__()
        m = block.mlp
        self.norm, self.intermediate = Norm(block.post_attention_layernorm), m.up_proj.out_features
        self.o_proj = Adapted(block.self_attn.o_proj, adapters, "o_proj")
        self.gate_up_proj = Adapted(joined(m.gate_proj, m.up_proj), adapters, "gate_proj", "up_proj")
        self.down_proj = Adapted(m.down_proj, adapters, "down_proj")

    def norms(self) -> list[Tensor]:
        return [self.norm.weight]

    def compute(self, first: int, inputs: tuple[Tensor, ...], norms: list[Tensor]) -> tuple[Tensor, ...]:
        x, attended = inputs
        x = x + self.o_proj(attended, first)
        gate_up = self.gate_up_proj(self.norm(x, norms[0]), first)
        # Slices, because chunk() is not delegated.
        gate, up = gate_up[:, : self.intermediate], gate_up[:, self.intermediate :]
        return (x + self.down_proj(gate * torch.sigmoid(gate) * up, first),)


class HeadPart(Part):
    """Final norm and a vocabulary head."""

    def __init__(self, norm: RMSNorm, weight: Tensor) -> None:
        super().__init__()
        self.norm = Norm(norm)
        # The head is a matrix of its own here, also where it is tied: both are quantized, each in its own way.
        self.product: nn.Module = _linear(weight.clone())

    def norms(self) -> list[Tensor]:
        return [self.norm.weight]

    def compute(self, first: int, inputs: tuple[Tensor, ...], norms: list[Tensor]) -> tuple[Tensor, ...]:
        return (self.product(self.norm(inputs[0], norms[0])),)


class Opening(nn.Module):
    def __init__(self, block: Block, adapters: StreamAdapters | None) -> None:
        super().__init__()
        self.part = OpeningPart(block, adapters)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.part(first, x, cos.unsqueeze(1), sin.unsqueeze(1))
        return q, k, v


class Closing(nn.Module):
    def __init__(self, block: Block, adapters: StreamAdapters | None) -> None:
        super().__init__()
        self.part = ClosingPart(block, adapters)

    def forward(self, x: Tensor, attended: Tensor, first: int) -> Tensor:
        (closed,) = self.part(first, x, attended)
        return cast("Tensor", closed)


class Head(nn.Module):
    def __init__(self, norm: RMSNorm, weight: Tensor) -> None:
        super().__init__()
        self.part = HeadPart(norm, weight)

    def forward(self, x: Tensor, want_logits: Tensor) -> tuple[Tensor, Tensor]:
        (logits,) = self.part(0, x)
        return logits, torch.argmax(logits, dim=1)


class StreamHead(nn.Module):
    ids: Tensor  # int64 [S]

    def __init__(self, norm: RMSNorm, weight: Tensor, ids: Tensor, top_k: int) -> None:
        super().__init__()
        self.part, self.top_k = HeadPart(norm, weight), top_k
        self.register_buffer("ids", ids)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        (logits,) = self.part(0, x)
        log_probs, columns = torch.topk(torch.log_softmax(logits, dim=1), self.top_k)
        return F.embedding(columns, self.ids.unsqueeze(1)).squeeze(2), log_probs


class Attention(nn.Module):
    """Cached and new rows as two segments under one softmax; all of the cache is read, what is not valid is masked."""

    positions: Tensor  # [C]

    def __init__(self, capacity: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.register_buffer("positions", torch.arange(capacity))

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        cache_length: Tensor,
        visible: Tensor,
    ) -> Tensor:
        rows, heads, dim = query.shape
        kv_heads, capacity = key.shape[1], key_cache.shape[0]
        group = heads // kv_heads
        # Numbers before they are joined: not every delegate joins booleans.
        valid = (self.positions < cache_length).to(torch.float32).unsqueeze(0).expand(rows, capacity)
        seen = torch.cat([valid, visible.to(torch.float32)], dim=1)
        hidden = ((1.0 - seen) * _HIDDEN).unsqueeze(1).expand(rows, group, capacity + rows)
        grouped = (query * self.scale).view(rows, kv_heads, group, dim).permute(1, 0, 2, 3)
        grouped = grouped.reshape(kv_heads, rows * group, dim)
        scores = [torch.bmm(grouped, keys.permute(1, 2, 0)) for keys in (key_cache, key)]
        weights = torch.softmax(torch.cat(scores, dim=2) + hidden.reshape(rows * group, -1), dim=2)
        attended = torch.bmm(weights[..., :capacity], value_cache.permute(1, 0, 2))
        attended = attended + torch.bmm(weights[..., capacity:], value.permute(1, 0, 2))
        return attended.view(kv_heads, rows, group, dim).permute(1, 0, 2, 3).reshape(rows, heads * dim)


def _linear(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer


def joined(*layers: nn.Linear) -> nn.Linear:
    """One product for layers that share an input; outputs in the order given."""
    bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
    return _linear(torch.cat([layer.weight for layer in layers]), bias)


def _per_head(norm: Norm, x: Tensor, weight: Tensor) -> Tensor:
    """The norm of every head: x [R, H, D] -> [R, H, D]."""
    rows: Tensor = norm(x.reshape(-1, x.shape[-1]), weight)
    return rows.view(x.shape)
