"""Loading the engine of a bundle for a command that times what it does, and what to say about it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from streamfuse import engines
from streamfuse.api import Chat, Model, Statistics
from streamfuse.bundle import Bundle
from streamfuse.cli.shared.console import say

if TYPE_CHECKING:
    from streamfuse.runtime.session import Session


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
    """A line about the sampling that a bundle brings along (`options.defaults`)."""
    if defaults:
        say(f"This bundle's sampling defaults: {defaults}. --temperature 0 is greedy.")


def tell_prefix(found: Statistics) -> None:
    """A line where a stored prefix of the bundle was not used."""
    if found.prefix_refused is not None:
        say(
            f"A stored prefix is not used: {found.prefix_refused}. Make it again with `streamfuse bundle prefix`.",
            "yellow",
        )


def tell_limit(found: Statistics) -> None:
    """A line where the limit ended an answer, not the model."""
    if found.finish_reason == "length":
        say(f"The answer stops at {found.generated_tokens} tokens; --max-new-tokens allows more.")
    if found.finish_reason == "incomplete":
        say(
            f"The answer is incomplete: it stops at {found.generated_tokens} tokens, before its schema, regex or "
            "grammar allows an end; --max-new-tokens allows more.",
            "yellow",
        )


def settle(on: Model | Chat | Session, *, plan: bool) -> None:
    """Load the engine and, with `plan`, measure or read what passes cost now, so that the first answer is not late."""
    if plan:
        on.prepare()
    else:
        on.backend  # noqa: B018 (loads it)
    _freeze()


@contextmanager
def loaded(model: Model, *, plan: bool = True, text: bool = True) -> Iterator[Session]:
    """A session of the model, for commands that watch single passes or run them by hand; closed with the model.

    With `plan`, what passes cost is measured or read now. Without `text` the session speaks token ids alone.
    """
    with model:
        session = model.session(text=text)
        if plan:
            session.prepare()
        _freeze()
        yield session


def _freeze() -> None:
    """What is loaded stays; looking through it again would stop the text for tens of milliseconds."""
    gc.collect()
    gc.freeze()
