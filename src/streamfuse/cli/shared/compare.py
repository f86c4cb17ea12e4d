"""The same prompt decoded plainly and speculatively on one loaded engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from streamfuse.api import Generation, Model, Result, Statistics
from streamfuse.cli.shared.answer import answer
from streamfuse.cli.shared.console import say
from streamfuse.cli.shared.errors import EXIT_FAILURE
from streamfuse.interrupt import stop_on_interrupt

if TYPE_CHECKING:
    from streamfuse.bench.shared.systems import Answer

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
    """The median run of each kind.

    Attributes:
        equal: every run of both kinds gave the same tokens.
        cold: plain and speculative with cold caches (streamfuse.cli.shared.cold_caches); None: not measured.
    """

    plain: Run
    speculative: Run
    equal: bool
    cold: tuple[Answer, Answer] | None = None

    @property
    def speedup(self) -> float:
        return self.speculative.speed / self.plain.speed if self.plain.speed else 0.0

    @property
    def speedup_cold_caches(self) -> float | None:
        return _ratio_of([self])

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


@dataclass(frozen=True, slots=True)
class Comparisons:
    """Plain and speculative decoding of several prompts. `rows`: a label and the comparison of each."""

    rows: list[tuple[str, Comparison]]

    @property
    def equal(self) -> bool:
        return all(row.equal for _, row in self.rows)

    @property
    def speeds(self) -> tuple[float, float]:
        """Tokens per second over all prompts, plain and speculative."""
        plain = _speed([row.plain.statistics for _, row in self.rows])
        return plain, _speed([row.speculative.statistics for _, row in self.rows])

    @property
    def speedup(self) -> float:
        plain, speculative = self.speeds
        return speculative / plain if plain else 0.0

    @property
    def speedup_cold_caches(self) -> float | None:
        """With cold caches, over all prompts; None: not measured."""
        return _ratio_of([row for _, row in self.rows])

    @property
    def tokens(self) -> int:
        return sum(row.speculative.statistics.generated_tokens for _, row in self.rows)

    @property
    def per_pass(self) -> float:
        """Tokens per pass of the model, speculative."""
        passes = sum(row.speculative.statistics.target_forward_passes for _, row in self.rows)
        return self.tokens / passes if passes else 0.0

    @property
    def sources(self) -> Counter[str]:
        """Accepted drafted tokens by source."""
        found: Counter[str] = Counter()
        for _, row in self.rows:
            found.update(row.speculative.statistics.accepted_by_source)
        return found

    def to_dict(self, label: str = "prompt") -> dict[str, Any]:
        """The figures of `--json`; `label` names the rows' labels."""
        plain, speculative = self.speeds
        return {
            "plain_token_per_sec": plain,
            "speculative_token_per_sec": speculative,
            "speedup": self.speedup,
            **_known(speedup_cold_caches=self.speedup_cold_caches),
            "tokens_per_pass": self.per_pass,
            "generated_tokens": self.tokens,
            "accepted_by_source": dict(self.sources),
            "equal": self.equal,
            f"{label}s": [
                {
                    label: name,
                    "speedup": row.speedup,
                    **_known(speedup_cold_caches=row.speedup_cold_caches),
                    "tokens_per_pass": row.speculative.statistics.mean_accepted_tokens,
                    "equal": row.equal,
                    "text": row.text,
                }
                for name, row in self.rows
            ],
        }


def _speed(runs: list[Statistics]) -> float:
    """Tokens per second over all of them."""
    timed = [run for run in runs if run.decode_token_per_sec > 0]
    seconds = sum(run.generated_tokens / run.decode_token_per_sec for run in timed)
    return sum(run.generated_tokens for run in timed) / seconds if seconds else 0.0


def _known(**facts: float | None) -> dict[str, float]:
    return {name: value for name, value in facts.items() if value is not None}


def _ratio_of(rows: Sequence[Comparison]) -> float | None:
    """Time of plain over that of speculative decoding, with cold caches, of the same answers."""
    measured = [row.cold for row in rows if row.cold is not None]
    plain, speculative = (sum(one[way].decode_ms for one in measured) for way in (0, 1))
    return plain / speculative if speculative else None


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


def check_equal(compared: Comparisons, backend: str) -> None:
    """Ends the command with a failure if a text differed, and says whether that is expected of this backend."""
    if compared.equal:
        return
    if backend == "kernels":
        reason = "which is a defect; please report it."
    else:
        reason = f"which {backend}, unlike kernels, allows at near ties: see docs/limits.md."
    say(f"The texts of plain and speculative decoding differ, {reason}", "red")
    raise typer.Exit(EXIT_FAILURE)
