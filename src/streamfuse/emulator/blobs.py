"""Weight files (weight.bin): Apple's MIL blob storage format, version 2.

A header of 64 bytes, then blobs: metadata of 64 bytes and the data it points to, each at a multiple of 64 bytes
(coremltools, mlmodel/src/MILBlob/Blob/StorageFormat.hpp).
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from streamfuse.emulator.errors import EmulatorError
from streamfuse.emulator.values import BITS, Array, TensorType, unpack_bits

_SENTINEL = 0xDEADBEEF
_VERSION = 2
_DTYPES = {
    **{1: "fp16", 2: "fp32", 3: "uint8", 4: "int8", 6: "int16", 7: "uint16", 8: "int4", 9: "uint1", 10: "uint2"},
    **{11: "uint4", 12: "uint3", 13: "uint6", 14: "int32", 15: "uint32"},
}


class BlobFile:
    """One weights file, memory-mapped. Raises EmulatorError if it is missing or damaged."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._data: Array = np.memmap(path, np.uint8, mode="r")
        except (OSError, ValueError) as error:
            raise EmulatorError(f"the weights {path} cannot be read: {error}") from error
        version = struct.unpack("<I", self._data[4:8].tobytes())[0] if len(self._data) >= 64 else None
        if version != _VERSION:
            raise EmulatorError(f"the weights {path} are not blob storage of version {_VERSION}")

    def read(self, offset: int, kind: TensorType) -> Array:
        """The blob whose metadata is at `offset`, in its carrier type (values.py) and the declared shape."""
        if offset + 64 > len(self._data):
            raise EmulatorError(f"the weights {self._path} end before offset {offset}")
        sentinel, code, size, start = struct.unpack("<IIQQ", self._data[offset : offset + 24].tobytes())
        if sentinel != _SENTINEL or start + size > len(self._data):
            raise EmulatorError(f"the weights {self._path} have no blob at offset {offset}")
        stored = "uint8" if kind.dtype == "bool" else kind.dtype
        if _DTYPES.get(code) != stored:
            raise EmulatorError(
                f"the blob at {offset} of {self._path} holds {_DTYPES.get(code, code)}, not {kind.dtype}"
            )
        count = int(np.prod(kind.shape))
        raw = self._data[start : start + size]
        bits = BITS.get(kind.dtype)
        if size != (count * (bits or 8 * np.dtype(kind.numpy).itemsize) + 7) // 8:
            raise EmulatorError(f"the blob at {offset} of {self._path} has {size} bytes, too few or many for {kind}")
        flat = unpack_bits(raw, bits, count, kind.dtype == "int4") if bits else raw.view(kind.numpy)
        return np.asarray(flat.astype(kind.carrier, copy=False)).reshape(kind.shape)
