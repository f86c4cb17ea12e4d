"""Compressed constants (constexpr_*), decoded as Core ML defines them.

iOS 16 defines whole bytes and a shape, iOS 18 typed elements and blocks; both are supported. Results are float32 and
are rounded to the declared dtype afterwards, so that a scale times a small integer is rounded once.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from streamfuse.emulator.elementwise import dequantize
from streamfuse.emulator.registry import operation
from streamfuse.emulator.values import Array, unpack_bits

PREFIX = "constexpr_"


@operation("constexpr_cast")
def constexpr_cast(source_val: Array, output_dtype: str) -> Array:
    return source_val


@operation("constexpr_affine_dequantize")
def constexpr_affine_dequantize(quantized_data: Array, zero_point: Array, scale: Array, axis: Array) -> Array:
    return dequantize(quantized_data, scale, zero_point, axis)


@operation("constexpr_blockwise_shift_scale")
def constexpr_blockwise_shift_scale(data: Array, scale: Array, offset: Array | None = None) -> Array:
    """scale * (data - offset); one scale serves data.shape[i] / scale.shape[i] adjacent elements along each axis."""
    blocks = [n for size, scales in zip(data.shape, scale.shape, strict=True) for n in (scales, size // scales)]
    spread = [n for scales in scale.shape for n in (scales, 1)]
    values = data.astype(np.float32).reshape(blocks)
    if offset is not None:
        values -= offset.astype(np.float32).reshape(spread)
    values *= scale.reshape(spread)
    return values.reshape(data.shape)


@operation("constexpr_lut_to_dense")
def constexpr_lut_to_dense(
    indices: Array, lut: Array, vector_axis: Array | None = None, shape: Array | None = None
) -> Array:
    """Indices into tables; lut [*groups, entries, vector] (iOS 18) or [entries] with packed indices (iOS 16).

    A vector of the table is placed along `vector_axis` of the result.
    """
    if shape is not None:
        count = int(np.prod(shape))
        return lut[unpack_bits(indices, int(lut.size).bit_length() - 1, count, signed=False)].reshape(shape.tolist())
    groups, width = lut.shape[:-2], lut.shape[-1]
    dense = np.empty((*indices.shape, width), lut.dtype)
    sizes = [size // count for size, count in zip(indices.shape, groups, strict=True)]
    for group in itertools.product(*map(range, groups)):
        block = tuple(slice(at * size, (at + 1) * size) for at, size in zip(group, sizes, strict=True))
        dense[block] = lut[group][indices[block]]
    if width == 1:
        return dense[..., 0]
    axis = int(vector_axis if vector_axis is not None else -1) % indices.ndim
    joined = np.moveaxis(dense, -1, axis + 1)
    return joined.reshape([size * width if d == axis else size for d, size in enumerate(indices.shape)])


@operation("constexpr_sparse_to_dense", moves=True)
def constexpr_sparse_to_dense(nonzero_data: Array, mask: Array, shape: Array | None = None) -> Array:
    if shape is not None:
        mask = unpack_bits(mask, 1, int(np.prod(shape)), signed=False).reshape(shape.tolist())
    dense: Array = np.zeros(mask.shape, nonzero_data.dtype)
    dense[mask != 0] = nonzero_data
    return dense


@operation("constexpr_lut_to_sparse")
def constexpr_lut_to_sparse(
    indices_mask: Array, indices_nonzero_data: Array, lut: Array, vector_axis: Any = None
) -> tuple[Array, Array]:
    """(mask, values) of the dense tensor."""
    mask, width = indices_mask, lut.shape[-1]
    if width > 1:
        mask = np.repeat(mask, width, axis=int(vector_axis))
    dense = constexpr_lut_to_dense(constexpr_sparse_to_dense(indices_nonzero_data, indices_mask), lut, vector_axis)
    return mask, dense[mask != 0]


@operation("constexpr_sparse_blockwise_shift_scale")
def constexpr_sparse_blockwise_shift_scale(
    data_mask: Array, nonzero_data: Array, scale: Array, offset: Array | None = None
) -> tuple[Array, Array]:
    """(mask, values) of the dense tensor."""
    dense = constexpr_blockwise_shift_scale(constexpr_sparse_to_dense(nonzero_data, data_mask), scale, offset)
    return data_mask, dense[data_mask != 0]
