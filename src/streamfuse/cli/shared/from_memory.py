"""Plain and speculative decoding whose passes read their weights from memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from streamfuse.api import Model
from streamfuse.bench.shared.cold_caches import ColdCaches
from streamfuse.bench.shared.systems import PLAIN, SPECULATIVE, OwnRuntime, Request
from streamfuse.cli.shared.compare import Comparison
from streamfuse.cli.shared.engine import settle


class FromMemory:
    """A session whose CPU caches are evicted before each pass, as on a device whose caches are much smaller than the
    weights, such as a phone. Its planner measures the latency of passes in the same way. Closed with the model.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        session = model.session(clock=ColdCaches())
        settle(session, plan=True)
        self._ways = [OwnRuntime(model, name, session) for name in (PLAIN, SPECULATIVE)]

    def measured(self, one: Comparison, prompt: str, max_new_tokens: int, restriction: Mapping[str, Any]) -> Comparison:
        """The comparison with `from_memory`: one greedy answer of each kind, which `equal` includes."""
        request = Request(self._model.encode(prompt), max_new_tokens, constraint=restriction)
        plain, speculative = (way.answer(request) for way in self._ways)
        equal = plain.token_ids == speculative.token_ids == tuple(one.plain.result.tokens)
        return replace(one, equal=one.equal and equal, from_memory=(plain, speculative))
