"""The weights that all methods of a bundle share, in the graphs' own form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamfuse.model.config import ModelConfig
from streamfuse.model.low_rank import SoftmaxPruner
from streamfuse.model.streams import StreamAdapters, StreamFused
from streamfuse.model.transformer import Block, rotary_tables

from .config import GraphShapes
from .layers import Form
from .pruning import Survivors, edges_of


class Positions(NamedTuple):
    """The rows' positions, int64 [R], and cos and sin [R, D] of each rotary embedding of the model."""

    ids: Tensor
    turns: tuple[tuple[Tensor, Tensor], ...]


class Rotary(nn.Module):
    """position_ids int64 [R] -> Positions."""

    def __init__(self, config: ModelConfig, length: int) -> None:
        super().__init__()
        tables = rotary_tables(config, length)
        self.names = [("cos", "sin") if len(tables) == 1 else (f"cos_{i}", f"sin_{i}") for i in range(len(tables))]
        for names, pair in zip(self.names, tables, strict=True):
            for name, table in zip(names, pair, strict=True):
                self.register_buffer(name, table)

    def forward(self, position_ids: Tensor) -> Positions:
        def rows(name: str) -> Tensor:
            return F.embedding(position_ids, cast("Tensor", getattr(self, name)))

        return Positions(position_ids, tuple((rows(cos), rows(sin)) for cos, sin in self.names))


class Scale(nn.Module):
    """Embedding rows -> the hidden states that the first layer reads.

    The factor is a tensor, since coremltools converts Python numbers to float32, and with them all results.
    """

    factor: Tensor  # [1]

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.register_buffer("factor", torch.full((1,), factor))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class Insert(nn.Module):
    """Eq. 3: states [R, h] below the top layers -> stream rows [R, G, h]. StreamFused.insert, without its model.

    `known` [R, h]: embedding rows of the next tokens, if streams are conditioned on them.
    """

    def __init__(self, form: Form, model: StreamFused) -> None:
        super().__init__()
        config = model.streams_config
        self.num_streams = config.num_streams
        self.eta = form.low_rank(model.eta) if config.eta_rank else None
        self.next_token = form.low_rank(model.next_token) if config.next_token_rank else None
        self.names = None if config.value_rotation else nn.Parameter(model.stream_embeddings.detach(), False)

    def forward(self, hidden: Tensor, known: Tensor | None = None) -> Tensor:
        start = hidden if self.eta is None else hidden + self.eta(hidden)
        if self.next_token is not None and known is not None:
            start = start + self.next_token(known)
        rows = start.unsqueeze(1)
        return rows.expand(-1, self.num_streams, -1) if self.names is None else rows + self.names


class Turn(nn.Module):
    """Value rotation by stream distance, for the rows from `first` on, in groups of G: v [R, Hkv, D]."""

    cos: Tensor
    sin: Tensor

    def __init__(self, step: float, first: int, rows: int, num_streams: int) -> None:
        super().__init__()
        distance = torch.arange(rows - first) % num_streams + 1
        angles = torch.cat([torch.zeros(first), step * distance])[:, None, None]
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, v: Tensor) -> Tensor:
        half = v.shape[2] // 2
        a, b = v[..., :half], v[..., half:]
        return torch.cat([a * self.cos - b * self.sin, a * self.sin + b * self.cos], dim=2)


class Span(nn.Module):
    """Consecutive layers of a model, run on R rows. Rows from `first` on use the low-rank adapters.

    Attributes:
        first_layer: index of the lowest layer.
        attentions: of each layer, or what it has instead.
        endings: what follows each layer's MLP (`Form.ending`).
        main_rows: number of rows that are not streams; the layers below ran on these rows only.
    """

    def __init__(
        self,
        config: ModelConfig,
        first_layer: int,
        openings: Sequence[nn.Module],
        closings: Sequence[nn.Module],
        attentions: Sequence[nn.Module],
        endings: Sequence[nn.Module],
        rows: int,
        main_rows: int,
        first: int,
        turn: Turn | None,
    ) -> None:
        super().__init__()
        self.openings, self.closings = nn.ModuleList(openings), nn.ModuleList(closings)
        self.attentions, self.endings = nn.ModuleList(attentions), nn.ModuleList(endings)
        self.config, self.first_layer, self.main_rows = config, first_layer, main_rows
        self.rows, self.first, self.turn = rows, first, turn

    def forward(
        self,
        x: Tensor,
        positions: Positions,
        cache_length: Tensor,
        visible: Tensor,
        caches: Sequence[tuple[Tensor, ...]],
        per_layer: Tensor | None = None,
        below: Sequence[Tensor] = (),
    ) -> tuple[Tensor, list[Tensor]]:
        """x [R, h] after the layers, and their new keys and values [R, Hkv, D], interleaved; of layers that read those
        of another one there are none.

        With `close_last` False, x is the state before the last layer, since only keys and values are needed.

        Args:
            caches: those of each layer: keys, values and, if it has one, its state.
            per_layer: per-layer inputs [R, N, P] of all layers of the model; None: the model has none, or the rows have
                no tokens.
            below: keys and values [main_rows, Hkv, D] of the layers below, in the order of the result.
        """
        new: list[Tensor] = []
        for i, opening in enumerate(self.openings, self.first_layer):
            q, k, v = opening(x, *positions.turns[self.config.layer_rotaries[i]], self.first)
            seen = visible
            if k is None:
                k, v, seen = self._shared(self.config.kv_source_layers[i], x, visible, new, below)
            else:
                v = self.turn(v) if self.turn is not None and self.config.layer_attentions[i] else v
                new += [k, v]
            at = i - self.first_layer
            if at < len(self.closings):
                keys, values, *state = caches[at]
                attended = self.attentions[at](q, k, v, keys, values, cache_length, seen, positions.ids, *state)
                x = self.closings[at](x, attended, self.first)
                x = self.endings[at](x, None if per_layer is None else per_layer[:, i])
        return x, new

    def _shared(
        self, source: int, x: Tensor, visible: Tensor, new: Sequence[Tensor], below: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Keys and values [R, Hkv, D] that layer `source` computed, and the mask [R, R] to use with them."""
        if source >= self.first_layer:
            at = 2 * (source - self.first_layer)
            return new[at], new[at + 1], visible
        streams = self.rows - self.main_rows
        if streams == 0:
            return below[2 * source], below[2 * source + 1], visible
        # Streams have none there, so nothing attends to them.
        none = x.new_zeros(streams, self.config.kv_heads_of(source), self.config.layer_head_dims[source])
        seen = torch.cat([visible[:, : self.main_rows], torch.zeros_like(visible[:, self.main_rows :])], 1)
        if self.main_rows == 0:
            return none, none, seen
        return torch.cat([below[2 * source], none]), torch.cat([below[2 * source + 1], none]), seen


class Weights(nn.Module):
    """The weights that all methods of a bundle share. `form` None: float32, in PyTorch.

    A model without streams has no `stream_head` and no `insert`. With `of_base`, the base's matrices are taken from
    there, for a task adapter of the same base; only the low-rank products beside them and the streams are made.

    Raises:
        ValueError: a width keeps fewer nodes than it verifies, or only some of its kept nodes have streams, and the
            model has no pruner.
    """

    stream_head: nn.Module
    candidates: nn.Module | None  # tokens int64 [T] -> the pruner's input; None: their embeddings
    insert: nn.Module  # states [R, h] below the top layers -> stream rows [R, G, h]
    per_layer: nn.Module | None  # ids [R], hidden states before the first layer [R, h] -> per-layer inputs [R, N, P]

    def __init__(
        self, model: StreamFused, shapes: GraphShapes, form: Form | None = None, of_base: Weights | None = None
    ) -> None:
        super().__init__()
        base, config = model.base, model.streams_config
        self.form = form = form or Form()
        self.config, self.streams_config, self.shapes = base.config, config, shapes
        self.embedding = form.embedding(base.embed_tokens.weight)
        scale = base.config.embedding_scale
        self.start = nn.Identity() if scale == 1 else Scale(scale)  # embedding rows -> hidden states
        adapters = _adapters(model, form.merges_streams)
        if of_base is None:
            self.openings = nn.ModuleList(map(form.opening, base.blocks, adapters))
            self.closings = nn.ModuleList(map(form.closing, base.blocks, adapters))
            self.endings = nn.ModuleList(map(form.ending, base.blocks))
            self.per_layer = form.per_layer(base) if base.config.per_layer_size else None
        else:
            self.per_layer, self.endings = of_base.per_layer, of_base.endings
            self.openings = nn.ModuleList(map(form.with_adapters, of_base.openings, adapters))
            self.closings = nn.ModuleList(map(form.with_adapters, of_base.closings, adapters))
        self.stream_openings, self.stream_closings = self._of_streams(model, form)
        self.head = form.head(base.norm, base.lm_head.weight, base.config.logit_cap)
        if config.heads:
            self.insert, self.stream_head = model.heads.graph(form, model, shapes.top_k)
        elif config.num_streams:
            self.insert = Insert(form, model)
            self.stream_head = form.stream_head(base.norm, model.head_rows(), model.stream_vocab, shapes.top_k)
        self.ring_size = form.cache_positions(shapes.capacity, base.config.longest_window)
        windows = base.config.layer_windows
        cached = base.config.num_cached_layers
        self.cache_positions = [shapes.capacity if one is None else self.ring_size for one in windows[:cached]]
        self.attentions = nn.ModuleList(self._attentions(base.blocks, form))
        self.rotary = Rotary(base.config, shapes.capacity + config.num_streams + 1)
        self.norm, self.pruner = base.norm, model.pruner if config.pruner_rank else None
        self.early_exit_head: nn.Module = nn.Identity()
        self.candidates = None
        if shapes.needs_pruner and isinstance(self.pruner, SoftmaxPruner):
            self.early_exit_head, self.candidates = form.vocabulary("head", base.lm_head.weight), nn.Identity()
        elif shapes.needs_pruner and not (base.config.tie_word_embeddings or self.pruner is None):
            self.candidates = form.embedding(base.lm_head.weight)
        if self.pruner is None and shapes.needs_pruner:
            raise ValueError(
                "a width keeps fewer nodes than it verifies, or only some kept nodes have streams, but the adapter "
                "has no pruner (pruner_rank 0)"
            )

    def _attentions(self, blocks: Sequence[Block], form: Form) -> Iterator[nn.Module]:
        """One for each layer; those without weights are shared."""
        capacity, kinds = self.shapes.capacity, dict[tuple[int | None, int], nn.Module]()
        for block in blocks:
            cache_size = self.cache_positions[block.kv_source]
            if block.recurs:
                longest = self.config.longest_window or 0
                rewindable = capacity if cache_size == capacity else cache_size - longest
                yield form.linear_attention(cache_size, rewindable, block.linear_attn)
                continue
            if block.convolves:
                yield form.convolution(capacity, cache_size, block.conv)
                continue
            kind = block.window, block.mixer.head_dim
            if kind not in kinds:
                kinds[kind] = form.attention(capacity, cache_size, block.mixer.head_dim**-0.5, block.window)
            yield kinds[kind]

    def _of_streams(self, model: StreamFused, form: Form) -> tuple[nn.ModuleList, nn.ModuleList]:
        """The top layers of a `streams` pass; empty if they are those of all rows."""
        openings, closings = nn.ModuleList(), nn.ModuleList()
        if form.merges_streams:
            merged = form.of_streams()
            for block in model.merged_stream_blocks():
                openings.append(merged.opening(block, None))
                closings.append(merged.closing(block, None))
            return openings, closings
        for i, own in enumerate(_stream_adapters(model), self.num_lower_layers):
            openings.append(form.with_adapters(self.openings[i], own))
            closings.append(form.with_adapters(self.closings[i], own))
        return openings, closings

    @property
    def ring_window(self) -> int | None:
        """The longest window of the layers whose caches are ring buffers; None if there are none."""
        return self.config.longest_window if self.ring_size < self.shapes.capacity else None

    @property
    def num_lower_layers(self) -> int:
        return self.config.num_layers - self.streams_config.num_msa_layers

    def span(self, first: int, last: int, rows: int, adapted_from: int | None = None, close_last: bool = True) -> Span:
        """Layers [first, last) over `rows` rows; rows from `adapted_from` on are streams, None: no row is."""
        start = rows if adapted_from is None else adapted_from
        step = self.streams_config.value_rotation if start < rows else 0.0
        turn = Turn(step, start, rows, self.streams_config.num_streams) if step else None
        openings, closings = list(self.openings)[first:last], list(self.closings)[first:last]
        attentions, endings = list(self.attentions)[first:last], list(self.endings)[first:last]
        if self.stream_openings and start < rows:
            if start > 0:
                raise ValueError("stream rows whose layers are not those of the base's rows need a separate pass")
            openings, closings = list(self.stream_openings), list(self.stream_closings)
        adapted = 0 if self.streams_config.base_rank else start  # a tuned base's adapters apply to all rows
        # A state is brought up to date by every pass; preview.py refuses a last layer with one.
        close_last = close_last or self.config.layer_recurrences[last - 1]
        closings = closings if close_last else closings[:-1]
        parts = openings, closings, attentions[: len(closings)], endings
        return Span(self.config, first, *parts, rows, start, adapted, turn)

    def by_layer(self, caches: Sequence[Tensor], first: int = 0) -> list[tuple[Tensor, ...]]:
        """The caches that a pass takes for the layers from `first` on: keys and values of each layer that they read,
        then the states. Returns those of each layer: keys, values and, if it has one, its state."""
        lowest, recurs = self.config.lowest_kv_layer(first), self.config.layer_recurrences[first:]
        states = iter(caches[2 * (self.config.num_cached_layers - lowest) :])
        places = [2 * (source - lowest) for source in self.config.kv_source_layers[first:]]
        return [
            (*caches[at : at + 2], *([next(states)] if has else [])) for at, has in zip(places, recurs, strict=True)
        ]

    def survivors(self, rows: int, keep: int, carrying: int) -> Survivors | None:
        """The pruner of one method; None if it keeps all nodes and their order does not matter."""
        ordered, threshold = 0 < carrying < keep, self.shapes.prune_threshold if keep < rows else 0.0
        if self.pruner is None or (keep == rows and not ordered):
            return None
        edges = edges_of(self.pruner, self.norm, rows, self.early_exit_head)
        return self.form.survivors(edges, rows, keep, ordered, threshold)


def _adapters(model: StreamFused, merges_streams: bool = False) -> list[StreamAdapters | None]:
    """One per layer: of stream rows unless they are merged, or of all rows if the base is tuned and not merged; None
    for other layers."""
    count, tuned = model.streams_config.num_msa_layers, model.streams_config.base_layers
    if tuned:
        return [None] * (model.base.config.num_layers - tuned) + [
            cast("StreamAdapters", a) for a in model.base_adapters
        ]
    if merges_streams or not model.streams_config.adapter_rank:
        return [None] * model.base.config.num_layers
    return [None] * model.num_lower_layers + [cast("StreamAdapters", model.adapters[i]) for i in range(count)]


def _stream_adapters(model: StreamFused) -> list[StreamAdapters]:
    """One per top layer: the base's adapters joined to the streams' own; empty if one set serves all rows."""
    config, tuned = model.streams_config, _adapters(model)[model.num_lower_layers :]
    if not (config.base_layers and config.adapter_rank):
        return []
    own = [cast("StreamAdapters", adapters) for adapters in model.adapters]
    return [mine if base is None else base.joined(mine) for base, mine in zip(tuned, own, strict=True)]
