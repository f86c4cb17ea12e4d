"""Runs a bundle's model.pte through the native engine (kernels/engine) by ctypes. Imports neither torch nor executorch.

The engine owns the caches; outputs are numpy views of its memory, valid until the next `run`.
"""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from streamfuse.kernels.library import LibraryError, load_library
from streamfuse.runtime.backend import (
    DECODE,
    PREFILL,
    STREAMS,
    BackendError,
    BoolArray,
    FloatArray,
    IntArray,
    ModelSpec,
    PassOutput,
)
from streamfuse.runtime.backends.callbacks import Table
from streamfuse.runtime.core import RELEASE, EngineTable, Results, view

MODEL_FILE = "model.pte"
_NOBODY: IntArray = np.zeros(0, np.int64)


def _library() -> ctypes.CDLL:
    try:
        return load_library()
    except LibraryError as error:
        raise BackendError(str(error)) from error


def read_bandwidth(num_threads: int | None = None) -> float:
    """GB/s at which this machine's memory gives bytes to so many of the engine's threads (None: its own choice).

    Takes about 100 ms. Raises BackendError for a number of threads that the engine does not take.
    """
    found = float(_library().sf_read_bandwidth(num_threads or 0))
    if not found:
        raise BackendError(f"num_threads must lie between 0 and 64, not {num_threads}")
    return found


def core_distance_ns() -> float:
    """Nanoseconds that a value takes from one core's cache to another's now; 0 where that cannot be found out.

    Takes a few milliseconds.
    """
    return float(_library().sf_core_distance_ns())


class ExecuTorchProgram:
    """A loaded .pte, for any number of backends in any threads; they share its weights and nothing else.

    `path` is a bundle folder or a .pte file. `num_threads` None lets the engine choose. BackendError says what is wrong
    with the file. Backends that were made from it stay usable after `close`.
    """

    def __init__(self, path: str | Path, num_threads: int | None = None) -> None:
        self._handle: ctypes.c_void_p | None = None
        self.library = _library()
        pte = Path(path) / MODEL_FILE if Path(path).is_dir() else Path(path)
        self._handle = ctypes.c_void_p()
        self._check(self.library.sf_program_open(str(pte).encode(), num_threads or 0, ctypes.byref(self._handle)))
        text = ctypes.c_char_p()
        self._check(self.library.sf_program_describe(self._handle, ctypes.byref(text)))
        self.description: dict[str, Any] = json.loads(text.value or b"{}")

    def new_engine(self) -> ctypes.c_void_p:
        """The handle of a new engine, which its caller frees."""
        if self._handle is None:
            raise BackendError("this program is closed")
        engine = ctypes.c_void_p()
        self._check(self.library.sf_engine_new(self._handle, ctypes.byref(engine)))
        return engine

    def _check(self, code: int) -> None:
        if code != 0:
            raise BackendError(self.library.sf_program_error(self._handle).decode(errors="replace"))

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            self.library.sf_program_close(handle)

    def __enter__(self) -> ExecuTorchProgram:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()


class ExecuTorchBackend:
    """One sequence on one program.

    `source` is a loaded program, or the path of one to load; `spec` None takes the facts from the program itself.
    `num_threads` counts for a path only.
    """

    def __init__(
        self,
        source: str | Path | ExecuTorchProgram,
        spec: ModelSpec | None = None,
        num_threads: int | None = None,
    ) -> None:
        self._handle: ctypes.c_void_p | None = None
        self._seen: dict[tuple[Any, ...], PassOutput] = {}  # results of one kind always lie at the same place
        self._results = Results()
        self._results_address = ctypes.addressof(self._results)
        self._lock = threading.Lock()
        program = source if isinstance(source, ExecuTorchProgram) else ExecuTorchProgram(source, num_threads)
        self._library, self.description = program.library, program.description
        try:
            self._spec = _checked(spec, self.description) if spec else _spec_of(self.description)
            self._handle = program.new_engine()
        finally:
            if program is not source:
                program.close()
        self._inputs = _Inputs(max(facts["rows"] for facts in self.description["methods"].values()))

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    @property
    def length(self) -> int:
        length = ctypes.c_int64()
        self._check(self._library.sf_engine_length(self._open(), ctypes.byref(length)))
        return length.value

    def run(
        self,
        method: str,
        input_ids: IntArray,
        position_ids: IntArray,
        ancestors: BoolArray,
        want_logits: bool = False,
    ) -> PassOutput:
        inputs = self._inputs.filled(input_ids, position_ids, ancestors)
        handle, results = self._open(), self._results
        self._check(self._library.sf_engine_run(handle, method.encode(), *inputs, want_logits))
        self._check(self._library.sf_engine_read(handle, self._results_address))
        key = (method, want_logits, results.survivors, results.carrying)
        if key not in self._seen:
            self._seen[key] = self._output(method, want_logits)
        return self._seen[key]

    def streams(self, index: int) -> PassOutput:
        self._check(self._library.sf_engine_streams(self._open(), index))
        self._check(self._library.sf_engine_read(self._open(), self._results_address))
        if (STREAMS,) not in self._seen:
            self._seen[STREAMS,] = PassOutput(None, _NOBODY, _NOBODY, *self._stream_views())
        return self._seen[STREAMS,]

    def commit(self, rows: Sequence[int]) -> None:
        wanted = np.asarray(rows, np.int32).reshape(-1)
        self._check(self._library.sf_engine_commit(self._open(), wanted.ctypes.data, wanted.shape[0]))

    def truncate(self, length: int) -> None:
        self._check(self._library.sf_engine_truncate(self._open(), length))

    def profile(self, on: bool) -> None:
        """Start or end a profile of every operator. Forgets the last run; the caches stay."""
        self._seen.clear()
        self._check(self._library.sf_engine_profile(self._open(), on))

    def profile_data(self) -> bytes:
        """What was recorded since it was last asked, as an ETDump for ExecuTorch's Inspector."""
        data, size = ctypes.c_void_p(), ctypes.c_size_t()
        self._check(self._library.sf_engine_profile_data(self._open(), ctypes.byref(data), ctypes.byref(size)))
        return ctypes.string_at(data, size.value)

    def waited_ms(self) -> float:
        """How long this thread's passes have waited for the engine's other threads since it was last asked."""
        return float(self._library.sf_waited_ms())

    def close(self) -> None:
        with self._lock:
            handle, self._handle = self._handle, None
        if handle is not None:
            self._library.sf_engine_free(handle)

    def __enter__(self) -> ExecuTorchBackend:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()

    def _open(self) -> ctypes.c_void_p:
        if self._handle is None:
            raise BackendError("this backend is closed")
        return self._handle

    def _check(self, code: int) -> None:
        if code != 0:
            raise BackendError(self._library.sf_engine_error(self._handle).decode(errors="replace"))

    def engine_table(self) -> Table:
        """The engine's own functions for a session of the core, which closes this backend at its end."""
        table = Table(EngineTable())
        self._check(self._library.sf_engine_backend(self._open(), ctypes.byref(table.struct)))
        table.struct.size = ctypes.sizeof(EngineTable)
        table.struct.release = release = RELEASE(lambda _: self.close())
        table.held = [release, self]
        return table

    def _output(self, method: str, want_logits: bool) -> PassOutput:
        """Views of the engine's memory, where the results of the last run lie."""
        r, facts = self._results, self.description["methods"][method]
        if not facts["logits"]:
            return PassOutput.of_prefill()
        logits = view(r.logits, np.float32, r.survivors, r.vocab_size) if want_logits else None
        best = view(r.best, np.int64, r.survivors)
        if method == DECODE:
            return PassOutput.of_decode(logits, best)
        kept = view(r.kept, np.int64, r.survivors)
        return PassOutput(logits, best, kept, *(self._stream_views() if facts["streams"] else ()))

    def _stream_views(self) -> tuple[IntArray, FloatArray]:
        r = self._results
        shape = (r.carrying, r.num_streams, r.top_k)
        return view(r.stream_ids, np.int64, *shape), view(r.stream_log_probs, np.float32, *shape)


class _Inputs:
    """Room for what a pass takes. Its addresses are asked once: numpy takes longer over one than over a copy."""

    def __init__(self, rows: int) -> None:
        self._ids, self._positions = np.empty((2, rows), np.int64)
        self._visible = np.empty(rows**2, np.bool_)
        arrays = (self._ids, self._positions, self._visible)
        self._addresses = tuple(array.ctypes.data for array in arrays)
        self._views: dict[int, tuple[npt.NDArray[Any], ...]] = {}

    def filled(self, ids: IntArray, positions: IntArray, visible: BoolArray) -> tuple[int, ...]:
        """Number of rows and the addresses. BackendError for shapes that do not fit together, or too many rows."""
        n = ids.shape[0] if ids.ndim == 1 else -1
        if n < 0 or positions.shape != (n,) or visible.shape != (n, n):
            raise BackendError(
                "run takes ids [n], positions [n] and ancestors [n, n], "
                f"not {ids.shape}, {positions.shape}, {visible.shape}"
            )
        if n > len(self._ids):
            raise BackendError(f"no method takes more than {len(self._ids)} rows, and these are {n}")
        if n not in self._views:
            self._views[n] = self._ids[:n], self._positions[:n], self._visible[: n * n].reshape(n, n)
        for place, values in zip(self._views[n], (ids, positions, visible), strict=True):
            np.copyto(place, values)
        return n, *self._addresses


def _checked(spec: ModelSpec, description: dict[str, Any]) -> ModelSpec:
    """The manifest's facts, once they agree with the program's."""
    found = _spec_of(description)
    for name in ("capacity", "vocab_size", "num_streams", "top_k", "prefill_rows", "deferred"):
        if getattr(spec, name) != getattr(found, name):
            raise BackendError(
                f"the manifest says {name} {getattr(spec, name)}, but the program has {getattr(found, name)}"
            )
    for method, width in spec.widths.items():
        real = found.widths.get(method)
        if real != tuple(width):
            raise BackendError(f"the manifest says {method} takes and keeps {width}, but the program has {real}")
        if spec.streams_of(method) != found.streams_of(method):
            raise BackendError(
                f"the manifest says that {spec.streams_of(method)} nodes of {method} carry streams, "
                f"but the program has {found.streams_of(method)}"
            )
    return spec


def _spec_of(description: dict[str, Any]) -> ModelSpec:
    methods = description["methods"]
    for needed in (PREFILL, DECODE):
        if needed not in methods:
            raise BackendError(f"the program has no method {needed}; it has {', '.join(methods)}")
    verify = {name: facts for name, facts in methods.items() if name not in (PREFILL, DECODE, STREAMS)}
    return ModelSpec(
        capacity=description["capacity"],
        vocab_size=description["vocab_size"],
        num_streams=description["num_streams"],
        top_k=description["top_k"],
        prefill_rows=methods[PREFILL]["rows"],
        widths={name: (facts["rows"], facts["keep"]) for name, facts in verify.items()},
        stream_nodes={name: facts["carrying"] for name, facts in verify.items()},
        deferred=STREAMS in methods,
    )
