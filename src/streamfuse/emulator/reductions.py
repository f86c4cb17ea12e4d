"""Operations that reduce, order or accumulate along axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from streamfuse.emulator.registry import RULES, Rule, operation
from streamfuse.emulator.values import Array


def _log_sum_exp(x: Array, axis: tuple[int, ...] | None, keepdims: bool) -> Array:
    top = np.max(x, axis=axis, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    total: Array = np.log(np.sum(np.exp(x - top), axis=axis, keepdims=True)) + top
    return total if keepdims else np.squeeze(total, axis=axis)


_REDUCTIONS: dict[str, Callable[..., Any]] = {
    "reduce_l1_norm": lambda x, **kw: np.sum(np.abs(x), **kw),
    "reduce_l2_norm": lambda x, **kw: np.sqrt(np.sum(np.square(x), **kw)),
    "reduce_log_sum": lambda x, **kw: np.log(np.sum(x, **kw)),
    "reduce_log_sum_exp": _log_sum_exp,
    "reduce_max": np.max,
    "reduce_mean": np.mean,
    "reduce_min": np.min,
    "reduce_prod": np.prod,
    "reduce_sum": np.sum,
    "reduce_sum_square": lambda x, **kw: np.sum(np.square(x), **kw),
}


def _over_axes(function: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(x: Array, axes: Array | None = None, keep_dims: Any = False) -> Any:
        return function(x, axis=None if axes is None else tuple(axes.tolist()), keepdims=bool(keep_dims))

    return reduce


RULES.update({kind: Rule(_over_axes(function), moves=False) for kind, function in _REDUCTIONS.items()})


@operation("reduce_argmax")
def reduce_argmax(x: Array, axis: Any = -1, keep_dims: Any = False, output_dtype: str = "int32") -> Array:
    """The index of the first maximum."""
    return np.asarray(np.argmax(x, axis=int(axis), keepdims=bool(keep_dims)))


@operation("reduce_argmin")
def reduce_argmin(x: Array, axis: Any = -1, keep_dims: Any = False, output_dtype: str = "int32") -> Array:
    return np.asarray(np.argmin(x, axis=int(axis), keepdims=bool(keep_dims)))


@operation("softmax")
def softmax(x: Array, axis: Any = -1) -> Array:
    powers = np.exp(x - np.max(x, axis=int(axis), keepdims=True))
    return np.asarray(powers / np.sum(powers, axis=int(axis), keepdims=True))


@operation("cumsum")
def cumsum(x: Array, axis: Any = 0, exclusive: Any = False, reverse: Any = False) -> Array:
    axis = int(axis)
    if reverse:
        return np.flip(cumsum(np.flip(x, axis), axis, exclusive), axis)
    total = np.cumsum(x, axis=axis, dtype=x.dtype)
    return total - x if exclusive else total


def _descending(x: Array, axis: int, ascending: bool, count: int) -> Array:
    """Indices of the first `count` elements in order, the smaller index first on ties.

    Each element becomes one 64-bit key, with its value as an ordered integer in the upper bits and its index in the
    lower bits, so that a partition is sufficient to select few of many (a stream's candidates from the vocabulary).
    """
    if x.dtype.kind == "f":
        bits = (x.astype(np.float32) + np.float32(0)).view(np.int32)  # adding zero makes -0.0 equal to 0.0
        ordered = (bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))).astype(np.int64)
    else:
        ordered = x.astype(np.int64)
    places = np.arange(x.shape[axis], dtype=np.int64).reshape([-1 if d == axis else 1 for d in range(x.ndim)])
    keys = ((ordered if ascending else -ordered) << 31) + places
    if count < x.shape[axis]:
        keys = np.take(np.partition(keys, count - 1, axis=axis), np.arange(count), axis=axis)
    return np.asarray(np.sort(keys, axis=axis) & 0x7FFFFFFF)


@operation("argsort")
def argsort(x: Array, axis: Any = -1, ascending: Any = False) -> Array:
    axis = int(axis) % x.ndim
    return _descending(x, axis, bool(ascending), x.shape[axis])


@operation("topk", moves=True)
def topk(
    x: Array,
    k: Any = 1,
    axis: Any = -1,
    ascending: Any = False,
    sort: Any = True,
    return_indices: Any = True,
    output_indices_dtype: str = "int32",
) -> Array | tuple[Array, Array]:
    """Always sorted; Core ML does not specify the order if `sort` is false."""
    axis = int(axis) % x.ndim
    indices = _descending(x, axis, bool(ascending), x.shape[axis] if int(k) == -1 else int(k))
    values = np.take_along_axis(x, indices, axis)
    return (values, indices.astype(output_indices_dtype)) if return_indices else values


@operation("layer_norm")
def layer_norm(
    x: Array,
    axes: Sequence[int] | Array | None = None,
    gamma: Array | None = None,
    beta: Array | None = None,
    epsilon: Any = 1e-5,
) -> Array:
    over = tuple(range(x.ndim)) if axes is None else tuple(int(axis) % x.ndim for axis in axes)
    centred = x - np.mean(x, axis=over, keepdims=True)
    y = centred / np.sqrt(np.mean(np.square(centred), axis=over, keepdims=True) + epsilon)
    shape = [size if d in over else 1 for d, size in enumerate(x.shape)]
    y = y if gamma is None else y * gamma.reshape(shape)
    return np.asarray(y if beta is None else y + beta.reshape(shape))


@operation("instance_norm")
def instance_norm(x: Array, gamma: Array | None = None, beta: Array | None = None, epsilon: Any = 1e-5) -> Array:
    normed = layer_norm(x, range(2, x.ndim), epsilon=np.float32(epsilon))
    return _per_channel(normed, gamma, beta)


@operation("batch_norm")
def batch_norm(
    x: Array, mean: Array, variance: Array, gamma: Array | None = None, beta: Array | None = None, epsilon: Any = 1e-5
) -> Array:
    scale = 1 / np.sqrt(variance + np.float32(epsilon))
    return _per_channel(_per_channel(x, scale, -mean * scale), gamma, beta)


@operation("l2_norm")
def l2_norm(x: Array, epsilon: Any = 1e-6) -> Array:
    """Over the last three axes together, as in Core ML."""
    return np.asarray(x / np.sqrt(np.sum(np.square(x), axis=(-3, -2, -1), keepdims=True) + epsilon))


def _per_channel(x: Array, gamma: Array | None, beta: Array | None) -> Array:
    shape = (1, -1, *[1] * (x.ndim - 2))
    x = x if gamma is None else x * gamma.reshape(shape)
    return x if beta is None else x + beta.reshape(shape)
