"""An engine written in Python as the core's table of functions. Inputs of a run are copies; results cross by address.

An exception of the engine ends the text and is raised again (runtime/guard.py). If `streams` or a stored prefix fails,
the text goes on without it, and its statistics have the message.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streamfuse.runtime.backend import Backend, PassOutput
from streamfuse.runtime.core import copied
from streamfuse.runtime.guard import Guard
from streamfuse.runtime.structures import (
    BYTES_OF,
    COMMIT,
    ERROR,
    RELEASE,
    ROWS,
    RUN,
    STREAMS_OF,
    TRUNCATABLE,
    TRUNCATE,
    EngineTable,
)
from streamfuse.runtime.text_library import OK


@dataclass
class Table:
    """A filled sf_backend, what it points to, and what its functions in Python raised."""

    struct: EngineTable
    held: list[Any] = field(default_factory=list)
    guard: Guard = field(default_factory=lambda: Guard([]))


def table_of(engine: Backend) -> Table:
    """The engine's own table, if it has one, else one of callbacks."""
    own = getattr(engine, "engine_table", None)
    return own() if own is not None else callback_table(engine)


def callback_table(engine: Backend) -> Table:
    """A table whose functions call the engine's methods."""
    return _Callbacks(engine).table


class _Callbacks:
    def __init__(self, engine: Backend) -> None:
        self._engine, self._spec = engine, engine.spec
        self._held: list[Any] = []  # arrays of the last results
        self.table = Table(EngineTable())
        guard = self.table.guard
        functions = {
            "run": RUN(guard(self._run)),
            "streams": STREAMS_OF(guard(self._streams)),
            "commit": COMMIT(guard(lambda rows, n: self._engine.commit(rows[:n]))),
            "truncate": TRUNCATE(guard(lambda length: self._engine.truncate(length))),
            "error": ERROR(lambda _: guard.sentence),
            "release": RELEASE(lambda _: self._engine.close()),
        }
        if hasattr(engine, "cache_bytes"):
            functions["bytes_of"] = BYTES_OF(guard(self._bytes_of))
            functions["save"] = ROWS(guard(self._save))
            functions["load"] = ROWS(guard(self._load))
        if hasattr(engine, "truncatable"):
            functions["truncatable"] = TRUNCATABLE(guard(self._truncatable))
        if hasattr(engine, "trim"):
            functions["trim"] = RELEASE(guard(self._trim))
        for name, function in functions.items():
            setattr(self.table.struct, name, function)
        self.table.held.append(functions)

    def _run(self, method: bytes, n: int, ids: int, positions: int, ancestors: int, want_logits: int, out: Any) -> None:
        output = self._engine.run(
            method.decode(),
            copied(ids, np.int64, n),
            copied(positions, np.int64, n),
            copied(ancestors, np.uint8, n, n).view(np.bool_),
            bool(want_logits),
        )
        self._fill(out.contents, output)

    def _streams(self, survivor: int, next_token: int, out: Any) -> None:
        self._fill(out.contents, self._engine.streams(survivor, next_token))

    def _fill(self, results: Any, output: PassOutput) -> None:
        self._held.clear()
        results.survivors, results.carrying = len(output.best), 0
        results.vocab_size, results.num_streams, results.top_k = self._spec.vocab_size, 0, 0
        results.best = self._address(output.best, np.int64)
        results.kept = self._address(output.kept, np.int64)
        results.logits = None if output.logits is None else self._address(output.logits, np.float32)
        if output.logits is not None:
            results.vocab_size = output.logits.shape[1]
        if output.stream_ids.shape[0] and output.stream_ids.shape[1]:
            results.carrying, results.num_streams, results.top_k = output.stream_ids.shape
            results.stream_ids = self._address(output.stream_ids, np.int64)
            results.stream_log_probs = self._address(output.stream_log_probs, np.float32)

    def _address(self, array: Any, dtype: Any) -> int:
        whole = np.ascontiguousarray(array, dtype)
        self._held.append(whole)
        return int(whole.ctypes.data)

    def _truncatable(self, length: int, out: Any) -> None:
        out[0] = self._engine.truncatable(length)  # type: ignore[attr-defined]  # asked for above

    def _trim(self) -> None:
        self._held.clear()
        self._engine.trim()  # type: ignore[attr-defined]  # asked for above

    def _bytes_of(self, length: int, out: Any) -> None:
        out[0] = self._engine.cache_bytes(length)  # type: ignore[attr-defined]  # asked for above

    def _save(self, length: int, put: Callable[..., int], to: int) -> None:
        def write(data: bytes) -> None:
            if put(to, ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p), len(data)) != OK:
                raise OSError("the saved cache cannot be written")

        self._engine.save_cache(length, write)  # type: ignore[attr-defined]  # likewise

    def _load(self, length: int, get: Callable[..., int], source: int) -> None:
        def read(count: int) -> bytes:
            data = ctypes.create_string_buffer(count)
            if get(source, data, count) != OK:
                raise OSError(f"the saved cache has not {count} bytes more, or cannot be read")
            return data.raw

        self._engine.load_cache(length, read)  # type: ignore[attr-defined]  # likewise
