"""text/streamfuse_bundle.h by ctypes, for its tests: handles, and errors as exceptions."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_void_p
from functools import lru_cache
from pathlib import Path
from typing import Any

from streamfuse.native.library import find_text, load_typed
from streamfuse.runtime import text_library
from streamfuse.runtime.structures import BundleOptions, Options, Spec, Tensor
from streamfuse.runtime.text_library import BAD_ARGUMENT, BAD_FILE, BAD_TABLES, BROKEN, END, OK, TextPart

__all__ = [
    "BAD_ARGUMENT",
    "BAD_FILE",
    "BAD_TABLES",
    "BROKEN",
    "END",
    "OK",
    "LibraryBundle",
    "LibraryFailure",
    "LibraryText",
]

LIBRARY = find_text()
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {  # and those that Python does not call
    **text_library.SIGNATURES,
    "sf_bundle_defaults": (c_int, [c_void_p, POINTER(Options)]),
    "sf_bundle_adapter_name": (c_char_p, [c_void_p, c_int32]),
    "sf_bundle_graph": (c_char_p, [c_void_p]),
    "sf_bundle_can_chat": (c_int32, [c_void_p]),
}


class LibraryFailure(Exception):
    """A code and its sentence."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    return load_typed(LIBRARY, SIGNATURES)


class LibraryBundle:
    """sf_bundle; LibraryFailure where it does not open."""

    def __init__(self, folder: Path, check_hashes: bool = True, public_key: str | None = None) -> None:
        self.handle = c_void_p()
        options = BundleOptions(skip_hashes=not check_hashes)
        if public_key is not None:
            options.public_key = public_key.encode()
        code = library().sf_bundle_open(bytes(folder), byref(options), byref(self.handle))
        if code != OK:
            sentence = library().sf_bundle_error(self.handle).decode()
            self.close()
            raise LibraryFailure(code, sentence)

    def close(self) -> None:
        library().sf_bundle_close(self.handle)
        self.handle = c_void_p()

    def __enter__(self) -> LibraryBundle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def text(self) -> LibraryText:
        return LibraryText(self)

    def spec(self) -> Spec:
        found = Spec()
        assert library().sf_bundle_spec(self.handle, byref(found)) == OK
        return found

    def defaults(self) -> Options:
        found = Options()
        assert library().sf_bundle_defaults(self.handle, byref(found)) == OK
        return found

    def tensors(self) -> list[Tensor]:
        found, count = POINTER(Tensor)(), c_int32()
        assert library().sf_bundle_tensors(self.handle, byref(found), byref(count)) == OK
        return [found[i] for i in range(count.value)]

    def manifest(self) -> str:
        return str(library().sf_bundle_manifest(self.handle).decode())

    def graph(self) -> Path:
        return Path(library().sf_bundle_graph(self.handle).decode())


class LibraryText:
    """sf_text; each method is the function of its name."""

    def __init__(self, bundle: LibraryBundle) -> None:
        self.handle = c_void_p()
        self._check(library().sf_new_text(bundle.handle, byref(self.handle)))

    def close(self) -> None:
        library().sf_free_text(self.handle)
        self.handle = c_void_p()

    def encode(self, text: str | bytes, marks: bool = False) -> list[int]:
        data = text.encode() if isinstance(text, str) else text
        return self._ids("sf_text_encode", data, len(data), marks)

    def decode(self, ids: Sequence[int]) -> str:
        return self._text("sf_text_decode", (c_int64 * len(ids))(*ids), len(ids)).decode()

    def render(self, messages: Any) -> str:
        return self._text("sf_text_render", *_json(messages)).decode()

    def set_first(self, system: str | None = None, messages: Any = None) -> None:
        words = None if system is None else system.encode()
        self._check(library().sf_text_set_first(self.handle, words, len(words or b""), *_json(messages)))

    def ask(self, words: str) -> list[int]:
        return self._ids("sf_text_ask", words.encode(), len(words.encode()))

    def messages(self) -> Any:
        return json.loads(self._text("sf_text_messages"))

    def begin(self, stops: Any = None, before: Sequence[int] = ()) -> None:
        tokens = (c_int64 * len(before))(*before)
        self._check(library().sf_text_begin(self.handle, *_json(stops), tokens, len(before), None, 0))

    def push(self, token: int) -> tuple[str, bool]:
        place, count = c_void_p(), c_int32()
        code = library().sf_text_push(self.handle, token, byref(place), byref(count))
        if code != END:
            self._check(code)
        parts = ctypes.cast(place, POINTER(TextPart))[: count.value]
        return "".join(ctypes.string_at(part.text, part.bytes).decode() for part in parts), code == END

    def _ids(self, function: str, *arguments: Any) -> list[int]:
        place, count = c_void_p(), c_int64()
        self._check(getattr(library(), function)(self.handle, *arguments, byref(place), byref(count)))
        return list((c_int64 * count.value).from_address(place.value)) if count.value and place.value else []

    def _text(self, function: str, *arguments: Any) -> bytes:
        place, size = c_void_p(), c_size_t()
        self._check(getattr(library(), function)(self.handle, *arguments, byref(place), byref(size)))
        return ctypes.string_at(place, size.value)

    def _check(self, code: int) -> None:
        if code != OK:
            sentence = library().sf_text_error(self.handle).decode()
            raise LibraryFailure(code, sentence)

    def __del__(self) -> None:
        self.close()


def _json(value: Any) -> tuple[bytes | None, int]:
    """JSON text and its size; None is a null pointer, bytes go as they are."""
    if value is None:
        return None, 0
    data = value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False).encode()
    return data, len(data)
