"""The same prompt decoded plainly and speculatively on one loaded engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from rich.console import Console

from streamfuse.api import Generation, Model, Result, Statistics
from streamfuse.cli.shared.answer import answer
from streamfuse.cli.shared.interrupt import stop_on_interrupt

_WARM_UP_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Run:
    """One generation."""

    result: Result

    @property
    def statistics(self) -> Statistics:
        return self.result.statistics

    @property
    def speed(self) -> float:
        return self.statistics.decode_token_per_sec


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
        return self.speculative.result.text

    def to_dict(self) -> dict[str, Any]:
        """The object of `--compare --json`, to the key."""
        return {
            "plain": self.plain.statistics.to_dict(),
            "speculative": self.speculative.statistics.to_dict(),
            "equal": self.equal,
            "speedup": self.speedup,
            **answer(self.speculative.result),
        }


def compare(model: Model, ask: Callable[..., Generation], repeats: int, console: Console) -> Comparison:
    """Warm up both ways, then take turns, so that a change of the machine's speed meets both alike.

    `ask` starts the generation; options that it is given here replace its own.
    """
    ways = {"plain": False, "speculative": True}
    runs: dict[str, list[Run]] = {way: [] for way in ways}
    with console.status("warming up") as status:
        for speculative in ways.values():
            _run(model, ask, speculative, _WARM_UP_TOKENS)
        for index in range(repeats):
            for name, speculative in ways.items():
                status.update(f"{name}, {index + 1} of {repeats}")
                runs[name].append(_run(model, ask, speculative))
    everything = {tuple(run.result.tokens) for kind in runs.values() for run in kind}
    return Comparison(_median(runs["plain"]), _median(runs["speculative"]), len(everything) == 1)


def _run(model: Model, ask: Callable[..., Generation], speculative: bool, tokens: int | None = None) -> Run:
    model.reset()
    generation = ask(speculative=speculative)
    with stop_on_interrupt(generation.stop) as interrupted:
        for _ in islice(generation, tokens):
            pass
    generation.close()
    if interrupted:
        raise KeyboardInterrupt
    return Run(generation.result)


def _median(runs: list[Run]) -> Run:
    return sorted(runs, key=lambda run: run.speed)[len(runs) // 2]
