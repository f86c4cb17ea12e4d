"""Plain and speculative decoding with CPU caches that are evicted before each pass."""

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
from streamfuse.runtime.session import Session

Rows = list[tuple[str, Comparison]]


def cold_session(model: Model, clock: ColdCaches) -> Session:
    """A session of the model, closed with it, whose planner has measured the latency of passes with cold caches."""
    session = model.session(clock=clock)
    with stop_on_interrupt(session.stop) as interrupted:
        settle(session, plan=True)
    if interrupted:
        raise KeyboardInterrupt
    return session


def with_cold_caches(
    model: Model, rows: Rows, prompts: Mapping[str, tuple[str, Mapping[str, Any]]], max_new_tokens: int
) -> Rows:
    """Add `cold` to each comparison: a plain and a speculative greedy answer, which `equal` includes.

    Args:
        prompts: by a row's label, the prompt and its restriction as options of `Model.generate`.

    Raises:
        MemoryError: what is read to evict the caches, twice their size, does not fit into memory.
    """
    session = cold_session(model, ColdCaches())
    ways = [OwnRuntime(model, name, session) for name in (PLAIN, SPECULATIVE)]

    def measured(row: Comparison, prompt: str, restriction: Mapping[str, Any]) -> Comparison:
        request = Request(model.encode(prompt), max_new_tokens, constraint=restriction)
        plain, speculative = (way.answer(request) for way in ways)
        equal = plain.token_ids == speculative.token_ids == tuple(row.plain.result.tokens)
        return replace(row, equal=row.equal and equal, cold=(plain, speculative))

    return [(name, measured(row, *prompts[name])) for name, row in rows]
