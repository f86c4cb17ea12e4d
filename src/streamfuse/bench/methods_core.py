"""The product itself in the comparison: a session of the core, which plans every pass."""

from __future__ import annotations

from dataclasses import replace

from streamfuse.runtime.session import Session

from .methods_list import STREAMS, STREAMS_OF, TARGET
from .systems import Answer, OwnRuntime, Request

CORE_PLAIN, CORE_OURS = "plain, core", "streamfuse, core"


class CoreSystem(OwnRuntime):
    """A session, plain or speculative, with statistics as the methods of the laboratory have them."""

    def __init__(self, name: str, session: Session, speculative: bool) -> None:
        super().__init__(session, speculative)
        self.name = name

    def answer(self, request: Request) -> Answer:
        answer = super().answer(request)
        said = answer.statistics
        assert said is not None, "our runtime gives statistics"
        passes = {f"{TARGET}: {method}": count for method, count in said["widths"].items() if count}
        if said["streams_passes"]:
            passes[STREAMS_OF[STREAMS]] = said["streams_passes"]
        kept = {
            name: said[name]
            for name in ("first_token_ms", "target_forward_passes", "mean_accepted_tokens", "accept_lengths")
        }
        return replace(answer, statistics={**kept, "passes": passes, "rounds": []})
