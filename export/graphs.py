"""The static graphs of a stream-fused model as PyTorch modules: one per method, sharing every weight.

Signatures are those of docs/contracts.md, section 2. The same modules serve three ends: torch.export lowers them, the reference
backend runs them eagerly, and the parity gate compares each emitted graph with them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
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
    """RMSNorm whose mean is a product with a column of 1/h, which every delegate takes (mean over rows of 2-D tensors is often not)."""

    def __init__(self, norm: RMSNorm) -> None:
        super().__init__()
        self.weight, self.eps = norm.weight, norm.eps
        size = norm.weight.shape[0]
        self.register_buffer("mean", torch.full((1, size), 1.0 / size))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(F.linear(x * x, self.mean) + self.eps) * self.weight


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
    """A decoder layer with few and large products: q, k and v in one, gate and up in one."""

    def __init__(self, block: Block, adapters: nn.ModuleDict | None) -> None:
        super().__init__()
        a, m = block.self_attn, block.mlp
        self.heads, self.kv_heads, self.dim = a.num_heads, a.num_kv_heads, a.head_dim
        self.attention_norm, self.mlp_norm = Norm(block.input_layernorm), Norm(block.post_attention_layernorm)
        self.qkv_proj = _joined(a.q_proj, a.k_proj, a.v_proj)
        self.o_proj = a.o_proj
        self.gate_up_proj = _joined(m.gate_proj, m.up_proj)
        self.down_proj = m.down_proj
        self.qk_norm = a.qk_norm
        if self.qk_norm:
            self.q_norm, self.k_norm = Norm(a.q_norm), Norm(a.k_norm)
        self.adapted = adapters is not None
        if adapters is not None:
            self.qkv_adapter = FusedAdapter([adapters["q_proj"], adapters["k_proj"], adapters["v_proj"]])
            self.o_adapter = FusedAdapter([adapters["o_proj"]])
            self.gate_up_adapter = FusedAdapter([adapters["gate_proj"], adapters["up_proj"]])
            self.down_adapter = FusedAdapter([adapters["down_proj"]])

    def forward(
        self, x: Tensor, pass_: Pass, keys: Tensor, values: Tensor, stream_rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x [R, h] -> x [R, h] after the layer, new keys and values [R, Hkv, D]. `stream_rows` float32 [R, 1]: 1 for a stream row."""
        y = self.attention_norm(x)
        qkv = self._add(self.qkv_proj(y), "qkv_adapter", y, stream_rows).view(x.shape[0], -1, self.dim)
        if self.qk_norm:
            qk = torch.cat([self._per_head(self.q_norm, qkv[:, : self.heads]), self._per_head(self.k_norm, qkv[:, self.heads : -self.kv_heads])], 1)
        else:
            qk = qkv[:, : -self.kv_heads]
        v = qkv[:, -self.kv_heads :]
        if pass_.rotate_value is not None:
            v = pass_.rotate_value(v)
        half = self.dim // 2
        qk = qk * pass_.cos + torch.cat([-qk[..., half:], qk[..., :half]], dim=-1) * pass_.sin
        q, k = qk[:, : self.heads], qk[:, self.heads :]
        attended = torch.ops.streamfuse.tree_attention(
            q, k, v, keys, values, pass_.cache_length, pass_.visible, 1.0 / math.sqrt(self.dim)
        )
        x = x + self._add(self.o_proj(attended), "o_adapter", attended, stream_rows)
        y = self.mlp_norm(x)
        gate, up = self._add(self.gate_up_proj(y), "gate_up_adapter", y, stream_rows).chunk(2, dim=-1)
        gated = gate * torch.sigmoid(gate) * up
        return x + self._add(self.down_proj(gated), "down_adapter", gated, stream_rows), k, v

    def _add(self, y: Tensor, adapter: str, x: Tensor, stream_rows: Tensor | None) -> Tensor:
        return y if stream_rows is None or not self.adapted else y + getattr(self, adapter)(x, stream_rows)

    def _per_head(self, norm: Norm, x: Tensor) -> Tensor:
        return norm(x.reshape(-1, self.dim)).view(x.shape)


def _joined(*layers: nn.Linear) -> nn.Linear:
    joined = nn.Linear(layers[0].in_features, sum(layer.out_features for layer in layers), bias=layers[0].bias is not None)
    joined.weight = nn.Parameter(torch.cat([layer.weight for layer in layers]), requires_grad=False)
    if layers[0].bias is not None:
        joined.bias = nn.Parameter(torch.cat([layer.bias for layer in layers]), requires_grad=False)
    return joined


@dataclass
class Pass:
    """What every layer of one pass shares: cos and sin [R, 1, D], cache_length int64 [1], visible bool [R, R]."""

    cos: Tensor
    sin: Tensor
    cache_length: Tensor
    visible: Tensor
    rotate_value: Callable[[Tensor], Tensor] | None = None


class Weights(nn.Module):
    """The weights that all methods of a bundle share, in the graphs' own form."""

    def __init__(self, model: StreamFused, shapes: GraphShapes) -> None:
        super().__init__()
        base, config = model.base, model.streams_config
        self.config, self.streams_config, self.shapes = base.config, config, shapes
        self.embedding: nn.Module = base.embed_tokens
        lower = model.num_lower_layers
        adapters = [None] * lower + [model.adapters[i] if config.adapter_rank else None for i in range(config.num_msa_layers)]
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
        self.candidate_embedding = base.embed_tokens if base.config.tie_word_embeddings else nn.Embedding.from_pretrained(base.lm_head.weight)
        self.pruning = any(keep < rows for rows, keep in shapes.widths)
        if self.pruning and self.pruner is None:
            raise ValueError("a width keeps fewer nodes than it verifies, but the adapter has no pruner (pruner_rank 0)")

    @property
    def num_lower_layers(self) -> int:
        return self.config.num_layers - self.streams_config.num_msa_layers

    def begin(self, position_ids: Tensor, cache_length: Tensor, visible: Tensor) -> Pass:
        cos, sin = F.embedding(position_ids, self.cos), F.embedding(position_ids, self.sin)
        return Pass(cos.unsqueeze(1), sin.unsqueeze(1), cache_length, visible)


class Plain(nn.Module):
    """`prefill` (no logits: the last prompt token is the root of the first verify or decode pass) and `decode`."""

    def __init__(self, weights: Weights, rows: int, logits: bool) -> None:
        super().__init__()
        self.w, self.rows, self.logits = weights, rows, logits

    def forward(self, input_ids: Tensor, position_ids: Tensor, ancestors: Tensor, cache_length: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        w = self.w
        x, pass_ = w.embedding(input_ids), w.begin(position_ids, cache_length, ancestors)
        new: list[Tensor] = []
        for i, block in enumerate(w.blocks):
            x, k, v = block(x, pass_, caches[2 * i], caches[2 * i + 1])
            new += [k, v]
        return (w.head(w.norm(x)), *new) if self.logits else tuple(new)


class Verify(nn.Module):
    """`verify_T`: T nodes in the lower layers; K kept nodes and their streams in the top layers."""

    def __init__(self, weights: Weights, rows: int, keep: int) -> None:
        super().__init__()
        self.w, self.rows, self.keep = weights, rows, keep
        streams = weights.streams_config.num_streams
        self.register_buffer("arange", torch.arange(rows))
        self.register_buffer("steps", torch.arange(1, streams + 1))
        own = torch.block_diag(*[torch.ones(streams, streams).tril()] * keep).bool()  # a stream sees streams 1..j of its own node
        self.register_buffer("own_streams", own)
        self.register_buffer("no_streams", torch.zeros(keep, keep * streams, dtype=torch.bool))
        self.register_buffer("stream_rows", torch.cat([torch.zeros(keep, 1), torch.ones(keep * streams, 1)]))

    def forward(self, input_ids: Tensor, position_ids: Tensor, ancestors: Tensor, cache_length: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        w, streams, keep = self.w, self.w.streams_config.num_streams, self.keep
        x, pass_ = w.embedding(input_ids), w.begin(position_ids, cache_length, ancestors)
        new: list[Tensor] = []
        for i, block in enumerate(w.blocks[: w.num_lower_layers]):
            x, k, v = block(x, pass_, caches[2 * i], caches[2 * i + 1])
            new += [k, v]
        if keep < self.rows:
            kept = self._prune(x, w.candidate_embedding(input_ids), ancestors)
            x, position_ids = x.index_select(0, kept), position_ids.index_select(0, kept)
            ancestors = ancestors.index_select(0, kept).index_select(1, kept)
        else:
            kept = position_ids * 0 + self.arange
        rows = torch.cat([x, w.insert(x).reshape(keep * streams, -1)])
        stream_positions = (position_ids.unsqueeze(1) + self.steps).view(-1)
        seen = ancestors.unsqueeze(1).expand(keep, streams, keep).reshape(keep * streams, keep)
        visible = torch.cat([torch.cat([ancestors, self.no_streams], 1), torch.cat([seen, self.own_streams], 1)])
        pass_ = w.begin(torch.cat([position_ids, stream_positions]), cache_length, visible)
        if w.streams_config.value_rotation:
            pass_.rotate_value = self._rotate_stream_values
        for i in range(w.num_lower_layers, len(w.blocks)):
            rows, k, v = w.blocks[i](rows, pass_, caches[2 * i], caches[2 * i + 1], self.stream_rows)
            new += [k[:keep], v[:keep]]
        normed = w.norm(rows)
        ids, log_probs = torch.ops.streamfuse.top_k_log_prob(w.stream_head(normed[keep:]), w.stream_vocab, w.shapes.top_k)
        shape = (keep, streams, w.shapes.top_k)
        return (w.head(normed[:keep]), kept, ids.view(shape), log_probs.view(shape), *new)

    def _rotate_stream_values(self, v: Tensor) -> Tensor:
        streams = v[self.keep :].unflatten(0, (self.keep, -1))
        return torch.cat([v[: self.keep], self.w.rotate_value(streams).flatten(0, 1)])

    def _prune(self, x: Tensor, candidates: Tensor, ancestors: Tensor) -> Tensor:
        """The `keep` best nodes by path score, best first; a parent always comes before its children, padding rows last."""
        pruner = self.w.pruner
        logits = torch.matmul(pruner.early_exit(self.w.norm(x)), candidates.transpose(0, 1))  # [parent, child]
        z = (logits * pruner.slope + pruner.offset).clamp(-60.0, 60.0)
        score = -torch.log(torch.exp(-z) + 1.0)
        above = ancestors.to(torch.float32)
        depth = above.sum(1)  # 1 for the root, 0 for padding
        is_parent = above * torch.relu(1.0 - (depth.unsqueeze(1) - depth.unsqueeze(0) - 1.0).abs())  # [child, parent]
        edge = (is_parent * score.transpose(0, 1)).sum(1)
        path = (above * edge.unsqueeze(0)).sum(1) - depth * _DEPTH_COST + torch.relu(1.0 - depth) * _PRUNED
        return torch.topk(path, self.keep)[1]


def build_methods(weights: Weights) -> dict[str, nn.Module]:
    """All methods of a bundle, sharing `weights`."""
    methods: dict[str, nn.Module] = {
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
    return (ids, ids.clone(), torch.ones(rows, rows, dtype=torch.bool).tril(), torch.zeros(1, dtype=torch.int64), *caches)
