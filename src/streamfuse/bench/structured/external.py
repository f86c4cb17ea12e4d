"""Other programs in the structured bench: the same prompts under the same constraints.

A program may refuse a constraint (a keyword that it does not have); its figures are of the questions that it answered,
and its ratio is to our constrained plain answers to those. One that dies gives no further answers.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import numpy as np

from streamfuse.bench.shared.comparison import REST_S, SETTLE_S, rotated
from streamfuse.bench.shared.statistics import Bootstrap, Estimate, Timings
from streamfuse.bench.shared.systems import Answer, ExternalSystemDied, ExternalSystemError, Request, System

from .questions import Question, problem_of

_WARM_UP_TOKENS = 8


class Externals:
    """The programs of a run.

    Args:
        without: gets a sentence about each that died, when it does.

    Attributes:
        left_out: by name, why it gives no further answers.
    """

    def __init__(self, systems: Sequence[System] = (), without: Callable[[str], None] = lambda line: None) -> None:
        self._systems = {system.name: system for system in systems}
        self._without = without
        self.left_out: dict[str, str] = {}

    @property
    def names(self) -> list[str]:
        """Of those that answer."""
        return [name for name in self._systems if name not in self.left_out]

    def warm_up(self, prompt_ids: Sequence[int]) -> None:
        """Read a prompt and write a few tokens without a constraint, in each."""
        for name in self.names:
            self.answer(name, Request(prompt_ids, _WARM_UP_TOKENS))

    def answer(self, name: str, request: Request) -> Answer | str:
        """An answer, or why there is none."""
        try:
            return self._systems[name].answer(request)
        except ExternalSystemDied as error:
            self.left_out[name] = str(error)
            self._without(f"Without {name}: {error}")
            return str(error)
        except ExternalSystemError as error:
            return str(error)


@dataclass(frozen=True, slots=True)
class Reply:
    """To one question: an answer per repetition and the text of the first, or `refused`, the reason why there is none.

    Attributes:
        finished: False where `max_new_tokens` cut the answer.
        problem: why the text does not satisfy the constraint; None where it does, or was cut.
    """

    answers: Sequence[Answer] = ()
    text: str = ""
    finished: bool = False
    problem: str | None = None
    refused: str | None = None


class Asked:
    """One question to all programs that answer.

    Args:
        request: with the question's constraint.
        decode: text of token ids.
    """

    def __init__(
        self, externals: Externals, question: Question, request: Request, decode: Callable[[Sequence[int]], str]
    ) -> None:
        self._externals, self._question, self._request, self._decode = externals, question, request, decode
        self._answers: dict[str, list[Answer]] = {name: [] for name in externals.names}
        self._refused: dict[str, str] = {}

    def ask(self, turn: int) -> None:
        """All of them once more, from another one on in each turn; one that has refused is not asked again.

        The programs run back to back; then a pause lets their threads go idle before our systems run.
        """
        for name in rotated(list(self._answers), turn):
            time.sleep(SETTLE_S)
            if name not in self._refused:
                found = self._externals.answer(name, self._request)
                if isinstance(found, str):
                    self._refused[name] = found
                else:
                    self._answers[name].append(found)
        if self._answers:
            time.sleep(REST_S)

    def replies(self) -> dict[str, Reply]:
        """By program, after at least one `ask` of each."""
        return {name: self._reply(name, answers) for name, answers in self._answers.items()}

    def _reply(self, name: str, answers: Sequence[Answer]) -> Reply:
        if name in self._refused:
            return Reply(refused=self._refused[name])
        text = self._decode(answers[0].token_ids)
        finished = len(answers[0].token_ids) < self._request.max_new_tokens
        return Reply(answers, text, finished, problem_of(self._question.constraint, text) if finished else None)


@dataclass(frozen=True, slots=True)
class ExternalFigures:
    """One program in one task.

    Attributes:
        questions, replies: all that it was asked, and its reply to each.
        plain: of ours, the constrained plain answers to the same questions.
    """

    questions: Sequence[Question]
    replies: Sequence[Reply]
    plain: Sequence[Sequence[Answer]]

    @property
    def refused(self) -> Counter[str]:
        """Reasons why questions have no answer, with their number."""
        return Counter(one.refused for one in self.replies if one.refused is not None)

    @property
    def over_plain(self) -> Estimate | None:
        """Its tokens per second over those of our constrained plain answers; None without an answer."""
        if not self._answered:
            return None
        plain = [self.plain[place] for place in self._answered]
        return self._bootstrap.ratio(self._timings, timings_of(plain))

    def to_dict(self) -> dict[str, Any]:
        """Without an answer: the reasons, and no figures."""
        refused = [{"reason": reason, "questions": count} for reason, count in self.refused.items()]
        over_plain = self.over_plain
        if over_plain is None:
            return {"answers": 0, "refused": refused}
        replies = [self.replies[place] for place in self._answered]
        tokens, ms = self._timings.tokens, np.median(self._timings.ms, axis=1)
        done = sum(one.finished for one in replies)
        problems = [one.problem for one in replies if one.problem is not None]
        scores = [self.questions[place].score(self.replies[place].text) for place in self._answered]
        return {
            "answers": len(replies),
            "refused": refused,
            "tokens": int(tokens.sum()),
            "decode_token_per_sec": self._bootstrap.rate(self._timings).value,
            "over_plain": over_plain.value,
            "over_plain_interval": over_plain.interval,
            "ms_per_answer": float(ms.mean()),
            "cpu_ms_per_token": sum(median(_statistic(one, "cpu_ms")) for one in replies) / max(1, int(tokens.sum())),
            "compile_ms": median(ms for one in replies for ms in _statistic(one, "compile_ms")),
            "finished": done / len(replies),
            "valid": 1 - len(problems) / done if done else None,
            "problems": problems,
            "quality": {name: fmean(one[name] for one in scores) for name in scores[0]},
        }

    @property
    def _answered(self) -> list[int]:
        return [place for place, one in enumerate(self.replies) if one.refused is None]

    @property
    def _timings(self) -> Timings:
        return timings_of([self.replies[place].answers for place in self._answered])

    @property
    def _bootstrap(self) -> Bootstrap:
        return Bootstrap(len(self._answered), len(self.plain[0]))


def _statistic(reply: Reply, name: str) -> list[float]:
    return [(answer.statistics or {})[name] for answer in reply.answers]


def timings_of(answers: Sequence[Sequence[Answer]]) -> Timings:
    """Of answers [questions][repetitions]."""
    tokens = [len(repeated[0].token_ids) for repeated in answers]
    ms = [[answer.decode_ms for answer in repeated] for repeated in answers]
    return Timings(np.array(tokens, np.float64), np.array(ms))


def figures_of(
    questions: Sequence[Question], replies: Sequence[Mapping[str, Reply]], plain: Sequence[Sequence[Answer]]
) -> dict[str, ExternalFigures]:
    """By program, of all questions of a task; each argument has one entry per question."""
    names = dict.fromkeys(name for one in replies for name in one)
    return {name: _figures_of(name, questions, replies, plain) for name in names}


def _figures_of(
    name: str, questions: Sequence[Question], replies: Sequence[Mapping[str, Reply]], plain: Sequence[Sequence[Answer]]
) -> ExternalFigures:
    asked = [place for place, one in enumerate(replies) if name in one]
    return ExternalFigures(
        [questions[place] for place in asked], [replies[place][name] for place in asked],
        [plain[place] for place in asked],
    )  # fmt: skip
