"""The static graphs of a stream-fused model as PyTorch modules: one per method, sharing every weight.

Signatures are those of docs/contracts.md, section 2. The same modules serve three ends: torch.export lowers them, the reference
backend runs them eagerly, and the parity gate compares each emitted graph with them.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import streamfuse.kernels.aot  # noqa: F401  registers torch.ops.streamfuse.*
from streamfuse.model.streams import LowRank, StreamFused
from streamfuse.model.transformer import Block, RMSNorm, rotary_table

_PRUNED = -1e4  # finite, as engines without infinities need it
_DEPTH_COST = 1e-3  # makes a path score fall strictly, so that equal edges never put a child before its parent


@dataclass(frozen=True)
class GraphShapes:
    """Static sizes: cache positions, rows of the prefill chunk, `{T: K}` nodes verified and kept, candidates per stream."""

    capacity: int = 512
    prefill_rows: int = 64
    widths: tuple[tuple[int, int], ...] = ((4, 4), (8, 8), (16, 8))
    top_k: int = 16


class Norm(nn.Module):
    """RMSNorm whose mean is a product with a column of 1/h, which every delegate takes (mean over rows of 2-D tensors is often not).

    Its weight is an argument: XNNPACK's cache of packed weights frees constants that are not part of a product, so a segment gets such
    constants as inputs. The epsilon is the product's bias for the same reason.
    """

    def __init__(self, norm: RMSNorm) -> None:
        super().__init__()
        self.weight = norm.weight
        size = norm.weight.shape[0]
        self.register_buffer("mean", torch.full((1, size), 1.0 / size))
        self.register_buffer("eps", torch.full((1,), norm.eps))

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(F.linear(x * x, self.mean, self.eps)) * weight


class FusedAdapter(nn.Module):
    """Low-rank adapters of projections that share an input, as one pair of matrices; the row mask acts on the few columns between."""

    def __init__(self, parts: list[LowRank]) -> None:
        super().__init__()
        self.down = nn.Linear(parts[0].down.shape[1], sum(p.down.shape[0] for p in parts), bias=False)
        self.up = nn.Linear(self.down.out_features, sum(p.up.shape[0] for p in parts), bias=False)
        self.down.weight = nn.Parameter(torch.cat([p.down for p in parts]), requires_grad=False)
        self.up.weight = nn.Parameter(torch.block_diag(*(p.up * p.scale for p in parts)), requires_grad=False)

    def forward(self, x: Tensor, stream_rows: Tensor) -> Tensor:
        return self.up(self.down(x) * stream_rows)


class FusedBlock(nn.Module):
    """A decoder layer in two halves around attention, with few and large products: q, k and v in one, gate and up in one."""

    def __init__(self, block: Block, adapters: nn.ModuleDict | None) -> None:
        super().__init__()
        a, m = block.self_attn, block.mlp
        self.heads, self.kv_heads, self.dim = a.num_heads, a.num_kv_heads, a.head_dim
        self.attention_norm, self.mlp_norm = Norm(block.input_layernorm), Norm(block.post_attention_layernorm)
        self.qkv_proj: nn.Module = _joined(a.q_proj, a.k_proj, a.v_proj)
        self.o_proj: nn.Module = a.o_proj
        self.gate_up_proj: nn.Module = _joined(m.gate_proj, m.up_proj)
        self.down_proj: nn.Module = m.down_proj
        self.intermediate = m.up_proj.out_features
        self.qk_norm = a.qk_norm
        if self.qk_norm:
            self.q_norm, self.k_norm = Norm(a.q_norm), Norm(a.k_norm)
        self.adapted = adapters is not None
        if adapters is not None:
            self.qkv_adapter = FusedAdapter([adapters["q_proj"], adapters["k_proj"], adapters["v_proj"]])
            self.o_adapter = FusedAdapter([adapters["o_proj"]])
            self.gate_up_adapter = FusedAdapter([adapters["gate_proj"], adapters["up_proj"]])
            self.down_adapter = FusedAdapter([adapters["down_proj"]])

    def open_norms(self) -> list[Tensor]:
        """Norm weights that `open` takes."""
        return [self.attention_norm.weight, *([self.q_norm.weight, self.k_norm.weight] if self.qk_norm else [])]

    def open(
        self, x: Tensor, cos: Tensor, sin: Tensor, stream_rows: Tensor | None, norms: list[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x [R, h], cos and sin [R, 1, D] -> rotated query [R, Hq, D], rotated key and plain value [R, Hkv, D]."""
        y = self.attention_norm(x, norms[0])
        qkv = self._add(self.qkv_proj(y), "qkv_adapter", y, stream_rows).view(x.shape[0], -1, self.dim)
        qk, v = qkv[:, : -self.kv_heads], qkv[:, -self.kv_heads :]
        if self.qk_norm:
            q, k = qk[:, : self.heads], qk[:, self.heads :]
            qk = torch.cat([_per_head(self.q_norm, q, norms[1]), _per_head(self.k_norm, k, norms[2])], 1)
        half = self.dim // 2
        qk = qk * cos + torch.cat([-qk[..., half:], qk[..., :half]], dim=-1) * sin
        return qk[:, : self.heads], qk[:, self.heads :], v

    def close(self, x: Tensor, attended: Tensor, stream_rows: Tensor | None, norm: Tensor) -> Tensor:
        """Output projection of attended [R, Hq * D], the MLP, and both residual additions: x [R, h] -> [R, h]."""
        x = x + self._add(self.o_proj(attended), "o_adapter", attended, stream_rows)
        y = self.mlp_norm(x, norm)
        gate_up = self._add(self.gate_up_proj(y), "gate_up_adapter", y, stream_rows)
        gate, up = (
            gate_up[:, : self.intermediate],
            gate_up[:, self.intermediate :],
        )  # chunk() is not delegated, slices are
        gated = gate * torch.sigmoid(gate) * up
        return x + self._add(self.down_proj(gated), "down_adapter", gated, stream_rows)

    def _add(self, y: Tensor, adapter: str, x: Tensor, stream_rows: Tensor | None) -> Tensor:
        return y if stream_rows is None or not self.adapted else y + getattr(self, adapter)(x, stream_rows)


def _per_head(norm: Norm, x: Tensor, weight: Tensor) -> Tensor:
    return norm(x.reshape(-1, x.shape[-1]), weight).view(x.shape)


class Segment(nn.Module):
    """What lies between two attentions: the end of one layer and the beginning of the next. One delegate each when lowered.

    Inputs (those that apply, in this order): x [R, h], attended [R, Hq * D], cos [R, 1, D], sin [R, 1, D], stream_rows [R, 1],
    norm weights. Outputs: x, then query, key, value; or what `tail` makes of x.
    """

    def __init__(
        self, closing: FusedBlock | None, opening: FusedBlock | None, tail: Heads | None, streams: bool
    ) -> None:
        super().__init__()
        self.closing, self.opening, self.tail, self.streams = closing, opening, tail, streams

    def norms(self) -> list[Tensor]:
        """The norm weights that `forward` takes last."""
        closing = [self.closing.mlp_norm.weight] if self.closing is not None else []
        opening = self.opening.open_norms() if self.opening is not None else []
        return closing + opening + ([self.tail.norm.weight] if self.tail is not None else [])

    def forward(self, x: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        inputs = list(rest)
        attended = inputs.pop(0) if self.closing is not None else None
        rotary = (inputs.pop(0), inputs.pop(0)) if self.opening is not None else None
        stream_rows = inputs.pop(0) if self.streams else None
        if self.closing is not None and attended is not None:
            x = self.closing.close(x, attended, stream_rows, inputs.pop(0))
        if self.opening is not None and rotary is not None:
            # x goes on to the next segment only where attention lies between; the first segment's x is its own input.
            qkv = self.opening.open(x, *rotary, stream_rows, inputs)
            return (x, *qkv) if self.closing is not None else qkv
        return self.tail(x, inputs.pop(0)) if self.tail is not None else (x,)


class Chain(nn.Module):
    """Consecutive segments with their norm weights; lowering replaces `segments` and nothing else."""

    def __init__(self, segments: list[Segment]) -> None:
        super().__init__()
        self.segments = nn.ModuleList(segments)
        self.norms = nn.ModuleList(nn.ParameterList(segment.norms()) for segment in segments)

    def __len__(self) -> int:
        return len(self.segments)

    def call(self, i: int, *inputs: Tensor) -> tuple[Tensor, ...]:
        return self.segments[i](*inputs, *self.norms[i])


class Heads(nn.Module):
    """Final norm and the vocabulary head over the first `rows` rows, the stream head over the rest."""

    def __init__(self, weights: Weights, rows: int, streams: bool) -> None:
        super().__init__()
        self.norm, self.head, self.rows = weights.norm, weights.head, rows
        self.stream_head = weights.stream_head if streams else None

    def forward(self, x: Tensor, norm: Tensor) -> tuple[Tensor, ...]:
        x = self.norm(x, norm)
        if self.stream_head is None:
            return (self.head(x),)
        return self.head(x[: self.rows]), self.stream_head(x[self.rows :])


def _joined(*layers: nn.Linear) -> nn.Linear:
    joined = nn.Linear(
        layers[0].in_features, sum(layer.out_features for layer in layers), bias=layers[0].bias is not None
    )
    joined.weight = nn.Parameter(torch.cat([layer.weight for layer in layers]), requires_grad=False)
    if layers[0].bias is not None:
        joined.bias = nn.Parameter(torch.cat([layer.bias for layer in layers]), requires_grad=False)
    return joined


class Weights(nn.Module):
    """The weights that all methods of a bundle share, in the graphs' own form."""

    def __init__(self, model: StreamFused, shapes: GraphShapes) -> None:
        super().__init__()
        base, config = model.base, model.streams_config
        self.config, self.streams_config, self.shapes = base.config, config, shapes
        self.embedding: nn.Module = base.embed_tokens
        lower = model.num_lower_layers
        adapters = [None] * lower + [
            model.adapters[i] if config.adapter_rank else None for i in range(config.num_msa_layers)
        ]
        self.blocks = nn.ModuleList(FusedBlock(b, a) for b, a in zip(base.layers, adapters, strict=True))
        self.norm = Norm(base.norm)
        # The head is a matrix of its own here, also where it is tied: both are quantized, each in its own way.
        self.head = nn.Linear(base.config.hidden_size, base.config.vocab_size, bias=False)
        self.head.weight = nn.Parameter(base.lm_head.weight.clone(), requires_grad=False)
        self.stream_head = nn.Linear(base.config.hidden_size, len(model.stream_vocab), bias=False)
        self.stream_head.weight = nn.Parameter(model.head_rows().clone(), requires_grad=False)
        self.register_buffer("stream_vocab", model.stream_vocab)
        cos, sin = rotary_table(base.config, shapes.capacity + config.num_streams + 1)
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)
        self.insert, self.rotate_value = model.insert, model.rotate_value
        self.pruner = model.pruner if config.pruner_rank else None
        # Head rows of drafted tokens, for the pruner; a tied head's are the embedding rows, which are there already.
        tied = base.config.tie_word_embeddings or self.pruner is None
        self.candidate_embedding: nn.Module | None = None if tied else nn.Embedding.from_pretrained(base.lm_head.weight)
        self.pruning = any(keep < rows for rows, keep in shapes.widths)
        if self.pruning and self.pruner is None:
            raise ValueError(
                "a width keeps fewer nodes than it verifies, but the adapter has no pruner (pruner_rank 0)"
            )

    @property
    def num_lower_layers(self) -> int:
        return self.config.num_layers - self.streams_config.num_msa_layers

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
        """The segments of layers [first, last): one before each attention and, where `end`, one after the last, which ends in `tail`."""
        blocks: list[FusedBlock | None] = [None, *list(self.blocks)[first:last], None]
        pairs = list(zip(blocks[:-1], blocks[1:], strict=True))[: None if end else -1]
        return Chain([Segment(a, b, tail if b is None else None, streams) for a, b in pairs])


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
        self.chain = weights.chain(
            0, len(weights.blocks), Heads(weights, rows, streams=False) if logits else None, end=logits
        )

    def forward(
        self, input_ids: Tensor, position_ids: Tensor, ancestors: Tensor, cache_length: Tensor, *caches: Tensor
    ) -> tuple[Tensor, ...]:
        x, rotary = self.w.embedding(input_ids), self.w.rotary(position_ids)
        out, new = self.run_chain(self.chain, x, rotary, cache_length, ancestors, caches)
        return (*out, *new)


class Verify(Method):
    """`verify_T`: T nodes in the lower layers; K kept nodes and their streams in the top layers."""

    def __init__(self, weights: Weights, rows: int, keep: int) -> None:
        super().__init__(weights, rows)
        self.keep: int = keep
        streams, lower = weights.streams_config.num_streams, weights.num_lower_layers
        self.lower_chain = weights.chain(0, lower)
        self.top_chain = weights.chain(lower, len(weights.blocks), Heads(weights, keep, streams=True), streams=True)
        self.register_buffer("arange", torch.arange(rows))
        self.register_buffer("steps", torch.arange(1, streams + 1))
        own = torch.block_diag(
            *[torch.ones(streams, streams).tril()] * keep
        ).bool()  # a stream sees streams 1..j of its own node
        self.register_buffer("own_streams", own)
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
        if keep < self.rows:
            candidates = embedded if w.candidate_embedding is None else w.candidate_embedding(input_ids)
            kept = self._prune(x, candidates, ancestors)
            x, position_ids = x.index_select(0, kept), position_ids.index_select(0, kept)
            ancestors = ancestors.index_select(0, kept).index_select(1, kept)
        else:
            kept = position_ids * 0 + self.arange
        rows = torch.cat([x, w.insert(x).reshape(keep * streams, -1)])
        stream_positions = (position_ids.unsqueeze(1) + self.steps).view(-1)
        seen = ancestors.unsqueeze(1).expand(keep, streams, keep).reshape(keep * streams, keep)
        visible = torch.cat([torch.cat([ancestors, self.no_streams], 1), torch.cat([seen, self.own_streams], 1)])
        rotary = w.rotary(torch.cat([position_ids, stream_positions]))
        (logits, stream_logits), rows_new = self.run_chain(
            self.top_chain, rows, rotary, cache_length, visible, caches[split:], (self.stream_rows,)
        )
        ids, log_probs = torch.ops.streamfuse.top_k_log_prob(stream_logits, w.stream_vocab, w.shapes.top_k)
        shape = (keep, streams, w.shapes.top_k)
        return (logits, kept, ids.view(shape), log_probs.view(shape), *new, *[t[:keep] for t in rows_new])

    def turn_values(self, v: Tensor) -> Tensor:
        if not self.w.streams_config.value_rotation:
            return v
        streams = v[self.keep :].unflatten(0, (self.keep, -1))
        return torch.cat([v[: self.keep], self.w.rotate_value(streams).flatten(0, 1)])

    def _prune(self, x: Tensor, candidates: Tensor, ancestors: Tensor) -> Tensor:
        """The `keep` best nodes by path score, best first; a parent always comes before its children, padding rows last."""
        pruner = self.w.pruner
        logits = torch.matmul(
            pruner.early_exit(self.w.norm(x, self.w.norm.weight)), candidates.transpose(0, 1)
        )  # [parent, child]
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
