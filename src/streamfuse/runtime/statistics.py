"""The statistics of a generation, as the core counts them (core/statistics.cpp)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a generation did and how long it needed, times in milliseconds. docs/runtime.md explains each field."""

    prompt_tokens: int
    generated_tokens: int
    model_load_ms: float
    measure_ms: float
    prefill_ms: float
    first_token_ms: float
    decode_token_per_sec: float
    prefill_token_per_sec: float
    rounds: int
    target_forward_passes: int
    draft_tokens_proposed: int
    draft_tokens_accepted: int
    acceptance_rate: float
    acceptance_per_depth: list[float]
    mean_accepted_tokens: float
    time_ms: dict[str, float]
    widths: dict[str, int]
    speculative: bool
    fallback_reason: str | None
    finish_reason: str
    acceptance_per_rank: list[float]
    fallback_reasons: dict[str, int]
    cost_ms: dict[str, float]
    accepted_by_source: dict[str, int]
    prefilled_tokens: int
    streams_passes: int
    near_ties: int
    forced_tokens: int
    refused_drafts: int
    mask_ms: float
    dropped_turns: int
    reread_tokens: int
    prefix_tokens: int
    prefix_refused: str | None

    def to_dict(self) -> dict[str, Any]:
        """The same keys and order in every language: the object of `--json`."""
        return asdict(self)
