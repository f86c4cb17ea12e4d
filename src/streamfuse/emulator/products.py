"""Matrix products: linear, matmul, einsum, convolution, attention. All accumulate in float32."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from streamfuse.emulator.reductions import softmax
from streamfuse.emulator.registry import operation
from streamfuse.emulator.values import Array


@operation("linear")
def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    y = x @ weight.T
    return np.asarray(y if bias is None else y + bias)


@operation("matmul")
def matmul(x: Array, y: Array, transpose_x: Any = False, transpose_y: Any = False) -> Array:
    x = np.swapaxes(x, -1, -2) if transpose_x else x
    y = np.swapaxes(y, -1, -2) if transpose_y else y
    return np.asarray(x @ y)


@operation("einsum")
def einsum(values: list[Array], equation: str) -> Array:
    """MIL only allows contractions of axis -1 of the first with axis -3 of the second; axis -2 is a batch axis."""
    x, y = (np.moveaxis(value, -2, -3) for value in values)
    return np.moveaxis(x @ y, -3, -2)


@operation("scaled_dot_product_attention")
def scaled_dot_product_attention(query: Array, key: Array, value: Array, attn_mask: Array | None = None) -> Array:
    scores = (query @ np.swapaxes(key, -1, -2)) * np.float32(1 / math.sqrt(query.shape[-1]))
    if attn_mask is not None:
        scores = np.where(attn_mask, scores, -np.inf) if attn_mask.dtype == np.bool_ else scores + attn_mask
    return np.asarray(softmax(scores) @ value)


@operation("conv")
def conv(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    strides: Array | None = None,
    pad_type: str = "valid",
    pad: Array | None = None,
    dilations: Array | None = None,
    groups: Any = 1,
) -> Array:
    """x [n, C, *D], weight [O, C / groups, *K]: one matrix product per position in the kernel."""
    rank, batch, g = x.ndim - 2, len(x), int(groups)
    kernel, outputs = weight.shape[2:], len(weight)
    steps = [1] * rank if strides is None else strides.tolist()
    spread = [1] * rank if dilations is None else dilations.tolist()
    reach = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, spread, strict=True)]
    edges = _padding(x.shape[2:], reach, steps, pad_type, None if pad is None else pad.reshape(-1, 2).tolist())
    if any(before or after for before, after in edges):
        x = np.pad(x, [(0, 0), (0, 0), *edges])
    sizes = [(size - span) // step + 1 for size, span, step in zip(x.shape[2:], reach, steps, strict=True)]
    total: Any = np.float32(0)
    for place in itertools.product(*map(range, kernel)):
        window = [
            slice(at * dilation, at * dilation + (size - 1) * step + 1, step)
            for at, dilation, size, step in zip(place, spread, sizes, steps, strict=True)
        ]
        all_channels: list[Any] = [slice(None), slice(None)]
        columns = x[tuple(all_channels + window)].reshape(batch, g, -1, math.prod(sizes))
        matrix = weight[tuple(all_channels + list(place))].reshape(g, outputs // g, -1)
        total = total + matrix @ columns
    y = total.reshape(batch, outputs, *sizes)
    return np.asarray(y if bias is None else y + bias.reshape(-1, *[1] * rank))


def _padding(
    sizes: tuple[int, ...], reach: list[int], steps: list[int], kind: str, custom: list[list[int]] | None
) -> list[tuple[int, int]]:
    """Elements before and after each spatial axis."""
    if kind == "custom" and custom is not None:
        return [(before, after) for before, after in custom]
    if kind in ("valid", "custom"):
        return [(0, 0)] * len(sizes)
    if kind not in ("same", "same_lower"):
        raise ValueError(f"pad_type {kind!r} is unknown")
    missing = [max((math.ceil(n / s) - 1) * s + r - n, 0) for n, r, s in zip(sizes, reach, steps, strict=True)]
    edges = [(total // 2, total - total // 2) for total in missing]
    return edges if kind == "same" else [(after, before) for before, after in edges]
