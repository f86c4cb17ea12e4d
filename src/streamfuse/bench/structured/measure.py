"""Constrained answers with and without speculation, in turns, and what they are worth.

Three systems answer every question: constrained text with speculation, the same plainly, and plain text without the
constraint, as many tokens as the constrained answer has. The prompt is processed once; decoding alone is timed. The
first answer of a question is not timed: it gives the text that all others must equal. Other programs follow in each
repetition (`external.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean, median
from typing import Any

import numpy as np

from streamfuse.api import Generation
from streamfuse.bench.shared.comparison import SETTLE_S, TaskSettings, counted_speedup, rotated
from streamfuse.bench.shared.statistics import Bootstrap, Estimate, Timings
from streamfuse.bench.shared.systems import Answer, cpu_ms_per_token, finished

from .external import Asked, ExternalFigures, Externals, Reply, figures_of, timings_of
from .questions import Question, problem_of
from .tasks import EncodedQuestion

FREE, PLAIN, SPECULATIVE = "free plain", "plain", "speculative"
SYSTEMS = (PLAIN, SPECULATIVE, FREE)
Stream = Callable[..., Generation]  # Model.stream


@dataclass(frozen=True, slots=True)
class QuestionResult:
    """A question with the answers of each system, one per repetition.

    Attributes:
        token_ids: of the first constrained answer, which was plain and is not timed.
        text: of the constrained answers.
        finished: False where a limit cut the answer before its constraint was satisfied.
        problem: why the text does not satisfy the constraint; None where it does, or was cut.
        compile_ms: until the generation with the constraint has started, one value per repetition.
        replies: of other programs, by name.
    """

    question: Question
    token_ids: tuple[int, ...]
    text: str
    finished: bool
    problem: str | None
    answers: Mapping[str, Sequence[Answer]]
    compile_ms: Sequence[float]
    replies: Mapping[str, Reply] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        """Whether all constrained answers have the same tokens."""
        constrained = (answer for name in (PLAIN, SPECULATIVE) for answer in self.answers[name])
        return all(answer.token_ids == self.token_ids for answer in constrained)


@dataclass(frozen=True)
class TaskFigures:
    """One task; `to_dict` is its object in `--json`."""

    results: Sequence[QuestionResult]
    skipped: int = 0  # questions that are longer than the context

    @property
    def speedup(self) -> Estimate:
        """Constrained text with speculation over constrained plain text, by tokens per second."""
        return self._bootstrap.ratio(self._timings(SPECULATIVE), self._timings(PLAIN))

    @property
    def over_free(self) -> Estimate:
        """Constrained plain text over free plain text, by passes per second. Below 1 the constraint costs time."""
        return self._bootstrap.ratio(self._passes(PLAIN), self._passes(FREE))

    @property
    def counted_speedup(self) -> float | None:
        """`speedup` by what passes cost when the plan began (bench.shared.comparison)."""
        repeated = zip(*(self._statistics(name) for name in (PLAIN, SPECULATIVE)), strict=True)
        return counted_speedup(repeated)

    @property
    def tokens(self) -> int:
        return sum(len(one.token_ids) for one in self.results)

    @property
    def equal(self) -> bool:
        return all(one.equal for one in self.results)

    @property
    def problems(self) -> list[str]:
        """What is wrong with finished answers; nothing should be."""
        return [one.problem for one in self.results if one.problem is not None]

    @property
    def quality(self) -> dict[str, float]:
        """Means of the metrics of all answers, in percent. Empty where nothing is right or wrong."""
        scores = [one.question.score(one.text) for one in self.results]
        return {name: fmean(one[name] for one in scores) for name in scores[0]} if scores else {}

    @cached_property
    def external(self) -> dict[str, ExternalFigures]:
        """Of other programs, by name."""
        return figures_of(
            [one.question for one in self.results], [one.replies for one in self.results],
            [one.answers[PLAIN] for one in self.results],
        )  # fmt: skip

    @property
    def ms_per_answer(self) -> dict[str, float]:
        """Decoding time by system, means over questions of medians over repetitions."""
        return {name: float(np.median(self._timings(name).ms, axis=1).mean()) for name in SYSTEMS}

    def to_dict(self) -> dict[str, Any]:
        speedup, over_free, bootstrap = self.speedup, self.over_free, self._bootstrap
        drafted = self._statistics(SPECULATIVE)
        passes = sum(one["target_forward_passes"] for one in drafted)
        by = _sums(one["accepted_by_source"] for one in drafted)
        done = sum(one.finished for one in self.results)
        return {
            "answers": len(self.results),
            "skipped": self.skipped,
            "tokens": self.tokens,
            "speedup": speedup.value,
            "speedup_interval": speedup.interval,
            "counted_speedup": self.counted_speedup,
            "constrained_over_free": over_free.value,
            "constrained_over_free_interval": over_free.interval,
            "decode_token_per_sec": {name: bootstrap.rate(self._timings(name)).value for name in SYSTEMS},
            "ms_per_answer": self.ms_per_answer,
            "tokens_per_pass": self.tokens / passes if passes else 0.0,
            "grammar_share": by["grammar"] / self.tokens if self.tokens else 0.0,
            "forced_drafts": sum(one["forced_tokens"] for one in drafted),
            "refused_drafts": sum(one["refused_drafts"] for one in drafted),
            "mask_ms_per_token": {name: self._mask_ms(name) for name in (PLAIN, SPECULATIVE)},
            "cpu_ms_per_token": {
                name: cpu_ms_per_token(answer for one in self.results for answer in one.answers[name])
                for name in SYSTEMS
            },
            "compile_ms": median(ms for one in self.results for ms in one.compile_ms),
            "finished": done / len(self.results),
            "valid": 1 - len(self.problems) / done if done else None,
            "problems": self.problems,
            "equal": self.equal,
            "quality": self.quality,
            "accepted_by_source": by,
            "widths": _sums(one["widths"] for one in drafted),
            "streams_passes": sum(one["streams_passes"] for one in drafted),
            "time_ms": {name: _sums(one["time_ms"] for one in self._statistics(name)) for name in SYSTEMS},
            "external": {name: figures.to_dict() for name, figures in self.external.items()},
        }

    @cached_property
    def _bootstrap(self) -> Bootstrap:
        """Always the same resamples, so that all intervals speak of the same chance."""
        return Bootstrap(len(self.results), len(self.results[0].compile_ms))

    def _timings(self, system: str) -> Timings:
        return timings_of([one.answers[system] for one in self.results])

    def _passes(self, system: str) -> Timings:
        """The same with passes instead of tokens: an end token takes a pass and is not delivered."""
        passes = [one["target_forward_passes"] for one in self._statistics(system)]
        return Timings(np.array(passes, np.float64), self._timings(system).ms)

    def _statistics(self, system: str) -> list[dict[str, Any]]:
        """Of the first answer to each question."""
        return [one.answers[system][0].statistics or {} for one in self.results]

    def _mask_ms(self, system: str) -> float:
        spent = (median((answer.statistics or {})["mask_ms"] for answer in one.answers[system]) for one in self.results)
        return sum(spent) / self.tokens if self.tokens else 0.0


@dataclass(frozen=True, slots=True)
class StructuredResult:
    """All tasks. `stopped_by` is what ended the run early; the figures are of the questions that were complete.

    `left_out` has other programs that have no figures or lack some, with the reason.
    """

    settings: TaskSettings
    tasks: Mapping[str, TaskFigures]
    facts: Mapping[str, Any] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)
    stopped_by: BaseException | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "tasks": {name: figures.to_dict() for name, figures in self.tasks.items()},
            "max_new_tokens": self.settings.max_new_tokens,
            "repetitions": self.settings.repetitions,
            "temperature": self.settings.temperature,
            "left_out": self.left_out,
            "complete": self.stopped_by is None,
            **self.facts,
        }


def measure(
    streams: Sequence[Stream],
    tasks: Mapping[str, tuple[Sequence[EncodedQuestion], int]],
    settings: TaskSettings,
    decode: Callable[[Sequence[int]], str],
    facts: Mapping[str, Any] | None = None,
    advance: Callable[[], None] = lambda: None,
    externals: Externals | None = None,
) -> StructuredResult:
    """Ask every question of every task.

    Args:
        streams: of one model per repetition. A session drafts what the model chose under earlier constraints, so it
            would know a question's answer from the repetition before.
        tasks: by name, the questions and how many were left out.
        decode: text of token ids.
        advance: is called after each question.
        externals: other programs that are asked the same.

    Raises:
        BaseException: whatever stopped the run (Ctrl-C, a failure) before there was any figure.
    """
    others = externals or Externals()
    done: dict[str, list[QuestionResult]] = {}
    stopped_by: BaseException | None = None
    try:
        for name, (questions, _) in tasks.items():
            for number, one in enumerate(questions):
                if not done:
                    others.warm_up(one.prompt_ids)
                done.setdefault(name, []).append(_measure_question(streams, one, number, settings, decode, others))
                advance()
    except (KeyboardInterrupt, Exception) as error:
        if not done:
            raise
        stopped_by = error
    figures = {name: TaskFigures(own, tasks[name][1]) for name, own in done.items()}
    return StructuredResult(settings, figures, facts or {}, others.left_out, stopped_by)


def _measure_question(
    streams: Sequence[Stream],
    encoded: EncodedQuestion,
    number: int,
    settings: TaskSettings,
    decode: Callable[[Sequence[int]], str],
    externals: Externals,
) -> QuestionResult:
    question = encoded.question
    first, _ = _answer(streams[0], encoded, number, settings, PLAIN, settings.max_new_tokens)
    answers: dict[str, list[Answer]] = {name: [] for name in SYSTEMS}
    compile_ms = []
    request = replace(settings.request(number, encoded.prompt_ids), constraint=question.constraint.option)
    asked = Asked(externals, question, request, decode)
    for repetition, stream in enumerate(streams):
        for name in rotated(SYSTEMS, number + repetition):
            time.sleep(SETTLE_S)
            room = max(1, len(first.token_ids)) if name == FREE else settings.max_new_tokens
            answer, started_ms = _answer(stream, encoded, number, settings, name, room)
            answers[name].append(answer)
            if name == SPECULATIVE:
                compile_ms.append(started_ms)
        asked.ask(number + repetition)
    text = decode(first.token_ids)
    whole = (first.statistics or {})["finish_reason"] == "stop"
    problem = problem_of(question.constraint, text) if whole else None
    return QuestionResult(
        question, first.token_ids, text, whole, problem, answers, compile_ms, asked.replies()
    )  # fmt: skip


def _answer(
    stream: Stream, encoded: EncodedQuestion, number: int, settings: TaskSettings, system: str, max_new_tokens: int
) -> tuple[Answer, float]:
    """The answer, and the milliseconds until its generation had started."""
    constraint = {"ignore_eos": True} if system == FREE else encoded.question.constraint.option
    started = time.perf_counter()
    generation = stream(
        encoded.prompt_ids, max_new_tokens=max_new_tokens, temperature=settings.temperature, top_k=0, top_p=1.0,
        min_p=0.0, repetition_penalty=1.0, seed=settings.seed + number, speculative=system == SPECULATIVE,
        **constraint,
    )  # fmt: skip
    started_ms = 1000 * (time.perf_counter() - started)
    return finished(generation), started_ms


def _sums(counts: Any) -> dict[str, float]:
    total: dict[str, float] = {}
    for one in counts:
        for name, count in one.items():
            total[name] = total.get(name, 0) + count
    return total
