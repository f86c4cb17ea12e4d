"""The same prompt decoded plainly and speculatively on one loaded engine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rich.console import Console

from streamfuse.cli.shared.interrupt import stop_on_interrupt

if TYPE_CHECKING:
    from streamfuse.runtime.config import GenerationConfig
    from streamfuse.runtime.session import Session

_WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Run:
    """One generation."""

    token_ids: tuple[int, ...]
    text: str
    statistics: dict[str, Any]

    @property
    def speed(self) -> float:
        return float(self.statistics["decode_token_per_sec"])


@dataclass(frozen=True, slots=True)
class Comparison:
    """The median run of each kind. `equal`: every run of both kinds gave the same tokens."""

    plain: Run
    speculative: Run
    equal: bool

    @property
    def speedup(self) -> float:
        return self.speculative.speed / self.plain.speed if self.plain.speed else 0.0

    @property
    def text(self) -> str:
        return self.speculative.text

    def to_dict(self) -> dict[str, Any]:
        """The object of `--compare --json`, to the key."""
        return {
            "plain": self.plain.statistics,
            "speculative": self.speculative.statistics,
            "equal": self.equal,
            "speedup": self.speedup,
            "text": self.text,
        }


def compare(
    session: Session, prompt_ids: list[int], config: GenerationConfig, repeats: int, console: Console, raw: bool = False
) -> Comparison:
    """Warm up both ways, then take turns, so that a change of the machine's speed meets both alike."""
    ways = {"plain": replace(config, speculative=False), "speculative": replace(config, speculative=True)}
    runs: dict[str, list[Run]] = {way: [] for way in ways}
    with console.status("warming up") as status:
        for way in ways.values():
            _run(session, prompt_ids, replace(way, max_new_tokens=min(_WARM_UP_TOKENS, way.max_new_tokens)), raw)
        for index in range(repeats):
            for name, way in ways.items():
                status.update(f"{name}, {index + 1} of {repeats}")
                runs[name].append(_run(session, prompt_ids, way, raw))
    everything = {run.token_ids for kind in runs.values() for run in kind}
    return Comparison(_median(runs["plain"]), _median(runs["speculative"]), len(everything) == 1)


def _run(session: Session, prompt_ids: list[int], config: GenerationConfig, raw: bool) -> Run:
    session.reset()
    generation = session.generate(prompt_ids, config, raw=raw)
    with stop_on_interrupt(generation.stop) as interrupted:
        text = generation.finish()
    if interrupted:
        raise KeyboardInterrupt
    return Run(tuple(generation.token_ids), text, generation.statistics)


def _median(runs: list[Run]) -> Run:
    return sorted(runs, key=lambda run: run.speed)[len(runs) // 2]
