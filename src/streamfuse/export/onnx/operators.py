"""PyTorch operators that correspond to a few ONNX nodes each, with their implementation (namespace streamfuse_onnx).

Run eagerly, they are the reference for parity; the recorder sees each as one call (record.py).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from ..layers import convolved, within
from .blocks import dequantized

NAMESPACE = "streamfuse_onnx"
_library = torch.library.Library(NAMESPACE, "DEF")
ops = getattr(torch.ops, NAMESPACE)


def _block_linear(
    x: Tensor, values: Tensor, scales: Tensor, zero_points: Tensor | None, bias: Tensor | None, bits: int
) -> Tensor:
    return F.linear(x, dequantized(values, scales, zero_points, bits).to(x.dtype), bias)


def _block_embedding(ids: Tensor, values: Tensor, scales: Tensor, zero_points: Tensor | None, bits: int) -> Tensor:
    return dequantized(values[ids], scales[ids], None if zero_points is None else zero_points[ids], bits)


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, weight.shape, weight, eps)


def _rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[2] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], dim=2)
    return x * cos.unsqueeze(1) + turned * sin.unsqueeze(1)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    cache_length: Tensor,
    visible: Tensor,
    position_ids: Tensor | None,
    lap_starts: Tensor | None,
    scale: float,
    window: int,
) -> Tensor:
    length, rows, count = int(cache_length), len(visible), len(key_cache)
    cached = torch.arange(max(0, length - count), length)
    keys, values = torch.cat([key_cache[cached % count], key]), torch.cat([value_cache[cached % count], value])
    new = visible | torch.eye(rows, dtype=torch.bool)
    seen = torch.cat([torch.ones(rows, len(cached), dtype=torch.bool), new], dim=1)
    if position_ids is not None:
        seen &= within(position_ids, cached, window)
    q, k, v = (t.transpose(0, 1).unsqueeze(0) for t in (query, keys, values))
    attended = F.scaled_dot_product_attention(q, k, v, seen, scale=scale, enable_gqa=True)
    return attended.squeeze(0).transpose(0, 1).flatten(1)


def _short_convolution(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    cache_length: Tensor,
    visible: Tensor,
    position_ids: Tensor,
    lap_starts: Tensor | None,
    taps: Tensor,
) -> Tensor:
    length, rows, count = int(cache_length), len(visible), len(key_cache)
    cached = torch.arange(max(0, length - count), length)
    pairs = (key_cache, key), (value_cache, value)
    read = torch.cat([torch.cat([cache[cached % count], new]) for cache, new in pairs], dim=1).flatten(1)
    seen = torch.cat([torch.ones(rows, len(cached)), visible.to(torch.float32)], dim=1).to(read.dtype)
    return query.flatten(1) * convolved(read, seen, torch.cat([cached, position_ids]), position_ids, taps)


def _define(schema: str, compute: Callable[..., Tensor], shape: Callable[..., Tensor]) -> None:
    _library.define(schema)
    name = schema.partition("(")[0]
    _library.impl(name, compute, "CPU")
    torch.library.register_fake(f"{NAMESPACE}::{name}", shape, lib=_library)


# x [R, K], Blocks' fields of a matrix [N, K], bias [N] -> [R, N]
_define(
    "block_linear(Tensor x, Tensor values, Tensor scales, Tensor? zero_points, Tensor? bias, int bits) -> Tensor",
    _block_linear,
    lambda x, values, *_: x.new_empty(x.shape[0], values.shape[0]),
)
# ids int64 [R], Blocks' fields of a table [V, h] -> [R, h]
_define(
    "block_embedding(Tensor ids, Tensor values, Tensor scales, Tensor? zero_points, int bits) -> Tensor",
    _block_embedding,
    lambda ids, values, scales, zero_points, bits: scales.new_empty(
        ids.shape[0], values.shape[1] * values.shape[2] * 8 // bits
    ),
)
# x [..., n], weight [n]
_define("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor", _rms_norm, lambda x, *_: torch.empty_like(x))
# x [R, H, D], cos, sin [R, D] -> [R, H, D]
_define("rotary(Tensor x, Tensor cos, Tensor sin) -> Tensor", _rotary, lambda x, cos, sin: torch.empty_like(x))
# As in docs/contracts.md, section 6; but a row that attends to nothing may have any finite result. With position_ids,
# int64 [R], a row attends to `window` positions up to its own; without, `window` is not used. Caches of fewer positions
# than the context are ring buffers, whose graph needs layers.lap_starts.
_define(
    "attention(Tensor query, Tensor key, Tensor value, Tensor key_cache, Tensor value_cache, Tensor cache_length, "
    "Tensor visible, Tensor? position_ids, Tensor? lap_starts, float scale, int window) -> Tensor",
    _attention,
    lambda query, *_: query.new_empty(query.shape[0], query.shape[1] * query.shape[2]),
)
# The short convolution of docs/contracts.md, section 6, but unquantized, with rows found by position, and summed from
# the row's own input on instead of the oldest. taps [L, h]; `lap_starts` as for attention.
_define(
    "short_convolution(Tensor query, Tensor key, Tensor value, Tensor key_cache, Tensor value_cache, "
    "Tensor cache_length, Tensor visible, Tensor position_ids, Tensor? lap_starts, Tensor taps) -> Tensor",
    _short_convolution,
    lambda query, *_: query.new_empty(query.shape[0], query.shape[1] * query.shape[2]),
)
