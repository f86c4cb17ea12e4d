"""text/streamfuse_bundle.h by ctypes: functions, handles, failures as exceptions."""

from __future__ import annotations

import ctypes
import json
import os
import threading
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from functools import lru_cache
from pathlib import Path
from typing import Any

from streamfuse.native.library import find_text, load_typed
from streamfuse.runtime.structures import Spec, Tensor

OK, BAD_ARGUMENT, CONTEXT_FULL, EXECUTION, BROKEN, BAD_TABLES, BAD_FILE = 0, 1, 4, 6, 8, 9, 10  # core/streamfuse_core.h
BAD_GRAMMAR, CANCELLED, END = 11, 12, 100
CHANNELS = ("answer", "thinking", "tool_call")  # of a part of an answer

_place, _size, _count = POINTER(c_void_p), POINTER(c_size_t), POINTER(c_int64)
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {  # a test compares them with the header
    "sf_bundle_open": (c_int, [c_char_p, c_void_p, _place]),
    "sf_bundle_estimate": (c_int, [c_char_p, c_void_p, c_char_p, c_size_t]),
    "sf_bundle_verify_manifest": (c_int, [c_char_p, c_char_p, c_char_p, c_size_t]),
    "sf_bundle_adapter": (c_int, [c_void_p, c_char_p, _place]),
    "sf_bundle_prefix": (c_char_p, [c_void_p, c_int32]),
    "sf_bundle_check_key": (c_char_p, [c_char_p]),
    "sf_bundle_check_manifest": (c_int, [c_char_p, c_size_t, c_char_p, c_size_t]),
    "sf_bundle_close": (None, [c_void_p]),
    "sf_bundle_error": (c_char_p, [c_void_p]),
    "sf_bundle_spec": (c_int, [c_void_p, c_void_p]),
    "sf_bundle_tensors": (c_int, [c_void_p, c_void_p, POINTER(c_int32)]),
    "sf_bundle_manifest": (c_char_p, [c_void_p]),
    "sf_bundle_folder": (c_char_p, [c_void_p]),
    "sf_bundle_selftest_open": (c_int, [c_void_p, _place]),
    "sf_bundle_selftest_close": (None, [c_void_p]),
    "sf_bundle_selftest_error": (c_char_p, [c_void_p]),
    "sf_bundle_selftest_tensors": (c_int, [c_void_p, c_void_p, POINTER(c_int32)]),
    "sf_new_text": (c_int, [c_void_p, _place]),
    "sf_text_open": (c_int, [c_char_p, c_char_p, c_size_t, _place]),
    "sf_text_clone": (c_int, [c_void_p, _place]),
    "sf_free_text": (None, [c_void_p]),
    "sf_text_error": (c_char_p, [c_void_p]),
    "sf_text_can_chat": (c_int32, [c_void_p]),
    "sf_text_encode": (c_int, [c_void_p, c_char_p, c_size_t, c_int32, _place, _count]),
    "sf_text_decode": (c_int, [c_void_p, c_void_p, c_int64, _place, _size]),
    "sf_text_token": (c_int, [c_void_p, c_int64, _place, _size]),
    "sf_text_render": (c_int, [c_void_p, c_char_p, c_size_t, _place, _size]),
    "sf_text_render_cut": (c_int, [c_void_p, c_char_p, c_size_t, _place, _size]),
    "sf_text_encode_chat": (c_int, [c_void_p, c_char_p, c_size_t, _place, _count]),
    "sf_text_set_first": (c_int, [c_void_p, c_char_p, c_size_t, c_char_p, c_size_t]),
    "sf_text_reset": (c_int, [c_void_p]),
    "sf_text_set_tools": (c_int, [c_void_p, c_char_p, c_size_t]),
    "sf_text_set_variables": (c_int, [c_void_p, c_char_p, c_size_t]),
    "sf_text_ask": (c_int, [c_void_p, c_char_p, c_size_t, _place, _count]),
    "sf_text_ask_messages": (c_int, [c_void_p, c_char_p, c_size_t, _place, _count]),
    "sf_text_ask_results": (c_int, [c_void_p, c_char_p, c_size_t, _place, _count]),
    "sf_text_set_limit": (c_int, [c_void_p, c_int64, c_int64, c_int32]),
    "sf_text_dropped": (c_int, [c_void_p, _count, _count]),
    "sf_text_count": (c_int, [c_void_p, c_char_p, c_size_t, _count]),
    "sf_text_tool_calls": (c_int, [c_void_p, _place, _size]),
    "sf_text_take_back": (c_int, [c_void_p]),
    "sf_text_messages": (c_int, [c_void_p, _place, _size]),
    "sf_text_save": (c_int, [c_void_p, _place, _size]),
    "sf_text_restore": (c_int, [c_void_p, c_char_p, c_size_t]),
    "sf_text_begin": (c_int, [c_void_p, c_char_p, c_size_t, c_void_p, c_int64, c_char_p, c_size_t]),
    "sf_text_push": (c_int, [c_void_p, c_int64, _place, POINTER(c_int32)]),
    "sf_text_end": (c_int, [c_void_p, c_int32, _place, POINTER(c_int32)]),
    "sf_text_constrain_calls": (c_int, [c_void_p, c_char_p, c_size_t, c_void_p]),
    "sf_text_constrain": (c_int, [c_void_p, c_int32, c_char_p, c_size_t, c_void_p]),
    "sf_text_constrain_answer_or_call": (c_int, [c_void_p, c_int32, c_char_p, c_size_t, c_void_p]),
    "sf_text_vocab_size": (c_int64, [c_void_p]),
}


@lru_cache(maxsize=1)
def text_library() -> ctypes.CDLL:
    """The library with the types of its header. LibraryError where it is not built."""
    return load_typed(find_text(), SIGNATURES)


def manifest_problem(text: str) -> str | None:
    """What is wrong with the text of a manifest, as "field: reason"; None where nothing is."""
    data, sentence = text.encode(), ctypes.create_string_buffer(4096)
    code = text_library().sf_bundle_check_manifest(data, len(data), sentence, len(sentence))
    return None if code == OK else sentence.value.decode(errors="replace")


class BundleHandle:
    """sf_bundle. `make` is the function that fills in the pointer; `refusal` gives the exception for a code and its
    sentence."""

    def __init__(self, make: Callable[[Any], int], refusal: Callable[[int, str], Exception]) -> None:
        self._library = text_library()
        self.pointer = c_void_p()
        code = make(byref(self.pointer))
        if code != OK:
            raise refusal(code, self._library.sf_bundle_error(self.pointer).decode(errors="surrogateescape"))

    @property
    def folder(self) -> Path:
        return Path(os.fsdecode(self._library.sf_bundle_folder(self.pointer)))

    @property
    def identity(self) -> str:
        """What tells the bundle from others: a hash over the hashes of its files, without stored prefixes."""
        spec = Spec()
        self._library.sf_bundle_spec(self.pointer, byref(spec))
        return str(spec.identity.decode())

    @property
    def prefixes(self) -> list[Path]:
        """The files of the stored prefixes."""
        found: list[Path] = []
        while (path := self._library.sf_bundle_prefix(self.pointer, len(found))) is not None:
            found.append(Path(os.fsdecode(path)))
        return found

    def adapter(self, name: str, refusal: Callable[[int, str], Exception]) -> BundleHandle:
        """The bundle with one of its adapters."""
        return BundleHandle(
            lambda place: self._library.sf_bundle_adapter(self.pointer, name.encode(errors="replace"), place), refusal
        )

    @property
    def manifest(self) -> str:
        """The text of manifest.json; of an adapter, with its fields in place of the bundle's."""
        return str(self._library.sf_bundle_manifest(self.pointer).decode())

    def tensors(self) -> list[Tensor]:
        """Views of the mapped file, for as long as this handle lives."""
        found, count = POINTER(Tensor)(), c_int32()
        self._library.sf_bundle_tensors(self.pointer, byref(found), byref(count))
        return [found[i] for i in range(count.value)]

    @contextmanager
    def selftest(self, refusal: Callable[[str], Exception]) -> Iterator[tuple[Any, int]]:
        """The arrays of selftest.npz, as sf_core_model_self_test takes them; valid inside the block."""
        pointer, found, count = c_void_p(), POINTER(Tensor)(), c_int32()
        code = self._library.sf_bundle_selftest_open(self.pointer, byref(pointer))
        try:
            if code != OK:
                raise refusal(self._library.sf_bundle_selftest_error(pointer).decode(errors="surrogateescape"))
            self._library.sf_bundle_selftest_tensors(pointer, byref(found), byref(count))
            yield found, count.value
        finally:
            self._library.sf_bundle_selftest_close(pointer)

    def __del__(self) -> None:
        if hasattr(self, "pointer"):
            self._library.sf_bundle_close(self.pointer)


class TextPart(ctypes.Structure):
    """sf_text_part."""

    _fields_ = [("text", c_void_p), ("bytes", c_size_t), ("channel", c_int32), ("reserved", c_int32)]


STRUCTURES = {"sf_text_part": TextPart}


class TextError(ValueError):
    """A tokenizer or template that cannot be used, or a request that it cannot serve; one line."""


class GrammarError(TextError):
    """A schema or grammar that is invalid, not supported or too large; one line, with the keyword and its path."""


def text_error(code: int, message: str) -> ValueError:
    """What a function of the library failed with."""
    if code == CONTEXT_FULL:
        from streamfuse.runtime.config import PromptError  # needs numpy, which text alone does not

        return PromptError(message)
    return (GrammarError if code == BAD_GRAMMAR else TextError)(message)


class TextHandle:
    """sf_text. Threads take turns: what a function hands out is copied before the next call.

    `make` is the function that fills in the pointer. A failure is a TextError with the library's sentence, or a
    PromptError for a question that does not fit into the context.
    """

    def __init__(self, make: Callable[[Any], int]) -> None:
        self._library, self._lock = text_library(), threading.Lock()
        self.pointer = c_void_p()
        self._check(make(byref(self.pointer)))

    @property
    def can_chat(self) -> bool:
        with self._lock:
            return bool(self._library.sf_text_can_chat(self.pointer))

    @property
    def vocab_size(self) -> int:
        with self._lock:
            return int(self._library.sf_text_vocab_size(self.pointer))

    def clone(self) -> TextHandle:
        with self._lock:
            return TextHandle(lambda place: self._library.sf_text_clone(self.pointer, place))

    def call(self, function: str, *arguments: Any) -> int:
        """A code: OK or END."""
        with self._lock:
            return self._check(getattr(self._library, function)(self.pointer, *arguments))

    def ids(self, function: str, *arguments: Any) -> list[int]:
        """The token ids that the function hands out."""
        place, count = c_void_p(), c_int64()
        with self._lock:
            self._check(getattr(self._library, function)(self.pointer, *arguments, byref(place), byref(count)))
            return array("q", ctypes.string_at(place, 8 * count.value)).tolist() if count.value else []

    def numbers(self, count: int, function: str, *arguments: Any) -> list[int]:
        """The `count` numbers that the function hands out."""
        places = [c_int64() for _ in range(count)]
        self.call(function, *arguments, *map(byref, places))
        return [place.value for place in places]

    def data(self, function: str, *arguments: Any) -> tuple[bytes, int]:
        """The bytes that the function hands out, and its code."""
        place, size = c_void_p(), c_size_t()
        with self._lock:
            code = self._check(getattr(self._library, function)(self.pointer, *arguments, byref(place), byref(size)))
            return ctypes.string_at(place, size.value), code

    def text(self, function: str, *arguments: Any) -> str:
        return self.data(function, *arguments)[0].decode()

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token."""
        ids_argument([token])  # TextError for one of more than 64 bits
        return self.data("sf_text_token", token)[0]

    def items(self, function: str) -> list[dict[str, Any]]:
        """The JSON list that the function hands out."""
        found: list[dict[str, Any]] = json.loads(self.text(function))
        return found

    def parts(self, function: str, *arguments: Any) -> tuple[list[tuple[str, str]], int]:
        """The parts of text that the function hands out, the channel of each and the text, and its code."""
        place, count = c_void_p(), c_int32()
        with self._lock:
            code = self._check(getattr(self._library, function)(self.pointer, *arguments, byref(place), byref(count)))
            found = (TextPart * count.value).from_address(place.value) if count.value and place.value else ()
            return [(CHANNELS[part.channel], ctypes.string_at(part.text, part.bytes).decode()) for part in found], code

    def _check(self, code: int) -> int:
        if code not in (OK, END):
            raise text_error(code, self._library.sf_text_error(self.pointer).decode())
        return code

    def __del__(self) -> None:
        if hasattr(self, "pointer"):
            self._library.sf_free_text(self.pointer)


def ids_argument(ids: Sequence[int]) -> tuple[Any, int]:
    """Token ids as two arguments: the numbers and their count. TextError for one of more than 64 bits."""
    for one in ids:
        if not -(1 << 63) <= one < 1 << 63:
            raise TextError(f"{one} is not a token id")
    return (c_int64 * len(ids))(*ids), len(ids)
