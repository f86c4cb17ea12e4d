"""Loading an opened bundle for a command that times what it does: costs measured, memory settled."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from streamfuse import engines
from streamfuse.api import Model
from streamfuse.bundle import Bundle
from streamfuse.cli.shared.console import say

if TYPE_CHECKING:
    from streamfuse.runtime.config import GenerationConfig
    from streamfuse.runtime.session import Generation, Session


def tell_emulated(bundle: Bundle) -> None:
    """A line about who runs a Core ML bundle where there is no Core ML."""
    if engines.emulated(bundle):
        say("Core ML is on Apple's systems only; streamfuse's emulator runs this bundle here, much slower.")


def tell_provider(backend: object) -> None:
    """A line about how much of its graphs ONNX Runtime's provider runs, where that is not the CPU's."""
    facts = getattr(backend, "description", {})
    if "nodes" not in facts:
        return
    left, on_cpu = facts["nodes_on_cpu"], ", ".join(facts["operators_on_cpu"])
    rest = f"; the CPU runs the others: {on_cpu}" if left else ""
    say(f"ONNX Runtime's provider {facts['provider']} runs {facts['nodes'] - left} of {facts['nodes']} nodes{rest}.")


def tell_defaults(defaults: str) -> None:
    """A line about the sampling that a bundle brings along (`GenerationOptions.defaults`)."""
    if defaults:
        say(f"This bundle's sampling defaults: {defaults}. --temperature 0 is greedy.")


def tell_limit(generation: Generation, config: GenerationConfig) -> None:
    """A line where the limit ended an answer, not the model."""
    if generation.statistics["finish_reason"] == "length":
        say(f"The answer stops at {config.max_new_tokens} tokens; --max-new-tokens allows more.")


@contextmanager
def loaded(model: Model, *, plan: bool = True, text: bool = True) -> Iterator[Session]:
    """A session of the model, closed with it at the end of the block.

    With `plan`, what passes cost is measured or read now, so that the first answer need not wait for it. Without
    `text` the session speaks token ids alone.
    """
    with model:
        session = model.session(text=text)
        if plan:
            session.prepare()
        gc.collect()
        gc.freeze()  # what is loaded stays; looking through it again would stop the text for tens of milliseconds
        yield session
