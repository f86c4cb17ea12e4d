"""The static graphs of a stream-fused model as PyTorch modules: one per method, sharing every weight.

Signatures are those of docs/contracts.md, section 2. The same modules serve three ends: torch.export lowers them, the
reference backend runs them eagerly, and the parity gate compares each emitted graph with them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

import streamfuse.kernels.aot  # noqa: F401  registers torch.ops.streamfuse.*
from streamfuse.model.streams import Pruner

from .blocks import Chain, Heads, Segment
from .plan import GraphShapes
from .weights import Weights

__all__ = ["GraphShapes", "Method", "Plain", "Verify", "Weights", "build_methods", "example_inputs"]

_PRUNED = -1e4  # finite, as engines without infinities need it
_DEPTH_COST = 1e-3  # makes a path score fall strictly, so that equal edges never put a child before its parent


class Method(nn.Module):
    """What the methods share: running a chain of segments with tree attention between them.

    `rows` is R; `keep` is K, None where nothing is verified; `has_logits` is False for prefill.
    """

    keep: int | None = None
    stream_row_count: int = 0
    has_logits: bool = True

    def __init__(self, weights: Weights, rows: int) -> None:
        super().__init__()
        self.w, self.rows = weights, rows
        self.scale = 1.0 / math.sqrt(weights.config.head_dim)

    def run_chain(
        self,
        chain: Chain,
        x: Tensor,
        rotary: tuple[Tensor, Tensor],
        cache_length: Tensor,
        visible: Tensor,
        caches: tuple[Tensor, ...],
        stream_rows: tuple[Tensor, ...] = (),
    ) -> tuple[tuple[Tensor, ...], list[Tensor]]:
        """Outputs of the chain's last segment, and the new keys and values [R, Hkv, D] of every layer, interleaved."""
        new: list[Tensor] = []
        layers = len(caches) // 2
        if not layers:
            return (x,), new
        q, k, v = chain.call(0, x, *rotary, *stream_rows)
        for i in range(layers):
            if stream_rows:
                v = self.turn_values(v)
            new += [k, v]
            last = i + 1 == layers
            if last and len(chain) == layers:  # keys and values of the last layer are all that is wanted
                break
            attended = torch.ops.streamfuse.tree_attention(
                q, k, v, caches[2 * i], caches[2 * i + 1], cache_length, visible, self.scale
            )
            if last:
                return chain.call(i + 1, x, attended, *stream_rows), new
            x, q, k, v = chain.call(i + 1, x, attended, *rotary, *stream_rows)
        return (), new

    def turn_values(self, v: Tensor) -> Tensor:
        """Values [R, Hkv, D] as attention takes them; `Verify` turns those of streams where the model asks for it."""
        return v

    def segment_inputs(self, segment: Segment) -> tuple[Tensor, ...]:
        """Inputs of a segment of this method, as an example of their shapes."""
        rows = self.stream_row_count if segment.streams else self.rows
        c = self.w.config
        inputs = [torch.zeros(rows, c.hidden_size)]
        if segment.closing is not None:
            inputs.append(torch.zeros(rows, c.num_heads * c.head_dim))
        if segment.opening is not None:
            inputs += [torch.zeros(rows, 1, c.head_dim) for _ in range(2)]
        if segment.streams:
            inputs.append(torch.zeros(rows, 1))
        return (*inputs, *(norm.detach() for norm in segment.norms()))


class Plain(Method):
    """`prefill` (no logits: the last prompt token is the root of the first verify or decode pass) and `decode`."""

    def __init__(self, weights: Weights, rows: int, logits: bool) -> None:
        super().__init__(weights, rows)
        self.has_logits = logits
        # Keys and values of the last layer are all that prefill leaves, so its chain lacks the end.
        heads = Heads(weights.norm, rows, weights.head) if logits else None
        self.chain = weights.chain(0, len(weights.blocks), heads, end=logits)

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, ancestors: Tensor, cache_length: Tensor, *caches: Tensor
    ) -> tuple[Tensor, ...]:
        x, rotary = self.w.embedding(input_ids), self.w.rotary(position_ids)
        out, new = self.run_chain(self.chain, x, rotary, cache_length, ancestors, caches)
        return (*out, *new)


class Verify(Method):
    """`verify_T`: T nodes in the lower layers; K kept nodes and their streams in the top layers."""

    arange: Tensor  # int64 [T]
    steps: Tensor  # int64 [G]: 1..G
    own_streams: Tensor  # bool [K * G, K * G]: a stream sees streams 1..j of its own node
    no_streams: Tensor  # bool [K, K * G]: a node sees none
    stream_rows: Tensor  # [K + K * G, 1]: 1 for streams

    def __init__(self, weights: Weights, rows: int, keep: int) -> None:
        super().__init__(weights, rows)
        self.keep: int = keep
        streams, lower = weights.streams_config.num_streams, weights.num_lower_layers
        self.lower_chain = weights.chain(0, lower)
        heads = Heads(weights.norm, keep, weights.head, weights.stream_head)
        self.top_chain = weights.chain(lower, len(weights.blocks), heads, streams=True)
        self.register_buffer("arange", torch.arange(rows))
        self.register_buffer("steps", torch.arange(1, streams + 1))
        own = torch.block_diag(*[torch.ones(streams, streams).tril()] * keep)
        self.register_buffer("own_streams", own.bool())
        self.register_buffer("no_streams", torch.zeros(keep, keep * streams, dtype=torch.bool))
        self.register_buffer("stream_rows", torch.cat([torch.zeros(keep, 1), torch.ones(keep * streams, 1)]))
        self.stream_row_count = len(self.stream_rows)

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, ancestors: Tensor, cache_length: Tensor, *caches: Tensor
    ) -> tuple[Tensor, ...]:
        w, streams, keep = self.w, self.w.streams_config.num_streams, self.keep
        split = 2 * w.num_lower_layers
        embedded = w.embedding(input_ids)
        (x,), new = self.run_chain(
            self.lower_chain, embedded, w.rotary(position_ids), cache_length, ancestors, caches[:split]
        )
        if w.pruner is not None and keep < self.rows:
            candidates = embedded if w.candidate_embedding is None else w.candidate_embedding(input_ids)
            kept = self._prune(w.pruner, x, candidates, ancestors)
            x, position_ids = x.index_select(0, kept), position_ids.index_select(0, kept)
            ancestors = ancestors.index_select(0, kept).index_select(1, kept)
        else:
            kept = position_ids * 0 + self.arange
        rows = torch.cat([x, w.insert(x).reshape(keep * streams, -1)])
        stream_positions = (position_ids.unsqueeze(1) + self.steps).view(-1)
        rotary, visible = w.rotary(torch.cat([position_ids, stream_positions])), self._visible(ancestors)
        (logits, stream_logits), rows_new = self.run_chain(
            self.top_chain, rows, rotary, cache_length, visible, caches[split:], (self.stream_rows,)
        )
        ids, log_probs = torch.ops.streamfuse.top_k_log_prob(stream_logits, w.stream_vocab, w.shapes.top_k)
        shape = (keep, streams, w.shapes.top_k)
        return (logits, kept, ids.view(shape), log_probs.view(shape), *new, *[t[:keep] for t in rows_new])

    def _visible(self, ancestors: Tensor) -> Tensor:
        """What nodes and their streams see among both: ancestors [K, K] -> bool [K + K * G, K + K * G]."""
        streams, keep = len(self.steps), self.keep
        seen = ancestors.unsqueeze(1).expand(keep, streams, keep).reshape(keep * streams, keep)
        return torch.cat([torch.cat([ancestors, self.no_streams], 1), torch.cat([seen, self.own_streams], 1)])

    def turn_values(self, v: Tensor) -> Tensor:
        if not self.w.streams_config.value_rotation:
            return v
        streams = v[self.keep :].unflatten(0, (self.keep, -1))
        return torch.cat([v[: self.keep], self.w.rotate_value(streams).flatten(0, 1)])

    def _prune(self, pruner: Pruner, x: Tensor, candidates: Tensor, ancestors: Tensor) -> Tensor:
        """The `keep` best nodes by path score, best first; a parent comes before its children, padding rows last.

        x [T, h] states below the top layers, candidates [T, h] head rows of the nodes' tokens, ancestors [T, T] ->
        int64 [K].
        """
        exits = pruner.early_exit(self.w.norm(x, self.w.norm.weight))
        logits = torch.matmul(exits, candidates.transpose(0, 1))  # [parent, child]
        z = (logits * pruner.slope + pruner.offset).clamp(-60.0, 60.0)
        score = -torch.log(torch.exp(-z) + 1.0)
        above = ancestors.to(torch.float32)
        depth = above.sum(1)  # 1 for the root, 0 for padding
        is_parent = above * torch.relu(1.0 - (depth.unsqueeze(1) - depth.unsqueeze(0) - 1.0).abs())  # [child, parent]
        edge = (is_parent * score.transpose(0, 1)).sum(1)
        path = (above * edge.unsqueeze(0)).sum(1) - depth * _DEPTH_COST + torch.relu(1.0 - depth) * _PRUNED
        return torch.topk(path, self.keep)[1]


def build_methods(weights: Weights) -> dict[str, Method]:
    """All methods of a bundle, sharing `weights`."""
    methods: dict[str, Method] = {
        "prefill": Plain(weights, weights.shapes.prefill_rows, logits=False),
        "decode": Plain(weights, 1, logits=True),
    }
    for rows, keep in weights.shapes.widths:
        methods[f"verify_{rows}"] = Verify(weights, rows, keep)
    return methods


def example_inputs(weights: Weights, rows: int) -> tuple[Tensor, ...]:
    """Zero inputs of the method's static shapes."""
    c = weights.config
    caches = [torch.zeros(weights.shapes.capacity, c.num_kv_heads, c.head_dim) for _ in range(2 * c.num_layers)]
    ids = torch.zeros(rows, dtype=torch.int64)
    return (
        ids,
        ids.clone(),
        torch.ones(rows, rows, dtype=torch.bool).tril(),
        torch.zeros(1, dtype=torch.int64),
        *caches,
    )
