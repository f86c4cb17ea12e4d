"""The parts of a graph in the plain layout: rows first, x [R, h], products as linear layers.

The mask is an additive, finite input. Nothing writes to a cache: new keys and values are outputs. With
`layers.Attention`, the same parts are the reference in PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamfuse.model.transformer import RMSNorm, ShortConvolution

from .. import layers
from ..schemes import Part
from .ops import Norm
from .stored import Product, Store


@dataclass(frozen=True, slots=True)
class Taps:
    """The number of taps of a convolution."""

    count: int


# What layers that share a mask have in common: a sliding window, a convolution's taps, or None, for the whole mask.
MaskKey: TypeAlias = int | Taps | None


class Form(layers.Form):
    """Parts with the stored weights, as PyTorch computes them."""

    traced: torch.dtype | None = None

    def __init__(self, store: Store) -> None:
        self.store = store

    def norm(self, norm: RMSNorm, axis: int = 1) -> nn.Module:
        return Norm(norm, axis)

    def product(self, part: Part, *layers: nn.Linear) -> nn.Module:
        bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
        return Product(self.store.of(part, *(layer.weight for layer in layers)), bias, self.traced)

    def vocabulary(self, part: Part, weight: Tensor) -> Product:
        return Product(self.store.of(part, weight), None, self.traced)

    def embedding(self, weight: Tensor) -> nn.Module:
        return Embedding(self.vocabulary("embedding", weight))

    def top_k(self, ids: Tensor, top_k: int) -> nn.Module:
        return TopK(ids, top_k)


class TracedForm(Form):
    """The same for Core ML: placeholders of dtype `traced` for weights, and attention with an additive mask."""

    def __init__(self, store: Store, traced: torch.dtype) -> None:
        super().__init__(store)
        self.traced = traced

    def attention(self, capacity: int, cache_size: int, scale: float, window: int | None) -> nn.Module:
        return Attention(scale, window)

    def convolution(self, capacity: int, cache_size: int, convolution: ShortConvolution) -> nn.Module:
        return GatedConvolution(convolution)


class Embedding(nn.Module):
    """ids [R] -> [R, h]."""

    def __init__(self, table: Product) -> None:
        super().__init__()
        self.table = table

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.table.weight)


class TopK(layers.TopK):
    def forward(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        best, columns = torch.topk(logits, self.top_k)
        # Not the logarithm of a softmax, which is zero in float16 far from the best.
        return F.embedding(columns, self.ids.unsqueeze(1)).squeeze(2), best - torch.logsumexp(logits, 1, keepdim=True)


class Attention(nn.Module):
    """Cached and new rows as two segments under one softmax.

    `masks` has one by window, which is added to the scores, [R * Hq / Hkv, C + R]; each of its rows is repeated for the
    heads that share a key.
    Constants are tensors here: coremltools converts Python numbers to float32, and with them all results.
    """

    scale: Tensor  # [1]

    def __init__(self, scale: float, window: int | None) -> None:
        super().__init__()
        self.mask_key = window
        self.register_buffer("scale", torch.full((1,), scale))

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        _: None,
        masks: dict[MaskKey, Tensor],
        position_ids: Tensor,
    ) -> Tensor:
        mask = masks[self.mask_key]
        weights = torch.softmax(layers.scores(query * self.scale, key, key_cache) + mask, dim=2)
        return layers.weighed(weights, value, value_cache)


class GatedConvolution(nn.Module):
    """A short convolution. Earlier rows are gathered by products with one-hot matrices.

    `masks` has one matrix [R, C + R] for each distance from 1 to L - 1 (graphs.EarlierRows).
    """

    taps: Tensor  # [L, h]

    def __init__(self, convolution: ShortConvolution) -> None:
        super().__init__()
        self.register_buffer("taps", layers.taps_of(convolution))
        self.mask_key = Taps(len(self.taps))

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        _: None,
        masks: dict[MaskKey, list[Tensor]],
        position_ids: Tensor,
    ) -> Tensor:
        rows = query.shape[0]
        new = torch.cat([key, value], 1).reshape(rows, -1)
        read = torch.cat([torch.cat([key_cache, value_cache], 1).reshape(key_cache.shape[0], -1), new])
        mixed = new * self.taps[-1]
        for back, earlier in enumerate(masks[self.mask_key], 1):
            mixed = mixed + torch.matmul(earlier, read) * self.taps[-1 - back]
        return query.reshape(rows, -1) * mixed
