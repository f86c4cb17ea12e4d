"""The parts of every graph: the two halves of a layer, the vocabulary head and the head of the streams.

They are defined once, for rows x [R, h]. A target supplies its norm, products, attention and top-k as a `Form`, and
only redefines parts if its operators or its layout require it: the kernels' operators (executorch/native.py), the
Neural Engine's channels-first layout (coreml/ane.py), ONNX's node for rotary embeddings (onnx/form.py). The float32
reference uses the model's own layers, so that a mistake here is detected (reference.py).
"""

from __future__ import annotations

import math
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamfuse.model.delta_rule import GatedDeltaNet
from streamfuse.model.families import Activation
from streamfuse.model.streams import LowRank, StreamAdapters
from streamfuse.model.transformer import MLP, Block, RMSNorm, ShortConvolution, Transformer, activated, capped, normed

from .operators import layout
from .pruning import SigmoidEdges, SoftmaxEdges, Survivors
from .schemes import Part

_HIDDEN = -1e4  # finite, for engines without infinities


class TurnedLowRank(nn.Module):
    """A LowRank with matrices in the layout of a plain product: a stock runtime transposes those of a linear layer in
    every pass, which took longer than the two products (28 us each of a `streams` pass of 540)."""

    def __init__(self, low_rank: LowRank) -> None:
        super().__init__()
        self.down = nn.Parameter(low_rank.down.detach().T.contiguous(), False)  # [n_in, r]
        self.up = nn.Parameter((low_rank.up.detach() * low_rank.scale).T.contiguous(), False)  # [r, n_out]

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.down @ self.up


class Form:
    """Builds a target's layers. This base class uses PyTorch's float32 norms, products and attention.

    Attributes:
        ROW_DTYPE: dtype of the new keys and values that a pass returns, and of float caches.
        merges_streams: whether a `streams` pass has matrices of its own, with the low-rank products of stream rows
            merged into them.
    """

    ROW_DTYPE: ClassVar[torch.dtype] = torch.float32
    merges_streams: bool = False

    def norm(self, norm: RMSNorm, axis: int = 1) -> nn.Module:
        """x -> RMSNorm of x over `axis`: 1 for rows [R, h], 2 for heads [R, H, D]."""
        return norm

    def linear(self, part: Part, linear: nn.Linear) -> nn.Module:
        """x [R, K] -> [R, N], with the weights in the target's format for `part`."""
        return linear

    def product(self, part: Part, *layers: nn.Linear) -> nn.Module:
        """Layers with the same input as one product; outputs in the order given."""
        return self.linear(part, joined(*layers))

    def vocabulary(self, part: Part, weight: Tensor) -> nn.Module:
        """x [R, h] -> a score per row of `weight`."""
        return self.linear(part, linear_of(weight))

    def adapted(
        self, part: Part, layers: tuple[nn.Linear, ...], adapters: StreamAdapters | None, *names: str
    ) -> nn.Module:
        """x, first adapted row -> the product of the layers plus the adapters of these names."""
        return Adapted(self.product(part, *layers), adapters, *names)

    def low_rank(self, low_rank: LowRank) -> nn.Module:
        """x [R, n_in] -> [R, n_out], for stream rows only."""
        return TurnedLowRank(low_rank)

    def gate_up(self, mlp: MLP, adapters: StreamAdapters | None) -> nn.Module:
        """x, first adapted row -> gate and up, as `gated` takes them."""
        return self.adapted("mlp", (mlp.gate_proj, mlp.up_proj), adapters, "gate_proj", "up_proj")

    def norm_of(self, norm: RMSNorm | None) -> nn.Module | None:
        """`norm`, for a norm that a model may not have."""
        return None if norm is None else self.norm(norm)

    def activation(self, kind: Activation) -> nn.Module:
        """gate -> the activated gate."""
        return Activated(kind)

    def gated(self, gate_up: Tensor, size: int, activation: nn.Module) -> Tensor:
        """gate and up concatenated on axis 1, each of `size` -> activation(gate) * up."""
        gated: Tensor = activation(gate_up[:, :size]) * gate_up[:, size:]
        return gated

    def embedding(self, weight: Tensor) -> nn.Module:
        """ids int64 [R] -> float32 [R, h]."""
        table: nn.Module = nn.Embedding.from_pretrained(weight)
        return table

    def opening(self, block: Block, adapters: StreamAdapters | None) -> nn.Module:
        """x [R, h], cos, sin [R, D], first adapted row -> query [R, Hq, D], key, value [R, Hkv, D]."""
        return Opening(self, block, adapters)

    def closing(self, block: Block, adapters: StreamAdapters | None) -> nn.Module:
        """x [R, h], attended [R, Hq * D], first adapted row -> x [R, h]."""
        return Closing(self, block, adapters)

    def per_layer(self, base: Transformer) -> nn.Module:
        """ids int64 [R], hidden states before the first layer [R, h] -> per-layer inputs of all layers [R, N, P].

        Raises:
            ValueError: this form has none.
        """
        raise ValueError("per-layer embeddings are only implemented for --backend kernels")

    def ending(self, block: Block) -> nn.Module:
        """What follows a layer's MLP: x [R, h], the layer's per-layer input [R, P] or None for rows without tokens ->
        the layer's output [R, h].

        Raises:
            ValueError: the layer has a per-layer input or a scalar, which this form has no graph for.
        """
        if block.per_layer_gate is not None or block.layer_scalar is not None:
            raise ValueError("per-layer embeddings and layer scalars are only implemented for --backend kernels")
        return NoEnding()

    def of_streams(self) -> Form:
        """The form of the layers that only a `streams` pass has."""
        return self

    def with_adapters(self, part: nn.Module, adapters: StreamAdapters | None) -> nn.Module:
        """A copy of an opening or closing with these adapters instead of its own, sharing the weights.

        Raises:
            ValueError: this form only supports one set of adapters for all rows.
        """
        raise ValueError("the base's adapters must be merged if stream rows have separate adapters")

    def head(self, norm: RMSNorm, weight: Tensor, cap: float) -> nn.Module:
        """x [R, h], want_logits bool [1] -> logits [R, V], best int64 [R]; `cap` is `ModelConfig.logit_cap`."""
        return Head(self, norm, weight, cap=cap)

    def stream_head(self, norm: RMSNorm, weight: Tensor, ids: Tensor, top_k: int) -> nn.Module:
        """x [R, h] -> ids int64 [R, k], log-probabilities [R, k]."""
        return StreamHead(self, norm, weight, ids, top_k)

    def top_k(self, ids: Tensor, top_k: int) -> nn.Module:
        """Logits [R, S] -> ids [R, k], log-probabilities [R, k]."""
        return TopK(ids, top_k)

    def survivors(
        self, edges: SigmoidEdges | SoftmaxEdges, rows: int, keep: int, ordered: bool, threshold: float
    ) -> Survivors:
        """The pruner of a method of `rows` nodes."""
        return Survivors(edges, rows, keep, ordered, threshold)

    def attention(self, capacity: int, cache_size: int, scale: float, window: int | None) -> nn.Module:
        """query, key, value, key cache, value cache, cache_length, visible, position_ids -> [R, Hq * D].

        With a window, a row attends to that many positions up to its own. The caches have `cache_size` positions, or
        `capacity` where tests compare a ring buffer with a whole cache.
        """
        return Attention(capacity, cache_size, scale, window)

    def convolution(self, capacity: int, cache_size: int, convolution: ShortConvolution) -> nn.Module:
        """A short convolution in place of attention, over a window of its taps: inputs and result are those of
        `attention`; key and value are the two halves of the convolution's input."""
        return GatedConvolution(capacity, cache_size, convolution)

    def linear_attention(self, cache_size: int, rewindable: int, net: GatedDeltaNet) -> nn.Module:
        """Linear attention: inputs and result are those of `attention`, and the layer's states (operators/states.py).
        Key and value are the two halves of its rows. A sequence can be truncated by `rewindable` tokens.

        Raises:
            ValueError: this form has none.
        """
        raise ValueError("linear attention has no graph in this form")

    def cache_positions(self, capacity: int, window: int | None) -> int:
        """Positions of every ring buffer of a model whose longest window is `window`; `capacity` if that is not less,
        or if no layer has a window."""
        return layout.cache_positions(capacity, window)

    def gate(self, block: Block) -> nn.Module | None:
        """x [R, h], attended [R, Hq * D] -> attended with its heads gated; None if the block has no gates."""
        return None if block.mixer.g_proj is None else Gate(self, block)

    def caches(self, positions: int, kv_heads: int, head_dim: int) -> tuple[Tensor, Tensor]:
        """Empty key and value caches of a layer, in the format of the exported attention."""
        shape = positions, kv_heads, head_dim
        return torch.zeros(shape, dtype=self.ROW_DTYPE), torch.zeros(shape, dtype=self.ROW_DTYPE)


class Layer(nn.Module):
    """Half of a layer, or a head: `compute` can be delegated, the rest of `forward` cannot.

    Attributes:
        AROUND: names of the modules that `forward` uses outside of `compute`.
    """

    AROUND: ClassVar[tuple[str, ...]] = ()

    def compute(self, first: int, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The outputs; rows from `first` on are adapted."""
        raise NotImplementedError


class NoEnding(nn.Module):
    """For layers whose output is that of their MLP."""

    def forward(self, x: Tensor, per_layer: Tensor | None) -> Tensor:
        return x


class Opening(Layer):
    """Norm, q, k and v in one product, norms of q and k, rotary embedding (or norms after it); of a convolution, k * v
    in two halves."""

    def __init__(self, form: Form, block: Block, adapters: StreamAdapters | None) -> None:
        super().__init__()
        a = block.conv if block.convolves else block.self_attn
        self.convolves = block.convolves
        self.heads, self.kv_heads, self.dim = a.num_heads, a.num_kv_heads, a.head_dim
        self.norm = form.norm_of(block.input_layernorm)
        layers = (a.q_proj, a.k_proj, a.v_proj)
        self.qkv_proj = form.adapted("attention", layers, adapters, "q_proj", "k_proj", "v_proj")
        self.norm_wide, self.q_norm, self.k_norm = a.query_key_norm == "width", None, None
        self.norm_after_rope = a.query_key_norm == "head after rope"
        if a.query_key_norm != "none":
            axis = 1 if self.norm_wide else 2
            norms = block.self_attn.q_norm, block.self_attn.k_norm
            self.q_norm, self.k_norm = (form.norm(norm, axis) for norm in norms)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, first: int) -> tuple[Tensor, ...]:
        return self.compute(first, x, cos.unsqueeze(1), sin.unsqueeze(1))

    def compute(self, first: int, *inputs: Tensor) -> tuple[Tensor, ...]:
        """x [R, h], cos and sin [R, 1, D]."""
        x, cos, sin = inputs
        qkv = self.rows_normed(self.qkv_proj(normed(self.norm, x), first)).view(x.shape[0], -1, self.dim)
        qk, v = qkv[:, : -self.kv_heads], qkv[:, -self.kv_heads :]
        if self.convolves:
            read = qk[:, self.heads :] * v
            return qk[:, : self.heads], read[:, : self.heads // 2], read[:, self.heads // 2 :]
        qk = qk if self.norm_after_rope else self.norm_heads(qk)
        half = self.dim // 2
        qk = qk * cos + torch.cat([-qk[..., half:], qk[..., :half]], dim=-1) * sin
        qk = self.norm_heads(qk) if self.norm_after_rope else qk
        return qk[:, : self.heads], qk[:, self.heads :], v

    def norm_heads(self, qk: Tensor) -> Tensor:
        """Heads of q and k on axis 1, with norms of each head if the model has those."""
        if self.q_norm is None or self.k_norm is None or self.norm_wide:
            return qk
        return torch.cat([self.q_norm(qk[:, : self.heads]), self.k_norm(qk[:, self.heads :])], 1)

    def rows_normed(self, qkv: Tensor) -> Tensor:
        """q, k and v on axis 1, with norms over all heads of q and of k if the model has those."""
        if self.q_norm is None or self.k_norm is None or not self.norm_wide:
            return qkv
        ends = self.heads * self.dim, (self.heads + self.kv_heads) * self.dim
        return torch.cat([self.q_norm(qkv[:, : ends[0]]), self.k_norm(qkv[:, ends[0] : ends[1]]), qkv[:, ends[1] :]], 1)


class Closing(Layer):
    """Attention gates, output projection, the gated MLP, norms, and both residual additions.

    Features are on axis 1, as in the Neural Engine's layout.
    """

    def __init__(self, form: Form, block: Block, adapters: StreamAdapters | None) -> None:
        super().__init__()
        m = block.mlp
        self.form, self.intermediate = form, m.up_proj.out_features
        self.activation = form.activation(m.activation)
        self.attention_output_norm = form.norm_of(block.attention_output_norm)
        self.gate = form.gate(block)
        self.norm = form.norm_of(block.post_attention_layernorm)
        self.mlp_output_norm = form.norm_of(block.mlp_output_norm)
        self.o_proj = form.adapted("attention", (block.mixer.o_proj,), adapters, "o_proj")
        self.gate_up_proj = form.gate_up(m, adapters)
        self.down_proj = form.adapted("mlp", (m.down_proj,), adapters, "down_proj")

    def forward(self, x: Tensor, attended: Tensor, first: int) -> Tensor:
        (closed,) = self.compute(first, x, attended)
        return closed

    def compute(self, first: int, *inputs: Tensor) -> tuple[Tensor, ...]:
        x, attended = inputs
        attended = attended if self.gate is None else self.gate(x, attended)
        x = x + normed(self.attention_output_norm, self.o_proj(attended, first))
        gate_up = self.gate_up_proj(normed(self.norm, x), first)
        gated = self.form.gated(gate_up, self.intermediate, self.activation)
        return (x + normed(self.mlp_output_norm, self.down_proj(gated, first)),)


class Gate(nn.Module):
    """Attention output, each head scaled by the sigmoid of its gate, a product of the layer's normalized input.

    Features are on axis 1, as in the Neural Engine's layout.
    """

    def __init__(self, form: Form, block: Block) -> None:
        super().__init__()
        assert block.mixer.g_proj is not None
        self.head_dim = block.mixer.head_dim
        self.norm = form.norm_of(block.input_layernorm)
        self.g_proj = form.adapted("attention", (block.mixer.g_proj,), None)

    def forward(self, x: Tensor, attended: Tensor) -> Tensor:
        gates, rows = torch.sigmoid(self.g_proj(normed(self.norm, x), 0)), attended.shape[3:]
        heads = attended.reshape(-1, gates.shape[1], self.head_dim, *rows)
        return (heads * gates.reshape(-1, gates.shape[1], 1, *rows)).reshape(attended.shape)


class Head(Layer):
    """Final norm, vocabulary head, and the best token."""

    def __init__(self, form: Form, norm: RMSNorm, weight: Tensor, part: Part = "head", cap: float = 0.0) -> None:
        super().__init__()
        self.cap = cap
        self.norm, self.product = form.norm(norm), form.vocabulary(part, weight)

    def forward(self, x: Tensor, want_logits: Tensor | None) -> tuple[Tensor, ...]:
        (logits,) = self.compute(0, x)
        return capped(logits, self.cap), torch.argmax(logits, dim=1)

    def compute(self, first: int, *inputs: Tensor) -> tuple[Tensor, ...]:
        return (self.product(self.norm(*inputs)),)


class StreamHead(Head):
    """Final norm, the stream vocabulary's rows of the head, and their best tokens."""

    AROUND = ("top_k",)

    def __init__(self, form: Form, norm: RMSNorm, weight: Tensor, ids: Tensor, top_k: int) -> None:
        super().__init__(form, norm, weight, "streams")
        self.top_k = form.top_k(ids, top_k)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        (logits,) = self.compute(0, x)
        best: tuple[Tensor, ...] = self.top_k(logits)
        return best


class TopK(nn.Module):
    """Logits [R, S] -> ids [R, k] of the full vocabulary, log-probabilities [R, k]."""

    ids: Tensor  # int64 [S]

    def __init__(self, ids: Tensor, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.register_buffer("ids", ids)

    def forward(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        log_probs, columns = torch.topk(torch.log_softmax(logits, dim=1), self.top_k)
        return F.embedding(columns, self.ids.unsqueeze(1)).squeeze(2), log_probs


class FusedAdapter(nn.Module):
    """Low-rank adapters of projections with the same input, as one pair of matrices: x [R, n_in] -> [R, n_out]."""

    def __init__(self, adapters: StreamAdapters, *names: str) -> None:
        super().__init__()
        parts = [cast("LowRank", adapters[name]) for name in names]
        self.down = linear_of(torch.cat([p.down for p in parts]))
        self.up = linear_of(torch.block_diag(*(p.up * p.scale for p in parts)))

    def forward(self, x: Tensor) -> Tensor:
        added: Tensor = self.up(self.down(x))
        return added


class Adapted(nn.Module):
    """A product, plus a low-rank adapter in the rows from `first` on."""

    def __init__(self, product: nn.Module, adapters: StreamAdapters | None, *names: str) -> None:
        super().__init__()
        self.product = product
        self.adapter = None if adapters is None else FusedAdapter(adapters, *names)

    def forward(self, x: Tensor, first: int) -> Tensor:
        y: Tensor = self.product(x)
        if self.adapter is None or first >= x.shape[0]:
            return y
        if first == 0:
            y = y + self.adapter(x)
            return y
        adapted: Tensor = y[first:] + self.adapter(x[first:])
        return torch.cat([y[:first], adapted])


class Attention(nn.Module):
    """Cached and new rows as two segments under one softmax; the whole cache is read, and invalid positions are masked,
    as are those before a row's window."""

    def __init__(self, capacity: int, cache_size: int, scale: float, window: int | None = None) -> None:
        super().__init__()
        self.scale, self.window = scale, window
        self.cached = CachedPositions(capacity, cache_size)

    def scores(self, query: Tensor, key: Tensor, key_cache: Tensor) -> Tensor:
        return scores(query, key, key_cache)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        cache_length: Tensor,
        visible: Tensor,
        position_ids: Tensor,
    ) -> Tensor:
        rows, cache_size = query.shape[0], key_cache.shape[0]
        group = query.shape[1] // key.shape[1]
        cached, valid = self.cached(cache_length, cache_size)
        # Converted to numbers before concatenation: not every delegate can concatenate booleans.
        seen = torch.cat([valid.to(query.dtype).unsqueeze(0).expand(rows, cache_size), visible.to(query.dtype)], dim=1)
        if self.window is not None:
            seen = seen * within(position_ids, cached, self.window).to(query.dtype)
        hidden = ((1.0 - seen) * _HIDDEN).unsqueeze(1).expand(rows, group, cache_size + rows)
        found = self.scores(query * self.scale, key, key_cache) + hidden.reshape(rows * group, -1)
        return weighed(torch.softmax(found, dim=2), value, value_cache)


class GatedConvolution(nn.Module):
    """The rows before each row are found by position among cached and new rows, and gathered by products with one-hot
    matrices."""

    taps: Tensor  # [taps, h], oldest row first; the last one multiplies the row itself

    def __init__(self, capacity: int, cache_size: int, convolution: ShortConvolution) -> None:
        super().__init__()
        self.register_buffer("taps", taps_of(convolution))
        self.cached = CachedPositions(capacity, cache_size)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        cache_length: Tensor,
        visible: Tensor,
        position_ids: Tensor,
    ) -> Tensor:
        rows, cache_size = query.shape[0], key_cache.shape[0]
        cached, valid = self.cached(cache_length, cache_size)
        seen = torch.cat([valid.to(query.dtype).unsqueeze(0).expand(rows, cache_size), visible.to(query.dtype)], dim=1)
        places = torch.cat([cached.to(position_ids.dtype), position_ids])
        keys, values = torch.cat([key_cache, key]), torch.cat([value_cache, value])
        read = torch.cat([keys, values], dim=1).reshape(cache_size + rows, -1)
        return query.reshape(rows, -1) * convolved(read, seen, places, position_ids, self.taps)


class CachedPositions(nn.Module):
    """cache_length [1], C -> the position held by each row of a cache of C rows, int [C], and whether it is valid,
    bool [C].

    With `ring_size` rows, position t is in row t modulo C; with `capacity` rows, in row t.
    """

    positions: Tensor  # int [capacity]
    lap_starts: Tensor | None

    def __init__(self, capacity: int, ring_size: int, dtype: torch.dtype = torch.int64) -> None:
        super().__init__()
        starts = lap_starts(capacity, ring_size)
        self.register_buffer("positions", torch.arange(capacity, dtype=dtype))
        self.register_buffer("lap_starts", None if starts is None else starts.to(dtype))

    def forward(self, cache_length: Tensor, cache_size: int) -> tuple[Tensor, Tensor]:
        if self.lap_starts is None or cache_size == len(self.positions):
            return self.positions, self.positions < cache_length
        positions = self.positions[:cache_size] + F.embedding(cache_length, self.lap_starts).view(1)
        cached = positions - (positions >= cache_length).to(positions.dtype) * cache_size
        return cached, cached >= 0


def lap_starts(capacity: int, ring_size: int) -> Tensor | None:
    """For each `cache_length`, the position at which a ring buffer last wrapped: int64 [capacity + 1, 1].

    A table, because not every delegate divides integers exactly. None if caches of this size have positions for the
    whole context.
    """
    return (torch.arange(capacity + 1) // ring_size * ring_size).unsqueeze(1) if ring_size < capacity else None


class Activated(nn.Module):
    """An activation as the model computes it."""

    def __init__(self, kind: Activation) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, gate: Tensor) -> Tensor:
        return activated(gate, self.kind)


# GELU's approximation with tanh is x sigmoid(x (a + b x^2)), with these a and b.
GELU = (2 * math.sqrt(2 / math.pi), 2 * math.sqrt(2 / math.pi) * 0.044715)


def within(position_ids: Tensor, cached: Tensor, window: int) -> Tensor:
    """Whether the positions of the cache [C] and of the rows [R] are in the window of each row: bool [R, C + R]."""
    keys = torch.cat([cached.to(position_ids.dtype), position_ids])
    return keys.unsqueeze(0) > position_ids.unsqueeze(1) - window


def taps_of(convolution: ShortConvolution) -> Tensor:
    """The weights per channel, [taps, h], oldest row first; the last one multiplies the row itself."""
    return convolution.taps.weight.detach().squeeze(1).T.contiguous()


def convolved(read: Tensor, seen: Tensor, places: Tensor, position_ids: Tensor, taps: Tensor) -> Tensor:
    """The causal convolution of each channel of `read` [C + R, h], cached and new rows, at the new rows: [R, h].

    `seen` [R, C + R]: seen[i, j] is 1 if new row i may read row j, else 0. `places` int [C + R] and `position_ids`
    int [R] are positions. `taps` [taps, h] is as in `taps_of`.
    """
    mixed = read[len(read) - len(position_ids) :] * taps[-1]
    for back in range(1, len(taps)):
        chosen = seen * (places.unsqueeze(0) == (position_ids - back).unsqueeze(1)).to(read.dtype)
        mixed = mixed + (chosen @ read) * taps[-1 - back]
    return mixed


def scores(query: Tensor, key: Tensor, key_cache: Tensor) -> Tensor:
    """Scores of scaled query [R, Hq, D] with cached and new keys: [Hkv, R * Hq / Hkv, C + R]; heads of a key are
    rows."""
    grouped = by_key(query, key.shape[1])
    return torch.cat([torch.bmm(grouped, keys.permute(1, 2, 0)) for keys in (key_cache, key)], dim=2)


def by_key(query: Tensor, kv_heads: int) -> Tensor:
    """Query [R, Hq, D] as [Hkv, R * Hq / Hkv, D]: the rows that are multiplied with each key head."""
    rows, heads, dim = query.shape
    grouped = query.view(rows, kv_heads, heads // kv_heads, dim).permute(1, 0, 2, 3)
    return grouped.reshape(kv_heads, rows * heads // kv_heads, dim)


def weighed(weights: Tensor, value: Tensor, value_cache: Tensor) -> Tensor:
    """Sums of cached and new values weighted by `weights`, in the layout of `scores`: [R, Hq * D]."""
    (kv_heads, many, _), (rows, _, dim), cache_size = weights.shape, value.shape, value_cache.shape[0]
    group = many // rows
    attended = torch.bmm(weights[..., :cache_size], value_cache.permute(1, 0, 2))
    attended = attended + torch.bmm(weights[..., cache_size:], value.permute(1, 0, 2))
    return attended.view(kv_heads, rows, group, dim).permute(1, 0, 2, 3).reshape(rows, kv_heads * group * dim)


def linear_of(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """A linear layer with these tensors, without copying them."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer


def joined(*layers: nn.Linear) -> nn.Linear:
    """One product for layers with the same input; outputs in the order given."""
    if len(layers) == 1:
        return layers[0]
    bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
    return linear_of(torch.cat([layer.weight for layer in layers]), bias)
