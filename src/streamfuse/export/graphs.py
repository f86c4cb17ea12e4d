"""The static graphs of a stream-fused model as PyTorch modules: one per method, sharing every weight.

Signatures are those of docs/contracts.md, section 2. The same modules are lowered by torch.export, run eagerly by the
reference backend, and compared with each emitted graph by the parity gate. Their parts come from `Weights`, in a
target's own form (layers.py).
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from streamfuse.runtime.backend import NEXT_TOKEN, STREAMS

from .config import GraphShapes
from .operators.states import HEADER
from .weights import Weights

__all__ = [
    "GraphShapes",
    "Plain",
    "Streams",
    "Verify",
    "Weights",
    "build_methods",
    "example_inputs",
    "input_names",
]


class Plain(nn.Module):
    """`prefill` (no logits: the last prompt token is the root of the first verify or decode pass) and `decode`.

    Prefill's only results are keys and values, so its graph ends after those of the last layer.
    """

    def __init__(self, weights: Weights, rows: int, logits: bool) -> None:
        super().__init__()
        # `prefill` needs no layers above the last one that computes keys and values.
        layers = weights.config.num_layers if logits else weights.config.num_cached_layers
        lower = min(weights.num_lower_layers, layers)
        self.rows, self.split, self.by_layer = rows, lower, weights.by_layer
        self.embedding, self.start, self.rotary = weights.embedding, weights.start, weights.rotary
        self.per_layer = weights.per_layer
        self.lower = weights.span(0, lower, rows, close_last=logits or lower < layers)
        self.top = weights.span(lower, layers, rows, close_last=logits)
        self.head = weights.head if logits else None
        self.gives_hidden = logits and weights.shapes.deferred

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        ancestors: Tensor,
        cache_length: Tensor,
        want_logits: Tensor,
        *caches: Tensor,
    ) -> tuple[Tensor, ...]:
        positions, x = self.rotary(position_ids), self.start(self.embedding(input_ids))
        of_layers, per_layer = self.by_layer(caches), None if self.per_layer is None else self.per_layer(input_ids, x)
        hidden, new = self.lower(x, positions, cache_length, ancestors, of_layers[: self.split], per_layer)
        x, top_new = self.top(hidden, positions, cache_length, ancestors, of_layers[self.split :], per_layer, new)
        if self.head is None:
            return (*new, *top_new)
        return (*self.head(x, want_logits), *new, *top_new, *((hidden,) if self.gives_hidden else ()))


class Verify(nn.Module):
    """`verify_T`: T nodes in the lower layers; K kept nodes in the top layers, M of them with their streams.

    In the top layers the nodes are in path order, so that attention adds along a path as `decode` does. The outputs are
    in the order of `kept`: the root, then the others by how likely they are to be the last accepted one.
    """

    arange: Tensor  # int64 [T]
    steps: Tensor  # int64 [G]: 1..G
    own_streams: Tensor  # bool [M * G, M * G]: stream j attends to streams 1..j of its own node
    no_streams: Tensor  # bool [K, M * G]: nodes attend to no streams

    def __init__(self, weights: Weights, rows: int, keep: int, carrying: int) -> None:
        super().__init__()
        self.rows, self.keep, self.carrying = rows, keep, carrying
        self.num_streams, self.top_k = weights.streams_config.num_streams, weights.shapes.top_k
        lower, layers = weights.num_lower_layers, weights.config.num_layers
        self.split, self.by_layer = lower, weights.by_layer
        self.embedding, self.start, self.per_layer = weights.embedding, weights.start, weights.per_layer
        self.rotary, self.head = weights.rotary, weights.head
        self.lower = weights.span(0, lower, rows)
        added = carrying * self.num_streams
        self.top = weights.span(lower, layers, keep + added, adapted_from=keep)
        self.survivors = weights.survivors(rows, keep, carrying)
        # Head rows of drafted tokens; with a tied head, the embedding's rows, which are available.
        self.candidates = weights.candidates if self.survivors is not None else None
        self.gives_hidden = weights.shapes.deferred
        self.shares_keys = weights.config.num_cached_layers < layers
        self.register_buffer("arange", torch.arange(rows))
        if carrying:
            self.insert, self.stream_head = weights.insert, weights.stream_head
            self.register_buffer("steps", torch.arange(1, self.num_streams + 1))
            own = torch.block_diag(*[torch.ones(self.num_streams, self.num_streams).tril()] * carrying)
            self.register_buffer("own_streams", own.bool())
            self.register_buffer("no_streams", torch.zeros(keep, added, dtype=torch.bool))

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        ancestors: Tensor,
        cache_length: Tensor,
        want_logits: Tensor,
        *caches: Tensor,
    ) -> tuple[Tensor, ...]:
        embedded, of_layers = self.embedding(input_ids), self.by_layer(caches)
        positions, x = self.rotary(position_ids), self.start(embedded)
        per_layer = None if self.per_layer is None else self.per_layer(input_ids, x)
        x, new = self.lower(x, positions, cache_length, ancestors, of_layers[: self.split], per_layer)
        kept, order, below = position_ids * 0 + self.arange, None, new
        if self.survivors is not None:
            drafted = embedded if self.candidates is None else self.candidates(input_ids)
            chosen, named, ancestors, order = self.survivors(x, drafted, ancestors)
            if chosen is not None:
                kept = chosen if named is None else named
                x, position_ids = x.index_select(0, chosen), position_ids.index_select(0, chosen)
                below = [rows.index_select(0, chosen) for rows in new] if self.shares_keys else new
                per_layer = None if per_layer is None else per_layer.index_select(0, chosen)
        hidden = x
        if self.carrying:
            x, position_ids, ancestors = self._with_streams(x, position_ids, ancestors, order)
            if per_layer is not None:  # streams have no tokens
                none = per_layer.new_zeros(self.carrying * self.num_streams, *per_layer.shape[1:])
                per_layer = torch.cat([per_layer, none])
        positions = self.rotary(position_ids)
        x, top_new = self.top(x, positions, cache_length, ancestors, of_layers[self.split :], per_layer, below)

        def nodes(rows: Tensor) -> Tensor:
            return rows[: self.keep] if order is None else rows.index_select(0, order)

        outputs = [*self.head(nodes(x), want_logits), nodes(kept)]
        if self.carrying:
            shape = (self.carrying, self.num_streams, self.top_k)
            outputs += [t.view(shape) for t in self.stream_head(x[self.keep :])]
        return (*outputs, *new, *map(nodes, top_new), *((nodes(hidden),) if self.gives_hidden else ()))

    def _with_streams(
        self, x: Tensor, position_ids: Tensor, ancestors: Tensor, order: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x [K, h], position_ids [K] and ancestors [K, K] with the streams of M nodes appended: [K + M * G, ...]."""
        keep, carrying, streams = self.keep, self.carrying, self.num_streams
        starts, positions, seen = x, position_ids, ancestors
        if order is not None:
            starts, positions, seen = (t.index_select(0, order[:carrying]) for t in (x, position_ids, ancestors))
        rows = torch.cat([x, self.insert(starts).reshape(carrying * streams, -1)])
        positions = torch.cat([position_ids, (positions.unsqueeze(1) + self.steps).view(-1)])
        seen = seen.unsqueeze(1).expand(carrying, streams, keep).reshape(carrying * streams, keep)
        visible = torch.cat([torch.cat([ancestors, self.no_streams], 1), torch.cat([seen, self.own_streams], 1)])
        return rows, positions, visible


class Streams(nn.Module):
    """`streams`, the deferred schedule: the streams of one node whose own keys and values are committed."""

    steps: Tensor  # int64 [G]: 1..G
    visible: Tensor  # bool [G, G]: stream j attends to streams 1..j

    def __init__(self, weights: Weights) -> None:
        super().__init__()
        self.num_streams, self.top_k = weights.streams_config.num_streams, weights.shapes.top_k
        # The next token, given by its embedding row, if streams are conditioned on it; before the caches.
        self.embedding = weights.embedding if weights.streams_config.next_token_rank else None
        self.insert, self.rotary, self.stream_head = weights.insert, weights.rotary, weights.stream_head
        lower, layers = weights.num_lower_layers, weights.config.num_layers
        self.split, self.by_layer = lower, weights.by_layer
        self.top = weights.span(lower, layers, self.num_streams, adapted_from=0)
        self.register_buffer("steps", torch.arange(1, self.num_streams + 1))
        self.register_buffer("visible", torch.ones(self.num_streams, self.num_streams, dtype=torch.bool).tril())

    def forward(
        self, hidden: Tensor, position_ids: Tensor, cache_length: Tensor, *caches: Tensor
    ) -> tuple[Tensor, ...]:
        if self.embedding is None:
            rows = self.insert(hidden)
        else:
            rows, caches = self.insert(hidden, self.embedding(caches[0])), caches[1:]
        rows = rows.reshape(self.num_streams, -1)
        of_layers = self.by_layer(caches, self.split)
        x, _ = self.top(rows, self.rotary(position_ids + self.steps), cache_length, self.visible, of_layers)
        return tuple(t.view(1, self.num_streams, self.top_k) for t in self.stream_head(x))


Method = Plain | Verify | Streams


def build_methods(weights: Weights) -> dict[str, Method]:
    """All methods of a bundle, sharing `weights`."""
    methods: dict[str, Method] = {
        "prefill": Plain(weights, weights.shapes.prefill_rows, logits=False),
        "decode": Plain(weights, 1, logits=True),
    }
    for rows, keep, carrying in weights.shapes.verify:
        methods[f"verify_{rows}"] = Verify(weights, rows, keep, carrying)
    if weights.shapes.deferred:
        methods[STREAMS] = Streams(weights)
    methods |= {name: make(weights) for name, make in weights.shapes.extra_methods.items()}
    return methods


def input_names(weights: Weights, method: Method) -> list[str]:
    """Names of a method's inputs in call order."""
    streams, config = isinstance(method, Streams), weights.config
    names = ["hidden", "position_ids", "cache_length"]
    if streams and cast("Streams", method).embedding is not None:
        names.append(NEXT_TOKEN)
    if not streams:
        names = ["input_ids", "position_ids", "ancestors", "cache_length", "want_logits"]
    first = weights.num_lower_layers if streams else 0
    cached = range(config.lowest_kv_layer(first), config.num_cached_layers)
    names += [f"{kind}_cache_{i}" for i in cached for kind in ("key", "value")]
    return names + [f"state_{i}" for i in cached if config.layer_recurrences[i]]


def example_inputs(weights: Weights, method: Method) -> tuple[Tensor, ...]:
    """Zero inputs of the method's static shapes."""
    c = weights.config
    rows = 1 if isinstance(method, Streams) else method.rows
    ids, length = torch.zeros(rows, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    known = {
        "input_ids": ids,
        "position_ids": ids.clone(),
        "ancestors": torch.ones(rows, rows, dtype=torch.bool).tril(),
        "cache_length": length,
        "want_logits": torch.ones(1, dtype=torch.bool),
        "hidden": torch.zeros(1, c.hidden_size),
        NEXT_TOKEN: torch.zeros(1, dtype=torch.int64),
    }
    inputs = [known[name] for name in input_names(weights, method) if name in known]
    first = weights.num_lower_layers if isinstance(method, Streams) else 0
    for layer in range(c.lowest_kv_layer(first), c.num_cached_layers):  # not shared, or they would be one input
        inputs += weights.form.caches(weights.cache_positions[layer], c.kv_heads_of(layer), c.layer_head_dims[layer])
    if c.delta is not None:
        inputs += [torch.zeros(2, HEADER + c.delta.state_size) for _ in range(sum(c.layer_recurrences[first:]))]
    return tuple(inputs)
