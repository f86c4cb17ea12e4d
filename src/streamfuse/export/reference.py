"""The parts of a graph as the model itself computes them, in float32 on its own tensors: the reference for every
export.

The halves of a layer are the model's own code, not layers.py, so that a mistake there is detected. Nothing is
concatenated or copied, so a large model's reference needs no second copy of its weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from torch import Tensor, nn
from torch.nn import functional as F

from streamfuse.model.streams import StreamAdapters, StreamFused
from streamfuse.model.transformer import Block
from streamfuse.runtime.backend import ModelSpec
from streamfuse.runtime.backends.reference import ReferenceBackend

from . import layers
from .weights import Weights


def reference_backend(
    methods: Mapping[str, Callable[..., tuple[Any, ...]]],
    model: StreamFused,
    spec: ModelSpec,
    weights: Weights | None = None,
) -> ReferenceBackend:
    """A backend that runs a model's methods in PyTorch.

    Its caches have the sizes of those in `weights`; None: positions for the whole context in every layer, as far as
    the methods take these.
    """
    config, streams = model.base.config, model.streams_config
    heads = [config.kv_heads_of(layer) for layer in range(config.num_layers)]
    sizes = (config.num_layers, streams.num_msa_layers, heads, config.head_dim)
    next_token = bool(streams.next_token_rank)
    if weights is None:
        return ReferenceBackend(methods, spec, *sizes, next_token)
    return ReferenceBackend(methods, spec, *sizes, next_token, weights.cache_positions, weights.ring_window)


class Form(layers.Form):
    def opening(self, block: Block, adapters: StreamAdapters | None) -> nn.Module:
        return Opening(block, adapters)

    def closing(self, block: Block, adapters: StreamAdapters | None) -> nn.Module:
        return Closing(block, adapters)

    def with_adapters(self, part: nn.Module, adapters: StreamAdapters | None) -> nn.Module:
        return type(cast("_Half", part))(cast("_Half", part).block, adapters)


class _Half(nn.Module):
    def __init__(self, block: Block, adapters: StreamAdapters | None) -> None:
        super().__init__()
        self.block, self.adapters = block, adapters

    def adapt_from(self, first: int, name: str, x: Tensor) -> Tensor | None:
        """The adapter's contribution to the projection `name` of x [R, n_in], for rows from `first` on."""
        if self.adapters is None or first >= len(x):
            return None
        return F.pad(self.adapters.adapt(name, x[first:]), (0, 0, first, 0))


class Opening(_Half):
    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor]:
        return self.block.qkv(x, cos, sin, lambda name, y: self.adapt_from(first, name, y))


class Closing(_Half):
    def forward(self, x: Tensor, attended: Tensor, first: int) -> Tensor:
        return self.block.finish(x, attended, lambda name, y: self.adapt_from(first, name, y))
