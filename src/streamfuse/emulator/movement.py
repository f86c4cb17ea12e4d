"""Operations that move values: shapes, slices, concatenations, gathers, scatters, and tensors without inputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from streamfuse.emulator.registry import operation
from streamfuse.emulator.values import Array


@operation("identity", moves=True)
def identity(x: Array) -> Array:
    return x


@operation("shape", moves=True)
def shape(x: Array) -> Array:
    return np.array(x.shape, np.int32)


@operation("reshape", moves=True)
def reshape(x: Array, shape: Array) -> Array:
    """A 0 keeps the size of that axis, -1 is inferred."""
    return x.reshape([x.shape[d] if size == 0 else size for d, size in enumerate(shape.tolist())])


@operation("flatten2d", moves=True)
def flatten2d(x: Array, axis: Any = 1) -> Array:
    return x.reshape(math.prod(x.shape[: int(axis)]), -1)


@operation("transpose", moves=True)
def transpose(x: Array, perm: Array) -> Array:
    return x.transpose(perm.tolist())


@operation("expand_dims", moves=True)
def expand_dims(x: Array, axes: Array) -> Array:
    return np.expand_dims(x, tuple(axes.tolist()))


@operation("squeeze", moves=True)
def squeeze(x: Array, axes: Array | None = None) -> Array:
    """Axes that are longer than one are kept, as in PyTorch."""
    if axes is None:
        return np.squeeze(x)
    return np.squeeze(x, tuple(axis for axis in axes.tolist() if x.shape[axis] == 1))


@operation("concat", moves=True)
def concat(values: list[Array], axis: Any, interleave: Any = False) -> Array:
    if not interleave:
        return np.concatenate(values, int(axis))
    joined = np.stack(values, int(axis) % values[0].ndim + 1)
    return joined.reshape([-1 if d == int(axis) % values[0].ndim else size for d, size in enumerate(values[0].shape)])


@operation("stack", moves=True)
def stack(values: list[Array], axis: Any) -> Array:
    return np.stack(values, int(axis))


@operation("split", moves=True)
def split(x: Array, axis: Any, num_splits: Any = None, split_sizes: Array | None = None) -> tuple[Array, ...]:
    if split_sizes is None:
        return tuple(np.split(x, int(num_splits), int(axis)))
    return tuple(np.split(x, np.cumsum(split_sizes)[:-1].tolist(), int(axis)))


def _slices(
    x: Array,
    begin: Array,
    end: Array,
    stride: Array | None,
    begin_mask: Array | None,
    end_mask: Array | None,
    squeeze_mask: Array | None,
) -> tuple[slice | int, ...]:
    """Numpy's index for MIL's slice: a masked begin or end is omitted, a squeezed axis has an integer index."""

    def given(mask: Array | None, d: int) -> bool:
        return mask is not None and bool(mask[d])

    return tuple(
        int(begin[d])
        if given(squeeze_mask, d)
        else slice(
            None if given(begin_mask, d) else int(begin[d]),
            None if given(end_mask, d) else int(end[d]),
            None if stride is None else int(stride[d]),
        )
        for d in range(x.ndim)
    )


@operation("slice_by_index", moves=True)
def slice_by_index(
    x: Array,
    begin: Array,
    end: Array,
    stride: Array | None = None,
    begin_mask: Array | None = None,
    end_mask: Array | None = None,
    squeeze_mask: Array | None = None,
) -> Array:
    return np.asarray(x[_slices(x, begin, end, stride, begin_mask, end_mask, squeeze_mask)])


@operation("slice_update", moves=True)
def slice_update(
    x: Array,
    update: Array,
    begin: Array,
    end: Array,
    stride: Array | None = None,
    begin_mask: Array | None = None,
    end_mask: Array | None = None,
    squeeze_mask: Array | None = None,
) -> Array:
    y = x.copy()
    y[_slices(x, begin, end, stride, begin_mask, end_mask, squeeze_mask)] = update
    return y


@operation("slice_by_size", moves=True)
def slice_by_size(x: Array, begin: Array, size: Array) -> Array:
    """A size of -1 extends to the end."""
    starts = [at + length if at < 0 else at for at, length in zip(begin.tolist(), x.shape, strict=True)]
    ends = [None if count < 0 else at + count for at, count in zip(starts, size.tolist(), strict=True)]
    return x[tuple(slice(at, end) for at, end in zip(starts, ends, strict=True))]


@operation("tile", moves=True)
def tile(x: Array, reps: Array) -> Array:
    return np.tile(x, reps.tolist())


@operation("reverse", moves=True)
def reverse(x: Array, axes: Array | None = None) -> Array:
    return np.flip(x, None if axes is None else tuple(axes.tolist()))


@operation("pad", moves=True)
def pad(x: Array, pad: Array, mode: str = "constant", constant_val: Any = 0) -> Array:
    """`pad` has (before, after) of the last axes."""
    edges = pad.reshape(-1, 2).tolist()
    edges = [[0, 0]] * (x.ndim - len(edges)) + edges
    if mode == "constant":
        return np.pad(x, edges, constant_values=constant_val)
    modes: dict[str, Any] = {"replicate": "edge", "reflect": "reflect"}
    return np.pad(x, edges, modes[mode])


@operation("band_part", moves=True)
def band_part(x: Array, lower: Any = -1, upper: Any = -1) -> Array:
    """Keeps `lower` diagonals below the main one and `upper` above; a negative count keeps all."""
    rows, columns = x.shape[-2:]
    distance = np.arange(columns) - np.arange(rows)[:, None]
    keep = (distance >= -(lower if lower >= 0 else rows)) & (distance <= (upper if upper >= 0 else columns))
    return np.where(keep, x, x.dtype.type(0))


@operation("fill")
def fill(shape: Array, value: Any = 0.0) -> Array:
    return np.full(shape.tolist(), value)


@operation("fill_like")
def fill_like(ref_tensor: Array, value: Any = 0.0) -> Array:
    return np.full(ref_tensor.shape, value)


@operation("range_1d")
def range_1d(start: Array, end: Array, step: Array) -> Array:
    return np.arange(start.item(), end.item(), step.item())


@operation("one_hot")
def one_hot(
    indices: Array, one_hot_vector_size: Array, axis: Any = -1, on_value: Any = 1, off_value: Any = 0.0
) -> Array:
    hot = indices[..., None] == np.arange(int(one_hot_vector_size))
    return np.moveaxis(np.where(hot, on_value, off_value), -1, int(axis))


@operation("gather", moves=True)
def gather(x: Array, indices: Array, axis: Any = 0, batch_dims: Any = 0, validate_indices: Any = False) -> Array:
    batch, axis = int(batch_dims), int(axis) % x.ndim
    if batch == 0:
        return np.take(x, indices, axis)
    lead = x.shape[:batch]
    flat_x, flat_indices = x.reshape(-1, *x.shape[batch:]), indices.reshape(-1, *indices.shape[batch:])
    rows = [np.take(one, at, axis - batch) for one, at in zip(flat_x, flat_indices, strict=True)]
    return np.stack(rows).reshape(*lead, *rows[0].shape)


@operation("gather_along_axis", moves=True)
def gather_along_axis(x: Array, indices: Array, axis: Any = 0, validate_indices: Any = False) -> Array:
    return np.take_along_axis(x, indices.astype(np.intp), int(axis))


@operation("gather_nd", moves=True)
def gather_nd(x: Array, indices: Array, batch_dims: Any = 0, validate_indices: Any = False) -> Array:
    lead: tuple[Array, ...] = np.indices(indices.shape[: int(batch_dims)], sparse=True)
    shape = [1] * (indices.ndim - 1 - len(lead))
    return np.asarray(x[tuple(at.reshape(*at.shape, *shape) for at in lead) + tuple(np.moveaxis(indices, -1, 0))])


_UPDATES: dict[str, Callable[..., Any]] = {
    "add": np.add.at,
    "sub": np.subtract.at,
    "mul": np.multiply.at,
    "div": np.divide.at,
    "max": np.maximum.at,
    "min": np.minimum.at,
    "update": np.ndarray.__setitem__,
}


@operation("scatter")
def scatter(
    data: Array, indices: Array, updates: Array, axis: Any = 0, mode: str = "add", validate_indices: Any = False
) -> Array:
    y = data.copy()
    _UPDATES[mode](y, (*[slice(None)] * (int(axis) % y.ndim), indices), updates)
    return y


@operation("scatter_along_axis")
def scatter_along_axis(
    data: Array, indices: Array, updates: Array, axis: Any = 0, mode: str = "add", validate_indices: Any = False
) -> Array:
    y = data.copy()
    places: list[Array] = list(np.indices(indices.shape, sparse=True))
    places[int(axis)] = indices
    _UPDATES[mode](y, tuple(places), updates)
    return y


@operation("scatter_nd")
def scatter_nd(data: Array, indices: Array, updates: Array, mode: str = "add", validate_indices: Any = False) -> Array:
    y = data.copy()
    _UPDATES[mode](y, tuple(np.moveaxis(indices, -1, 0)), updates)
    return y
