"""native/streamfuse.h by ctypes, for its tests: handles, and errors as exceptions."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Iterator
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_void_p
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import bundle_library
import numpy as np
import pytest
from bundle_library import BAD_ARGUMENT, BAD_FILE, END, OK, LibraryFailure

from streamfuse.native.library import file_name, load_executorch, load_typed
from streamfuse.runtime.core import SOURCES, view
from streamfuse.runtime.structures import EngineTable, Estimate, Options, Spec
from streamfuse.runtime.text_library import CHANNELS

__all__ = [
    "BAD_ARGUMENT",
    "BAD_FILE",
    "BUILT",
    "CANCELLED",
    "CONTEXT_FULL",
    "DROP_OLDEST",
    "LIBRARY",
    "AppModel",
    "AppSession",
    "LibraryFailure",
    "SessionOptions",
    "estimate",
    "needs_library",
    "verify_manifest",
]


CONTEXT_FULL, CANCELLED, DROP_OLDEST = 4, 12, 1  # of core/streamfuse_core.h
BUILT = Path(__file__).parents[2] / "build" / "mobile" / file_name("streamfuse")
LIBRARY = Path(os.environ.get("STREAMFUSE_TESTED_LIBRARY", BUILT))  # another one: with checks, by a test of them
needs_library = pytest.mark.skipif(not LIBRARY.is_file(), reason=f"{LIBRARY.name} is missing; run: make native-mobile")


class _Sized(ctypes.Structure):
    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.size = ctypes.sizeof(self)


class ModelOptions(_Sized):
    _fields_ = [
        ("size", c_size_t),
        *((name, c_int32) for name in ("threads", "skip_hashes", "own_engine")),
        *((name, c_char_p) for name in ("public_key", "cost_folder", "memory_file")),
        ("memory_tokens", c_int64),
        ("progress", c_void_p),
    ]


class SessionOptions(_Sized):
    _fields_ = [
        ("size", c_size_t),
        ("system", c_char_p),
        ("system_bytes", c_size_t),
        ("history", c_char_p),
        ("history_bytes", c_size_t),
        ("backend", POINTER(EngineTable)),
        ("device", c_char_p),
        ("engine_load_ms", c_double),
        ("tools", c_char_p),
        ("tools_bytes", c_size_t),
        ("template_variables", c_char_p),
        ("template_variables_bytes", c_size_t),
        ("context_policy", c_int32),
        ("adapter", c_char_p),
    ]


class AnswerOptions(_Sized):
    _fields_ = [
        ("size", c_size_t),
        ("sampling", POINTER(Options)),
        *((name + end, kind) for name in ("stops", "schema", "regex", "grammar")
          for end, kind in (("", c_char_p), ("_bytes", c_size_t))),
        ("tool_choice", c_char_p),
    ]  # fmt: skip


class CPiece(ctypes.Structure):
    _fields_ = [
        ("text", c_void_p),
        ("bytes", c_size_t),
        ("token", c_int64),
        ("source", c_int32),
        ("channel", c_int32),
        ("log_prob", c_float),
    ]


class TopPiece(ctypes.Structure):
    _fields_ = [
        ("text", c_void_p),
        ("bytes", c_size_t),
        ("token", c_int64),
        ("log_prob", c_float),
        ("reserved", c_int32),
    ]


STRUCTURES: dict[str, type[ctypes.Structure]] = {
    "sf_model_options": ModelOptions, "sf_session_options": SessionOptions,
    "sf_answer_options": AnswerOptions, "sf_piece": CPiece, "sf_top_piece": TopPiece,
}  # fmt: skip
_handle, _place, _int64 = c_void_p, POINTER(c_void_p), POINTER(c_int64)
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "sf_version": (c_char_p, []),
    "sf_abi_version": (c_int32, []),
    "sf_progress_new": (c_void_p, []),
    "sf_progress_free": (None, [c_void_p]),
    "sf_progress_fraction": (c_double, [c_void_p]),
    "sf_progress_cancel": (None, [c_void_p]),
    "sf_model_load": (c_int, [c_char_p, POINTER(ModelOptions), _place]),
    "sf_model_estimate": (c_int, [c_char_p, POINTER(Estimate), c_char_p, c_size_t]),
    "sf_model_verify_manifest": (c_int, [c_char_p, c_char_p, c_char_p, c_size_t]),
    "sf_model_self_test": (c_int, [_handle, POINTER(EngineTable), POINTER(c_char_p)]),
    "sf_model_free": (None, [_handle]),
    **dict.fromkeys(
        ("sf_model_error", "sf_model_manifest", "sf_model_graph", "sf_model_engine"), (c_char_p, [_handle])
    ),
    "sf_model_adapter_name": (c_char_p, [_handle, c_int32]),
    "sf_model_can_chat": (c_int32, [_handle]),
    "sf_model_load_ms": (c_double, [_handle]),
    "sf_model_forget": (c_int, [_handle]),
    "sf_model_count_tokens": (c_int, [_handle, c_char_p, c_size_t, _int64]),
    "sf_model_spec": (c_int, [_handle, POINTER(Spec)]),
    "sf_model_default_options": (c_int, [_handle, POINTER(Options)]),
    "sf_backends": (c_char_p, []),
    "sf_chat_new": (c_int, [_handle, POINTER(SessionOptions), _place]),
    "sf_completion_new": (c_int, [_handle, POINTER(SessionOptions), _place]),
    "sf_session_free": (None, [_handle]),
    "sf_session_error": (c_char_p, [_handle]),
    "sf_session_prepare": (c_int, [_handle]),
    "sf_session_start": (c_int, [_handle, c_char_p, c_size_t, POINTER(AnswerOptions)]),
    "sf_session_start_tool_results": (c_int, [_handle, c_char_p, c_size_t, POINTER(AnswerOptions)]),
    "sf_session_tool_calls": (c_int, [_handle, _place, POINTER(c_size_t)]),
    "sf_session_start_tokens": (c_int, [_handle, c_void_p, c_int64, POINTER(AnswerOptions)]),
    "sf_session_score": (
        c_int,
        [_handle, c_char_p, c_size_t, c_char_p, c_size_t, POINTER(POINTER(c_float)), _int64],
    ),
    "sf_session_read": (c_int, [_handle, _int64, _int64]),
    "sf_session_next": (c_int, [_handle, POINTER(CPiece)]),
    "sf_session_top": (c_int, [_handle, POINTER(POINTER(TopPiece)), POINTER(c_int32)]),
    "sf_session_stop": (None, [_handle]),
    "sf_session_finish": (c_int, [_handle]),
    "sf_session_statistics": (c_char_p, [_handle]),
    "sf_session_messages": (c_int, [_handle, _place, POINTER(c_size_t)]),
    "sf_session_tokens": (c_int, [_handle, _place, _int64, _int64]),
    **dict.fromkeys(("sf_session_used_tokens", "sf_session_remaining_tokens"), (c_int64, [_handle])),
    "sf_session_reset": (c_int, [_handle]),
    "sf_session_trim": (c_int, [_handle]),
    "sf_session_save": (c_int, [_handle, c_char_p]),
    "sf_session_restore": (c_int, [_handle, c_char_p]),
}


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    load_executorch(LIBRARY)
    return load_typed(LIBRARY, {**bundle_library.SIGNATURES, **SIGNATURES})


def encoded(value: Any) -> bytes | None:
    """Its JSON text; bytes are JSON already."""
    return value if value is None or isinstance(value, bytes) else json.dumps(value, ensure_ascii=False).encode()


def sized(name: str, data: bytes | None) -> dict[str, Any]:
    """The two fields of an option of text."""
    return {name: data, f"{name}_bytes": len(data or b"")}


class Piece(NamedTuple):
    text: str
    token: int | None
    source: str
    channel: str


def estimate(folder: Path) -> Estimate:
    """sf_model_estimate."""
    found, sentence = Estimate(), ctypes.create_string_buffer(256)
    code = library().sf_model_estimate(bytes(folder), byref(found), sentence, len(sentence))
    if code != OK:
        raise LibraryFailure(code, sentence.value.decode())
    return found


def verify_manifest(folder: Path, public_key: str | None = None) -> None:
    """sf_model_verify_manifest."""
    sentence = ctypes.create_string_buffer(256)
    key = None if public_key is None else public_key.encode()
    code = library().sf_model_verify_manifest(bytes(folder), key, sentence, len(sentence))
    if code != OK:
        raise LibraryFailure(code, sentence.value.decode())


class AppModel:
    """sf_model; each method is the function of its name."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.handle = c_void_p()
        code = library().sf_model_load(bytes(folder), byref(ModelOptions(**options)), byref(self.handle))
        if code != OK:
            sentence = library().sf_model_error(self.handle).decode()
            self.free()
            raise LibraryFailure(code, sentence)

    def free(self) -> None:
        library().sf_model_free(self.handle)
        self.handle = c_void_p()

    def count_tokens(self, text: bytes) -> int:
        n = c_int64()
        code = library().sf_model_count_tokens(self.handle, text, len(text), byref(n))
        if code != OK:
            raise LibraryFailure(code, library().sf_model_error(self.handle).decode())
        return n.value

    def self_test(self, backend: EngineTable | None = None) -> dict[str, Any]:
        report = c_char_p()
        code = library().sf_model_self_test(self.handle, backend and byref(backend), byref(report))
        if code != OK:
            raise LibraryFailure(code, library().sf_model_error(self.handle).decode())
        found: dict[str, Any] = json.loads(report.value or b"")
        return found

    def options(self, **changes: Any) -> Options:
        """The bundle's defaults with changes."""
        found = Options()
        assert library().sf_model_default_options(self.handle, byref(found)) == OK
        for name, value in changes.items():
            setattr(found, name, value)
        return found

    def chat(
        self,
        system: str | None = None,
        history: bytes | None = None,
        tools: Any = None,
        variables: Any = None,
        **own: Any,
    ) -> AppSession:
        words = None if system is None else system.encode()
        options = SessionOptions(
            **sized("system", words), **sized("history", history), **sized("tools", encoded(tools)),
            **sized("template_variables", encoded(variables)), **own,
        )  # fmt: skip
        return AppSession(self, "sf_chat_new", options)

    def completion(self, **own: Any) -> AppSession:
        return AppSession(self, "sf_completion_new", SessionOptions(**own))

    def __enter__(self) -> AppModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.free()


class AppSession:
    """sf_session; each method is the function of its name."""

    def __init__(self, model: AppModel, maker: str, options: SessionOptions) -> None:
        self.model, self.handle = model, c_void_p()
        code = getattr(library(), maker)(model.handle, byref(options), byref(self.handle))
        try:
            self._check(code)
        except LibraryFailure:
            self.free()
            raise

    def free(self) -> None:
        library().sf_session_free(self.handle)
        self.handle = c_void_p()

    def start(
        self,
        prompt: str | list[int] | list[dict[str, Any]],
        stops: Any = None,
        schema: Any = None,
        regex: str | None = None,
        grammar: str | None = None,
        tool_choice: str | None = None,
        **options: Any,
    ) -> None:
        """sf_session_start, for ids sf_session_start_tokens, for results of tools sf_session_start_tool_results."""
        sampling = self.model.options(**options)
        answer = AnswerOptions(
            sampling=ctypes.pointer(sampling), **sized("stops", encoded(stops)), **sized("schema", encoded(schema)),
            **sized("regex", None if regex is None else regex.encode()),
            **sized("grammar", None if grammar is None else grammar.encode()),
            tool_choice=tool_choice and tool_choice.encode(),
        )  # fmt: skip
        ids = [token for token in prompt if isinstance(token, (int, np.integer))]
        if isinstance(prompt, str):
            words = prompt.encode()
            self._check(library().sf_session_start(self.handle, words, len(words), byref(answer)))
        elif len(ids) == len(prompt):
            row = (c_int64 * len(ids))(*ids)
            self._check(library().sf_session_start_tokens(self.handle, row, len(ids), byref(answer)))
        else:
            data = json.dumps(prompt).encode()
            self._check(library().sf_session_start_tool_results(self.handle, data, len(data), byref(answer)))

    def read(self) -> tuple[bool, int, int]:
        """Whether more is left, and how far it is."""
        read, total = c_int64(), c_int64()
        code = library().sf_session_read(self.handle, byref(read), byref(total))
        if code != END:
            self._check(code)
        return code == OK, read.value, total.value

    def next(self) -> Piece | None:
        piece = CPiece()
        code = library().sf_session_next(self.handle, byref(piece))
        if code == END:
            return None
        self._check(code)
        text = ctypes.string_at(piece.text, piece.bytes).decode() if piece.bytes else ""
        return Piece(text, None if piece.token == -1 else piece.token, SOURCES[piece.source], CHANNELS[piece.channel])

    def top(self) -> list[dict[str, Any]]:
        """The most probable tokens at the position of the last piece's token."""
        found, n = POINTER(TopPiece)(), c_int32()
        self._check(library().sf_session_top(self.handle, byref(found), byref(n)))
        return [
            {"token": one.token, "log_prob": one.log_prob,
             "text": ctypes.string_at(one.text, one.bytes).decode(errors="replace")}
            for one in found[: n.value]
        ]  # fmt: skip

    def pieces(self) -> Iterator[Piece]:
        while (piece := self.next()) is not None:
            yield piece

    def ask(self, prompt: str | list[int] | list[dict[str, Any]], **options: Any) -> str:
        self.start(prompt, **options)
        return "".join(piece.text for piece in self.pieces())

    def score(self, text: str, answer: str) -> list[float]:
        """The log-probabilities of the answer's tokens."""
        found, n, words, given = POINTER(c_float)(), c_int64(), text.encode(), answer.encode()
        self._check(
            library().sf_session_score(self.handle, words, len(words), given, len(given), byref(found), byref(n))
        )
        return found[: n.value]

    def stop(self) -> None:
        library().sf_session_stop(self.handle)

    def finish(self) -> None:
        self._check(library().sf_session_finish(self.handle))

    @property
    def statistics(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(library().sf_session_statistics(self.handle))
        return found

    @property
    def messages(self) -> Any:
        text, size = c_void_p(), c_size_t()
        self._check(library().sf_session_messages(self.handle, byref(text), byref(size)))
        return json.loads(ctypes.string_at(text, size.value))

    @property
    def tool_calls(self) -> Any:
        text, size = c_void_p(), c_size_t()
        self._check(library().sf_session_tool_calls(self.handle, byref(text), byref(size)))
        return json.loads(ctypes.string_at(text, size.value))

    @property
    def tokens(self) -> list[int]:
        ids, n = c_void_p(), c_int64()
        self._check(library().sf_session_tokens(self.handle, byref(ids), byref(n), None))
        return list(view(ids.value, "int64", n.value))

    @property
    def cached(self) -> int:
        n = c_int64()
        self._check(library().sf_session_tokens(self.handle, None, None, byref(n)))
        return n.value

    @property
    def used_and_remaining(self) -> tuple[int, int]:
        used = library().sf_session_used_tokens(self.handle)
        return used, library().sf_session_remaining_tokens(self.handle)

    def reset(self) -> None:
        self._check(library().sf_session_reset(self.handle))

    def trim(self) -> None:
        self._check(library().sf_session_trim(self.handle))

    def save(self, path: Path) -> None:
        self._check(library().sf_session_save(self.handle, bytes(path)))

    def restore(self, path: Path) -> None:
        self._check(library().sf_session_restore(self.handle, bytes(path)))

    def _check(self, code: int) -> None:
        if code != OK:
            raise LibraryFailure(code, library().sf_session_error(self.handle).decode())
