"""Weights as a Core ML package stores them: floats, or integers with a scale (and an offset) per block.

`constexpr_blockwise_shift_scale` decodes scale * (data - offset), and its offset may be a float. So a GGUF's Q4_1 grid,
d q + m, is stored with scale d and offset -m / d, and Q8_0 with scale d: nothing is requantized. All other schemes use
coremltools' own quantization.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from coremltools.converters.mil.mil import types
from coremltools.optimize import _utils as optimize
from torch import Tensor, nn

from ..config import ExportConfig
from ..integers import GridReport, Integers, to_integers
from ..schemes import Part, PartScheme

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Stored:
    """One weight [N, K]: floats, or integers in MIL's numpy types with scales (and offsets) [N, K / group].

    `part` is the part of the model that it belongs to.
    """

    part: Part
    data: Array
    scale: Array | None = None
    offset: Array | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes in weight.bin."""
        if self.scale is None:
            return self.data.nbytes
        bits: int = types.numpy_type_to_builtin_type(self.data.dtype).get_bitwidth()
        return self.data.size * bits // 8 + self.scale.nbytes + (0 if self.offset is None else self.offset.nbytes)

    def rows(self, start: int, end: int) -> Stored:
        """Some of the rows, sharing their memory."""
        scale, offset = (None if array is None else array[start:end] for array in (self.scale, self.offset))
        return Stored(self.part, self.data[start:end], scale, offset)

    def columns(self, start: int, end: int) -> Stored:
        """Columns `start` to `end`, which must not split a quantization group."""
        size = self.data.shape[1]
        scale, offset = (
            array if array is None or array.shape[1] == 1
            else array[:, start * array.shape[1] // size : end * array.shape[1] // size]
            for array in (self.scale, self.offset)
        )  # fmt: skip
        return Stored(self.part, self.data[:, start:end], scale, offset)

    def dense(self) -> Tensor:
        """float32 [N, K], decoded as Core ML defines it and rounded to the package's float type."""
        if self.scale is None:
            return torch.from_numpy(self.data.astype(np.float32))
        blocks = self.data.astype(np.float32).reshape(*self.scale.shape, -1)
        if self.offset is not None:
            blocks -= self.offset.astype(np.float32)[..., None]
        blocks *= self.scale.astype(np.float32)[..., None]
        values = blocks.reshape(self.data.shape)
        return torch.from_numpy(values.astype(self.scale.dtype).astype(np.float32))


@dataclass
class Store:
    """Creates each weight's stored form once, for all modules that use it.

    Attributes:
        grid: per part, groups that are bit-identical to the checkpoint's own grid.
    """

    config: ExportConfig
    grid: dict[str, GridReport] = field(default_factory=dict)
    _made: dict[Any, tuple[Stored, tuple[Tensor, ...]]] = field(default_factory=dict)
    _pieces: dict[tuple[int, int, int], list[Stored]] = field(default_factory=dict)  # by id of the whole, axis, most

    def of(self, part: Part, *weights: Tensor) -> Stored:
        """The stored form of weights [N_i, K], concatenated.

        Raises:
            ValueError: the group size does not divide K.
        """
        scheme = self.config.part_scheme(part)
        key = scheme, *((weight.data_ptr(), weight.shape) for weight in weights)
        if key not in self._made:  # the weights are kept alive, so that ids are unique
            whole = weights[0] if len(weights) == 1 else torch.cat(weights)
            self._made[key] = self._make(part, whole.detach().float(), scheme), weights
        return self._made[key][0]

    def pieces(self, part: Part, most_rows: int, *weights: Tensor) -> list[Stored]:
        """The stored form of weights, as `of` returns it, each in pieces of at most `most_rows` rows; cached."""
        whole, end = self.of(part, *weights), 0
        key = id(whole), 0, most_rows
        if key not in self._pieces:
            self._pieces[key] = []
            for weight in weights:
                begin, end = end, end + len(weight)
                starts = range(begin, end, most_rows)
                self._pieces[key] += [whole.rows(start, min(start + most_rows, end)) for start in starts]
        return self._pieces[key]

    def columns(self, part: Part, most: int, weight: Tensor) -> list[Stored]:
        """The stored form of a weight in pieces of at most `most` columns, a multiple of the group size; cached."""
        whole = self.of(part, weight)
        key = id(whole), 1, most
        if key not in self._pieces:
            starts = range(0, whole.data.shape[1], most)
            self._pieces[key] = [whole.columns(start, start + most) for start in starts]
        return self._pieces[key]

    def _make(self, part: Part, weight: Tensor, scheme: PartScheme) -> Stored:
        dtype = np.dtype(self.config.dtype)
        if scheme.bits >= 16:
            return Stored(part, weight.numpy().astype(dtype))
        found = to_integers(weight, scheme, _rounded)
        if found.exact is not None:
            self.grid.setdefault(part, GridReport()).add(found.exact)
        found, integers = found.with_zeros(), types.get_nbits_int_builtin_type(scheme.bits, scheme.symmetric)
        kind, offset = types.nptype_from_builtin(integers), None
        if found.z is not None:
            offset = found.z.numpy().astype(dtype if found.z.is_floating_point() else kind)
        return Stored(part, found.q.numpy().astype(kind), found.d.numpy().astype(dtype), offset)


def _rounded(weight: Tensor, scheme: PartScheme) -> Integers:
    """Quantized by coremltools: symmetric with signed integers, affine with unsigned ones and an integer offset."""
    kind = types.get_nbits_int_builtin_type(scheme.bits, scheme.symmetric)
    mode = "LINEAR_SYMMETRIC" if scheme.symmetric else "LINEAR"
    with np.errstate(divide="ignore", invalid="ignore"):  # a group of zeros has the scale 0
        data, scale, zeros = optimize.compute_qparams_by_dtype(weight.numpy(), kind, mode, [1, scheme.group_size or 0])
    data[np.repeat(scale == 0, weight.shape[1] // scale.shape[1], axis=1)] = 0
    byte = np.int8 if scheme.symmetric else np.uint8
    q, z = (None if array is None else torch.from_numpy(array.astype(byte)) for array in (data, zeros))
    return Integers(cast("Tensor", q), torch.from_numpy(scale), z=z)


class Product(nn.Module):
    """x [R, K] -> [R, N] with a stored weight, in PyTorch: with its values, or if `traced` with a placeholder."""

    def __init__(self, stored: Stored, bias: Tensor | None = None, traced: torch.dtype | None = None) -> None:
        super().__init__()
        self.stored = stored
        self.weight = placeholder(stored, traced) if traced else nn.Parameter(stored.dense(), False)
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone(), False)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight, self.bias)


def placeholder(stored: Stored, dtype: torch.dtype, *trailing: int) -> nn.Parameter:
    """A weight of the right shape that takes no memory; `convert.py` replaces it by the stored one."""
    return nn.Parameter(torch.zeros((), dtype=dtype).expand(*stored.data.shape, *trailing), False)
