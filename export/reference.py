"""The parts of a graph as the model itself computes them, in float32 on its own tensors: what every export is held to.

Nothing is joined or copied, so a large model's reference needs no second copy of its weights.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamfuse.model.streams import StreamAdapters
from streamfuse.model.transformer import Block, RMSNorm

from . import stock


class Form(stock.Form):
    """The model's own layers; embedding and attention are those of stock.Form, which copies neither."""

    def opening(self, block: Block, adapters: StreamAdapters | None) -> nn.Module:
        return Opening(block, adapters)

    def closing(self, block: Block, adapters: StreamAdapters | None) -> nn.Module:
        return Closing(block, adapters)

    def with_adapters(self, part: nn.Module, adapters: StreamAdapters) -> nn.Module:
        return type(cast("_Layer", part))(cast("_Layer", part).block, adapters)

    def head(self, norm: RMSNorm, weight: Tensor) -> nn.Module:
        return Head(norm, weight)

    def stream_head(self, norm: RMSNorm, weight: Tensor, ids: Tensor, top_k: int) -> nn.Module:
        return StreamHead(norm, weight, ids, top_k)


class _Layer(nn.Module):
    def __init__(self, block: Block, adapters: StreamAdapters | None) -> None:
        super().__init__()
        self.block, self.adapters = block, adapters

    def adapt_from(self, first: int, name: str, x: Tensor) -> Tensor | None:
        """What is added to the projection `name` of x [R, n_in]: something in the rows from `first` on."""
        if self.adapters is None or first >= len(x):
            return None
        return F.pad(self.adapters.adapt(name, x[first:]), (0, 0, first, 0))


class Opening(_Layer):
    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor]:
        return self.block.qkv(x, cos, sin, lambda name, y: self.adapt_from(first, name, y))


class Closing(_Layer):
    def forward(self, x: Tensor, attended: Tensor, first: int) -> Tensor:
        return self.block.finish(x, attended, lambda name, y: self.adapt_from(first, name, y))


class Head(nn.Module):
    def __init__(self, norm: RMSNorm, weight: Tensor) -> None:
        super().__init__()
        self.norm, self.weight = norm, nn.Parameter(weight, requires_grad=False)

    def forward(self, x: Tensor, want_logits: Tensor) -> tuple[Tensor, Tensor]:
        logits = F.linear(self.norm(x), self.weight)
        return logits, logits.argmax(1)


class StreamHead(nn.Module):
    def __init__(self, norm: RMSNorm, weight: Tensor, ids: Tensor, top_k: int) -> None:
        super().__init__()
        self.norm, self.weight, self.ids, self.top_k = norm, nn.Parameter(weight, requires_grad=False), ids, top_k

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        log_probs, columns = torch.log_softmax(F.linear(self.norm(x), self.weight), 1).topk(self.top_k)
        return self.ids[columns], log_probs
