"""Reading safetensors files with numpy alone: the tables that a bundle carries for the host.

A file is the header's length (8 bytes, little-endian), the header (JSON: per tensor dtype, shape, and where its data
begin and end), and the data without gaps. A bundle is untrusted, so nothing that a header says is used unchecked.
"""

from __future__ import annotations

import math
from os import PathLike, path
from typing import Any

import numpy as np
import numpy.typing as npt

from streamfuse.runtime.strict_json import load_strict

_DTYPES: dict[str, np.dtype[Any]] = {
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
}
_MOST_HEADER_BYTES = 1_000_000
_MOST_DIMENSIONS, _MOST_ELEMENTS = 8, 2**48  # an empty tensor's other dimensions count too, as numpy counts them

AnyArray = npt.NDArray[Any]


def map_tensors(file: str | PathLike[str]) -> dict[str, AnyArray]:
    """The file's tensors by name, in the order of their data: read-only views of the mapped file, which stays open.

    Raises:
        OSError: the file cannot be opened.
        ValueError: it is no safetensors file, is damaged, or holds another dtype than F16, F32, I32, I64; one sentence
            that names the file and, where there is one, the tensor.
    """
    size = path.getsize(file)
    data: AnyArray = np.asarray(np.memmap(file, np.uint8, "r")) if size else np.empty(0, np.uint8)
    length = int.from_bytes(data[:8].tobytes(), "little")
    if size < 8 or not 2 <= length <= min(_MOST_HEADER_BYTES, size - 8):
        raise ValueError(f"{file}: not a whole safetensors file ({size} bytes, of which {length} should be its header)")
    try:
        header = load_strict(data[8 : 8 + length].tobytes().decode("utf-8"))
    except ValueError as error:
        raise ValueError(f"{file}: the header is damaged ({' '.join(str(error).split())})") from None
    if not isinstance(header, dict):
        raise ValueError(f"{file}: the header is not a JSON object")
    header.pop("__metadata__", None)
    tensors: dict[str, AnyArray] = {}
    start, reached = 8 + length, 0
    try:
        places = sorted((*_place(name, entry, size - start), name) for name, entry in header.items())
        for begin, end, name in places:
            dtype = _DTYPES[header[name]["dtype"]]
            if begin != reached:
                raise ValueError(f"tensor {name!r:.80} begins at {begin}, over another one or behind a gap")
            if (start + begin) % dtype.itemsize:
                raise ValueError(f"tensor {name!r:.80} is not aligned to its {dtype.itemsize} bytes per number")
            tensors[name] = data[start + begin : start + end].view(dtype).reshape(header[name]["shape"])
            reached = end
        if start + reached != size:
            raise ValueError(f"{size - start - reached} bytes at the end belong to no tensor")
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    return tensors


def _place(name: str, entry: Any, room: int) -> tuple[int, int]:
    """Where a tensor's data begin and end. ValueError where its entry is not sound, or leaves the `room` bytes."""
    what = f"tensor {name!r:.80}"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{what} is not described by dtype, shape and data_offsets")
    if "\0" in name:
        raise ValueError(f"{what} has a zero byte in its name")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise ValueError(f"{what} has dtype {dtype!r:.40}, not one of {', '.join(_DTYPES)}")
    if not _are_counts(shape) or len(shape) > _MOST_DIMENSIONS or math.prod(n or 1 for n in shape) > _MOST_ELEMENTS:
        raise ValueError(f"{what} has shape {shape!r:.80}")
    if not _are_counts(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= room:
        raise ValueError(f"{what} has data_offsets {offsets!r:.80}, which are not places in {room} bytes")
    if offsets[1] - offsets[0] != math.prod(shape) * _DTYPES[dtype].itemsize:
        raise ValueError(f"{what} is {dtype} {shape}, which are not the {offsets[1] - offsets[0]} bytes of its data")
    return offsets[0], offsets[1]


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in value)  # True is no count
