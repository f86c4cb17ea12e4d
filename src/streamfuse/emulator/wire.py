"""Reads protobuf messages by field number, without a schema and without the protobuf package.

`import coremltools` takes seconds and imports PyTorch; a model file needs only this part of the format
(https://protobuf.dev/programming-guides/encoding/). Messages are decoded lazily, so a package with many functions only
costs what the functions that run need.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from streamfuse.emulator.errors import EmulatorError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LARGEST = (1 << 64) - 1


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """The number that starts at `at`, and the position after it."""
    value = shift = 0
    while True:
        if at == len(data):
            raise EmulatorError("the model file is damaged: it ends inside a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _LARGEST, at
        shift += 7


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """(field number, varint or raw bytes) in the order of the message."""
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise EmulatorError(f"the model file is damaged: no protobuf field is of wire type {kind}")
        if at + size > end:
            raise EmulatorError("the model file is damaged: a field is longer than its message")
        yield tag >> 3, data[at : at + size]
        at += size


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise EmulatorError("the model file is damaged: a name is not text") from None


class Message:
    """One message. Fields are read by number; absent ones have the default of proto3: 0, '' or nothing."""

    __slots__ = ("_fields",)

    def __init__(self, data: bytes | memoryview) -> None:
        self._fields: dict[int, list[int | memoryview]] = {}
        for number, value in _fields(memoryview(data)):
            self._fields.setdefault(number, []).append(value)

    def __contains__(self, number: int) -> bool:
        return number in self._fields

    def integer(self, number: int) -> int:
        """A varint field, as a signed 64-bit number."""
        value = self._fields.get(number, [0])[-1]
        if not isinstance(value, int):
            raise EmulatorError(f"the model file is damaged: field {number} is not a number")
        return value - (1 << 64) if value >> 63 else value

    def raw(self, number: int) -> bytes:
        return bytes(self._views(number)[-1]) if number in self._fields else b""

    def text(self, number: int) -> str:
        return _text(self.raw(number))

    def texts(self, number: int) -> list[str]:
        return [_text(bytes(view)) for view in self._views(number)]

    def message(self, number: int) -> Message:
        """A nested message; an empty one if it is absent."""
        return Message(self._views(number)[-1]) if number in self._fields else Message(b"")

    def messages(self, number: int) -> list[Message]:
        return [Message(view) for view in self._views(number)]

    def entries(self, number: int) -> Iterator[tuple[str, Message]]:
        """A map from text to messages."""
        for entry in self.messages(number):
            yield entry.text(1), entry.message(2)

    def integers(self, number: int) -> list[int]:
        """A repeated varint field, packed or not."""
        found: list[int] = []
        for value in self._fields.get(number, []):
            if isinstance(value, int):
                found.append(value)
                continue
            at = 0
            while at < len(value):
                number_read, at = _varint(value, at)
                found.append(number_read)
        return [value - (1 << 64) if value >> 63 else value for value in found]

    def numbers(self, number: int, dtype: str) -> npt.NDArray[Any]:
        """A repeated fixed-width field, packed or not; `dtype` is numpy's: "<f4" or "<f8"."""
        return np.frombuffer(b"".join(self._views(number)), dtype)

    def _views(self, number: int) -> list[memoryview]:
        views = self._fields.get(number, [])
        if not all(isinstance(view, memoryview) for view in views):
            raise EmulatorError(f"the model file is damaged: field {number} is not a message")
        return views  # type: ignore[return-value]
