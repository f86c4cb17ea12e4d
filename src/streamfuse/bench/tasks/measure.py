"""Systems over a data set, taking turns prompt by prompt, so that a machine that slows down meets all alike.

Losslessness is checked on the way: plain and speculative must give the same tokens, in every repetition.
An external system that fails is left out, and a run that is interrupted gives the figures of what was complete by then.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from streamfuse.bench.shared.comparison import REST_S, SETTLE_S, TaskSettings, counted_speedup, rotated
from streamfuse.bench.shared.statistics import Bootstrap, Estimate, Spread, Timings
from streamfuse.bench.shared.systems import (
    LOOP_PHASES,
    MEMORY,
    PLAIN,
    PROGRAMS,
    SPECULATIVE,
    WITHOUT,
    Answer,
    ExternalSystemError,
    OwnRuntime,
    Request,
    System,
    cpu_ms_per_token,
    emitted_tokens,
    joules_per_token,
)

_WARM_UP_TOKENS = 8

Progress = Callable[[str], None]


class TaskError(ValueError):
    """A measurement is not possible; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class SystemResult:
    """All answers of one system, [prompts][repetitions]."""

    answers: Sequence[Sequence[Answer]]

    @property
    def timings(self) -> Timings:
        """Tokens are those of the first repetition; a deterministic system gives the same in all."""
        tokens = np.array([len(repeated[0].token_ids) for repeated in self.answers], np.float64)
        return Timings(tokens, np.array([[answer.decode_ms for answer in repeated] for repeated in self.answers]))

    @property
    def texts(self) -> list[set[tuple[int, ...]]]:
        """The different answers that each prompt got."""
        return [{answer.token_ids for answer in repeated} for repeated in self.answers]

    @property
    def statistics(self) -> dict[str, Any]:
        """Counts of the first repetition, and times of all, as streamfuse reports them. Empty for other programs, which
        do not report passes by method."""
        first = (repeated[0].statistics for repeated in self.answers)
        known = [one for one in first if one is not None and "widths" in one]
        if not known:
            return {}
        passes = sum(one["target_forward_passes"] for one in known)
        emitted = sum(map(emitted_tokens, known))
        widths: Counter[str] = Counter()
        for one in known:
            widths.update(one["widths"])
        spent = {phase: sum(one["time_ms"][phase] for one in known) for phase in known[0]["time_ms"]}
        decoding = sum(ms for phase, ms in spent.items() if phase != "prefill")
        outside = sum(spent[phase] for phase in LOOP_PHASES)
        accepted: Counter[str] = Counter()
        for one in known:
            accepted.update(one["accepted_by_source"])
        reasons = Counter(one["fallback_reason"] for one in known if one["fallback_reason"])
        return {
            **self._times(),
            "ended": sum(one["finish_reason"] == "stop" for one in known),
            "mean_accepted_tokens": emitted / passes if passes else 0.0,
            "loop_share": outside / decoding if decoding else 0.0,
            "widths": dict(widths),
            "streams_passes": sum(one["streams_passes"] for one in known),
            "accepted_by_source": dict(accepted),
            "fallback_reasons": dict(reasons),
        }

    def _times(self) -> dict[str, float | None]:
        answers = [answer for repeated in self.answers for answer in repeated]
        read = [answer.statistics for answer in answers if answer.statistics]
        prefill_s = sum(one["prefill_ms"] for one in read) / 1000
        return {
            "first_token_ms": float(np.median([one["first_token_ms"] for one in read])),
            "prefill_token_per_sec": sum(one["prefilled_tokens"] for one in read) / prefill_s if prefill_s else None,
            "cpu_ms_per_token": cpu_ms_per_token(answers),
            "joules_per_token": joules_per_token(answers),
        }


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The whole measurement; `to_dict` is the object of `--json`.

    Attributes:
        kinds: of each prompt, for `gains`; empty: one kind.
        left_out: by system, why it has no figures.
        stopped_by: what ended the run early. The figures are of the repetitions that were complete by then, or of the
            prompts that were complete in the first one; `settings` has the repetitions that they are of.
    """

    settings: TaskSettings
    systems: Mapping[str, SystemResult]
    read_bandwidth_gb_s: Spread
    weight_bytes: int
    facts: Mapping[str, Any] = field(default_factory=dict)
    kinds: Sequence[str] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
    stopped_by: BaseException | None = None

    @property
    def prompts(self) -> int:
        """Those that every system answered."""
        return len(next(iter(self.systems.values())).answers)

    @property
    def roofline_token_per_sec(self) -> float:
        """What a plain decoder could reach at most: its weights, read once per token at the machine's bandwidth."""
        return self.read_bandwidth_gb_s.median * 1e9 / self.weight_bytes

    @property
    def equal(self) -> bool | None:
        """Whether plain and speculative, with a memory and less each source too, gave the same tokens everywhere. None
        unless plain and speculative ran."""
        if not {PLAIN, SPECULATIVE} <= self.systems.keys():
            return None
        names = (PLAIN, SPECULATIVE, MEMORY, *WITHOUT.values())
        own = [self.systems[name].texts for name in names if name in self.systems]
        return all(len(set().union(*texts)) == 1 for texts in zip(*own, strict=True))

    @property
    def rates(self) -> dict[str, Estimate]:
        """Tokens per second of each system."""
        bootstrap = self._bootstrap()
        return {name: bootstrap.rate(result.timings) for name, result in self.systems.items()}

    def ratio(self, system: str, baseline: str) -> Estimate | None:
        """How many times as fast `system` is. None unless both ran."""
        if not {system, baseline} <= self.systems.keys():
            return None
        return self._bootstrap().ratio(self.systems[system].timings, self.systems[baseline].timings)

    @property
    def gains(self) -> dict[str, dict[str, Estimate]]:
        """The speed of `speculative` over that of `plain` and of `speculative` without each source of drafts, for all
        prompts ("all") and for each kind. Empty unless `speculative` and one of the others ran."""
        baselines = [name for name in (PLAIN, *WITHOUT.values()) if name in self.systems]
        if SPECULATIVE not in self.systems or not baselines:
            return {}
        kinds = np.array(self.kinds[: self.prompts])
        chosen = {kind: np.flatnonzero(kinds == kind) for kind in dict.fromkeys(kinds.tolist())}
        chosen = {"all": np.arange(self.prompts), **(chosen if len(chosen) > 1 else {})}
        return {kind: {name: self._ratio_of(name, places) for name in baselines} for kind, places in chosen.items()}

    @property
    def over(self) -> dict[str, dict[str, Estimate]]:
        """How many times as fast plain and speculative are as each other program that ran."""
        found = {}
        for program in PROGRAMS:
            ratios = {name: self.ratio(name, program) for name in (PLAIN, SPECULATIVE)}
            found[program] = {name: ratio for name, ratio in ratios.items() if ratio is not None}
        return {program: ratios for program, ratios in found.items() if ratios}

    def _ratio_of(self, baseline: str, places: npt.NDArray[np.intp]) -> Estimate:
        speculative, other = (self.systems[name].timings.of(places) for name in (SPECULATIVE, baseline))
        return Bootstrap(*speculative.ms.shape).ratio(speculative, other)

    @property
    def counted_speedup(self) -> float | None:
        """`counted_speedup` of all answers. None unless both ran."""
        if not {PLAIN, SPECULATIVE} <= self.systems.keys():
            return None
        both = zip(self.systems[PLAIN].answers, self.systems[SPECULATIVE].answers, strict=True)
        pairs = ((a.statistics, b.statistics) for one, two in both for a, b in zip(one, two, strict=True))
        return counted_speedup(pairs)

    def to_dict(self) -> dict[str, Any]:
        rates, bandwidth = self.rates, self.read_bandwidth_gb_s
        roofline = self.roofline_token_per_sec
        return {
            "systems": {name: self._system(name, rate) for name, rate in rates.items()},
            **_with_interval("speedup", self.ratio(SPECULATIVE, PLAIN)),
            **_with_interval("memory_speedup", self.ratio(MEMORY, PLAIN)),
            "counted_speedup": self.counted_speedup,
            "speculative_over_roofline": rates[SPECULATIVE].value / roofline if SPECULATIVE in rates else None,
            "plain_over_roofline": rates[PLAIN].value / roofline if PLAIN in rates else None,
            "gains": {kind: _speedups(row) for kind, row in self.gains.items()},
            "over": {name: _speedups(row) for name, row in self.over.items()},
            "equal": self.equal,
            "roofline_token_per_sec": roofline,
            "read_bandwidth_gb_s": bandwidth.median,
            "read_bandwidth_quartiles_gb_s": [bandwidth.low, bandwidth.high],
            "weight_bytes": self.weight_bytes,
            "repetitions": self.settings.repetitions,
            "max_new_tokens": self.settings.max_new_tokens,
            "temperature": self.settings.temperature,
            "left_out": self.left_out,
            "complete": self.stopped_by is None,
            **self.facts,
            "prompts": self.prompts,
        }

    def _system(self, name: str, rate: Estimate) -> dict[str, Any]:
        result = self.systems[name]
        return {
            "decode_token_per_sec": rate.value,
            "decode_token_per_sec_interval": rate.interval,
            "generated_tokens": int(result.timings.tokens.sum()),
            **result.statistics,
        }

    def _bootstrap(self) -> Bootstrap:
        """Always the same resamples, so that all intervals speak of the same chance."""
        prompts, repetitions = next(iter(self.systems.values())).timings.ms.shape
        return Bootstrap(prompts, repetitions)


def compare(
    systems: Sequence[System],
    prompts: Sequence[Sequence[int]],
    settings: TaskSettings,
    read_bandwidth: Callable[[], float],
    weight_bytes: int,
    facts: Mapping[str, Any] | None = None,
    progress: Progress = lambda line: None,
    without: Progress = lambda line: None,
    kinds: Sequence[str] = (),
    others: Collection[str] = PROGRAMS,
) -> TaskResult:
    """Warm up, then run all systems on each prompt: ours first, rotating the order, then the other programs.

    Args:
        without: gets a sentence about each external system that failed, when it does.
        kinds: of each prompt, for `TaskResult.gains`.
        others: names of the systems that are other programs.

    Raises:
        TaskError: there is nothing to run, or every system failed.
        BaseException: whatever stopped the run (Ctrl-C, a failure of our own) before there was any figure.
    """
    if not prompts or not systems:
        raise TaskError("there is no prompt to run; give data with prompts" if systems else "--systems names no system")
    answers: dict[str, list[list[Answer]]] = {system.name: [[] for _ in prompts] for system in systems}
    left_out: dict[str, str] = {}
    bandwidth = []
    own = [system for system in systems if system.name not in others]
    programs = [system for system in systems if system.name in others]

    def answer(system: System, request: Request) -> Answer | None:
        try:
            return system.answer(request)
        except ExternalSystemError as error:
            left_out[system.name] = str(error)
            del answers[system.name]
            without(f"Without {system.name}: {error}")
            if not answers:
                raise TaskError(f"no system is left to measure: {error}") from None
            return None

    def ask(group: Sequence[System], repetition: int, number: int) -> bool:
        """Run the group's remaining systems on a prompt; False if none is left."""
        asked = [system for system in group if system.name in answers]
        for system in rotated(asked, repetition + number):
            time.sleep(SETTLE_S)
            if (found := answer(system, settings.request(number, prompts[number]))) is not None:
                answers[system.name][number].append(found)
        return bool(asked)

    def all_turns() -> None:
        for system in systems:
            answer(system, settings.request(0, prompts[0], _WARM_UP_TOKENS))
        if programs:
            time.sleep(REST_S)
        for repetition in range(settings.repetitions):
            bandwidth.append(read_bandwidth())
            for system in systems:
                if isinstance(system, OwnRuntime):
                    system.forget()
            for number in range(len(prompts)):
                progress(
                    f"repetition {repetition + 1} of {settings.repetitions}, prompt {number + 1} of {len(prompts)}"
                )
                ask(own, repetition, number)
                if ask(programs, repetition, number):
                    time.sleep(REST_S)

    stopped_by: BaseException | None = None
    try:
        all_turns()
    except (KeyboardInterrupt, Exception) as error:
        if not answers or not _complete(answers):
            raise
        stopped_by = error
    repetitions, count = _complete(answers) or (0, 0)
    results = {name: SystemResult([one[:repetitions] for one in own[:count]]) for name, own in answers.items()}
    settings = replace(settings, repetitions=repetitions)
    return TaskResult(settings, results, Spread.of(bandwidth), weight_bytes, facts or {}, kinds, left_out, stopped_by)


def _complete(answers: Mapping[str, Sequence[Sequence[Answer]]]) -> tuple[int, int] | None:
    """Repetitions that all prompts have, and prompts; or 1 and the prompts that have one. None: there are none."""
    counts = [min(map(len, of_prompt)) for of_prompt in zip(*answers.values(), strict=True)]
    if min(counts):
        return min(counts), len(counts)
    first = sum(count > 0 for count in counts)  # prompts are answered in order
    return (1, first) if first else None


def _speedups(ratios: Mapping[str, Estimate]) -> dict[str, dict[str, Any]]:
    return {name: {"speedup": found.value, "interval": found.interval} for name, found in ratios.items()}


def _with_interval(name: str, estimate: Estimate | None) -> dict[str, Any]:
    if estimate is None:
        return {name: None}
    return {name: estimate.value, f"{name}_interval": estimate.interval}
