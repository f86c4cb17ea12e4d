"""The drafting tables of a bundle as arrays, without a copy."""

from __future__ import annotations

import math
from ctypes import c_uint8
from typing import Any

import numpy as np
import numpy.typing as npt

from streamfuse.runtime.text_library import BundleHandle

AnyArray = npt.NDArray[Any]

DTYPES: dict[int, np.dtype[Any]] = {  # by sf_tensor's number
    number: np.dtype(name) for number, name in enumerate(("<f2", "<f4", "<i4", "<i8"), 1)
}


def tables_of(bundle: BundleHandle) -> dict[str, AnyArray]:
    """By name, in the order of the file: read-only views of the mapped file, each of which keeps it open.

    Raises:
        ValueError: an array has more than two dimensions.
    """
    found: dict[str, AnyArray] = {}
    for tensor in bundle.tensors():
        name = tensor.name.decode()
        if tensor.rank > len(tensor.shape):
            raise ValueError(f"tensor {name!r:.80} has {tensor.rank} dimensions, not one or two")
        dtype, shape = DTYPES[tensor.dtype], tuple(tensor.shape[: tensor.rank])
        buffer = (c_uint8 * (math.prod(shape) * dtype.itemsize)).from_address(tensor.data)
        buffer.bundle = bundle  # which owns the memory
        array = np.frombuffer(buffer, dtype).reshape(shape)
        array.flags.writeable = False
        found[name] = array
    return found
