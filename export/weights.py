"""The weights that all methods of a bundle share, in the graphs' own form."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import cast

from torch import Tensor, nn
from torch.nn import functional as F

from streamfuse.model.streams import StreamAdapters, StreamFused
from streamfuse.model.transformer import rotary_table

from .blocks import Chain, FusedBlock, Heads, Norm, Segment
from .plan import GraphShapes


class Weights(nn.Module):
    """The weights that all methods of a bundle share, in the graphs' own form.

    Raises:
        ValueError: a width keeps fewer nodes than it verifies, and the model has no pruner.
    """

    stream_vocab: Tensor  # int64 [S]
    cos: Tensor  # [positions, D]
    sin: Tensor

    def __init__(self, model: StreamFused, shapes: GraphShapes) -> None:
        super().__init__()
        base, config = model.base, model.streams_config
        self.config, self.streams_config, self.shapes = base.config, config, shapes
        self.embedding: nn.Module = base.embed_tokens
        self.blocks = nn.ModuleList(map(FusedBlock, base.blocks, _stream_adapters(model)))
        self.norm = Norm(base.norm)
        # The head is a matrix of its own here, also where it is tied: both are quantized, each in its own way.
        self.head: nn.Module = _head(base.lm_head.weight)
        self.stream_head: nn.Module = _head(model.head_rows())
        self.register_buffer("stream_vocab", model.stream_vocab)
        cos, sin = rotary_table(base.config, shapes.capacity + config.num_streams + 1)
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)
        self.insert, self.rotate_value = model.insert, model.rotate_value
        self.pruner = model.pruner if config.pruner_rank else None
        # Head rows of drafted tokens, for the pruner; a tied head's are the embedding rows, which are there already.
        tied = base.config.tie_word_embeddings or self.pruner is None
        self.candidate_embedding: nn.Module | None = None if tied else nn.Embedding.from_pretrained(base.lm_head.weight)
        if self.pruner is None and any(keep < rows for rows, keep in shapes.widths):
            raise ValueError(
                "a width keeps fewer nodes than it verifies, but the adapter has no pruner (pruner_rank 0)"
            )

    @property
    def num_lower_layers(self) -> int:
        return self.config.num_layers - self.streams_config.num_msa_layers

    @property
    def fused_blocks(self) -> list[FusedBlock]:
        """The layers, lowest first."""
        return cast("list[FusedBlock]", list(self.blocks))

    def without_layers(self) -> Weights:
        """A shallow copy without what the segments hold: exporting a method would carry unused buffers along."""
        light = copy.copy(self)
        held = ("blocks", "head", "stream_head")
        light._modules = {name: module for name, module in self._modules.items() if name not in held}
        return light

    def rotary(self, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [R, 1, D]."""
        return F.embedding(position_ids, self.cos).unsqueeze(1), F.embedding(position_ids, self.sin).unsqueeze(1)

    def chain(self, first: int, last: int, tail: Heads | None = None, streams: bool = False, end: bool = True) -> Chain:
        """The segments of layers [first, last): one before each attention and, where `end`, one after the last.

        The last one ends in `tail`. No layers, no segments.
        """
        if first == last:
            return Chain([])
        blocks: list[FusedBlock | None] = [None, *self.fused_blocks[first:last], None]
        pairs = list(pairwise(blocks))[: None if end else -1]
        return Chain([Segment(a, b, tail if b is None else None, streams) for a, b in pairs])


def _stream_adapters(model: StreamFused) -> list[StreamAdapters | None]:
    """One per layer; None where a layer carries no streams, or its streams no adapters."""
    count = model.streams_config.num_msa_layers
    if not model.streams_config.adapter_rank:
        return [None] * model.base.config.num_layers
    return [None] * model.num_lower_layers + [cast("StreamAdapters", model.adapters[i]) for i in range(count)]


def _head(rows: Tensor) -> nn.Linear:
    """A vocabulary head with its own copy of `rows` [n, h]."""
    head = nn.Linear(rows.shape[1], rows.shape[0], bias=False, device="meta")
    head.weight = nn.Parameter(rows.clone(), requires_grad=False)
    return head
