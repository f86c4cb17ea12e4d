"""streamfuse's systems in a comparison, and answers with CPU caches that are evicted before each pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from streamfuse.api import Model
from streamfuse.bench.shared.cold_caches import ColdCaches
from streamfuse.bench.shared.systems import PLAIN, SPECULATIVE, OwnRuntime, Request
from streamfuse.cli.shared.compare import Comparison
from streamfuse.cli.shared.engine import settle
from streamfuse.interrupt import stop_on_interrupt

Rows = list[tuple[str, Comparison]]


def own_system(model: Model, name: str, clock: ColdCaches | None = None) -> OwnRuntime:
    """A system in its own session, which is closed with the model. Measures what passes cost, with cold caches if
    `clock` evicts them, unless it is PLAIN, which plans nothing, or a session with the same clock has measured it.

    Raises:
        KeyboardInterrupt: Ctrl-C while it measures.
    """
    session = model.session(clock=clock)
    with stop_on_interrupt(session.stop) as interrupted:
        settle(session, plan=name != PLAIN)
    if interrupted:
        raise KeyboardInterrupt
    return OwnRuntime(model, name, session, evicting=clock is not None)


def with_cold_caches(
    model: Model, rows: Rows, prompts: Mapping[str, tuple[str, Mapping[str, Any]]], max_new_tokens: int
) -> Rows:
    """Add `cold` to each comparison: a plain and a speculative greedy answer, which `equal` includes.

    Args:
        prompts: by a row's label, the prompt and its restriction as options of `Model.generate`.

    Raises:
        MemoryError: what is read to evict the caches, twice their size, does not fit into memory.
    """
    clock = ColdCaches()
    ways = [own_system(model, name, clock) for name in (PLAIN, SPECULATIVE)]

    def measured(row: Comparison, prompt: str, restriction: Mapping[str, Any]) -> Comparison:
        request = Request(model.encode(prompt), max_new_tokens, constraint=restriction)
        plain, speculative = (way.answer(request) for way in ways)
        equal = plain.token_ids == speculative.token_ids == tuple(row.plain.result.tokens)
        return replace(row, equal=row.equal and equal, cold=(plain, speculative))

    return [(name, measured(row, *prompts[name])) for name, row in rows]
