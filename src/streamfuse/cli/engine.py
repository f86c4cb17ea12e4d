"""Opening a bundle for `run` and `chat`: files, text, and (last, because it is slow) the engine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamfuse.bundle import Bundle, open_bundle
from streamfuse.text_io import TextIO

if TYPE_CHECKING:
    from streamfuse.runtime.backend import Backend
    from streamfuse.runtime.session import Session


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
    def session(self, threads: int | None) -> Iterator[Session]:
        """Load the engine; closed at the end of the block."""
        from streamfuse.runtime.draft import DraftTables
        from streamfuse.runtime.session import Session

        started = time.perf_counter()
        backend = open_backend(self.bundle, threads)
        try:
            tables = DraftTables.load(self.bundle.draft) if self.bundle.draft else None
            load_ms = 1000 * (time.perf_counter() - started)
            session = Session(backend, tables, self.text.decode, model_load_ms=load_ms)
        except BaseException:
            backend.close()
            raise
        try:
            yield session
        finally:
            session.close()


def open_for_text(path: str) -> Opened:
    """Check a bundle and read its tokenizer and chat template."""
    bundle = open_bundle(path)
    model = bundle.manifest.model
    return Opened(bundle, TextIO(bundle.tokenizer, model.chat_template, model.bos_token_id, model.eos_token_ids))


def open_backend(bundle: Bundle, threads: int | None) -> Backend:
    """The engine of the bundle's target. Tests put a fake in this place."""
    from streamfuse.runtime.backends.executorch import ExecuTorchBackend

    return ExecuTorchBackend(bundle.graph, bundle.spec(), num_threads=threads)
