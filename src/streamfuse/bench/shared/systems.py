"""The systems that benches compare: each answers a prompt and reports its decoding time.

The clock of every system runs alike: from the pass of the last prompt token, the first that gives a token, to the end.
Reading the rest of the prompt is not decoding.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from streamfuse.api import Generation, Model, load
from streamfuse.bench.shared.energy import EnergyCounter
from streamfuse.interrupt import stop_on_interrupt
from streamfuse.runtime.backend import Backend
from streamfuse.runtime.config import DRAFT_SOURCES
from streamfuse.runtime.session import Session

PLAIN, SPECULATIVE, LLAMA_CPP = "plain", "speculative", "llama.cpp"
ONNX_GENAI, ONNX_GENAI_FF = "onnx-genai", "onnx-genai ff"
LOOP_PHASES = ("draft", "accept", "sample")  # of our runtime's time: what is neither a pass nor a commit
PROGRAMS = (LLAMA_CPP, ONNX_GENAI)  # other programs
MEMORY = "with memory"  # speculative, with look-up in the answers to earlier prompts of the data
# Sampling options of a bundle that a comparison leaves out; its temperature and seed are those of the comparison.
NO_DEFAULTS: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
# speculative, less one source of drafts; models are loaded without a memory, but for MEMORY
WITHOUT = {source: f"without {source}" for source in DRAFT_SOURCES if source != "memory"}


class ExternalSystemError(ValueError):
    """An external system cannot run here; the message is one sentence."""


class ExternalSystemDied(ExternalSystemError):
    """Its process ended, or no longer replies; the sentence names the signal or the code."""


@dataclass(frozen=True, slots=True)
class Request:
    """One question to a system. Greedy at temperature 0.

    `constraint` restricts the answer: one of schema, regex and grammar with its text, as options of `Model.generate`.
    """

    prompt_ids: Sequence[int]
    max_new_tokens: int
    temperature: float = 0.0
    seed: int = 0
    constraint: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """The delivered tokens, and the milliseconds of all passes that brought them, the one that ended the text too.

    Attributes:
        statistics: as each system reports them.
        cpu_ms: processor time of all threads after the first pass; None: not measured, or of another program.
        joules: energy used by the processor packages in that time; None: not measured, or no readable counter.
    """

    token_ids: tuple[int, ...]
    decode_ms: float
    statistics: dict[str, Any] | None = None
    cpu_ms: float | None = None
    joules: float | None = None

    @property
    def later_tokens(self) -> int:
        """The tokens that `cpu_ms` and `joules` were spent on: all but those of the first pass."""
        lengths = (self.statistics or {}).get("accept_lengths") or [0]
        return len(self.token_ids) - int(lengths[0])


class System(Protocol):
    """One way to answer."""

    name: str

    def answer(self, request: Request) -> Answer:
        """From an empty cache to the end of the answer."""
        ...


class OwnRuntime:
    """A model of this project: plain, speculative, MEMORY, or one of WITHOUT. All can share one model because
    they run in turn, except MEMORY, whose model is loaded with a memory of answers.

    Each has its own session: a session's planner learns from every answer, so in a shared one its choices would depend
    on what the other systems drafted.

    Args:
        session: of the model; None: a new one.
        evicting: the session's clock evicts caches; CPU time and energy, which would include that, are not reported.
    """

    def __init__(self, model: Model, name: str, session: Session | None = None, *, evicting: bool = False) -> None:
        self.name = name
        self._session, self._evicting = session or model.session(), evicting
        self._model, self._speculative = model, name != PLAIN
        self._sources = None if name not in WITHOUT.values() else [one for one in WITHOUT if WITHOUT[one] != name]

    @property
    def backend(self) -> Backend:
        """The engine that answers."""
        return self._session.backend

    def forget(self) -> None:
        """The answers so far, before all prompts are answered again."""
        self._model.forget()

    def answer(self, request: Request) -> Answer:
        options: dict[str, Any] = {
            "max_new_tokens": request.max_new_tokens, "temperature": request.temperature, "seed": request.seed,
            "speculative": self._speculative, "sources": self._sources, **NO_DEFAULTS, **request.constraint,
        }  # fmt: skip
        self._session.reset()
        # The core calls a clock in Python, where Ctrl-C must not raise.
        with stop_on_interrupt(self._session.stop) as interrupted:
            answer = finished(self._session.generate(request.prompt_ids, self._model.config(**options)))
        if interrupted:
            raise KeyboardInterrupt
        return replace(answer, cpu_ms=None, joules=None) if self._evicting else answer


def open_own(name: str, bundle: str, adapter: str | None, threads: int | None, provider: str | None) -> OwnRuntime:
    """`OwnRuntime` of a bundle folder, of arguments that are JSON, for a process of its own. Raises as `load` does."""
    model = load(bundle, threads=threads, provider=provider, cost_cache=False)
    return OwnRuntime(model if adapter is None else model.adapter(adapter), name)


def finished(generation: Generation) -> Answer:
    """What a generation of this project delivers, to its end."""
    drafted, spent = [], None
    for piece in generation:
        spent = _Spent() if spent is None else spent  # the prompt has been read
        if piece.token is not None:
            drafted.append(piece.drafted)
    cpu_ms, joules = (None, None) if spent is None else spent.so_far()
    found = generation.statistics
    lengths = accept_lengths(drafted, found.target_forward_passes)
    decode_ms = sum(ms for phase, ms in found.time_ms.items() if phase != "prefill")
    statistics = {**found.to_dict(), "accept_lengths": lengths}
    return Answer(tuple(generation.token_ids), decode_ms, statistics, cpu_ms, joules)


class _Spent:
    """CPU time of this process, and energy used by the processor packages, since construction."""

    def __init__(self) -> None:
        self._energy, self._began = EnergyCounter(), time.process_time()

    def so_far(self) -> tuple[float, float | None]:
        """Milliseconds of all threads, and joules if there is a readable counter."""
        return 1000 * (time.process_time() - self._began), self._energy.joules()


def cpu_ms_per_token(answers: Iterable[Answer]) -> float | None:
    """Processor time of all threads per token, without the prompt and the first pass; None if none was measured."""
    return _per_token((answer.cpu_ms, answer.later_tokens) for answer in answers)


def joules_per_token(answers: Iterable[Answer]) -> float | None:
    """Energy used by the processor packages per token, without the prompt and the first pass; None if none was
    measured."""
    return _per_token((answer.joules, answer.later_tokens) for answer in answers)


def _per_token(spent: Iterable[tuple[float | None, int]]) -> float | None:
    measured = [(value, tokens) for value, tokens in spent if value is not None]
    tokens = sum(count for _, count in measured)
    return sum(value for value, _ in measured) / tokens if tokens else None


def emitted_tokens(statistics: Mapping[str, Any]) -> int:
    """Number of tokens that the passes of an answer produced, including a stop token, which `generated_tokens` does not
    count. `statistics` are those of a generation (`Statistics.to_dict`)."""
    emitted: float = statistics["mean_accepted_tokens"] * statistics["target_forward_passes"]
    return round(emitted)


def tokens_after_first_pass(emitted: int, accept_lengths: Sequence[int]) -> int:
    """Number of an answer's `emitted` tokens (stop token included, unlike `Answer.later_tokens`) that come after its
    first pass. `accept_lengths` has the tokens delivered by each pass."""
    return 0 if len(accept_lengths) < 2 else emitted - accept_lengths[0]


def accept_lengths(drafted: Sequence[bool], passes: int) -> list[int]:
    """Tokens that each pass delivered, from whether each token was drafted: a pass ends with one of the model's own.

    The last of `passes` delivered none where it gave the token that ends the text.
    """
    ends = [place + 1 for place, one in enumerate(drafted) if not one]
    if drafted and drafted[-1]:  # the text ended within a pass
        ends.append(len(drafted))
    lengths = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    return lengths + [0] * (passes - len(lengths))
