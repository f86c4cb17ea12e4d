"""Runs a bundle's .onnx files, one per method, through ONNX Runtime. Needs numpy and onnxruntime.

Which execution provider computes is a choice by name (onnx_providers.py).
A backend owns its caches (onnx_caches.py); they and all other tensors are bound once, so that a pass copies no cache.
Graphs give the new rows only, and `commit` copies the accepted ones (docs/targets.md). Outputs are views, valid until
the next `run`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from streamfuse.runtime.backend import (
    DECODE,
    NEXT_TOKEN,
    PREFILL,
    STREAMS,
    BackendError,
    BoolArray,
    IntArray,
    ModelSpec,
    PassOutput,
)
from streamfuse.runtime.cores import cores

from .host import HostBackend, Ring
from .onnx_caches import (
    DTYPES,
    Array,
    Caches,
    DeviceCaches,
    HostCaches,
    Layout,
    bind_array,
    is_cache,
    is_new,
)
from .onnx_providers import Assignment, Choice, assigned, first_line, import_onnxruntime

COMMIT, LOGITS = "commit", "logits"
_NOBODY: IntArray = np.zeros(0, np.int64)


class OnnxProgram:
    """The graphs of one bundle, for any number of backends in any threads. Each is loaded when it is first asked for.

    `path` is a folder, or a file in it. With `num_threads` None, ONNX Runtime chooses if this process may use
    every core; otherwise there is one thread per usable core, because ONNX Runtime ignores the CPU limits of control
    groups. It rearranges the weights for each graph, so every loaded one has a copy; with `frugal` a backend keeps only
    the graph that it needs next. `provider` is one of onnx_providers.py; `assignments` says of each graph that was
    loaded how much of it that one runs.
    """

    def __init__(
        self, path: str | Path, num_threads: int | None = None, frugal: bool = False, provider: Choice | None = None
    ) -> None:
        path, self.frugal, self.provider = Path(path), frugal, provider or Choice()
        self._folder = path if path.is_dir() else path.parent
        usable = cores()
        self._num_threads = num_threads or (0 if usable == os.cpu_count() else usable)  # 0: ONNX Runtime chooses
        self._sessions: dict[str, Any] = {}
        self.assignments: dict[str, Assignment] = {}
        self._lock = threading.Lock()

    def session(self, method: str) -> Any:
        """The method's onnxruntime.InferenceSession. BackendError says what is wrong with its file."""
        with self._lock:
            if method not in self._sessions:
                self._sessions[method] = self._load(method)
            return self._sessions[method]

    @property
    def copies(self) -> bool:
        """Whether the provider has memory of its own."""
        return bool(self.provider.provider.device)

    def caches(self, layout: Layout) -> Caches:
        """Of one sequence: on the provider's device where it has memory and the bundle a graph that commits there."""
        device = self.provider.provider.device
        if device and (self._folder / f"{COMMIT}.onnx").is_file():
            return DeviceCaches(self.session(COMMIT), layout, device)
        return HostCaches(layout)

    def forget(self) -> None:
        """Let go of all graphs; those in use live on with their users."""
        with self._lock:
            self._sessions.clear()

    def _load(self, method: str) -> Any:
        onnxruntime = import_onnxruntime()
        file = self._folder / f"{method}.onnx"
        if not file.is_file():
            raise BackendError(f"{self._folder} has no {file.name}")
        if any("\ud800" <= character <= "\udfff" for character in str(file)):  # how Python writes other bytes
            raise BackendError(f"{file}: ONNX Runtime takes only names in UTF-8; rename the folder")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self._num_threads, 1
        options.log_severity_level = 4  # errors are raised; they need not be printed too
        # Each graph has threads of its own; those of the last pass must not take the cores of the next.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        session, self.assignments[method] = self.provider.open(file, options)
        return session


class _Pass:
    """One method bound to its tensors: `arrays` has those of the host by name; caches and new rows are of `caches`.

    With `copies` the provider has memory of its own: an input of the host is copied there when it is bound, so that is
    done in every run, and logits stay there until they are asked for.
    """

    def __init__(self, session: Any, caches: Caches, copies: bool) -> None:
        self._binding = session.io_binding()  # goes before its session
        self._session, self._copies = session, copies
        inputs, outputs = session.get_inputs(), session.get_outputs()
        self.shapes = {tensor.name: tuple(tensor.shape) for tensor in (*inputs, *outputs)}
        self.new = caches.bind(session, self._binding)
        self._remote = sum(map(is_new, outputs)) if caches.device and LOGITS in self.shapes else None  # their place
        if self._remote is not None:
            self._binding.bind_output(LOGITS, caches.device)
        own = [tensor for tensor in inputs if not is_cache(tensor)]
        own += [t for t in outputs if not is_new(t) and (self._remote is None or t.name != LOGITS)]
        self.arrays: dict[str, Array] = {tensor.name: np.zeros(tensor.shape, DTYPES[tensor.type]) for tensor in own}
        for tensor in outputs:
            if tensor.name in self.arrays:
                bind_array(tensor, self.arrays[tensor.name], self._binding.bind_output)
        self._inputs = caches.inputs(session) + [(t, self.arrays[t.name]) for t in inputs if t.name in self.arrays]
        self._bind_inputs()

    def _bind_inputs(self) -> None:
        for tensor, array in self._inputs:
            bind_array(tensor, array, self._binding.bind_input)

    @property
    def logits(self) -> Array:
        """Of the last run, fetched where they are not the host's."""
        if self._remote is None:
            return self.arrays[LOGITS]
        fetched: Array = self._binding.get_outputs()[self._remote].numpy()
        return fetched

    def run(self, options: Any = None) -> None:
        try:
            if self._copies:
                self._bind_inputs()
            self._session.run_with_iobinding(self._binding, options)
        except Exception as error:  # ONNX Runtime's own classes, which have no common base
            raise BackendError(f"ONNX Runtime: {first_line(error)}") from error

    def shrink(self) -> None:
        """Shrink ONNX Runtime's arena of activations; it does so only at the end of a run, so this runs the method."""
        options = import_onnxruntime().RunOptions()
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        with suppress(BackendError):  # builds of ONNX Runtime without an arena reject this option
            self.run(options)


class OnnxBackend(HostBackend):
    """One sequence on one program. `source` is a program, or the path of one, for which alone the rest counts."""

    def __init__(
        self,
        source: str | Path | OnnxProgram,
        spec: ModelSpec,
        num_threads: int | None = None,
        provider: Choice | None = None,
    ) -> None:
        self._program: OnnxProgram | None = (
            source if isinstance(source, OnnxProgram) else OnnxProgram(source, num_threads, provider=provider)
        )
        decode = self._program.session(DECODE)
        facts, found = decode.get_modelmeta().custom_metadata_map, {t.name: t for t in decode.get_inputs()}
        try:
            layers, top = int(facts["streamfuse.num_layers"]), int(facts["streamfuse.num_msa_layers"])
            keys = [found[f"past_key_values.{layer}.key"] for layer in range(layers)]
            head_dim, dtype = int(keys[0].shape[3]), DTYPES[keys[0].type]
            shapes = tuple((int(cache.shape[1]), int(cache.shape[2])) for cache in keys)
            window = facts.get("streamfuse.sliding_window")
            ring = None if window is None else Ring(int(window), min(count for _, count in shapes))
            if not 0 <= top <= layers:
                raise ValueError
        except (KeyError, ValueError, IndexError, TypeError):
            raise BackendError(
                "decode.onnx is no graph of streamfuse, or damaged: past_key_values or metadata are missing or invalid"
            ) from None
        for _, count in shapes:
            if count != spec.capacity and (ring is None or not 0 < ring.window <= count < spec.capacity):
                raise BackendError(f"the manifest says capacity {spec.capacity}, but decode.onnx has {count}")
        super().__init__(spec, ring)
        self._layout = Layout(shapes, top, head_dim, dtype)
        self._caches: Caches | None = None  # made with the first pass
        self._passes: dict[str, _Pass] = {}
        self._last: _Pass | None = None
        self._pass(DECODE)

    @property
    def description(self) -> dict[str, Any]:
        """The execution provider and, unless it is the CPU's, what it runs of the graphs that were loaded."""
        if self._program is None:
            return {}
        return {"provider": self._program.provider.provider.name, **assigned(self._program.assignments)}

    def run(
        self,
        method: str,
        input_ids: IntArray,
        position_ids: IntArray,
        ancestors: BoolArray,
        want_logits: bool = False,
    ) -> PassOutput:
        count = len(input_ids)
        self._begin(method, count)
        self._last = None
        bound = self._pass(method)
        for name, given in (("input_ids", input_ids), ("position_ids", position_ids)):
            bound.arrays[name][:count], bound.arrays[name][count:] = given, 0
        bound.arrays["ancestors"].fill(False)
        bound.arrays["ancestors"][:count, :count] = ancestors
        bound.arrays["cache_length"][0] = self._length
        bound.run()
        self._last = bound
        if method == PREFILL:
            self._remember(range(count))
            return PassOutput.of_prefill()
        logits, best = None, bound.arrays["best"]
        if method == DECODE:
            self._remember(range(1))
            return PassOutput.of_decode(bound.logits.astype(np.float32) if want_logits else None, best)
        kept = bound.arrays["kept"]
        real = self._survivors(kept, count)
        if want_logits:
            logits = bound.logits[:real].astype(np.float32, copy=False)
        carried = [bound.arrays[name][:real] for name in ("stream_ids", "stream_log_probs") if name in bound.arrays]
        return PassOutput(logits, best[:real], kept[:real], *carried)

    def streams(self, index: int, next_token: int) -> PassOutput:
        self._check_survivor(index, self._last is not None and "hidden" in self._last.arrays)
        assert self._last is not None
        bound = self._pass(STREAMS)
        bound.arrays["hidden"][0] = self._last.arrays["hidden"][index]
        bound.arrays["position_ids"][0], bound.arrays["cache_length"][0] = self._length - 1, self._length
        if NEXT_TOKEN in bound.arrays:
            bound.arrays[NEXT_TOKEN][0] = next_token
        bound.run()
        return PassOutput(None, _NOBODY, _NOBODY, bound.arrays["stream_ids"], bound.arrays["stream_log_probs"])

    def _write(self, positions: slice, rows: list[int], places: list[int]) -> None:
        assert self._last is not None
        assert self._caches is not None
        self._caches.write(self._last.new, positions, rows, places)

    def trim(self) -> None:
        if self._length == 0:
            for bound in self._passes.values():
                bound.shrink()
        super().trim()

    def _release(self) -> None:
        self._passes, self._last = {}, None
        if self._caches is not None:
            self._caches.close()
        self._caches = None

    def close(self) -> None:
        super().close()
        self._release()  # before the sessions that made the caches' memory
        self._program = None

    def _pass(self, method: str) -> _Pass:
        if self._program is None:
            raise BackendError("this backend is closed")
        if method not in self._passes:
            if self._program.frugal:
                self._passes.clear()
                self._program.forget()
            if self._caches is None:
                self._caches = self._program.caches(self._layout)
            try:
                bound = _Pass(self._program.session(method), self._caches, self._program.copies)
            except (KeyError, IndexError) as error:
                raise BackendError(f"{method}.onnx does not fit the other graphs: {error}") from error
            self._check(method, bound.shapes)
            self._passes[method] = bound
        return self._passes[method]

    def _check(self, method: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Refuse a graph that is not what the manifest says."""
        spec = self.spec
        streams = (spec.num_streams, spec.top_k)
        if method == STREAMS:
            wanted: dict[str, tuple[int, ...]] = {"position_ids": (1,), "stream_ids": (1, *streams)}
        else:
            rows = spec.rows(method)
            keep = spec.widths[method][1] if method in spec.widths else rows
            wanted = {"input_ids": (rows,), "position_ids": (rows,), "ancestors": (rows, rows), "cache_length": (1,)}
            if method != PREFILL:
                wanted |= {"logits": (keep, spec.vocab_size), "best": (keep,)}
            if method in spec.widths:
                wanted["kept"] = (keep,)
            if spec.streams_of(method):
                wanted["stream_ids"] = (spec.streams_of(method), *streams)
        for name, shape in wanted.items():
            if (found := shapes.get(name)) != shape:
                raise BackendError(f"the manifest asks for {name} {list(shape)} of {method}, but the graph has {found}")
