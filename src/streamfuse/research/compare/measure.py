"""All methods over data sets, in turns; acceptance is live, never replayed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from streamfuse.bench.quality.scores import quality
from streamfuse.bench.shared.comparison import TaskSettings
from streamfuse.bench.shared.systems import Answer, System, emitted_tokens, tokens_after_first_pass
from streamfuse.bench.shared.turns import questions
from streamfuse.bench.tasks.measure import TaskResult, compare
from streamfuse.runtime.text import Tokenizer
from streamfuse.train.formats import Sample

from .core import CORE_PLAIN
from .costs import computed_speedup, everywhere
from .methods import BASELINE, SAME_TOKENS, Method, Parts
from .system import MAX_DEPTH, MAX_RANKS, system_of


@dataclass(frozen=True, slots=True)
class DataSet:
    """Prompts of one kind, a prompt per turn of a question (`turns.all_turns`).

    `samples` are as many, each up to its own turn, with the references for the quality of answers. A later turn has
    plain decoding's answers to those before it, whatever a method answered there: every method is asked the same, and a
    lossless one wrote the same.
    """

    name: str
    prompts: Sequence[Sequence[int]]
    samples: Sequence[Sample]


@dataclass(frozen=True, slots=True)
class MethodsResult:
    """The whole comparison; `to_dict` is the object of `--json`.

    `data` and `tasks` are of what was measured: where `stopped_by` ended the run early, of what was complete by then.
    """

    methods: Sequence[Method]
    data: Sequence[DataSet]
    tasks: Mapping[str, TaskResult]  # by data set
    costs: Mapping[str, Mapping[str, float]]
    text: Tokenizer
    extra: Mapping[str, Mapping[str, Any]]  # by method: extra_parameters, extra_bytes
    core: Mapping[str, str] = field(default_factory=dict)  # systems through the core, and what each is
    facts: Mapping[str, Any] = field(default_factory=dict)
    stopped_by: BaseException | None = None

    def to_dict(self) -> dict[str, Any]:
        rows = {method.name: self._row(method) for method in self.methods}
        for name, about in self.core.items():
            rows[name] = {**_CORE_ROW, "about": about, **self.extra.get(name, {}), **self._measured(name, True)}
        return {
            **self.facts,
            "data": {
                one.name: {"prompts": len(one.prompts), "questions": len(questions(one.samples))} for one in self.data
            },
            "methods": rows,
            "costs": self.costs,
            "left_out": {data: task.left_out for data, task in self.tasks.items() if task.left_out},
            "complete": self.stopped_by is None,
            "sample": self._sample(),
        }

    def answers(self, name: str, data: str) -> list[Answer]:
        """A method's answers to the prompts of a data set: those of the first repetition."""
        return [repeated[0] for repeated in self.tasks[data].systems[name].answers]

    def _row(self, method: Method) -> dict[str, Any]:
        return {
            "about": method.about,
            "source": method.source,
            "drafter": method.drafter,
            "acceptor": method.acceptor().name if method.make else "-",
            "tree": method.tree,
            "lossless": method.lossless,
            "promises": method.promises(next(iter(self.tasks.values())).settings.temperature),
            **self.extra.get(method.name, {}),
            **self._measured(method.name, method.lossless),
        }

    def _measured(self, name: str, lossless: bool) -> dict[str, Any]:
        results = {one.name: self._result(name, one, lossless) for one in self.data}
        devices = {device: costs for device, costs in self.costs.items() if device != "here"}
        computed = {
            device: {
                data: computed_speedup(result["passes"], result["emitted_tokens"], costs)
                for data, result in results.items()
            }
            for device, costs in devices.items()
        }
        return {"results": results, "computed": computed}

    def _result(self, name: str, data: DataSet, lossless: bool) -> dict[str, Any]:
        task = self.tasks[data.name]
        baseline = CORE_PLAIN if name in self.core else BASELINE
        ratio, rate = task.ratio(name, baseline), task.rates[name]
        assert ratio is not None, "the baseline always runs"
        before = [one.name for one in self.data].index(data.name)
        tokens = sum(len(a.token_ids) for one in self.data[:before] for a in self.answers(name, one.name))
        own, plain = self.answers(name, data.name), self.answers(BASELINE, data.name)
        return {
            **figures(data, own, plain, self.text, lossless, tokens),
            "tokens_per_second": rate.value,
            "tokens_per_second_interval": rate.interval,
            "speedup": ratio.value,
            "speedup_interval": ratio.interval,
        }

    def _sample(self) -> dict[str, Any]:
        """One answer of every method, token by token, with what was drafted in vain."""
        first = self.data[0]
        plain = self.answers(BASELINE, first.name)[0]
        drafters = {method.name: method.drafter for method in self.methods if method.make}
        return {
            "data": first.name,
            "prompt": self.text.decode(list(first.prompts[0])),
            "plain": {"tokens": _lane(plain, self.text, "target")["tokens"]},
            "methods": {
                name: _lane(self.answers(name, first.name)[0], self.text, word) for name, word in drafters.items()
            },
        }


def figures(
    data: DataSet,
    answers: Sequence[Answer],
    plain: Sequence[Answer],
    text: Tokenizer,
    lossless: bool,
    tokens_before: int = 0,
) -> dict[str, Any]:
    """What the answers to a data set say, but for speed. A token that ends a text came of a pass, so it counts there.

    Args:
        plain: those of plain decoding.
        tokens_before: tokens that the method wrote in the data sets before this one, for `over_time`.
    """
    statistics = [answer.statistics or {} for answer in answers]
    lengths, passes = [len(a.token_ids) for a in answers], [one["target_forward_passes"] for one in statistics]
    emitted = list(map(emitted_tokens, statistics))
    by_pass = [one.get("accept_lengths", [1] * count) for one, count in zip(statistics, passes, strict=True)]
    later = [tokens_after_first_pass(*both) for both in zip(emitted, by_pass, strict=True)]
    kept = [_common(a.token_ids, b.token_ids) / max(len(b.token_ids), 1) for a, b in zip(answers, plain, strict=True)]
    counted = Counter[str]()
    for one in statistics:
        counted.update(one["passes"])
    return {
        "call_reduction_ratio": sum(later) / max(sum(passes) - len(answers), 1),
        "mean_accepted_tokens": sum(emitted) / max(sum(passes), 1),
        "first_token_ms": float(np.median([one["first_token_ms"] for one in statistics])),
        "equal_texts": all(a.token_ids == b.token_ids for a, b in zip(answers, plain, strict=True)),
        "share_of_equal_tokens": None if lossless else float(np.mean(kept)),
        "quality": quality(data.samples, [text.decode(list(a.token_ids)) for a in answers]) or None,
        "acceptance": _acceptance(statistics),
        "passes": dict(counted),
        "generated_tokens": sum(lengths),
        "emitted_tokens": sum(emitted),
        "over_time": [
            [tokens_before + written, given / max(count, 1)]
            for written, given, count in zip(np.cumsum(lengths).tolist(), emitted, passes, strict=True)
        ],
    }


_CORE_ROW = {"source": "this project", "drafter": "streams, n-grams, look-up", "acceptor": "match", "tree": "planned",
             "lossless": True, "promises": SAME_TOKENS}  # fmt: skip


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens that two texts begin with alike."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _acceptance(statistics: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    """[depth][rank]: share of the passes with a node of that depth that accepted the child of that rank."""
    proposed, accepted = np.zeros(MAX_DEPTH), np.zeros((MAX_DEPTH, MAX_RANKS))
    for one in statistics:
        if "proposed" in one:
            proposed += one["proposed"]
            accepted += one["accepted"]
    depths = int(np.count_nonzero(proposed))
    shares: list[list[float]] = (accepted[:depths] / np.maximum(proposed[:depths, None], 1)).round(4).tolist()
    return shares


def _lane(answer: Answer, text: Tokenizer, drafter: str) -> dict[str, Any]:
    """The tokens of an answer with the time of each, and the rejected drafts."""
    tokens: list[dict[str, Any]] = []
    rejected: list[dict[str, Any]] = []
    for ms, delivered, drafted, missed in (answer.statistics or {})["rounds"]:
        rejected += [{"at": len(tokens), "text": text.decode([token]), "depth": depth} for depth, token in missed]
        for i in range(delivered):
            word = text.decode([answer.token_ids[len(tokens)]])
            tokens.append({"text": word, "ms": round(ms, 3), "source": drafter if i < drafted else "target"})
    return {"tokens": tokens, "rejected": rejected}


def measure(
    methods: Sequence[Method],
    parts: Parts,
    data: Sequence[DataSet],
    settings: TaskSettings,
    text: Tokenizer,
    *,
    core: Mapping[str, tuple[System, str]] | None = None,
    peers: Sequence[System] = (),
    extra: Mapping[str, Mapping[str, Any]] | None = None,
    facts: Mapping[str, Any] | None = None,
    costs: Mapping[str, float],
    bandwidth: Callable[[], float],
    weight_bytes: int,
    progress: Callable[[str], None] = lambda line: None,
    without: Callable[[str], None] = lambda line: None,
) -> MethodsResult:
    """Run every method on every prompt, in turns. A peer that fails is left out from that data set on.

    Args:
        methods: with the baseline among them.
        core: systems of the product itself, and what each is.
        peers: other programs; their rows are `peer_rows.peer_rows`.
        extra: by method, what it adds to the target: `extra_parameters`, `extra_bytes`; and its `peak_memory_bytes`.
        costs: of all passes here (`costs.measured`).
        without: gets a sentence about each peer that failed.

    Raises:
        TaskError: there is nothing to run.
        BaseException: what stopped the run before there was any figure.
    """
    systems: list[System] = [system_of(method, parts) for method in methods]
    systems += [*(system for system, _ in (core or {}).values()), *peers]
    tasks: dict[str, TaskResult] = {}
    measured: list[DataSet] = []
    stopped_by: BaseException | None = None
    for one in data:
        try:
            task = compare(
                systems, one.prompts, settings, bandwidth, weight_bytes,
                progress=lambda line, name=one.name: progress(f"{name}: {line}"),  # type: ignore[misc]
                without=without, others=[peer.name for peer in peers],
            )  # fmt: skip
        except (KeyboardInterrupt, Exception) as error:
            if not tasks:
                raise
            stopped_by = error
            break
        tasks[one.name] = task
        measured.append(replace(one, prompts=one.prompts[: task.prompts], samples=one.samples[: task.prompts]))
        systems = [system for system in systems if system.name not in task.left_out]
        if task.stopped_by is not None:
            stopped_by = task.stopped_by
            break
    about = {name: statistics for name, (_, statistics) in (core or {}).items()}
    return MethodsResult(methods, measured, tasks, everywhere(costs), text, extra or {}, about, facts or {}, stopped_by)
