"""Runs a bundle's model.pte through the native engine (kernels/engine) by ctypes. Imports neither torch nor executorch.

The engine owns the caches; outputs are copies.
"""

from __future__ import annotations

import ctypes
import json
import threading
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from streamfuse.native.library import LibraryError, load_library, path_argument
from streamfuse.runtime.backend import (
    DECODE,
    PREFILL,
    STREAMS,
    VERIFY_PREFIX,
    BackendError,
    BoolArray,
    FloatArray,
    IntArray,
    ModelSpec,
    PassOutput,
)
from streamfuse.runtime.backends.callbacks import Table
from streamfuse.runtime.core import copied, spec_struct
from streamfuse.runtime.handle import Handle
from streamfuse.runtime.structures import RELEASE, EngineTable, Results

MODEL_FILE = "model.pte"
_NOBODY: IntArray = np.zeros(0, np.int64)


def _library() -> ctypes.CDLL:
    try:
        return load_library()
    except LibraryError as error:
        raise BackendError(str(error)) from error


def read_bandwidth(num_threads: int | None, num_bytes: int) -> float:
    """Measure how fast the engine's threads read a block of memory repeatedly, in GB/s.

    If a cache holds the block, this is the bandwidth of the cache.

    Args:
        num_threads: None: chosen by the engine.
        num_bytes: size of the block, rounded down to 64 KiB.

    Raises:
        BackendError: an argument is out of range, or the block cannot be allocated.
    """
    found = float(_library().sf_read_bandwidth(num_threads or 0, num_bytes))
    if not found:
        raise BackendError(
            f"cannot measure the read bandwidth of {num_threads} threads and {num_bytes} bytes: num_threads must lie "
            "between 0 and 64, and num_bytes be positive and available"
        )
    return found


def core_distance_ns() -> float:
    """Nanoseconds that a value takes from one core's cache to another's now; 0 where that cannot be found out.

    Takes a few milliseconds.
    """
    return float(_library().sf_core_distance_ns())


class ExecuTorchProgram:
    """A loaded .pte, for any number of backends in any threads; they share its weights and nothing else.

    `path` is a bundle folder or a .pte file. `num_threads` None lets the engine choose. BackendError says what is wrong
    with the file. Backends that were made from it stay usable after `close`. `description["threads"]` is the number in
    use; if it differs from `num_threads`, which happens only with XNNPACK, a warning is issued.
    """

    def __init__(self, path: str | Path, num_threads: int | None = None) -> None:
        library, pointer = _library(), ctypes.c_void_p()
        pte = Path(path) / MODEL_FILE if Path(path).is_dir() else Path(path)
        code = library.sf_program_open(path_argument(pte), num_threads or 0, None, ctypes.byref(pointer))
        self._take(library, pointer, code)
        used = self.description["threads"]
        if num_threads not in (None, 0, used):
            warnings.warn(
                f"{pte} runs with threads={used}, not {num_threads}: a process has one XNNPACK thread pool, with at "
                "most one thread per core, and the first open model that uses it sets its size; to change it, close "
                "that model first",
                stacklevel=2,
            )

    def adapter(self, name: str) -> ExecuTorchProgram:
        """The methods of an adapter in the same file, which share its mapped weights; BackendError where there are
        none."""
        chosen, pointer = ExecuTorchProgram.__new__(ExecuTorchProgram), ctypes.c_void_p()
        with self._handle as program:
            code = self.library.sf_program_adapter(program, name.encode(), ctypes.byref(pointer))
        chosen._take(self.library, pointer, code)
        return chosen

    def _take(self, library: ctypes.CDLL, pointer: ctypes.c_void_p, code: int) -> None:
        self.library, text = library, ctypes.c_char_p()
        self._handle = Handle(pointer, self.library.sf_program_close, "program", BackendError)
        with self._handle:
            self._check(code)
            self._check(self.library.sf_program_describe(pointer, ctypes.byref(text)))
        self.description: dict[str, Any] = json.loads(text.value or b"{}")

    def new_engine(self) -> ctypes.c_void_p:
        """The handle of a new engine, which its caller frees."""
        engine = ctypes.c_void_p()
        with self._handle as program:
            self._check(self.library.sf_engine_new(program, ctypes.byref(engine)))
        return engine

    def check(self, manifest: ModelSpec) -> None:
        """BackendError for the first fact of a manifest that is not the program's."""
        facts, _kept = spec_struct(manifest)
        with self._handle as program:
            self._check(self.library.sf_program_check(program, ctypes.byref(facts)))

    def _check(self, code: int) -> None:
        if code != 0:
            with self._handle as program:
                raise BackendError(self.library.sf_program_error(program).decode(errors="replace"))

    def close(self) -> None:
        self._handle.close()

    def __enter__(self) -> ExecuTorchProgram:
        return self

    def __exit__(self, *_: object) -> None:
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
        self._results, self._lock = Results(), threading.Lock()
        program = source if isinstance(source, ExecuTorchProgram) else ExecuTorchProgram(source, num_threads)
        self._library, self.description = program.library, program.description
        try:
            self._spec = spec or _spec_of(self.description)
            program.check(self._spec)
            engine = program.new_engine()
        finally:
            if program is not source:
                program.close()
        self._handle = Handle(engine, self._library.sf_engine_free, "backend", BackendError)
        self._inputs = _Inputs(max(facts["rows"] for facts in self.description["methods"].values()))

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    @property
    def length(self) -> int:
        length = ctypes.c_int64()
        self._call("sf_engine_length", ctypes.byref(length))
        return length.value

    def run(
        self,
        method: str,
        input_ids: IntArray,
        position_ids: IntArray,
        ancestors: BoolArray,
        want_logits: bool = False,
    ) -> PassOutput:
        with self._lock, self._handle:
            inputs = self._inputs.filled(input_ids, position_ids, ancestors)
            self._call("sf_engine_run", method.encode(), *inputs, want_logits)
            self._call("sf_engine_read", ctypes.byref(self._results))
            return self._output(method, want_logits)

    def streams(self, index: int, next_token: int) -> PassOutput:
        with self._lock, self._handle:
            self._call("sf_engine_streams", index, next_token)
            self._call("sf_engine_read", ctypes.byref(self._results))
            return PassOutput(None, _NOBODY, _NOBODY, *self._stream_outputs())

    def commit(self, rows: Sequence[int]) -> None:
        wanted = np.asarray(rows, np.int32).reshape(-1)
        self._call("sf_engine_commit", wanted.ctypes.data, wanted.shape[0])

    def truncate(self, length: int) -> None:
        self._call("sf_engine_truncate", length)

    def truncatable(self, length: int) -> int:
        """The longest prefix of at most `length` positions that `truncate` accepts: `length`, or 0 where layers with a
        sliding window, convolution or linear attention have lost what it needs."""
        longest = ctypes.c_int64()
        self._call("sf_engine_truncatable", length, ctypes.byref(longest))
        return longest.value

    def profile(self, on: bool) -> None:
        """Start or end a profile of every operator. Forgets the last run; the caches stay. If it raises
        BackendError, the loaded methods stay too."""
        self._call("sf_engine_profile", on)

    def profile_data(self) -> bytes:
        """What was recorded since it was last asked, as an ETDump for ExecuTorch's Inspector."""
        data, size = ctypes.c_void_p(), ctypes.c_size_t()
        with self._handle:
            self._call("sf_engine_profile_data", ctypes.byref(data), ctypes.byref(size))
            return ctypes.string_at(data, size.value)

    def waited_ms(self) -> float:
        """How long this thread's passes have waited for the engine's other threads since it was last asked."""
        return float(self._library.sf_waited_ms())

    def close(self) -> None:
        self._handle.close()

    def __enter__(self) -> ExecuTorchBackend:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, name: str, *arguments: Any) -> None:
        with self._handle as engine:
            if getattr(self._library, name)(engine, *arguments) != 0:
                raise BackendError(self._library.sf_engine_error(engine).decode(errors="replace"))

    def engine_table(self) -> Table:
        """The engine's own functions for a session of the core, which closes this backend at its end."""
        table = Table(EngineTable())
        self._call("sf_engine_backend", ctypes.byref(table.struct))
        table.struct.size = ctypes.sizeof(EngineTable)
        lease = ExitStack()  # whoever closes the backend before, the engine is there as long as the session
        lease.enter_context(self._handle)
        lease.callback(self.close)
        table.struct.release = release = RELEASE(lambda _: lease.close())
        table.held = [release, self]
        return table

    def _output(self, method: str, want_logits: bool) -> PassOutput:
        r, facts = self._results, self.description["methods"][method]
        if not facts["logits"]:
            return PassOutput.of_prefill()
        logits = copied(r.logits, np.float32, r.survivors, r.vocab_size) if want_logits else None
        best = copied(r.best, np.int64, r.survivors)
        if method == DECODE:
            return PassOutput.of_decode(logits, best)
        kept = copied(r.kept, np.int64, r.survivors)
        return PassOutput(logits, best, kept, *(self._stream_outputs() if facts["streams"] else ()))

    def _stream_outputs(self) -> tuple[IntArray, FloatArray]:
        r = self._results
        shape = (r.carrying, r.num_streams, r.top_k)
        return copied(r.stream_ids, np.int64, *shape), copied(r.stream_log_probs, np.float32, *shape)


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


def _spec_of(description: dict[str, Any]) -> ModelSpec:
    methods = description["methods"]
    for needed in (PREFILL, DECODE):
        if needed not in methods:
            raise BackendError(f"the program has no method {needed}; it has {', '.join(methods)}")
    verify = {name: facts for name, facts in methods.items() if name.startswith(VERIFY_PREFIX)}
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
