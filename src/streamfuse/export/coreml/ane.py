"""The parts of a graph in the Neural Engine's layout: channels first, x [1, h, 1, R], products as 1x1 convolutions.

The rules are Apple's (docs/targets.md): four axes, attention per key head with the mask transposed, no dimension above
16,384. Queries that share a key head are concatenated on the last axis.
"""

from __future__ import annotations

from functools import reduce
from itertools import accumulate
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamfuse.model.streams import StreamAdapters
from streamfuse.model.transformer import MLP, Block, RMSNorm, ShortConvolution, normed

from .. import layers
from ..layers import FusedAdapter
from ..schemes import Part
from . import plain
from .ops import Norm
from .stored import Product, Store, Stored, placeholder

WIDEST = 16384  # the Neural Engine's limit for a dimension


def to_channels(x: Tensor) -> Tensor:
    """[R, h] -> [1, h, 1, R]."""
    return x.unsqueeze(0).unsqueeze(2).permute(0, 3, 2, 1)


def to_rows(x: Tensor) -> Tensor:
    """[1, h, 1, R] -> [R, h]."""
    return x.permute(0, 3, 2, 1).squeeze(2).squeeze(0)


class Form(plain.TracedForm):
    """Layers in this layout; inputs and outputs of embedding, head and stream head are rows."""

    def __init__(self, store: Store, traced: torch.dtype, kv_heads: int) -> None:
        super().__init__(store, traced)
        self.kv_heads = kv_heads

    def adapted(
        self, part: Part, layers: tuple[nn.Linear, ...], adapters: StreamAdapters | None, *names: str
    ) -> nn.Module:
        if layers[0].in_features > WIDEST:
            (layer,) = layers
            return self.summed(part, layer, adapters, *names)
        return Adapted(Convolution(cast("Product", self.product(part, *layers)), self.traced), adapters, *names)

    def summed(self, part: Part, layer: nn.Linear, adapters: StreamAdapters | None, *names: str) -> nn.Module:
        """A product whose inputs are split into pieces of at most `channels`; the results are added."""
        products = self.convolutions(self.store.columns(part, self.channels(part, layer.in_features), layer.weight))
        products[0].bias = layer.bias
        sizes = [product.stored.data.shape[1] for product in products]
        return Summed([
            Adapted(product, adapters, *names, inputs=slice(start, start + size))
            for product, size, start in zip(products, sizes, accumulate(sizes, initial=0), strict=False)
        ])  # fmt: skip

    def channels(self, part: Part, size: int) -> int:
        """The most channels per piece: `size` if it fits `WIDEST`, else the largest multiple of the group size."""
        return size if size <= WIDEST else WIDEST - WIDEST % (self.store.config.part_scheme(part).group_size or 1)

    def chunks(self, part: Part, weight: Tensor) -> list[Convolution]:
        return self.convolutions(self.store.pieces(part, WIDEST, weight))

    def convolutions(self, pieces: list[Stored]) -> list[Convolution]:
        return [Convolution(Product(piece, None, self.traced), self.traced) for piece in pieces]

    def gate_up(self, mlp: MLP, adapters: StreamAdapters | None) -> nn.Module:
        size = mlp.up_proj.out_features
        if 2 * size <= WIDEST:
            return super().gate_up(mlp, adapters)
        most = self.channels("mlp", size)
        products = self.convolutions(self.store.pieces("mlp", most, mlp.gate_proj.weight, mlp.up_proj.weight))
        half = len(products) // 2
        gates, ups = (
            [
                Adapted(product, adapters, name, outputs=slice(place * most, place * most + product.size))
                for place, product in enumerate(pieces)
            ]
            for name, pieces in (("gate_proj", products[:half]), ("up_proj", products[half:]))
        )
        return GateUp(gates, ups)

    def gated(self, gate_up: Any, size: int, activation: nn.Module) -> Any:
        """A list of one result per piece, the input of `Summed`, if `GateUp` has several pieces."""
        if isinstance(gate_up, Tensor):
            return super().gated(gate_up, size, activation)
        gated = [activation(gate) * up for gate, up in zip(*gate_up, strict=True)]
        return gated if len(gated) > 1 else gated[0]

    def embedding(self, weight: Tensor) -> nn.Module:
        return Embedding(self.chunks("embedding", weight))

    def opening(self, block: Block, adapters: StreamAdapters | None) -> nn.Module:
        return Opening(self, block, adapters)

    def head(self, norm: RMSNorm, weight: Tensor, cap: float) -> nn.Module:
        return Head(norm, self.chunks("head", weight))  # a cap needs --backend kernels (preview.py)

    def stream_head(self, norm: RMSNorm, weight: Tensor, ids: Tensor, top_k: int) -> nn.Module:
        return StreamHead(norm, self.chunks("streams", weight), ids, top_k)

    def attention(self, capacity: int, cache_size: int, scale: float, window: int | None) -> nn.Module:
        return Attention(self.kv_heads, scale, window)

    def convolution(self, capacity: int, cache_size: int, convolution: ShortConvolution) -> nn.Module:
        return GatedConvolution(convolution)


class Convolution(nn.Module):
    """x [1, K, 1, R] -> [1, N, 1, R]; the weight is [N, K, 1, 1]."""

    def __init__(self, product: Product, traced: torch.dtype | None) -> None:
        super().__init__()
        self.stored, self.bias, self.size = product.stored, product.bias, len(product.stored.data)
        self.weight = placeholder(product.stored, traced or torch.float32, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight, self.bias)


class Embedding(nn.Module):
    """ids [R] -> [R, h]; the chunks of the table are those of a tied head."""

    def __init__(self, chunks: list[Convolution]) -> None:
        super().__init__()
        self.chunks = nn.ModuleList(chunks)

    def forward(self, ids: Tensor) -> Tensor:
        start, rows = 0, None
        for chunk in cast("list[Convolution]", list(self.chunks)):
            local = ids if len(self.chunks) == 1 else (ids - start).clamp(0, chunk.size - 1)
            found = chunk.weight.index_select(0, local).squeeze(3).squeeze(2)
            rows = found if rows is None else torch.where((ids >= start).unsqueeze(1), found, rows)
            start += chunk.size
        assert rows is not None
        return rows


class Adapted(nn.Module):
    """A convolution with low-rank adapters in the rows from `first` on.

    Args:
        inputs, outputs: the adapters' channels that this convolution covers; all by default.
    """

    def __init__(
        self,
        product: Convolution,
        adapters: StreamAdapters | None,
        *names: str,
        inputs: slice = slice(None),
        outputs: slice = slice(None),
    ) -> None:
        super().__init__()
        self.product = product
        self.adapter = None if adapters is None else FusedAdapter(adapters, *names)
        if self.adapter is not None:
            self.adapter.down = layers.linear_of(self.adapter.down.weight[:, inputs].contiguous())
            self.adapter.up = layers.linear_of(self.adapter.up.weight[outputs].contiguous())

    def forward(self, x: Tensor, first: int) -> Tensor:
        y: Tensor = self.product(x)
        if self.adapter is None or first >= x.shape[3]:
            return y
        added = x[..., first:] if first else x
        for factor in (self.adapter.down, self.adapter.up):
            added = F.conv2d(added, factor.weight[..., None, None])
        return torch.cat([y[..., :first], y[..., first:] + added], 3) if first else y + added


class GateUp(nn.Module):
    """gate and up of an MLP as two products, because one would exceed `WIDEST`; in pieces if each exceeds it."""

    def __init__(self, gates: list[Adapted], ups: list[Adapted]) -> None:
        super().__init__()
        self.gates, self.ups = nn.ModuleList(gates), nn.ModuleList(ups)

    def forward(self, x: Tensor, first: int) -> tuple[list[Tensor], list[Tensor]]:
        return [gate(x, first) for gate in self.gates], [up(x, first) for up in self.ups]


class Summed(nn.Module):
    """The sum of the products of several input pieces, [1, K_i, 1, R] each -> [1, N, 1, R]."""

    def __init__(self, pieces: list[Adapted]) -> None:
        super().__init__()
        self.pieces = nn.ModuleList(pieces)

    def forward(self, inputs: list[Tensor], first: int) -> Tensor:
        found = [piece(x, first) for piece, x in zip(self.pieces, inputs, strict=True)]
        return cast("Tensor", reduce(torch.add, found))


class Opening(layers.Opening):
    """x [1, h, 1, R] -> query [1, Hq * D, 1, R], key and value [1, Hkv * D, 1, R]; cos and sin are [1, 1, D, R]."""

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor]:
        qkv = self.rows_normed(self.qkv_proj(normed(self.norm, x), first))
        if self.convolves:
            query, k, v = qkv.chunk(3, 1)
            key, value = (k * v).chunk(2, 1)
            return query, key, value
        rows, split = x.shape[3], (self.heads + self.kv_heads) * self.dim
        qk, v = qkv[:, :split].reshape(1, -1, self.dim, rows), qkv[:, split:]
        qk = qk if self.norm_after_rope else self.norm_heads(qk)
        half = self.dim // 2
        qk = qk * cos + torch.cat([-qk[:, :, half:], qk[:, :, :half]], 2) * sin
        qk = self.norm_heads(qk) if self.norm_after_rope else qk
        flat = qk.reshape(1, split, 1, rows)
        return flat[:, : self.heads * self.dim], flat[:, self.heads * self.dim :], v


class Attention(nn.Module):
    """Per key head. `masks` has one by window, which is added to the scores, [1, C + R, 1, R * Hq / Hkv], with the rows
    of a query head together."""

    scale: Tensor  # [1]

    def __init__(self, kv_heads: int, scale: float, window: int | None) -> None:
        super().__init__()
        self.kv_heads, self.mask_key = kv_heads, window
        self.register_buffer("scale", torch.full((1,), scale))

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        _: None,
        masks: dict[plain.MaskKey, Tensor],
        position_ids: Tensor,
    ) -> Tensor:
        mask = masks[self.mask_key]
        rows, dim = query.shape[3], key.shape[1] // self.kv_heads
        group = query.shape[1] // key.shape[1]
        queries = (query * self.scale).split(dim, 1)
        keys = torch.cat([key_cache, key], 3).permute(0, 3, 2, 1).split(dim, 3)  # [1, C + R, 1, D] each
        values = torch.cat([value_cache, value], 3).split(dim, 1)
        attended: list[Tensor] = []
        for head in range(self.kv_heads):
            together = torch.cat(queries[head * group : (head + 1) * group], 3)
            scores = torch.einsum("bchq,bkhc->bkhq", together, keys[head]) + mask
            found = torch.einsum("bkhq,bchk->bchq", torch.softmax(scores, 1), values[head])
            attended += found.split(rows, 3)
        return torch.cat(attended, 1)


class GatedConvolution(nn.Module):
    """plain.GatedConvolution in this layout: query [1, h, 1, R], key and value [1, h / 2, 1, R] -> [1, h, 1, R]."""

    taps: Tensor  # [L, 1, h, 1, 1]

    def __init__(self, convolution: ShortConvolution) -> None:
        super().__init__()
        self.register_buffer("taps", layers.taps_of(convolution)[:, None, :, None, None])
        self.mask_key = plain.Taps(len(self.taps))

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        _: None,
        masks: dict[plain.MaskKey, list[Tensor]],
        position_ids: Tensor,
    ) -> Tensor:
        new = torch.cat([key, value], 1)
        read = torch.cat([torch.cat([key_cache, value_cache], 1), new], 3)
        mixed = new * self.taps[-1]
        for back, earlier in enumerate(masks[self.mask_key], 1):
            mixed = mixed + torch.einsum("bkhq,bchk->bchq", earlier, read) * self.taps[-1 - back]
        return query * mixed


class Head(nn.Module):
    """x [R, h] -> logits [1, V_i, 1, R] of each chunk of the vocabulary, best [R]."""

    def __init__(self, norm: RMSNorm, chunks: list[Convolution]) -> None:
        super().__init__()
        self.norm, self.chunks = Norm(norm, 1), nn.ModuleList(chunks)

    def forward(self, x: Tensor, want_logits: Tensor | None) -> tuple[Tensor, ...]:
        normed = self.norm(to_channels(x))
        logits = [chunk(normed) for chunk in self.chunks]
        start, best, most = 0, None, None
        for chunk in logits:
            value, index = chunk.amax(1, keepdim=True), chunk.argmax(1, keepdim=True) + start
            if best is None or most is None:
                best, most = index, value
            else:  # the first one on ties
                best, most = torch.where(value > most, index, best), torch.maximum(value, most)
            start += chunk.shape[1]
        assert best is not None
        return *logits, best.reshape(-1)


class StreamHead(nn.Module):
    """x [R, h] -> ids [R, k] of the full vocabulary, log-probabilities [R, k]."""

    ids: Tensor

    def __init__(self, norm: RMSNorm, chunks: list[Convolution], ids: Tensor, top_k: int) -> None:
        super().__init__()
        self.norm, self.chunks, self.top_k = Norm(norm, 1), nn.ModuleList(chunks), top_k
        self.register_buffer("ids", ids)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        normed, start = self.norm(to_channels(x)), 0
        found: list[tuple[Tensor, Tensor, Tensor]] = []  # per chunk: best values, their columns, log of the sum
        for chunk in cast("list[Convolution]", list(self.chunks)):
            logits = to_rows(chunk(normed))
            best, columns = torch.topk(logits, min(self.top_k, logits.shape[1]))
            found.append((best, columns + start, torch.logsumexp(logits, 1, keepdim=True)))
            start += chunk.size
        best, columns, total = (torch.cat(parts, 1) for parts in zip(*found, strict=True))
        if len(found) > 1:
            best, places = torch.topk(best, self.top_k)
            columns, total = columns.gather(1, places), torch.logsumexp(total, 1, keepdim=True)
        return F.embedding(columns, self.ids.unsqueeze(1)).squeeze(2), best - total
