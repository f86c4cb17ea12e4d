"""Drafters that learn online in the comparison: a mix of prompts that shifts from set to set, and a frozen twin each.

Every prompt is asked once, as learning would see a second time what it was taught. The first set comes again at the
end, with other prompts: what was forgotten meanwhile shows there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streamfuse.bench.shared.comparison import TaskSettings
from streamfuse.bench.shared.systems import Answer, System
from streamfuse.research.online import GREEDY, Noted, Watch
from streamfuse.runtime.reference.loop import Round
from streamfuse.runtime.text import Tokenizer

from .costs import DEVICES, computed_speedup
from .measure import DataSet, figures
from .methods import Method

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Visit:
    """Prompts of one kind in a row; `again`: other prompts of a set that was visited before."""

    data: DataSet
    again: bool = False


def shifting(data: Sequence[DataSet]) -> list[Visit]:
    """Set after set, the first of them half at the beginning and half at the end (one that has but a prompt: whole)."""
    first = data[0]
    half = (len(first.prompts) + 1) // 2
    back = _part(first, slice(half, None))
    visits = [Visit(_part(first, slice(half))), *map(Visit, data[1:])]
    return [*visits, Visit(back, again=True)] if back.prompts else visits


def _part(data: DataSet, part: slice) -> DataSet:
    return DataSet(data.name, data.prompts[part], data.samples[part])


@dataclass(frozen=True, slots=True)
class Pair:
    """A drafter that learns, and the same one frozen.

    Attributes:
        name: of the row.
        begins_as: the method whose drafter it is at the beginning.
        learning: makes the system of one answer, whose passes the argument sees.
        frozen: as it was at the beginning, for all answers.
        note: takes what was noted of each answer.
        updates: how many there were so far.
    """

    name: str
    begins_as: Method
    learning: Callable[[Callable[[Round], None]], System]
    frozen: System
    note: Callable[[Noted], None]
    updates: Callable[[], int]


@dataclass(slots=True)
class Course:
    """The answers to a visit's prompts, one of each system per prompt."""

    visit: Visit
    plain: list[Answer]
    frozen: list[Answer]
    learning: list[Answer]


def plain_answers(system: System, visits: Sequence[Visit], settings: TaskSettings, progress: Progress) -> list[Answer]:
    """Those of plain decoding to the prompts of all visits, in order; all rows are compared with them."""
    asked = list(_asked(visits, settings))
    answers = []
    for number, (visit, request) in enumerate(asked):
        progress(f"online, plain, {visit.data.name}: prompt {number + 1} of {len(asked)}")
        answers.append(system.answer(request))
    return answers


def row(
    pair: Pair,
    visits: Sequence[Visit],
    plain: Sequence[Answer],
    settings: TaskSettings,
    text: Tokenizer,
    costs: Mapping[str, Mapping[str, float]],
    extra: Mapping[str, Any],
    progress: Progress = lambda line: None,
) -> dict[str, Any]:
    """Answer all prompts once, learning on the way; a row of `MethodsResult.to_dict`, and in `online` its course.

    Speeds have no interval. An update stands between two answers, outside of their clocks.
    """
    courses = [Course(visit, [], [], []) for visit in visits]
    of_visit = {id(course.visit): course for course in courses}
    for number, (visit, request) in enumerate(_asked(visits, settings)):
        progress(f"{pair.name}, {visit.data.name}: prompt {number + 1} of {len(plain)}")
        watch, course = Watch(settings.temperature or GREEDY), of_visit[id(visit)]
        course.plain.append(plain[number])
        course.frozen.append(pair.frozen.answer(request))
        answer = pair.learning(watch).answer(request)
        course.learning.append(answer)
        pair.note(watch.noted([*request.prompt_ids, *answer.token_ids]))
    results = {name: _result([one for one in courses if one.visit.data.name == name], text) for name in _names(visits)}
    return {
        "about": f"{pair.begins_as.name}, distilled every few answers on what was rejected",
        "source": "Liu et al., 2023, arXiv 2310.07177",
        "drafter": pair.begins_as.drafter,
        "acceptor": pair.begins_as.acceptor().name,
        "tree": pair.begins_as.tree,
        "lossless": True,
        "promises": pair.begins_as.promises(settings.temperature),
        **extra,
        "results": results,
        "computed": {
            device: {
                data: computed_speedup(row["passes"], row["emitted_tokens"], costs[device])
                for data, row in results.items()
            }
            for device in DEVICES
        },
        "online": {"updates": pair.updates(), "visits": [_course(one) for one in courses]},
    }


def _asked(visits: Sequence[Visit], settings: TaskSettings) -> Iterator[tuple[Visit, Any]]:
    """Every request, with the visit that it is of."""
    number = 0
    for visit in visits:
        for prompt in visit.data.prompts:
            yield visit, settings.request(number, prompt)
            number += 1


def _names(visits: Sequence[Visit]) -> list[str]:
    return list(dict.fromkeys(visit.data.name for visit in visits))


def _result(courses: Sequence[Course], text: Tokenizer) -> dict[str, Any]:
    """All visits of a data set together."""
    prompts = [prompt for one in courses for prompt in one.visit.data.prompts]
    samples = [sample for one in courses for sample in one.visit.data.samples]
    data = DataSet(courses[0].visit.data.name, prompts, samples)
    own, plain = ([a for one in courses for a in answers(one)] for answers in (_learning, _plain))
    found = figures(data, own, plain, text, True)
    ms, plain_ms = (sum(answer.decode_ms for answer in some) for some in (own, plain))
    rate, plain_rate = found["generated_tokens"] / ms, sum(len(a.token_ids) for a in plain) / plain_ms
    return {
        **found, "tokens_per_second": 1000 * rate, "tokens_per_second_interval": None, "speedup": rate / plain_rate,
        "speedup_interval": None, "over_time": None,
    }  # fmt: skip


def _learning(one: Course) -> list[Answer]:
    return one.learning


def _plain(one: Course) -> list[Answer]:
    return one.plain


def _course(one: Course) -> dict[str, Any]:
    """Per answer: tokens, passes of the target while learning, and of the frozen drafter."""
    pairs = zip(one.learning, one.frozen, strict=True)
    return {
        "data": one.visit.data.name,
        "again": one.visit.again,
        "answers": [[len(a.token_ids), _passes(a), _passes(b)] for a, b in pairs],
        "equal_texts": all(a.token_ids == b.token_ids for a, b in zip(one.learning, one.plain, strict=True)),
    }


def _passes(answer: Answer) -> int:
    return int((answer.statistics or Counter())["target_forward_passes"])
