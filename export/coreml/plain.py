"""The parts of a graph in the plain layout: rows first, x [R, h], products as linear layers.

The mask is an additive, finite input. Nothing writes to a cache: new keys and values are outputs. The same parts run in
PyTorch as the reference, with `stock.Attention`.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamfuse.model.streams import StreamAdapters
from streamfuse.model.transformer import Block, RMSNorm

from .. import stock
from ..plan import Part
from .ops import Norm
from .stored import Product, Store


class Form:
    """weights.Form on stored weights, as PyTorch computes with them."""

    traced: torch.dtype | None = None

    def __init__(self, store: Store) -> None:
        self.store = store

    def product(self, part: Part, *layers: nn.Linear) -> Product:
        """Layers that share their input as one product; outputs in the order given."""
        bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
        return Product(self.store.of(part, *(layer.weight for layer in layers)), bias, self.traced)

    def adapted(
        self, part: Part, layers: tuple[nn.Linear, ...], adapters: StreamAdapters | None, *names: str
    ) -> nn.Module:
        """The product of layers that share their input, with the adapters of these names."""
        return stock.Adapted(cast("nn.Linear", self.product(part, *layers)), adapters, *names)

    def table(self, part: Part, weight: Tensor) -> Product:
        return Product(self.store.of(part, weight), None, self.traced)

    def embedding(self, weight: Tensor) -> nn.Module:
        return Embedding(self.table("embedding", weight))

    def opening(self, block: Block, adapters: StreamAdapters | None) -> nn.Module:
        return Opening(self, block, adapters)

    def closing(self, block: Block, adapters: StreamAdapters | None) -> nn.Module:
        return Closing(self, block, adapters)

    def head(self, norm: RMSNorm, weight: Tensor) -> nn.Module:
        return Head(norm, self.table("head", weight))

    def stream_head(self, norm: RMSNorm, weight: Tensor, ids: Tensor, top_k: int) -> nn.Module:
        return StreamHead(norm, self.table("streams", weight), ids, top_k)

    def attention(self, capacity: int, scale: float) -> nn.Module:
        return stock.Attention(capacity, scale)


class TracedForm(Form):
    """The same for Core ML: placeholders of the type `traced` for weights, and attention with an additive mask."""

    def __init__(self, store: Store, traced: torch.dtype) -> None:
        super().__init__(store)
        self.traced = traced

    def attention(self, capacity: int, scale: float) -> nn.Module:
        return Attention(scale)


class Embedding(nn.Module):
    """ids [R] -> [R, h]."""

    def __init__(self, table: Product) -> None:
        super().__init__()
        self.table = table

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.table.weight)


class Opening(nn.Module):
    """x [R, h] -> query [R, Hq, D], key and value [R, Hkv, D]; norm, one product, head norms, rotary embedding."""

    def __init__(self, form: Form, block: Block, adapters: StreamAdapters | None) -> None:
        super().__init__()
        a = block.self_attn
        self.heads, self.kv_heads, self.dim = a.num_heads, a.num_kv_heads, a.head_dim
        self.norm = Norm(block.input_layernorm, 1)
        joined = (a.q_proj, a.k_proj, a.v_proj)
        self.qkv_proj = form.adapted("attention", joined, adapters, "q_proj", "k_proj", "v_proj")
        self.q_norm = Norm(a.q_norm, 2) if a.qk_norm else None
        self.k_norm = Norm(a.k_norm, 2) if a.qk_norm else None

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor]:
        qkv = self.qkv_proj(self.norm(x), first).view(x.shape[0], -1, self.dim)
        qk, v = qkv[:, : -self.kv_heads], qkv[:, -self.kv_heads :]
        if self.q_norm is not None and self.k_norm is not None:
            qk = torch.cat([self.q_norm(qk[:, : self.heads]), self.k_norm(qk[:, self.heads :])], 1)
        half = self.dim // 2
        turned = torch.cat([-qk[..., half:], qk[..., :half]], dim=-1)
        qk = qk * cos.unsqueeze(1) + turned * sin.unsqueeze(1)
        return qk[:, : self.heads], qk[:, self.heads :], v


class Closing(nn.Module):
    """Output projection, the gated MLP with gate and up in one product, and both residual additions.

    Features lie on axis 1, in this layout and in the Neural Engine's.
    """

    def __init__(self, form: Form, block: Block, adapters: StreamAdapters | None) -> None:
        super().__init__()
        m = block.mlp
        self.norm, self.intermediate = Norm(block.post_attention_layernorm, 1), m.up_proj.out_features
        self.o_proj = form.adapted("attention", (block.self_attn.o_proj,), adapters, "o_proj")
        self.gate_up_proj = form.adapted("mlp", (m.gate_proj, m.up_proj), adapters, "gate_proj", "up_proj")
        self.down_proj = form.adapted("mlp", (m.down_proj,), adapters, "down_proj")

    def forward(self, x: Tensor, attended: Tensor, first: int) -> Tensor:
        x = x + self.o_proj(attended, first)
        gate_up = self.gate_up_proj(self.norm(x), first)
        gate, up = gate_up[:, : self.intermediate], gate_up[:, self.intermediate :]
        closed: Tensor = x + self.down_proj(F.silu(gate) * up, first)
        return closed


class Head(nn.Module):
    """x [R, h] -> logits [R, V], best [R]."""

    def __init__(self, norm: RMSNorm, product: Product) -> None:
        super().__init__()
        self.norm, self.product = Norm(norm), product

    def forward(self, x: Tensor, want_logits: Tensor | None) -> tuple[Tensor, ...]:
        logits = self.product(self.norm(x))
        return logits, torch.argmax(logits, dim=1)


class StreamHead(nn.Module):
    """x [R, h] -> ids [R, k] of the full vocabulary, log-probabilities [R, k]."""

    ids: Tensor

    def __init__(self, norm: RMSNorm, product: Product, ids: Tensor, top_k: int) -> None:
        super().__init__()
        self.norm, self.product, self.top_k = Norm(norm), product, top_k
        self.register_buffer("ids", ids)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.product(self.norm(x))
        best, columns = torch.topk(logits, self.top_k)
        # Not the logarithm of a softmax, which float16 rounds to zero far from the best.
        return F.embedding(columns, self.ids.unsqueeze(1)).squeeze(2), best - torch.logsumexp(logits, 1, keepdim=True)


class Attention(nn.Module):
    """Cached and new rows as two segments under one softmax.

    `visible` is the additive mask [R * Hq / Hkv, C + R], each row of it as often as heads share a key. Numbers are
    tensors here: coremltools takes one in the code for float32, and all that follows with it.
    """

    scale: Tensor  # [1]

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.register_buffer("scale", torch.full((1,), scale))

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        cache_length: None,
        visible: Tensor,
    ) -> Tensor:
        rows, heads, dim = query.shape
        kv_heads, capacity = key.shape[1], key_cache.shape[0]
        group = heads // kv_heads
        grouped = (query * self.scale).view(rows, kv_heads, group, dim).permute(1, 0, 2, 3)
        grouped = grouped.reshape(kv_heads, rows * group, dim)
        scores = [torch.bmm(grouped, keys.permute(1, 2, 0)) for keys in (key_cache, key)]
        weights = torch.softmax(torch.cat(scores, dim=2) + visible, dim=2)
        attended = torch.bmm(weights[..., :capacity], value_cache.permute(1, 0, 2))
        attended = attended + torch.bmm(weights[..., capacity:], value.permute(1, 0, 2))
        return attended.view(kv_heads, rows, group, dim).permute(1, 0, 2, 3).reshape(rows, heads * dim)
