"""The parts of a graph as the model itself computes them, in float32 on its own tensors: the reference for every
export.

The halves of a layer are the model's own code, not layers.py, so that a mistake there is detected. Nothing is
concatenated or copied, so a large model's reference needs no second copy of its weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamfuse.model.delta_rule import GatedDeltaNet, delta_rule
from streamfuse.model.streams import StreamAdapters, StreamFused
from streamfuse.model.transformer import Block, Transformer
from streamfuse.runtime.backend import ModelSpec
from streamfuse.runtime.backends.reference import ReferenceBackend

from . import layers
from .operators import states
from .operators.states import HEADER
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
    layers, lower = config.num_cached_layers, model.num_lower_layers
    caches = [(config.kv_heads_of(layer), config.layer_head_dims[layer]) for layer in range(layers)]
    state_size = 0 if config.delta is None else HEADER + config.delta.state_size
    options: dict[str, Any] = {
        "next_token": bool(streams.next_token_rank),
        "states": [state_size if recurs else 0 for recurs in config.layer_recurrences],
        "first_of_streams": config.lowest_kv_layer(lower),
    }
    if weights is not None:
        options |= {"positions": weights.cache_positions, "window": weights.ring_window}
    return ReferenceBackend(methods, spec, caches, min(lower, layers), **options)


class Form(layers.Form):
    def linear_attention(self, cache_size: int, rewindable: int, net: GatedDeltaNet) -> nn.Module:
        return LinearAttention(cache_size, rewindable, net)

    def opening(self, block: Block, adapters: StreamAdapters | None) -> nn.Module:
        return Opening(block, adapters)

    def closing(self, block: Block, adapters: StreamAdapters | None) -> nn.Module:
        return Closing(block, adapters)

    def per_layer(self, base: Transformer) -> nn.Module:
        return PerLayer(base)

    def ending(self, block: Block) -> nn.Module:
        return Ending(block)

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
    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, first: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
        return self.block.qkv(x, cos, sin, lambda name, y: self.adapt_from(first, name, y))


class Closing(_Half):
    def forward(self, x: Tensor, attended: Tensor, first: int) -> Tensor:
        adapt = lambda name, y: self.adapt_from(first, name, y)  # noqa: E731
        return self.block.feed_forward(self.block.add_attention(x, attended, adapt), adapt)


class PerLayer(nn.Module):
    def __init__(self, base: Transformer) -> None:
        super().__init__()
        self.base = base

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        return torch.stack([cast("Tensor", numbers) for numbers in self.base.per_layer(ids)], 1)


class Ending(nn.Module):
    def __init__(self, block: Block) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor, per_layer: Tensor | None) -> Tensor:
        return self.block.finish_layer(x, per_layer)


class LinearAttention(nn.Module):
    """Brings the layer's states up to date, then computes the rows of a tree from the newer one."""

    def __init__(self, cache_size: int, rewindable: int, net: GatedDeltaNet) -> None:
        super().__init__()
        self.cache_size, self.rewindable, self.net = cache_size, rewindable, net

    def forward(self, *tensors: Tensor) -> Tensor:
        _, key, value, key_cache, value_cache, cache_length, visible, _, layer_states = tensors
        net, length = self.net, int(cache_length)
        shape = net.sizes.value_heads, net.sizes.key_dim, net.sizes.value_dim
        size = (net.sizes.taps - 1) * net.sizes.channels

        def advance(state: Tensor, first: int, last: int) -> Tensor:
            at = torch.arange(first, last) % self.cache_size
            gates, read = net.unpacked(torch.cat([key_cache[at], value_cache[at]], 1).flatten(1))
            read = torch.cat([state[:size].view(-1, net.sizes.channels), read])
            _, found = net.recur(net.taps(read.T).T[None], gates[None], state[size:].view(1, *shape))
            return torch.cat([read[len(read) - net.sizes.taps + 1 :].flatten(), found.flatten()])

        state = states.update(layer_states, length, self.rewindable, advance)
        before = state[:size].view(-1, net.sizes.channels)
        gates, read = net.unpacked(torch.cat([key, value], 1).flatten(1))
        mixed = []
        for row in visible | torch.eye(len(visible), dtype=torch.bool):  # padding rows do not see even themselves
            mixed.append((torch.cat([before, read[row]])[-net.sizes.taps :].T * net.taps.weight[:, 0]).sum(1))
        q, k, v = net.heads(F.silu(torch.stack(mixed)))
        found = delta_rule(q, k, v, *net.decays(gates), visible, state[size:].view(shape))
        return found.out.flatten(1)
