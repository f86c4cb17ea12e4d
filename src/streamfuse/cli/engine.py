"""Opening a bundle for `run` and `chat`: files, text, and (last, because it is slow) the engine."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from streamfuse.bundle import Bundle, open_bundle
from streamfuse.parts import need
from streamfuse.text_io import TextIO

if TYPE_CHECKING:
    from streamfuse.runtime.backend import Backend
    from streamfuse.runtime.costs import CostTable
    from streamfuse.runtime.session import Session

_HERE = ("kernels", "xnnpack")  # of ExecuTorch's backends, those that the native engine carries


@dataclass(frozen=True, slots=True)
class Opened:
    """A checked bundle with its tokenizer; the engine comes with `session`."""

    bundle: Bundle
    text: TextIO

    def check_prompt(self, prompt_ids: list[int]) -> None:
        """Refuse a prompt before seconds are spent on loading the engine."""
        from streamfuse.runtime.config import check_prompt

        check_prompt(prompt_ids, self.bundle.spec())

    @contextmanager
    def session(
        self, threads: int | None, *, plan: bool = True, remember: bool = False, text: bool = True
    ) -> Iterator[Session]:
        """Load the engine; closed at the end of the block.

        With `plan`, what passes cost is measured now, or taken from the user's cache folder where `remember` allows.
        Without `text` the session speaks token ids alone.
        """
        from streamfuse.runtime.reference.draft import DraftTables, StreamDrafter
        from streamfuse.runtime.native_grow import native_grower, native_ngrams
        from streamfuse.runtime.native_sample import native_draw
        from streamfuse.runtime.session import Session

        started = time.perf_counter()
        backend = open_backend(self.bundle, threads)
        try:
            tables = DraftTables.load(self.bundle.draft) if self.bundle.draft else None
            if tables is not None:
                tables.check(backend.spec.num_streams, backend.spec.vocab_size)
            drafter = StreamDrafter(tables, native_grower(tables), native_ngrams(tables))
            costs = self._costs(backend, threads, remember) if plan and backend.spec.widths else None
            load_ms = 1000 * (time.perf_counter() - started)
            session = Session(
                backend,
                None,
                self.text.decode if text else None,
                drafter=drafter,
                draw=native_draw(),
                costs=costs,
                model_load_ms=load_ms,
            )
        except BaseException:
            backend.close()
            raise
        gc.collect()
        gc.freeze()  # what is loaded stays; looking through it again would stop the text for tens of milliseconds
        try:
            yield session
        finally:
            session.close()

    def _costs(self, backend: Backend, threads: int | None, remember: bool) -> CostTable:
        from streamfuse.model.pull import cache_root
        from streamfuse.runtime.costs import PlanCache, agrees, device_name, measure

        files = {name: facts.sha256 for name, facts in self.bundle.manifest.files.items()}
        cache = PlanCache(cache_root() / "plans", files, f"{device_name(threads)}, {_engine_stamp(self.bundle)}")
        table = cache.load(backend.spec) if remember else None
        if table is None or not agrees(table, backend):
            table = measure(backend)
            if remember:
                cache.store(table)
        return table


def _engine_stamp(bundle: Bundle) -> str:
    """Changes with the engine, so that a new build or version is measured anew."""
    from streamfuse.kernels.library import LibraryError, find_library

    if bundle.manifest.target != "executorch":
        package = {"onnx": "onnxruntime", "coreml": "coremltools"}[bundle.manifest.target]
        try:
            return f"{package} {version(package)}"
        except PackageNotFoundError:
            return package
    try:
        facts = find_library().stat()
    except LibraryError:
        return "no native engine"
    return f"engine {facts.st_size} {int(facts.st_mtime)}"


def open_for_text(path: str) -> Opened:
    """Check a bundle and read its tokenizer and chat template. MissingPart where its engine is not installed."""
    bundle = open_bundle(path)
    if bundle.manifest.target == "onnx":
        need("run-onnx")
    if bundle.manifest.target == "coreml" and sys.platform == "darwin":
        need("run-coreml")
    model = bundle.manifest.model
    return Opened(bundle, TextIO(bundle.tokenizer, model.chat_template, model.bos_token_id, model.eos_token_ids))


def open_backend(bundle: Bundle, threads: int | None) -> Backend:
    """The engine of the bundle's target; for Core ML the emulator, but on a Mac. Tests put a fake in this place.

    Raises:
        BackendError: the engine or the graphs cannot be loaded, or the delegate lives on phones only.
    """
    if bundle.manifest.target == "onnx":
        from streamfuse.runtime.backends.onnxruntime import OnnxBackend

        return OnnxBackend(bundle.graph, bundle.spec(), num_threads=threads)
    if bundle.manifest.target == "coreml":
        from streamfuse.runtime.backends.coreml import open_package

        return open_package(bundle.graph, bundle.spec())
    if bundle.manifest.backend not in _HERE:
        from streamfuse.runtime.backend import BackendError

        raise BackendError(
            f"{bundle.folder} needs ExecuTorch's delegate {bundle.manifest.backend}, which is on devices;"
            f" here run {' and '.join(_HERE)}"
        )
    from streamfuse.runtime.backends.executorch import ExecuTorchBackend

    return ExecuTorchBackend(bundle.graph, bundle.spec(), num_threads=threads)
