"""Self-speculation: the target drafts by a method `draft` of its own program, which leaves sub-layers out."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, cast

from torch import Tensor, nn

from streamfuse.export.weights import Weights
from streamfuse.options import OptionError

from .drafters.model import DRAFT


def leaving_out(names: Collection[str]) -> dict[str, Callable[[Weights], SelfDraft]]:
    """ExportConfig.extra_methods for the method `draft`, without these sub-layers (attention.3, mlp.7; from 0)."""
    return {DRAFT: lambda weights: SelfDraft(weights, checked(names, weights.config.num_layers))}


def checked(names: Collection[str], num_layers: int) -> Collection[str]:
    """The names. OptionError where a model of so many layers has no such sub-layer, or none is left."""
    known = [f"{kind}.{i}" for kind in ("attention", "mlp") for i in range(num_layers)]
    for name in names:
        if name not in known:
            raise OptionError(f"--leave-out must name sub-layers from {known[0]} to {known[-1]}, not {name}")
    if len(set(names)) == len(known):
        raise OptionError("--leave-out must leave at least one sub-layer")
    return names


class SelfDraft(nn.Module):
    """`draft`: `decode` without some of its sub-layers (self-speculation, Zhang et al., 2023, arXiv
    2309.08168). It shares all weights and the cache; keys and values of an attention that is left out are zeros.

    Its rows are forgotten before the tree is verified, so nothing else ever reads what it leaves in the cache.
    """

    rows = 1

    def __init__(self, weights: Weights, left_out: Collection[str]) -> None:
        super().__init__()
        weights.config.require_attention("research export --leave-out")
        self.attentions, self.mlps = (
            [f"{kind}.{i}" not in left_out for i in range(weights.config.num_layers)] for kind in ("attention", "mlp")
        )
        self.embedding, self.start = weights.embedding, weights.start
        self.rotary, self.head = weights.rotary, weights.head
        self.openings, self.closings, self.attend = weights.openings, weights.closings, weights.attentions
        self.turns = weights.config.layer_rotaries
        self.first = 0 if weights.streams_config.base_rank else self.rows  # of the adapted rows
        config = weights.config
        self.cached = [(self.rows, config.kv_heads_of(i), config.head_dim) for i in range(config.num_layers)]

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        ancestors: Tensor,
        cache_length: Tensor,
        want_logits: Tensor,
        *caches: Tensor,
    ) -> tuple[Tensor, ...]:
        x, positions, new = self.start(self.embedding(input_ids)), self.rotary(position_ids), list[Tensor]()
        for i, (opening, closing) in enumerate(zip(self.openings, self.closings, strict=True)):
            if self.attentions[i]:
                q, k, v = opening(x, *positions.turns[self.turns[i]], self.first)
                given = (q, k, v, caches[2 * i], caches[2 * i + 1], cache_length, ancestors)
                attended = self.attend[i](*given, positions.ids)
                x = cast("Any", closing).attention(x, attended, self.first)
            else:
                k, v = x.new_zeros(self.cached[i]), x.new_zeros(self.cached[i])
            new += [k, v]
            x = cast("Any", closing).mlp(x, self.first) if self.mlps[i] else x
        return (*self.head(x, want_logits), *new)
