"""The parts of a graph with the kernels' operators: few, large, with packed weights. docs/contracts.md, section 7."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

import streamfuse.export.operators.aot  # noqa: F401  registers torch.ops.streamfuse.*
from streamfuse.export.operators.layout import Q8_0_BYTES, TILE, cache_shapes
from streamfuse.export.operators.packing import (
    integer_adapters,
    interleave_gate_up,
    pack_q4_1,
    pack_q8_0,
    tile_adapters,
)
from streamfuse.model.delta_rule import GatedDeltaNet
from streamfuse.model.streams import LowRank, StreamAdapters
from streamfuse.model.transformer import Block, RMSNorm, ShortConvolution, Transformer

from .. import layers
from ..integers import GridReport, to_integers
from ..schemes import GRIDS, GROUP, Part, Schemes

_ops = torch.ops.streamfuse
_PACKED_AT_ONCE = 1 << 26  # weights that are quantized and packed in one step, to limit memory


class Form(layers.Form):
    """Packs weights by `schemes`, and adapters in int8 or float16; `report` has how many groups of each part are on
    their grid."""

    def __init__(self, schemes: Schemes, int8_adapters: bool = False, merges_streams: bool = False) -> None:
        self.schemes, self.int8_adapters, self.merges_streams = schemes, int8_adapters, merges_streams
        self.report: dict[str, GridReport] = {}
        self._tables: dict[tuple[int, str], Tensor] = {}  # by tensors of the model, which outlives this object
        self._reported_as: Part | None = None

    def of_task(self, schemes: Schemes, merges_streams: bool) -> Form:
        """A form for a task adapter, which shares the packed tables and the report."""
        again = copy.copy(self)
        again.schemes, again.merges_streams = schemes, merges_streams
        return again

    def of_streams(self) -> Form:
        """Layers on the same grids, reported with the streams."""
        again = copy.copy(self)
        again._reported_as = "streams"
        return again

    def linear(self, part: Part, linear: nn.Linear) -> nn.Module:
        return Linear(self._pack(linear.weight, part), linear)

    def vocabulary(self, part: Part, weight: Tensor) -> nn.Module:
        """The head's product for the pruner, sharing the packed rows of `head`."""
        return Linear(self._table(weight, part, self.schemes.of(part)), layers.linear_of(weight))

    def low_rank(self, low_rank: LowRank) -> nn.Module:
        """Products with packed weights, like all of the kernels', if the rank is a multiple of the group size."""
        if len(low_rank.down) % GROUP:
            return layers.TurnedLowRank(low_rank)
        pair = (low_rank.down.detach(), low_rank.up.detach() * low_rank.scale)
        return nn.Sequential(*(self.linear("streams", layers.linear_of(weight)) for weight in pair))

    def embedding(self, weight: Tensor) -> nn.Module:
        return Embedding(self._table(weight, "embedding", "q8_0"))

    def opening(self, block: Block, adapters: StreamAdapters | None) -> nn.Module:
        if block.recurs:
            return LinearOpening(block, adapters, lambda weight: self._pack(weight, "attention"), self.int8_adapters)
        return Opening(block, adapters, lambda weight: self._pack(weight, "attention"), self.int8_adapters)

    def closing(self, block: Block, adapters: StreamAdapters | None) -> nn.Module:
        return Closing(block, adapters, lambda weight, part: self._pack(weight, part), self.int8_adapters)

    def with_adapters(self, part: nn.Module, adapters: StreamAdapters | None) -> nn.Module:
        again = copy.copy(cast("Opening | LinearOpening | Closing", part))  # the packed weights are shared
        again._modules = dict(again._modules)
        again.take(adapters)
        return again

    def per_layer(self, base: Transformer) -> nn.Module:
        return PerLayer(base, lambda weight: self._pack(weight, "mlp"))

    def ending(self, block: Block) -> nn.Module:
        if block.per_layer_gate is None and block.layer_scalar is None:
            return super().ending(block)
        return Ending(block, lambda weight: self._pack(weight, "mlp"))

    def head(self, norm: RMSNorm, weight: Tensor, cap: float) -> nn.Module:
        return Head(norm, self._table(weight, "head", self.schemes.head), weight.shape[0], cap)

    def stream_head(self, norm: RMSNorm, weight: Tensor, ids: Tensor, top_k: int) -> nn.Module:
        return StreamHead(norm, self._pack(weight, "streams"), ids, top_k)

    def attention(self, capacity: int, cache_size: int, scale: float, window: int | None) -> nn.Module:
        return Attention(scale, window)

    def convolution(self, capacity: int, cache_size: int, convolution: ShortConvolution) -> nn.Module:
        return GatedConvolution(convolution)

    def linear_attention(self, cache_size: int, rewindable: int, net: GatedDeltaNet) -> nn.Module:
        return LinearAttention(rewindable, net)

    def caches(self, positions: int, kv_heads: int, head_dim: int) -> tuple[Tensor, Tensor]:
        keys, values = cache_shapes(positions, kv_heads, head_dim)
        return torch.zeros(keys, dtype=torch.uint8), torch.zeros(values, dtype=torch.uint8)

    def _table(self, weight: Tensor, part: Part, grid: str) -> Tensor:
        """A table of the whole vocabulary; a tied head shares the embedding's if their grids are the same."""
        key = (weight.data_ptr(), grid)
        if key not in self._tables:
            self._tables[key] = self._pack(weight, part, grid)
        return self._tables[key]

    def _pack(self, weight: Tensor, part: Part, grid: str | None = None) -> Tensor:
        rows = max(TILE, _PACKED_AT_ONCE // weight.shape[1] // TILE * TILE)
        packed = []
        for some in weight.split(rows):
            found = to_integers(some, GRIDS[grid or self.schemes.of(part)])
            self.report.setdefault(self._reported_as or part, GridReport()).add(cast("Tensor", found.exact))
            packed.append(pack_q8_0(found.q, found.d) if found.m is None else pack_q4_1(found.q, found.d, found.m))
        return packed[0] if len(packed) == 1 else torch.cat(packed)


def _with_bias(name: str, bias: Tensor | None) -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
    """A product's operator, and its last argument if the projections have biases."""
    return (getattr(_ops, name), ()) if bias is None else (getattr(_ops, f"biased_{name}"), (bias,))


def eps_of(*norms: RMSNorm | None) -> float:
    """The epsilon of an operator with several norms, which have the same."""
    (eps,) = {norm.eps for norm in norms if norm is not None} or {0.0}
    return eps


class Adapter(nn.Module):
    """Low-rank adapters of projections that share an input, in float16, down [parts r, K] and up [N / 16, r, 16], or in
    int8 (`packing.integer_adapters`)."""

    down: Tensor | None  # None: no adapters
    up: Tensor | None

    def __init__(
        self,
        adapters: StreamAdapters | None,
        *names: str,
        int8: bool = False,
        arrange: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        low_rank = [] if adapters is None else [cast("LowRank", adapters[name]) for name in names]
        self.take(low_rank, int8, arrange)

    def take(self, low_rank: Sequence[LowRank], int8: bool, arrange: Callable[[Tensor], Tensor] | None = None) -> None:
        down = up = None
        if low_rank:
            parts = [(part.down.detach(), (part.up * part.scale).detach()) for part in low_rank]
            parts = [integer_adapters(*part) if int8 else (part[0].half(), part[1]) for part in parts]
            down, up = (torch.cat(both) for both in zip(*parts, strict=True))
            up = tile_adapters(up if arrange is None else arrange(up))
        self.register_buffer("down", down)
        self.register_buffer("up", up)

    def of(self, rows: int, first: int) -> tuple[Tensor | None, Tensor | None]:
        """Both matrices, or neither if no row is adapted."""
        return (self.down, self.up) if first < rows else (None, None)


def opening_adapter(adapters: StreamAdapters | None, int8: bool = False) -> Adapter:
    """The part of a layer's adapters that an `Opening` uses."""
    names = [name for name in ("q_proj", "k_proj", "v_proj") if adapters is not None and name in adapters]
    return Adapter(adapters, *names, int8=int8)


def closing_adapters(adapters: StreamAdapters | None, int8: bool = False) -> tuple[Adapter, Adapter, Adapter]:
    """The parts of a layer's adapters that a `Closing` uses: output projection, gate and up, down."""
    gate_up = Adapter(
        adapters, "gate_proj", "up_proj", int8=int8, arrange=lambda up: interleave_gate_up(*up.chunk(2))
    )  # fmt: skip
    return Adapter(adapters, "o_proj", int8=int8), gate_up, Adapter(adapters, "down_proj", int8=int8)


class Linear(nn.Module):
    weight: Tensor
    bias: Tensor | None

    def __init__(self, packed: Tensor, linear: nn.Linear) -> None:
        super().__init__()
        self.size = linear.out_features
        self.register_buffer("weight", packed)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        operator, bias = _with_bias("linear", self.bias)
        y: Tensor = operator(x, None, 0.0, self.weight, self.size, None, None, None, x.shape[0], *bias)
        return y


class Embedding(nn.Module):
    weight: Tensor

    def __init__(self, packed: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", packed)

    def forward(self, ids: Tensor) -> Tensor:
        rows: Tensor = _ops.embedding_q8(self.weight, ids)
        return rows


class PerLayer(nn.Module):
    """Per-layer inputs: `Transformer.per_layer` with packed weights."""

    table: Tensor
    projection: Tensor
    norm: Tensor

    def __init__(self, base: Transformer, pack: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        config = base.config
        self.layers, self.size = config.num_layers, config.per_layer_size
        # Leaves out the factor 1 / sqrt(h) before the norm, which cancels it if the epsilon is multiplied by h.
        self.eps = base.per_layer_norm.eps * config.hidden_size
        self.register_buffer("table", pack(base.per_layer_embedding.weight))
        self.register_buffer("projection", pack(base.per_layer_projection.weight))
        self.register_buffer("norm", (base.per_layer_norm.weight * 2**-0.5).detach().float())
        self.register_buffer("factor", torch.full((1,), (self.size / 2) ** 0.5))

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        rows = len(x)
        embedding = _ops.embedding_q8 if self.table.shape[2] == Q8_0_BYTES else _ops.embedding_q4
        own = embedding(self.table, ids) * self.factor
        size = self.layers * self.size
        projected = _ops.linear(x, None, 0.0, self.projection, size, None, None, None, rows)
        by_layer: Tensor = _ops.add_normed(projected.view(-1, self.size), self.norm, self.eps, own.view(-1, self.size))
        return by_layer.view(rows, self.layers, self.size)


class Ending(nn.Module):
    """What follows a layer's MLP: the branch of its per-layer input, and its scalar."""

    gate: Tensor | None  # with proj; None: the model has no per-layer embeddings
    proj: Tensor | None
    scalar: Tensor | None

    def __init__(self, block: Block, pack: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        gate, proj, norm = block.per_layer_gate, block.per_layer_proj, block.per_layer_output_norm
        self.register_buffer("gate", None if gate is None else pack(gate.weight))
        self.register_buffer("proj", None if proj is None else pack(proj.weight))
        if gate is not None and proj is not None and norm is not None:
            self.norm, self.eps, self.size, self.hidden = norm.weight, norm.eps, gate.out_features, proj.out_features
        self.gelu = block.mlp.activation == "gelu_tanh"
        self.register_buffer("scalar", None if block.layer_scalar is None else block.layer_scalar.detach())

    def forward(self, x: Tensor, per_layer: Tensor | None) -> Tensor:
        if per_layer is not None and self.gate is not None:
            gates = _ops.linear(x, None, 0.0, self.gate, self.size, None, None, None, x.shape[0])
            gated = (_ops.gelu_gate if self.gelu else _ops.silu_gate)(per_layer, gates)
            y = _ops.linear(gated, None, 0.0, self.proj, self.hidden, None, None, None, x.shape[0])
            x = _ops.add_normed(y, self.norm, self.eps, x)
        return x if self.scalar is None else x * self.scalar


class Opening(nn.Module):
    """Norm, q, k and v in one product, biases, norms of q and k, rotary embedding.

    RoPE preserves the RMS of a head, so RMSNorm after RoPE equals RMSNorm without weights before RoPE, and a
    multiplication by the weights after it.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(
        self, block: Block, adapters: StreamAdapters | None, pack: Callable[[Tensor], Tensor], int8: bool
    ) -> None:
        super().__init__()
        self.int8 = int8  # of the adapters
        a = block.conv if block.convolves else block.self_attn
        self.convolves, self.shares, self.value_eps = block.convolves, block.shares, a.value_eps
        self.heads, self.kv_heads = a.num_heads, a.num_kv_heads
        names = ("q_norm",) if block.shares else ("q_norm", "k_norm")
        own = [] if a.query_key_norm == "none" else [getattr(a, name) for name in names]
        norms: list[Tensor | None] = [*(norm.weight for norm in own), None, None][:2]
        self.weights_after_rope: list[Tensor] = []  # of the norms of q and of k
        if a.query_key_norm == "head after rope":
            self.weights_after_rope = [norm.weight.detach() for norm in own]
            norms = [torch.ones_like(weight) for weight in self.weights_after_rope]
        self.q_norm, self.k_norm = norms
        self.norm = None if block.input_layernorm is None else block.input_layernorm.weight
        self.eps = eps_of(block.input_layernorm, *own)
        products = [a.q_proj] if block.shares else [a.q_proj, a.k_proj, a.v_proj]
        biases: list[Tensor] = [layer.bias for layer in products if layer.bias is not None]
        self.register_buffer("bias", torch.cat(biases).detach() if biases else None)
        self.register_buffer("weight", pack(torch.cat([layer.weight for layer in products])))
        if a.value_eps is not None:
            self.register_buffer("ones", torch.ones(a.head_dim))
        self.take(adapters)

    def take(self, adapters: StreamAdapters | None) -> None:
        """Replace the adapters."""
        self.adapter = opening_adapter(adapters, self.int8)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, first: int) -> tuple[Tensor, Tensor | None, Tensor | None]:
        if self.shares:
            own: Tensor = _ops.query(
                x, self.norm, self.eps, self.weight, cos, sin, self.heads, self.q_norm,
                *self.adapter.of(x.shape[0], first), first,
            )  # fmt: skip
            return own, None, None
        operator, bias = _with_bias("qkv", self.bias)
        rotated: tuple[Tensor, Tensor, Tensor] = operator(
            x, self.norm, self.eps, self.weight, cos, sin, self.heads, self.kv_heads, self.q_norm, self.k_norm,
            *self.adapter.of(x.shape[0], first), first, *bias,
        )  # fmt: skip
        if self.value_eps is not None:
            query, key, value = rotated
            # One head at a time: an operator takes a tensor with as many rows as the method for its rows, and computes
            # those that are not padding.
            heads = [value[:, head] for head in range(self.kv_heads)]
            none = torch.zeros_like(heads[0])
            normed = [_ops.add_normed(head, self.ones, self.value_eps, none) for head in heads]
            return query, key, torch.cat(normed, 1).view(value.shape)
        if self.weights_after_rope:
            query, key, value = rotated
            return query * self.weights_after_rope[0], key * self.weights_after_rope[1], value
        if not self.convolves:
            return rotated
        query, key, value = rotated  # unchanged: a convolution's rows have angles of 0
        read, half = key * value, self.heads // 2
        return query, read[:, :half], read[:, half:]


class LinearOpening(nn.Module):
    """Of a layer with linear attention: norm, then gates, q, k and v in one product, as the rows that are cached."""

    weight: Tensor
    adapter: Adapter

    def __init__(
        self, block: Block, adapters: StreamAdapters | None, pack: Callable[[Tensor], Tensor], int8: bool
    ) -> None:
        super().__init__()
        self.int8 = int8  # of the adapters
        net = block.linear_attn
        self.gates, self.head_dim = 2 * net.sizes.value_heads, net.head_dim
        self.kv_heads, self.size = net.sizes.cached_heads(net.head_dim), 2 * net.sizes.value_heads + net.sizes.channels
        self.norm = None if block.input_layernorm is None else block.input_layernorm.weight
        self.eps = eps_of(block.input_layernorm)
        layers = (net.a_proj, net.b_proj, net.q_proj, net.k_proj, net.v_proj)
        self.register_buffer("weight", pack(torch.cat([layer.weight for layer in layers])))
        self.take(adapters)

    def take(self, adapters: StreamAdapters | None) -> None:
        """Replace the adapters: those of q, k and v as one of the whole product."""
        self.adapter = Adapter(None)
        if adapters is not None:
            joined = layers.FusedAdapter(adapters, "q_proj", "k_proj", "v_proj")
            whole = LowRank(joined.down.in_features, self.size, joined.down.out_features)
            whole.down.data = joined.down.weight.detach()
            whole.up.data[self.gates :] = joined.up.weight.detach()
            self.adapter.take([whole], self.int8)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, first: int) -> tuple[Tensor, Tensor, Tensor]:
        adapter = self.adapter.of(x.shape[0], first)
        projected = _ops.linear(x, self.norm, self.eps, self.weight, self.size, None, *adapter, first)
        key, value = _ops.delta_rows(projected, self.gates // 2, self.kv_heads, self.head_dim)
        return key, key, value  # there is no query


class Closing(nn.Module):
    """Attention gates, output projection and gated MLP with their norms and residual additions."""

    g_weight: Tensor | None
    o_weight: Tensor
    o_bias: Tensor | None
    gate_up: Tensor
    down_proj: Tensor

    def __init__(
        self, block: Block, adapters: StreamAdapters | None, pack: Callable[[Tensor, Part], Tensor], int8: bool
    ) -> None:
        super().__init__()
        self.int8 = int8  # of the adapters
        mlp = block.mlp
        self.gelu, self.after = mlp.activation == "gelu_tanh", block.attention_output_norm is not None
        if block.attention_output_norm is not None and block.mlp_output_norm is not None:
            self.attention_output_norm = block.attention_output_norm.weight
            self.mlp_output_norm = block.mlp_output_norm.weight
        self.size, self.intermediate = mlp.down_proj.out_features, mlp.up_proj.out_features
        self.norm = None if block.post_attention_layernorm is None else block.post_attention_layernorm.weight
        self.eps = eps_of(block.post_attention_layernorm, block.mlp_output_norm)
        g_proj, o_proj = block.mixer.g_proj, block.mixer.o_proj
        self.register_buffer("g_weight", None if g_proj is None else pack(g_proj.weight, "attention"))
        if g_proj is not None:
            self.gates, self.gate_eps = g_proj.out_features, eps_of(block.input_layernorm)
            self.silu = block.recurs
            self.gate_norm = None if block.input_layernorm is None else block.input_layernorm.weight
        self.register_buffer("o_weight", pack(o_proj.weight, "attention"))
        self.register_buffer("o_bias", None if o_proj.bias is None else o_proj.bias.detach())
        self.register_buffer("gate_up", pack(interleave_gate_up(mlp.gate_proj.weight, mlp.up_proj.weight), "mlp"))
        self.register_buffer("down_proj", pack(mlp.down_proj.weight, "mlp"))
        self.take(adapters)

    def take(self, adapters: StreamAdapters | None) -> None:
        """Replace the adapters."""
        self.o_adapter, self.gate_up_adapter, self.down_adapter = closing_adapters(adapters, self.int8)

    def forward(self, x: Tensor, attended: Tensor, first: int) -> Tensor:
        return self.mlp(self.attention(x, attended, first), first)

    def attention(self, x: Tensor, attended: Tensor, first: int) -> Tensor:
        """x plus the output projection of the attention's result, which may be gated."""
        if self.g_weight is not None:
            # The operator `qkv` does not return the normalized input, so the norm is computed again.
            gates = _ops.linear(
                x, self.gate_norm, self.gate_eps, self.g_weight, self.gates, None, None, None, x.shape[0]
            )
            attended = (_ops.silu_gate if self.silu else _ops.gate_heads)(attended, gates)
        operator, bias = _with_bias("linear", self.o_bias)
        adapter, residual = self.o_adapter.of(x.shape[0], first), None if self.after else x
        y: Tensor = operator(attended, None, self.eps, self.o_weight, self.size, residual, *adapter, first, *bias)
        return _ops.add_normed(y, self.attention_output_norm, self.eps, x) if self.after else y

    def mlp(self, x: Tensor, first: int) -> Tensor:
        rows = x.shape[0]
        arguments = (
            x, self.norm, self.eps, self.gate_up, self.down_proj, self.intermediate,
            *self.gate_up_adapter.of(rows, first), *self.down_adapter.of(rows, first), first,
        )  # fmt: skip
        if self.norm is not None and not (self.gelu or self.after):
            y: Tensor = _ops.gated_mlp(*arguments)
            return y
        y = _ops.gated_branch(*arguments, self.gelu)
        return _ops.add_normed(y, self.mlp_output_norm, self.eps, x) if self.after else x + y


class Head(nn.Module):
    weight: Tensor

    def __init__(self, norm: RMSNorm, packed: Tensor, vocab_size: int, cap: float) -> None:
        super().__init__()
        self.norm, self.eps, self.vocab_size, self.cap = norm.weight, norm.eps, vocab_size, cap
        self.register_buffer("weight", packed)

    def forward(self, x: Tensor, want_logits: Tensor) -> tuple[Tensor, Tensor]:
        operator, cap = (_ops.capped_head, (self.cap,)) if self.cap else (_ops.head, ())
        out: tuple[Tensor, Tensor] = operator(x, self.norm, self.eps, self.weight, self.vocab_size, want_logits, *cap)
        return out


class StreamHead(nn.Module):
    weight: Tensor
    ids: Tensor  # int64 [S]

    def __init__(self, norm: RMSNorm, packed: Tensor, ids: Tensor, top_k: int) -> None:
        super().__init__()
        self.norm, self.eps, self.top_k = norm.weight, norm.eps, top_k
        self.register_buffer("weight", packed)
        self.register_buffer("ids", ids)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out: tuple[Tensor, Tensor] = _ops.stream_top_k(x, self.norm, self.eps, self.weight, self.ids, self.top_k)
        return out


class GatedConvolution(nn.Module):
    taps: Tensor  # [taps, h], oldest row first; the last one multiplies the row itself

    def __init__(self, convolution: ShortConvolution) -> None:
        super().__init__()
        self.register_buffer("taps", layers.taps_of(convolution))

    def forward(self, *tensors: Tensor) -> Tensor:
        mixed: Tensor = _ops.short_convolution(*tensors[:-1], self.taps)
        return mixed


class LinearAttention(nn.Module):
    taps: Tensor  # [taps, channels], oldest row first
    rates: Tensor  # [Hv]
    dt_bias: Tensor  # [Hv]
    norm: Tensor  # [value_dim]

    def __init__(self, rewindable: int, net: GatedDeltaNet) -> None:
        super().__init__()
        self.rewindable, self.key_heads, self.eps = rewindable, net.sizes.key_heads, net.output_norm.eps
        self.register_buffer("taps", net.taps.weight.detach().float().squeeze(1).T.contiguous())
        self.register_buffer("rates", net.A_log.detach().float().exp())
        self.register_buffer("dt_bias", net.dt_bias.detach().float())
        self.register_buffer("norm", net.output_norm.weight.detach().float())

    def forward(self, *tensors: Tensor) -> Tensor:
        _, key, value, key_cache, value_cache, cache_length, visible, _, states = tensors
        mixed: Tensor = _ops.gated_delta_rule(
            key, value, key_cache, value_cache, cache_length, visible, states, self.taps, self.rates, self.dt_bias,
            self.norm, self.eps, self.key_heads, self.rewindable,
        )  # fmt: skip
        return mixed


class Attention(nn.Module):
    """A window follows from the rows' sequences, so their positions are not needed."""

    def __init__(self, scale: float, window: int | None) -> None:
        super().__init__()
        self.scale, self.window = scale, window

    def forward(self, *tensors: Tensor) -> Tensor:
        inputs = tensors[:-1]
        if self.window is None:
            attended: Tensor = _ops.tree_attention(*inputs, self.scale)
        else:
            attended = _ops.window_attention(*inputs, self.scale, self.window)
        return attended
