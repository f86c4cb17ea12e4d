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
from streamfuse.runtime.backend import DECODE, PREFILL, BackendError, BoolArray, IntArray, ModelSpec, PassOutput

MODEL_FILE = "model.pte"
_DTYPES: dict[int, tuple[Any, Any]] = {4: (ctypes.c_int64, np.int64), 6: (ctypes.c_float, np.float32)}


class ExecuTorchBackend:
    """One sequence on one .pte.

    `path` is a bundle folder or a .pte file; `spec` None takes the facts from the program itself. `num_threads` sizes
    the process's thread pool (None leaves it); the first open engine decides.
    """

    def __init__(self, path: str | Path, spec: ModelSpec | None = None, num_threads: int | None = None) -> None:
        self._handle: ctypes.c_void_p | None = None
        self._views: dict[tuple[int, ...], npt.NDArray[Any]] = {}  # (address, *shape) -> view; addresses do not move
        self._lock = threading.Lock()
        try:
            self._library = load_library()
        except LibraryError as error:
            raise BackendError(str(error)) from error
        pte = Path(path) / MODEL_FILE if Path(path).is_dir() else Path(path)
        handle = ctypes.c_void_p()
        if self._library.sf_open(str(pte).encode(), num_threads or 0, ctypes.byref(handle)) != 0:
            raise BackendError(self._library.sf_last_error(None).decode(errors="replace"))
        self._handle = handle
        self._length = 0
        text = ctypes.c_char_p()
        self._check(self._library.sf_describe(handle, ctypes.byref(text)))
        self.description: dict[str, Any] = json.loads(text.value or b"{}")
        try:
            self._spec = self._checked(spec) if spec else _spec_of(self.description)
        except BackendError:
            self.close()
            raise

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    @property
    def length(self) -> int:
        return self._length

    def run(
        self,
        method: str,
        input_ids: IntArray,
        position_ids: IntArray,
        ancestors: BoolArray,
        want_logits: bool = False,
    ) -> PassOutput:
        ids = np.ascontiguousarray(input_ids, np.int64)
        positions = np.ascontiguousarray(position_ids, np.int64)
        visible = np.ascontiguousarray(ancestors, np.bool_)
        n = ids.shape[0] if ids.ndim == 1 else -1
        if n < 0 or positions.shape != (n,) or visible.shape != (n, n):
            raise BackendError(
                "run takes ids [n], positions [n] and ancestors [n, n], "
                f"not {ids.shape}, {positions.shape}, {visible.shape}"
            )
        self._check(
            self._library.sf_run(
                self._open(), method.encode(), n, ids.ctypes.data, positions.ctypes.data, visible.ctypes.data
            )
        )
        if method == PREFILL:
            return PassOutput.of_prefill()
        logits = self._output("logits")
        best, kept = logits.argmax(axis=1), self._output("kept")
        if not self.description["methods"][method]["streams"]:
            return PassOutput(logits, best, kept)
        return PassOutput(logits, best, kept, self._output("stream_ids"), self._output("stream_log_probs"))

    def streams(self, index: int) -> PassOutput:
        raise BackendError("this engine has no deferred streams")

    def commit(self, rows: Sequence[int]) -> None:
        wanted = np.asarray(rows, np.int32).reshape(-1)
        self._check(self._library.sf_commit(self._open(), wanted.ctypes.data, wanted.shape[0]))
        self._length += wanted.shape[0]

    def truncate(self, length: int) -> None:
        self._check(self._library.sf_truncate(self._open(), length))
        self._length = length

    def close(self) -> None:
        with self._lock:
            handle, self._handle = self._handle, None
        if handle is not None:
            self._library.sf_close(handle)

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
            raise BackendError(self._library.sf_last_error(self._handle).decode(errors="replace"))

    def _output(self, name: str) -> npt.NDArray[Any]:
        """A view of the engine's memory."""
        data, rank, dtype = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
        shape = (ctypes.c_int64 * 4)()
        self._check(
            self._library.sf_output(
                self._open(), name.encode(), ctypes.byref(data), shape, ctypes.byref(rank), ctypes.byref(dtype)
            )
        )
        lengths = tuple(shape[: rank.value])
        key = (data.value or 0, *lengths)
        if key not in self._views:
            c_type, numpy_type = _DTYPES[dtype.value]
            if 0 in lengths:
                self._views[key] = np.zeros(lengths, numpy_type)
            else:
                self._views[key] = np.ctypeslib.as_array(ctypes.cast(data, ctypes.POINTER(c_type)), shape=lengths)
        return self._views[key]

    def _checked(self, spec: ModelSpec) -> ModelSpec:
        """The manifest's facts, once they agree with the program's."""
        found = _spec_of(self.description)
        for name in ("capacity", "vocab_size", "num_streams", "top_k", "prefill_rows"):
            if getattr(spec, name) != getattr(found, name):
                raise BackendError(
                    f"the manifest says {name} {getattr(spec, name)}, but the program has {getattr(found, name)}"
                )
        for method, width in spec.widths.items():
            real = found.widths.get(method)
            if real != tuple(width):
                raise BackendError(f"the manifest says {method} takes and keeps {width}, but the program has {real}")
        return spec


def _spec_of(description: dict[str, Any]) -> ModelSpec:
    methods = description["methods"]
    for needed in (PREFILL, DECODE):
        if needed not in methods:
            raise BackendError(f"the program has no method {needed}; it has {', '.join(methods)}")
    return ModelSpec(
        capacity=description["capacity"],
        vocab_size=description["vocab_size"],
        num_streams=description["num_streams"],
        top_k=description["top_k"],
        prefill_rows=methods[PREFILL]["rows"],
        widths={name: (m["rows"], m["keep"]) for name, m in methods.items() if name not in (PREFILL, DECODE)},
    )
