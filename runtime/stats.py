"""What a generation cost and what drafting gained: one object, the same keys in Python, Kotlin and Swift."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from streamfuse.runtime.accept import Walk

PHASES = ("prefill", "draft", "verify", "accept", "commit", "sample")
Clock = Callable[[], float]  # monotonic seconds


class Stopwatch:
    """Gives every moment of the loop to a phase, and the caller's own time (between two tokens) to none."""

    def __init__(self, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._mark = clock()
        self.ms = dict.fromkeys(PHASES, 0.0)

    def lap(self, phase: str) -> float:
        """The time since the last lap belongs to this phase; its milliseconds."""
        now = self._clock()
        spent = 1000 * (now - self._mark)
        self.ms[phase] += spent
        self._mark = now
        return spent

    def skip(self) -> None:
        """The time since the last lap belongs to the caller."""
        self._mark = self._clock()

    @property
    def decode_ms(self) -> float:
        return sum(ms for phase, ms in self.ms.items() if phase != "prefill")


@dataclass(slots=True)
class Statistics:
    """Counted while the loop runs; `to_dict` has the keys of docs/runtime.md. Only delivered tokens are generated."""

    stopwatch: Stopwatch
    model_load_ms: float = 0.0
    prompt_tokens: int = 0
    prefilled_tokens: int = 0  # the prompt's tokens that the cache did not hold already
    generated_tokens: int = 0
    first_token_ms: float = 0.0
    rounds: int = 0  # verify passes
    target_forward_passes: int = 0  # verify and decode passes; the prompt's are not counted
    emitted_tokens: int = 0  # delivered ones, and the stop token that ended the text
    draft_tokens_proposed: int = 0
    draft_tokens_accepted: int = 0
    depth_proposed: list[int] = field(default_factory=list)  # [j]: rounds with a node of depth j + 1
    depth_accepted: list[int] = field(default_factory=list)  # [j]: rounds whose accepted path reached depth j + 1
    rank_offered: list[int] = field(default_factory=list)  # [r]: visited nodes with a child of rank r (0 the best)
    rank_accepted: list[int] = field(default_factory=list)  # [r]: of them, those whose child of rank r was accepted
    widths: dict[str, int] = field(default_factory=dict)  # passes per method
    fallback_reasons: dict[str, int] = field(default_factory=dict)  # plain passes per reason
    speculative: bool = False
    fallback_reason: str | None = None
    cost_ms: dict[str, float] = field(default_factory=dict)  # what the plan expects of a full pass, per method
    finish_reason: str = "stopped"  # until the loop knows better: a caller may walk away at any token
    streams_passes: int = 0  # deferred streams that were asked for; not part of the JSON either
    looked_up_tokens: int = 0  # of the accepted ones, those that n-grams alone proposed; likewise
    near_ties: int = 0  # choices that another engine's rounding might turn; not part of the JSON

    def count_pass(self, method: str, depth: int, proposed: int, reason: str | None = None) -> None:
        """A pass began: the method, its tree's depth, the drafted nodes in it, and why it is a plain one."""
        if reason is not None:
            self.fallback_reasons[reason] = self.fallback_reasons.get(reason, 0) + 1
        self.widths[method] = self.widths.get(method, 0) + 1
        self.target_forward_passes += 1
        self.rounds += method != "decode"
        self.draft_tokens_proposed += proposed
        _add_to_first(self.depth_proposed, depth)

    def count_accepted(self, accepted: int, emitted: int) -> None:
        """A pass ended: drafted tokens that were delivered, and all tokens it brought."""
        self.draft_tokens_accepted += accepted
        self.emitted_tokens += emitted
        _add_to_first(self.depth_accepted, accepted)

    def count_ranks(self, walk: Walk) -> None:
        """A walk is over: which children its nodes had, and which were right."""
        for place, offers in enumerate(walk.offers):
            _add_to_first(self.rank_offered, offers)
            if place < len(walk.ranks):
                rank = walk.ranks[place]
                self.rank_accepted.extend([0] * (rank + 1 - len(self.rank_accepted)))
                self.rank_accepted[rank] += 1

    def count_token(self) -> None:
        """A token is delivered."""
        self.generated_tokens += 1
        if self.generated_tokens == 1:
            self.first_token_ms = sum(self.stopwatch.ms.values())

    @property
    def acceptance_per_depth(self) -> list[float]:
        """[j]: of the rounds that proposed a node of depth j + 1, the share whose delivered path reached that depth."""
        return _shares(self.depth_accepted, self.depth_proposed)

    @property
    def acceptance_per_rank(self) -> list[float]:
        """[r]: of the nodes of accepted paths that had a child of rank r (0 the best), the share where it was right."""
        return _shares(self.rank_accepted, self.rank_offered)

    @property
    def main_reason(self) -> str | None:
        """Why it did not draft: for the whole generation, or for most of its plain passes."""
        if self.fallback_reason is not None or not self.fallback_reasons:
            return self.fallback_reason
        return max(self.fallback_reasons, key=lambda reason: self.fallback_reasons[reason])

    @property
    def mean_accepted_tokens(self) -> float:
        """Tokens per target pass, bonus token counted, prompt passes not: plain decoding is 1.00, as in Spec-Bench."""
        return _ratio(self.emitted_tokens, self.target_forward_passes)

    def to_dict(self) -> dict[str, Any]:
        """The JSON object, keys in their documented order; times in milliseconds."""
        ms = self.stopwatch.ms
        return {
            "prompt_tokens": self.prompt_tokens,
            "generated_tokens": self.generated_tokens,
            "model_load_ms": self.model_load_ms,
            "prefill_ms": ms["prefill"],
            "first_token_ms": self.first_token_ms,
            "decode_token_per_sec": _ratio(1000 * self.generated_tokens, self.stopwatch.decode_ms),
            "prefill_token_per_sec": _ratio(1000 * self.prefilled_tokens, ms["prefill"]),
            "rounds": self.rounds,
            "target_forward_passes": self.target_forward_passes,
            "draft_tokens_proposed": self.draft_tokens_proposed,
            "draft_tokens_accepted": self.draft_tokens_accepted,
            "acceptance_rate": _ratio(self.draft_tokens_accepted, self.draft_tokens_proposed),
            "acceptance_per_depth": self.acceptance_per_depth,
            "mean_accepted_tokens": self.mean_accepted_tokens,
            "time_ms": dict(ms),
            "widths": dict(self.widths),
            "speculative": self.speculative,
            "fallback_reason": self.main_reason,
            "finish_reason": self.finish_reason,
            "acceptance_per_rank": self.acceptance_per_rank,
            "fallback_reasons": dict(self.fallback_reasons),
            "cost_ms": dict(self.cost_ms),
        }


def _add_to_first(counts: list[int], depth: int) -> None:
    counts.extend([0] * (depth - len(counts)))
    for index in range(depth):
        counts[index] += 1


def _shares(parts: list[int], wholes: list[int]) -> list[float]:
    padded = parts + [0] * len(wholes)
    return [_ratio(part, whole) for part, whole in zip(padded, wholes, strict=False)]


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
