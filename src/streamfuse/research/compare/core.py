"""The product itself in the comparison: a session of the core, which plans every pass."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from streamfuse.bench.shared.systems import Answer, Request, finished
from streamfuse.runtime.config import GenerationConfig, SamplingConfig
from streamfuse.runtime.reference.watch import Pass, observe
from streamfuse.runtime.session import Session
from streamfuse.runtime.text import Tokenizer

from .methods import STREAMS, STREAMS_OF, TARGET

CORE_PLAIN, CORE_OURS = "plain, core", "streamfuse, core"
_DRAFTERS = {"model": "target", "lookup": "text"}  # as the compared methods call them


class CoreSystem:
    """A session, plain or speculative, with statistics as the compared methods have them."""

    def __init__(self, name: str, session: Session, speculative: bool) -> None:
        self.name = name
        self._session, self._speculative = session, speculative

    def answer(self, request: Request) -> Answer:
        answer = self._answer(request)
        statistics = answer.statistics
        assert statistics is not None, "our runtime gives statistics"
        passes = {f"{TARGET}: {method}": count for method, count in statistics["widths"].items() if count}
        if statistics["streams_passes"]:
            passes[STREAMS_OF[STREAMS]] = statistics["streams_passes"]
        kept = {
            name: statistics[name]
            for name in ("first_token_ms", "target_forward_passes", "mean_accepted_tokens", "accept_lengths")
        }
        return replace(answer, statistics={**kept, "passes": passes, "rounds": []})

    def lane(self, request: Request, text: Tokenizer) -> dict[str, Any]:
        """One more answer, watched pass by pass: each token with its time and who drafted it, and the rejected drafts.

        Watching takes some microseconds per pass, so the answers of the comparison are not watched.
        """
        tokens: list[dict[str, Any]] = []
        rejected: list[dict[str, Any]] = []
        passes: list[tuple[float, Pass]] = []
        observe(self._session.core, lambda one: passes.append((time.perf_counter(), one)))
        started = time.perf_counter()
        try:
            statistics = self._answer(request).statistics
        finally:
            observe(self._session.core, None)
        assert statistics is not None, "our runtime gives statistics"
        began = started + statistics["time_ms"]["prefill"] / 1000  # reading the prompt is not in the clock
        for ended, one in passes:
            path, depths = set(one.walk_rows), one.depths
            rejected += [
                {"at": len(tokens), "text": text.decode([token]), "depth": depths[row]}
                for row, token in enumerate(one.tokens)
                if row not in path
            ]
            for i, token in enumerate(one.walk_tokens[: one.delivered]):
                row = one.walk_rows[i + 1] if i + 1 < len(one.walk_rows) else 0
                source = one.sources[row] if row else "model"
                tokens.append(
                    {
                        "text": text.decode([token]),
                        "ms": round(1000 * (ended - began), 3),
                        "source": _DRAFTERS.get(source, source),
                    }
                )
        return {"tokens": tokens, "rejected": rejected}

    def _answer(self, request: Request) -> Answer:
        sampling = SamplingConfig(temperature=request.temperature, seed=request.seed)
        config = GenerationConfig(request.max_new_tokens, sampling, speculative=self._speculative)
        self._session.reset()
        return finished(self._session.generate(request.prompt_ids, config))
