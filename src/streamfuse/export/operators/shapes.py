"""Shapes of the operators' results for torch.export, with checks that name the invalid argument. See aot.py."""

from __future__ import annotations

import torch
from torch import Tensor

from streamfuse.export.operators.layout import GROUP, Q4_1_BYTES, Q8_0_BYTES, TILE, cache_shapes
from streamfuse.export.operators.states import HEADER
from streamfuse.model.delta_config import GATE_STRIDE


def tree_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    cache_length: Tensor,
    visible: Tensor,
    scale: float,
    window: int | None = None,
) -> Tensor:
    check = _Checks("tree_attention" if window is None else "window_attention")
    check(window is None or window >= 1, f"the window must be at least 1, not {window}")
    check(
        query.dim() == 3 and key.dim() == 3 and key_cache.dim() == 3,
        "query, key and caches have 3 dimensions",
    )
    rows, heads, dim = query.shape
    check(key.shape == value.shape and key.shape[0] == rows and key.shape[2] == dim, "key and value do not fit query")
    keys, values = cache_shapes(key_cache.shape[1], key.shape[1], dim)
    check(
        _is(key_cache, torch.uint8, *keys) and _is(value_cache, torch.uint8, *values),
        f"caches do not fit key: they must be packed as uint8 {list(keys)} and {list(values)}",
    )
    check(heads % key.shape[1] == 0, "query heads must be a multiple of kv heads")
    check(_is(visible, torch.bool, rows, rows), "visible must be bool [rows, rows]")
    check(_is(cache_length, torch.int64, 1), "cache_length must be int64 [1]")
    return query.new_empty(rows, heads * dim)


window_attention = tree_attention


def short_convolution(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    cache_length: Tensor,
    visible: Tensor,
    taps: Tensor,
) -> Tensor:
    check = _Checks("short_convolution")
    check(query.dim() == 3 and key.dim() == 3 and key_cache.dim() == 3, "query, key and caches have 3 dimensions")
    rows, heads, dim = query.shape
    half = (rows, heads // 2, dim)
    check(heads % 2 == 0, "the channels of query must be an even number of heads")
    check(tuple(key.shape) == tuple(value.shape) == half, "key and value do not fit query")
    keys, values = cache_shapes(key_cache.shape[1], heads // 2, dim)
    check(
        _is(key_cache, torch.uint8, *keys) and _is(value_cache, torch.uint8, *values),
        f"caches do not fit key: they must be packed as uint8 {list(keys)} and {list(values)}",
    )
    check(_is(visible, torch.bool, rows, rows), "visible must be bool [rows, rows]")
    check(_is(cache_length, torch.int64, 1), "cache_length must be int64 [1]")
    check(taps.dim() == 2 and _is(taps, torch.float32, len(taps), heads * dim), "taps must be float32 [L, channels]")
    return query.new_empty(rows, heads * dim)


def embedding_q8(weight: Tensor, ids: Tensor, tile_bytes: int = Q8_0_BYTES) -> Tensor:
    check = _Checks("embedding_q8" if tile_bytes == Q8_0_BYTES else "embedding_q4")
    check(weight.dim() == 3 and weight.shape[2] == tile_bytes, f"weight must be uint8 [tiles, groups, {tile_bytes}]")
    check(ids.dim() == 1 and ids.dtype == torch.int64, "ids must be int64 [rows]")
    return torch.empty(ids.shape[0], weight.shape[1] * GROUP, device=weight.device)


def embedding_q4(weight: Tensor, ids: Tensor) -> Tensor:
    return embedding_q8(weight, ids, Q4_1_BYTES)


def linear(
    x: Tensor,
    norm: Tensor | None,
    eps: float,
    weight: Tensor,
    out_features: int,
    residual: Tensor | None,
    down: Tensor | None,
    up: Tensor | None,
    first_adapted_row: int,
    bias: Tensor | None = None,
) -> Tensor:
    check = _Checks("linear" if bias is None else "biased_linear")
    check.product(x, norm, weight, out_features, down, up, first_adapted_row, bias=bias)
    shape = (x.shape[0], out_features)
    check(residual is None or _is(residual, torch.float32, *shape), f"residual must be float32 {list(shape)}")
    return x.new_empty(shape)


def qkv(
    x: Tensor,
    norm: Tensor | None,
    eps: float,
    weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    heads: int,
    kv_heads: int,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    down: Tensor | None,
    up: Tensor | None,
    first_adapted_row: int,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    check = _Checks("qkv" if bias is None else "biased_qkv")
    rows, dim = check.rotary(x, cos, sin)
    check(heads >= 1 and kv_heads >= 1, "there must be heads")
    check.product(x, norm, weight, (heads + 2 * kv_heads) * dim, down, up, first_adapted_row, parts=3, bias=bias)
    for own, count in ((q_norm, heads), (k_norm, kv_heads)):
        sizes = [(dim,), (count * dim,)]
        check(own is None or tuple(own.shape) in sizes, f"norms of q and k must be [{dim}] or [{count * dim}]")
    return x.new_empty(rows, heads, dim), x.new_empty(rows, kv_heads, dim), x.new_empty(rows, kv_heads, dim)


def query(
    x: Tensor,
    norm: Tensor | None,
    eps: float,
    weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    heads: int,
    q_norm: Tensor | None,
    down: Tensor | None,
    up: Tensor | None,
    first_adapted_row: int,
) -> Tensor:
    check = _Checks("query")
    rows, dim = check.rotary(x, cos, sin)
    check(heads >= 1, "there must be heads")
    check.product(x, norm, weight, heads * dim, down, up, first_adapted_row)
    check(q_norm is None or tuple(q_norm.shape) == (dim,), f"q_norm must be [{dim}]")
    return x.new_empty(rows, heads, dim)


biased_linear, biased_qkv = linear, qkv


def gated_branch(
    x: Tensor,
    norm: Tensor | None,
    eps: float,
    gate_up: Tensor,
    down_proj: Tensor,
    intermediate: int,
    gate_up_down: Tensor | None,
    gate_up_up: Tensor | None,
    down_down: Tensor | None,
    down_up: Tensor | None,
    first_adapted_row: int,
    gelu: bool,
) -> Tensor:
    check = _Checks("gated_branch")
    check(intermediate % GROUP == 0, f"intermediate must be a multiple of {GROUP}, not {intermediate}")
    check.product(x, norm, gate_up, 2 * intermediate, gate_up_down, gate_up_up, first_adapted_row, parts=2)
    gated = x.new_empty(x.shape[0], intermediate)
    check.product(gated, None, down_proj, x.shape[1], down_down, down_up, first_adapted_row)
    return x.new_empty(x.shape)


def gated_mlp(
    x: Tensor,
    norm: Tensor,
    eps: float,
    gate_up: Tensor,
    down_proj: Tensor,
    intermediate: int,
    gate_up_down: Tensor | None,
    gate_up_up: Tensor | None,
    down_down: Tensor | None,
    down_up: Tensor | None,
    first_adapted_row: int,
) -> Tensor:
    adapters = gate_up_down, gate_up_up, down_down, down_up
    return gated_branch(x, norm, eps, gate_up, down_proj, intermediate, *adapters, first_adapted_row, False)


def add_normed(x: Tensor, norm: Tensor, eps: float, residual: Tensor) -> Tensor:
    check = _Checks("add_normed")
    check(x.dim() == 2 and x.dtype == torch.float32, "x must be float32 [rows, size]")
    check(_is(norm, torch.float32, x.shape[1]), f"norm must be float32 [{x.shape[1]}]")
    check(_is(residual, torch.float32, *x.shape), f"residual must be float32 {list(x.shape)}")
    return x.new_empty(x.shape)


def gate_heads(x: Tensor, gates: Tensor) -> Tensor:
    check = _Checks("gate_heads")
    check(x.dim() == 2 and x.dtype == torch.float32, "x must be float32 [rows, heads * head_dim]")
    check(gates.dim() == 2 and gates.dtype == torch.float32, "gates must be float32 [rows, heads]")
    check(gates.shape[0] == x.shape[0], f"gates must have the {x.shape[0]} rows of x")
    heads, size = gates.shape[1], x.shape[1]
    check(heads > 0 and size % heads == 0, f"the columns of x must be a multiple of {heads}, the number of gates")
    return x.new_empty(x.shape)


def silu_gate(x: Tensor, gates: Tensor, operator: str = "silu_gate") -> Tensor:
    check = _Checks(operator)
    check(x.dim() == 2 and x.dtype == torch.float32, "x must be float32 [rows, size]")
    check(_is(gates, torch.float32, *x.shape), f"gates must be float32 {list(x.shape)}")
    return x.new_empty(x.shape)


def gelu_gate(x: Tensor, gates: Tensor) -> Tensor:
    return silu_gate(x, gates, "gelu_gate")


def delta_rows(projected: Tensor, value_heads: int, kv_heads: int, head_dim: int) -> tuple[Tensor, Tensor]:
    check = _Checks("delta_rows")
    check(projected.dim() == 2 and projected.dtype == torch.float32, "projected must be float32 [rows, size]")
    rows, size = projected.shape
    channels, room = size - 2 * value_heads, 2 * kv_heads * head_dim
    check(value_heads > 0 and channels > 0, "projected must have two gates for each value head, and channels")
    check(2 * GATE_STRIDE * value_heads + channels <= room, f"a row of {room} numbers is too small")
    return projected.new_empty(rows, kv_heads, head_dim), projected.new_empty(rows, kv_heads, head_dim)


def gated_delta_rule(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    cache_length: Tensor,
    visible: Tensor,
    states: Tensor,
    taps: Tensor,
    rates: Tensor,
    dt_bias: Tensor,
    norm: Tensor,
    eps: float,
    key_heads: int,
    rewindable: int,
) -> Tensor:
    check = _Checks("gated_delta_rule")
    check(key.dim() == 3 and key_cache.dim() == 3 and taps.dim() == 2, "key and caches have 3 dimensions, taps have 2")
    rows, kv_heads, dim = key.shape
    check(value.shape == key.shape, "key and value must have the same shape")
    keys, values = cache_shapes(key_cache.shape[1], kv_heads, dim)
    check(
        _is(key_cache, torch.uint8, *keys) and _is(value_cache, torch.uint8, *values),
        f"caches do not fit key: they must be packed as uint8 {list(keys)} and {list(values)}",
    )
    check(_is(visible, torch.bool, rows, rows), "visible must be bool [rows, rows]")
    check(_is(cache_length, torch.int64, 1), "cache_length must be int64 [1]")
    (count, channels), heads, value_dim = taps.shape, rates.numel(), norm.numel()
    check(_is(rates, torch.float32, heads) and _is(dt_bias, torch.float32, heads), "rates and dt_bias must be [Hv]")
    check(_is(norm, torch.float32, value_dim), "norm must be float32 [value_dim]")
    key_dim, rest = divmod(channels - heads * value_dim, 2 * key_heads)
    check(key_dim > 0 and rest == 0 and heads % key_heads == 0, "the channels of taps do not fit the heads")
    check(_is(taps, torch.float32, count, channels) and 2 <= count <= 16, "taps must be float32 [2 to 16, channels]")
    check(2 * GATE_STRIDE * heads + channels <= 2 * kv_heads * dim, "key and value are too small")
    size = HEADER + (count - 1) * channels + heads * key_dim * value_dim
    check(_is(states, torch.float32, 2, size), f"states must be float32 [2, {size}]")
    check(rewindable >= 1, "rewindable must be at least 1")
    return key.new_empty(rows, heads * value_dim)


def head(
    x: Tensor, norm: Tensor, eps: float, weight: Tensor, vocab_size: int, want_logits: Tensor
) -> tuple[Tensor, Tensor]:
    check = _Checks("head")
    check.product(x, norm, weight, vocab_size)
    check(_is(want_logits, torch.bool, 1), "want_logits must be bool [1]")
    return x.new_empty(x.shape[0], vocab_size), x.new_empty(x.shape[0], dtype=torch.int64)


def capped_head(
    x: Tensor, norm: Tensor, eps: float, weight: Tensor, vocab_size: int, want_logits: Tensor, cap: float
) -> tuple[Tensor, Tensor]:
    _Checks("capped_head")(cap > 0, f"cap must be above 0, not {cap}")
    return head(x, norm, eps, weight, vocab_size, want_logits)


def stream_top_k(x: Tensor, norm: Tensor, eps: float, weight: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
    check = _Checks("stream_top_k")
    check(ids.dim() == 1 and ids.dtype == torch.int64, "ids must be int64 [columns]")
    check.product(x, norm, weight, ids.shape[0])
    check(1 <= k <= ids.shape[0], f"k must lie between 1 and {ids.shape[0]}, not {k}")
    return ids.new_empty(x.shape[0], k), x.new_empty(x.shape[0], k)


def _is(x: Tensor, dtype: torch.dtype, *shape: int) -> bool:
    return x.dtype == dtype and tuple(x.shape) == shape


class _Checks:
    """Raises ValueError with the operator's name if a condition does not hold."""

    def __init__(self, operator: str) -> None:
        self.operator = operator

    def __call__(self, condition: bool, what: str) -> None:
        if not condition:
            raise ValueError(f"{self.operator}: {what}")

    def rotary(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[int, int]:
        """Checks cos and sin, and returns the rows and the head dimension."""
        self(cos.dim() == 2 and cos.shape == sin.shape and cos.shape[0] == x.shape[0], "cos and sin must be [rows, D]")
        rows, dim = cos.shape
        self(dim % 2 == 0 and dim % TILE == 0, f"the head dimension must be a multiple of {TILE}, not {dim}")
        return rows, dim

    def product(
        self,
        x: Tensor,
        norm: Tensor | None,
        weight: Tensor,
        out_features: int,
        down: Tensor | None = None,
        up: Tensor | None = None,
        first_adapted_row: int = 0,
        parts: int = 1,
        bias: Tensor | None = None,
    ) -> None:
        """Checks the input, norm, packed weight, low-rank adapters and bias of a product."""
        self(x.dim() == 2 and x.dtype == torch.float32, "x must be float32 [rows, inputs]")
        inputs = x.shape[1]
        self(inputs % GROUP == 0, f"inputs must be a multiple of {GROUP}, not {inputs}")
        self(norm is None or tuple(norm.shape) == (inputs,), f"norm must be [{inputs}]")
        tiles = -(-out_features // TILE)
        self(
            weight.dtype == torch.uint8
            and weight.dim() == 3
            and tuple(weight.shape[:2]) == (tiles, inputs // GROUP)
            and weight.shape[2] in (Q4_1_BYTES, Q8_0_BYTES),
            f"weight must be packed as uint8 [{tiles}, {inputs // GROUP}, {Q4_1_BYTES} or {Q8_0_BYTES}], "
            f"not {list(weight.shape)}",
        )
        self((down is None) == (up is None), "down and up must be given together")
        if down is not None and up is not None:
            rank = up.shape[1] if up.dim() == 3 else 0
            width = inputs + 4 * (up.dtype == torch.int8)
            self(
                up.dtype in (torch.float16, torch.int8)
                and _is(down, up.dtype, parts * rank, width)
                and _is(up, up.dtype, tiles, rank, TILE),
                f"down must be float16 [{parts} r, {inputs}] or int8 [{parts} r, {inputs + 4}], and up of its dtype "
                f"[{tiles}, r, {TILE}]",
            )
        self(first_adapted_row >= 0, "first_adapted_row must not be negative")
        self(bias is None or _is(bias, torch.float32, out_features), f"bias must be float32 [{out_features}]")
