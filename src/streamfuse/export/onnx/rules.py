"""How each PyTorch operator of the graphs is written in ONNX. All shapes are static, so views are plain reshapes.

Intermediate integers and booleans are int32, for which GPUs have kernels; inputs and outputs are int64 and bool.

A rule takes the graph, the operator's result (for its shape only) and its arguments, with tensors as `Value`, and
returns the value or values of the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from onnx import TensorProto

from .graph import CONTRIB, Graph, Value
from .operators import ops

Result: TypeAlias = Value | list[Value]
Rule: TypeAlias = Callable[..., Result]

HIDDEN = -1e4  # added to masked scores; finite in float16 too
ACCURACY_LEVEL = 4  # MatMulNBits may quantize blocks of activations to int8: several times faster on CPUs
_aten = torch.ops.aten


def _unary(op: str) -> Rule:
    return lambda g, out, x: g.op(op, x, shape=x.shape, dtype=x.dtype)


def _binary(op: str, dtype: int | None = None, swapped: bool = False) -> Rule:
    def rule(g: Graph, out: Tensor, a: Value, b: Value | float) -> Value:
        b = b if isinstance(b, Value) else g.scalar(b, a.dtype)
        pair = (b, a) if swapped else (a, b)
        return g.op(op, *pair, shape=out.shape, dtype=dtype or a.dtype)

    return rule


def _view(g: Graph, out: Tensor, x: Value, *_: Any, **__: Any) -> Value:
    return g.reshape(x, *out.shape)


def _expand(g: Graph, out: Tensor, x: Value, *_: Any) -> Value:
    if math.prod(x.shape) == math.prod(out.shape):
        return g.reshape(x, *out.shape)
    return g.op("Expand", x, g.numbers(*out.shape), shape=out.shape, dtype=x.dtype)


def _reduce(op: str) -> Rule:
    def rule(g: Graph, out: Tensor, x: Value, axes: Sequence[int], keep: bool = False) -> Value:
        return g.op(op, x, g.numbers(*axes), shape=out.shape, dtype=x.dtype, keepdims=int(keep))

    return rule


def _gather(g: Graph, out: Tensor, x: Value, index: Value, axis: int = 0) -> Value:
    return g.op("Gather", x, index, shape=out.shape, dtype=x.dtype, axis=axis)


def _slice(g: Graph, out: Tensor, x: Value, axis: int = 0, start: int | None = 0, end: int | None = None) -> Value:
    axis, first = axis % len(x.shape), start or 0
    if tuple(out.shape) == x.shape:
        return x
    first = first + x.shape[axis] if first < 0 else first
    if x.dtype == TensorProto.INT32:  # WebGPU can only slice floats
        places = g.constant(np.arange(first, first + out.shape[axis], dtype=np.int32))
        return _gather(g, out, x, places, axis)
    bounds = (g.numbers(first), g.numbers(first + out.shape[axis]), g.numbers(axis))
    return g.op("Slice", x, *bounds, shape=out.shape, dtype=x.dtype)


def _split(g: Graph, out: Sequence[Tensor], x: Value, _: Any, axis: int = 0) -> list[Value]:
    sizes = g.numbers(*(part.shape[axis] for part in out))
    return g.node("Split", [x, sizes], [(tuple(part.shape), x.dtype) for part in out], axis=axis % len(x.shape))


def _concat(g: Graph, out: Tensor, parts: Sequence[Value], axis: int = 0) -> Value:
    return g.op("Concat", *parts, shape=out.shape, dtype=parts[0].dtype, axis=axis % len(out.shape))


def _linear(g: Graph, out: Tensor, x: Value, weight: Value, bias: Value | None = None) -> Value:
    return g.op("Gemm", x, weight, bias, shape=out.shape, dtype=x.dtype, transB=1)


def _added_product(g: Graph, out: Tensor, added: Value, a: Value, b: Value) -> Value:
    return g.op("Gemm", a, b, added, shape=out.shape, dtype=a.dtype)


def _swap(g: Graph, out: Tensor, x: Value, first: int = 0, second: int = 1) -> Value:
    axes = list(range(len(x.shape)))
    axes[first], axes[second] = axes[second], axes[first]
    return g.op("Transpose", x, shape=out.shape, dtype=x.dtype, perm=axes)


def _silu(g: Graph, out: Tensor, x: Value) -> Value:
    gate = g.op("Sigmoid", x, shape=x.shape, dtype=x.dtype)
    return g.op("Mul", x, gate, shape=x.shape, dtype=x.dtype)


def _rsqrt(g: Graph, out: Tensor, x: Value) -> Value:
    return g.op("Reciprocal", g.op("Sqrt", x, shape=x.shape, dtype=x.dtype), shape=x.shape, dtype=x.dtype)


def _top_k(g: Graph, out: Sequence[Tensor], x: Value, k: int, axis: int = -1) -> list[Value]:
    shape = tuple(out[0].shape)
    best, places = g.node("TopK", [x, g.numbers(k)], [(shape, x.dtype), (shape, TensorProto.INT64)], axis=axis)
    return [best, g.cast(places, TensorProto.INT32)]


def _arg_max(g: Graph, out: Tensor, x: Value, axis: int) -> Value:
    return g.op("ArgMax", x, shape=out.shape, dtype=TensorProto.INT64, axis=axis, keepdims=0)


def _log_softmax(g: Graph, out: Tensor, x: Value, axis: int) -> Value:
    """Written out, since WebGPU has no LogSoftmax."""
    one = tuple(1 if at == axis % len(x.shape) else size for at, size in enumerate(x.shape))
    top = g.op("ReduceMax", x, g.numbers(axis), shape=one, dtype=x.dtype, keepdims=1)
    below = g.op("Sub", x, top, shape=x.shape, dtype=x.dtype)
    powers = g.op("Exp", below, shape=x.shape, dtype=x.dtype)
    total = g.op("ReduceSum", powers, g.numbers(axis), shape=one, dtype=x.dtype, keepdims=1)
    return g.op("Sub", below, g.op("Log", total, shape=one, dtype=x.dtype), shape=x.shape, dtype=x.dtype)


def _block_linear(
    g: Graph, out: Tensor, x: Value, values: Value, scales: Value, zeros: Value | None, bias: Value | None, bits: int
) -> Value:
    size, (rows, inputs), outputs = values.shape[2] * 8 // bits, x.shape, values.shape[0]
    # Without AVX-512, ONNX Runtime uses a different 4-bit kernel for a single row, which adds in another order than the
    # one for several rows, so `decode` would not give the bits of `verify_T` (docs/targets.md).
    twice = bits == 4 and rows == 1
    if twice:
        x = g.op("Expand", x, g.numbers(2, inputs), shape=(2, inputs), dtype=x.dtype)
    product = g.op(
        "MatMulNBits", x, values, scales, zeros, None, bias, shape=(x.shape[0], outputs), dtype=x.dtype, domain=CONTRIB,
        K=inputs, N=outputs, bits=bits, block_size=size, accuracy_level=ACCURACY_LEVEL,
    )  # fmt: skip
    if not twice:
        return product
    first = (g.numbers(0), g.numbers(1), g.numbers(0))
    return g.op("Slice", product, *first, shape=out.shape, dtype=x.dtype)


def _block_embedding(
    g: Graph, out: Tensor, ids: Value, values: Value, scales: Value, zeros: Value | None, bits: int
) -> Value:
    table = g.reshaped_constant(values, values.shape[0], values.shape[1] * values.shape[2])
    size = values.shape[2] * 8 // bits
    return g.op(
        "GatherBlockQuantized", table, ids, scales, zeros, shape=out.shape, dtype=scales.dtype, domain=CONTRIB,
        bits=bits, block_size=size, gather_axis=0, quantize_axis=1,
    )  # fmt: skip


def _rms_norm(g: Graph, out: Tensor, x: Value, weight: Value, eps: float) -> Value:
    return g.op("RMSNormalization", x, weight, shape=x.shape, dtype=x.dtype, axis=-1, epsilon=eps)


def _rotary(g: Graph, out: Tensor, x: Value, cos: Value, sin: Value) -> Value:
    rows, heads, dim = x.shape
    if not g.rotates:
        return _turned(g, x, cos, sin)
    halves = [_first_half(g, table) for table in (cos, sin)]
    flat = g.reshape(x, 1, rows, heads * dim)
    turned = g.op("RotaryEmbedding", flat, *halves, shape=flat.shape, dtype=x.dtype, num_heads=heads)
    return g.reshape(turned, rows, heads, dim)


def _turned(g: Graph, x: Value, cos: Value, sin: Value) -> Value:
    """x cos + (-second half, first half) sin."""
    rows, heads, dim = x.shape
    half = (rows, heads, dim // 2)

    def product(rows_of: Value, table: Value) -> Value:
        return g.op("Mul", rows_of, g.reshape(table, rows, 1, dim), shape=x.shape, dtype=x.dtype)

    first, second = g.node("Split", [x, g.numbers(dim // 2, dim // 2)], [(half, x.dtype), (half, x.dtype)], axis=2)
    negative = g.op("Neg", second, shape=half, dtype=x.dtype)
    other = g.op("Concat", negative, first, shape=x.shape, dtype=x.dtype, axis=2)
    return g.op("Add", product(x, cos), product(other, sin), shape=x.shape, dtype=x.dtype)


def _first_half(g: Graph, table: Value) -> Value:
    """cos or sin [R, D], whose halves are equal, in the shape of RotaryEmbedding: [1, R, D / 2]."""
    rows, dim = table.shape
    bounds = (g.numbers(0), g.numbers(dim // 2), g.numbers(1))
    half = g.op("Slice", table, *bounds, shape=(rows, dim // 2), dtype=table.dtype)
    return g.reshape(half, 1, rows, dim // 2)


def heads_first(g: Graph, rows: Value) -> Value:
    """New keys or values [R, Hkv, D] in the layout of a cache: [1, Hkv, R, D]."""
    return g.transpose(g.reshape(rows, 1, *rows.shape), 0, 2, 1, 3)


def _attention(
    g: Graph,
    out: Tensor,
    query: Value,
    key: Value,
    value: Value,
    key_cache: Value,
    value_cache: Value,
    cache_length: Value,
    visible: Value,
    position_ids: Value | None,
    lap_starts: Value | None,
    scale: float,
    window: int,
) -> Value:
    """Two segments under one softmax: the cache [1, Hkv, C, D] is read in place and not concatenated with new rows.

    The query heads of one key head are rows of one product, so that keys are not repeated. On the CPU, sums over
    positions are float64: a decoded token's past is in the cache, a verified token's partly among the new rows, and
    only in float64 do both sums round to the same float32 in any order. Losslessness depends on that (docs/targets.md).
    """
    rows, heads, dim = query.shape
    _, kv_heads, cache_size, _ = key_cache.shape
    group, kind = heads // kv_heads, query.dtype
    many, wide = group * rows, g.sums
    g.scope = f"layers.{key_cache.name.split('.')[1]}.attention"

    def product(a: Value, b: Value) -> Value:
        return g.op("MatMul", a, b, shape=(*a.shape[:3], b.shape[3]), dtype=a.dtype)

    def transposed(keys: Value) -> Value:
        # For one row a reshape would suffice, but ONNX Runtime would then select a kernel with another order of sums.
        shape = (*keys.shape[:2], dim, keys.shape[2])
        return g.op("Transpose", keys, shape=shape, dtype=kind, perm=[0, 1, 3, 2])

    q = g.op("Mul", query, g.scalar(scale, kind), shape=query.shape, dtype=kind)
    q = g.transpose(g.reshape(q, 1, rows, kv_heads, group, dim), 0, 2, 3, 1, 4)
    q = g.reshape(q, 1, kv_heads, many, dim)
    new_key, new_value = heads_first(g, key), heads_first(g, value)
    segments = [product(q, transposed(keys)) for keys in (key_cache, new_key)]
    shape, one = (1, kv_heads, many, cache_size + rows), (1, kv_heads, many, 1)
    near = None if position_ids is None else (position_ids, window)
    scores = g.op("Concat", *segments, shape=shape, dtype=kind, axis=3)
    mask = _mask(g, cache_length, visible, near, lap_starts, cache_size, group, kind)
    scores = g.op("Add", scores, mask, shape=shape, dtype=kind)
    scores = g.cast(scores, TensorProto.FLOAT)
    top = g.op("ReduceMax", scores, g.numbers(3), shape=one, dtype=scores.dtype, keepdims=1)
    shares = g.op("Exp", g.op("Sub", scores, top, shape=shape, dtype=scores.dtype), shape=shape, dtype=scores.dtype)
    shares = g.cast(shares, wide)
    total = g.op("ReduceSum", shares, g.numbers(3), shape=one, dtype=wide, keepdims=1)
    sizes = [((*shape[:3], columns), wide) for columns in (cache_size, rows)]
    of_cache, of_new = g.node("Split", [shares, g.numbers(cache_size, rows)], sizes, axis=3)
    shape = (1, kv_heads, many, dim)
    both = product(of_cache, g.cast(value_cache, wide)), product(of_new, g.cast(new_value, wide))
    attended = g.op("Div", g.op("Add", *both, shape=shape, dtype=wide), total, shape=shape, dtype=wide)
    attended = g.reshape(g.cast(attended, kind), 1, kv_heads, group, rows, dim)
    return g.reshape(g.transpose(attended, 0, 3, 1, 2, 4), rows, heads * dim)


def _short_convolution(
    g: Graph,
    out: Tensor,
    query: Value,
    key: Value,
    value: Value,
    key_cache: Value,
    value_cache: Value,
    cache_length: Value,
    visible: Value,
    position_ids: Value,
    lap_starts: Value | None,
    taps: Value,
) -> Value:
    """Earlier rows are gathered by products with one-hot matrices. Each of these products sums at most one nonzero
    term, so the order of summation does not matter."""
    (rows, heads, dim), (count, _), cache_size, kind = query.shape, taps.shape, key_cache.shape[2], query.dtype
    earlier, shape = count - 1, (1, heads, rows, dim)
    selectors = _selectors(g, cache_length, visible, position_ids, lap_starts, cache_size, earlier, kind)
    g.scope = f"layers.{key_cache.name.split('.')[1]}.convolution"
    new, half, shifted = [heads_first(g, part) for part in (key, value)], (1, heads // 2, earlier * rows, dim), []
    for segments in zip((key_cache, value_cache), new, strict=True):
        found = (g.op("MatMul", *pair, shape=half, dtype=kind) for pair in zip(selectors, segments, strict=True))
        shifted.append(g.op("Add", *found, shape=half, dtype=kind))
    own = g.op("Concat", *new, shape=shape, dtype=kind, axis=1)
    before = g.op("Concat", *shifted, shape=(1, heads, earlier * rows, dim), dtype=kind, axis=1)
    read = [own, *g.node("Split", [before, g.numbers(*[rows] * earlier)], [(shape, kind)] * earlier, axis=2)]
    per_tap = g.reshaped_constant(taps, count, heads, 1, dim)
    weights = g.node("Split", [per_tap, g.numbers(*[1] * count)], [((1, heads, 1, dim), kind)] * count, axis=0)
    products = [g.op("Mul", *pair, shape=shape, dtype=kind) for pair in zip(read, reversed(weights), strict=True)]
    mixed = reduce(lambda a, b: g.op("Add", a, b, shape=shape, dtype=kind), products)
    mixed = g.reshape(g.transpose(mixed, 0, 2, 1, 3), rows, heads * dim)
    return g.op("Mul", g.reshape(query, rows, heads * dim), mixed, shape=mixed.shape, dtype=kind)


def _selectors(
    g: Graph,
    cache_length: Value,
    visible: Value,
    position_ids: Value,
    lap_starts: Value | None,
    cache_size: int,
    earlier: int,
    dtype: int,
) -> tuple[Value, Value]:
    """One-hot matrices that select the rows 1, 2, ..., `earlier` positions before each row, in this order: among cached
    rows [1, 1, earlier * R, C], and among new rows [1, 1, earlier * R, R]. Shared by all convolutions of a pass.
    `lap_starts` as in `_cached`.
    """
    rows, kind, scope, g.scope = visible.shape[0], TensorProto.INT32, g.scope, "selectors"
    many = earlier * rows

    def number(value: int) -> Value:
        return g.constant(np.array([value], np.int32))

    def equal(places: Value, count: int) -> Value:
        found = g.op("Equal", g.reshape(places, 1, count), wanted, shape=(many, count), dtype=TensorProto.BOOL)
        return g.cast(found, dtype)

    positions, valid = _cached(g, cache_length, lap_starts, cache_size)
    positions = g.op("Where", valid, positions, number(-1 - earlier), shape=(cache_size,), dtype=kind)
    steps = [g.op("Sub", position_ids, number(step), shape=(rows,), dtype=kind) for step in range(1, earlier + 1)]
    wanted = g.reshape(g.op("Concat", *steps, shape=(many,), dtype=kind, axis=0), many, 1)
    seen = g.op("Concat", *[g.cast(visible, dtype)] * earlier, shape=(many, rows), dtype=dtype, axis=0)
    seen = g.op("Mul", seen, equal(position_ids, rows), shape=seen.shape, dtype=dtype)
    cached = equal(positions, cache_size)
    g.scope = scope
    return g.reshape(cached, 1, 1, many, cache_size), g.reshape(seen, 1, 1, many, rows)


def _mask(
    g: Graph,
    cache_length: Value,
    visible: Value,
    near: tuple[Value, int] | None,
    lap_starts: Value | None,
    cache_size: int,
    group: int,
    dtype: int,
) -> Value:
    """The mask to add to the scores [1, 1, group * R, C + R]; shared by all layers of a pass with the same window.

    `near`: the rows' positions and their window; None: no window. `lap_starts`: as in `_cached`.
    """
    rows, columns, scope, g.scope = visible.shape[0], cache_size + visible.shape[0], g.scope, "mask"
    shown, hidden = g.scalar(0.0, dtype), g.scalar(HIDDEN, dtype)
    positions, valid = _cached(g, cache_length, lap_starts, cache_size)
    valid = g.op("Where", valid, shown, hidden, shape=(cache_size,), dtype=dtype)
    valid = g.op("Expand", valid, g.numbers(rows, cache_size), shape=(rows, cache_size), dtype=dtype)
    seen = g.op("Cast", visible, shape=visible.shape, dtype=TensorProto.BOOL, to=TensorProto.BOOL)
    seen = g.op("Where", seen, shown, hidden, shape=visible.shape, dtype=dtype)
    mask = g.op("Concat", valid, seen, shape=(rows, columns), dtype=dtype, axis=1)
    if near is not None:
        ids, kind = near[0], TensorProto.INT32
        keys = g.op("Concat", positions, ids, shape=(columns,), dtype=kind, axis=0)
        size = g.constant(np.array([near[1]], dtype=np.int32))
        first = g.op("Sub", g.reshape(ids, rows, 1), size, shape=(rows, 1), dtype=kind)  # the last position before
        inside = g.op("Less", first, keys, shape=(rows, columns), dtype=TensorProto.BOOL)
        mask = g.op("Where", inside, mask, hidden, shape=(rows, columns), dtype=dtype)
    mask = g.op("Expand", mask, g.numbers(group, rows, columns), shape=(group, rows, columns), dtype=dtype)
    g.scope = scope
    return g.reshape(mask, 1, 1, group * rows, columns)


def _cached(g: Graph, cache_length: Value, lap_starts: Value | None, cache_size: int) -> tuple[Value, Value]:
    """The positions in a cache of C positions, int32 [C], and whether each is valid, bool [C].

    `lap_starts`, int32 [capacity + 1, 1], is that of layers.py. A cache with positions for the whole context is not a
    ring buffer.
    """
    kind, shape = TensorProto.INT32, (cache_size,)
    if lap_starts is None or lap_starts.shape[0] == cache_size + 1:
        positions = g.constant(np.arange(cache_size, dtype=np.int32), "positions")
        return positions, g.op("Less", positions, cache_length, shape=shape, dtype=TensorProto.BOOL)
    lap_start = g.reshape(g.op("Gather", lap_starts, cache_length, shape=(1, 1), dtype=kind, axis=0), 1)
    places = g.constant(np.arange(cache_size, dtype=np.int32), "places")
    last = g.op("Add", places, lap_start, shape=shape, dtype=kind)
    before = g.op("Sub", last, g.constant(np.array([cache_size], np.int32)), shape=shape, dtype=kind)
    is_written = g.op("Less", last, cache_length, shape=shape, dtype=TensorProto.BOOL)  # in the last lap
    positions = g.op("Where", is_written, last, before, shape=shape, dtype=kind)
    negative = g.constant(np.array([-1], np.int32))
    return positions, g.op("Less", negative, positions, shape=shape, dtype=TensorProto.BOOL)


RULES: dict[Any, Rule] = {
    _aten.view.default: _view,
    _aten.reshape.default: _view,
    _aten.unsqueeze.default: _view,
    _aten.expand.default: _expand,
    _aten.transpose.int: _swap,
    _aten.cat.default: _concat,
    _aten.slice.Tensor: _slice,
    _aten.chunk.default: _split,
    _aten.split_with_sizes.default: _split,
    _aten.embedding.default: lambda g, out, table, ids: _gather(g, out, table, ids),
    _aten.index_select.default: lambda g, out, x, axis, index: _gather(g, out, x, index, axis),
    _aten.index.Tensor: lambda g, out, x, index: _gather(g, out, x, *index),
    _aten.linear.default: _linear,
    _aten.addmm.default: _added_product,
    _aten.matmul.default: _binary("MatMul"),
    _aten.add.Tensor: _binary("Add"),
    _aten.sub.Tensor: _binary("Sub"),
    _aten.rsub.Scalar: _binary("Sub", swapped=True),
    _aten.mul.Tensor: _binary("Mul"),
    _aten.eq.Tensor: _binary("Equal", TensorProto.BOOL),
    _aten.clamp.default: _binary("Clip"),  # a lower bound only; WebGPU has no Max
    _aten.pow.Tensor_Scalar: _binary("Pow"),
    _aten.neg.default: _unary("Neg"),
    _aten.exp.default: _unary("Exp"),
    _aten.log.default: _unary("Log"),
    _aten.relu.default: _unary("Relu"),
    _aten.sigmoid.default: _unary("Sigmoid"),
    _aten.silu.default: _silu,
    _aten.rsqrt.default: _rsqrt,
    _aten.sum.dim_IntList: _reduce("ReduceSum"),
    _aten.mean.dim: _reduce("ReduceMean"),
    _aten.to.dtype: lambda g, out, x, _: g.cast(x, TensorProto.FLOAT),
    _aten.log_softmax.int: _log_softmax,
    _aten.topk.default: _top_k,
    _aten.argmax.default: _arg_max,
    ops.block_linear.default: _block_linear,
    ops.block_embedding.default: _block_embedding,
    ops.rms_norm.default: _rms_norm,
    ops.rotary.default: _rotary,
    ops.attention.default: _attention,
    ops.short_convolution.default: _short_convolution,
}
