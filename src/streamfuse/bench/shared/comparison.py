"""What benches that compare systems share: how to measure, whose turn it is, and a speedup without a clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from streamfuse.bench.shared.systems import LOOP_PHASES, Request
from streamfuse.bundle.manifest import DECODE, STREAMS
from streamfuse.options import OptionError, flag_of

SETTLE_S = 0.01  # between two systems: threads that spin for their next job go to sleep meanwhile
REST_S = 0.3  # after other programs, whose threads may spin for longer and would slow down the system that follows
T = TypeVar("T")


def equality_line(equal: bool) -> str:
    """For summaries: whether plain and speculative decoding gave the same tokens."""
    return "plain and speculative gave the same tokens" if equal else "THE OUTPUTS DIFFER"


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """How to measure. OptionError names the option and its range.

    Attributes:
        max_new_tokens: of an answer, at most.
        repetitions: timed answers of each system to a prompt.
        temperature: 0 is greedy.
        seed: of the first prompt; each one after it has the next.
    """

    max_new_tokens: int = 128
    repetitions: int = 5
    temperature: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "repetitions"):
            if getattr(self, name) < 1:
                raise OptionError(f"{flag_of(name)} must be at least 1, not {getattr(self, name)}")
        if not self.temperature >= 0:
            raise OptionError(f"--temperature must be at least 0, not {self.temperature}")

    def request(self, prompt: int, prompt_ids: Sequence[int], max_new_tokens: int | None = None) -> Request:
        """The question of prompt number `prompt`; repetitions ask the same one."""
        return Request(prompt_ids, max_new_tokens or self.max_new_tokens, self.temperature, self.seed + prompt)


def rotated(systems: Sequence[T], turn: int) -> list[T]:
    """All of them, from another one on in each turn."""
    first = turn % len(systems) if systems else 0
    return [*systems[first:], *systems[:first]]


def counted_speedup(pairs: Iterable[tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]]) -> float | None:
    """Speculative over plain by what passes cost when the plan began, with the loops as measured.

    Counts instead of clocks: what another program takes from a pass changes nothing. `pairs` are the statistics of a
    plain and a speculative answer each; None where one is missing, or has no costs.
    """
    plain_ms = drafted_ms = 0.0
    for plain, drafted in pairs:
        if not plain or not drafted or not drafted["cost_ms"]:
            return None
        cost = drafted["cost_ms"]
        passes = {**drafted["widths"], STREAMS: drafted["streams_passes"]}
        plain_ms += plain["target_forward_passes"] * cost[DECODE] + _loop_ms(plain)
        drafted_ms += sum(count * cost.get(name, 0.0) for name, count in passes.items()) + _loop_ms(drafted)
    return plain_ms / drafted_ms if drafted_ms else None


def _loop_ms(statistics: Mapping[str, Any]) -> float:
    return float(sum(statistics["time_ms"][phase] for phase in LOOP_PHASES))
