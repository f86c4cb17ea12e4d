"""A method as a system that answers: the readable loop, its clock, and what every pass brought."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from streamfuse.bench.shared.systems import Answer, Request
from streamfuse.runtime.backend import PREFILL, Backend, BoolArray, IntArray, ModelSpec, PassOutput
from streamfuse.runtime.config import GenerationConfig, SamplingConfig
from streamfuse.runtime.reference.accept import Acceptor
from streamfuse.runtime.reference.draft import Drafter, StreamDrafter
from streamfuse.runtime.reference.loop import Loop, Round

from .methods import BASELINE, DRAFT, METHODS, STREAMS_OF, TARGET, Method, Parts

MAX_DEPTH, MAX_RANKS = 16, 8

MakeDrafter: TypeAlias = Callable[[SamplingConfig], Drafter]


class Counted:
    """A target's backend that counts its passes by name; else the one that it holds.

    `streams` names the pass that gives streams or heads; None: the method does not read them, so they are not run.
    """

    def __init__(self, backend: Backend, streams: str | None, passes: Counter[str]) -> None:
        self._backend, self._streams, self._passes = backend, streams, passes
        spec = backend.spec
        self._spec = spec if streams else replace(spec, num_streams=0, top_k=0, stream_nodes={}, deferred=False)

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    @property
    def length(self) -> int:
        return self._backend.length

    def run(
        self, method: str, input_ids: IntArray, position_ids: IntArray, ancestors: BoolArray, want_logits: bool = False
    ) -> PassOutput:
        if method != PREFILL:
            self._passes[f"{TARGET}: {method}"] += 1
        return self._backend.run(method, input_ids, position_ids, ancestors, want_logits)

    def streams(self, index: int, next_token: int) -> PassOutput:
        assert self._streams is not None, "the loop asks for streams only where the spec has them"
        self._passes[self._streams] += 1
        return self._backend.streams(index, next_token)

    def commit(self, rows: Sequence[int]) -> None:
        self._backend.commit(rows)

    def truncate(self, length: int) -> None:
        self._backend.truncate(length)

    def close(self) -> None:
        self._backend.close()


@dataclass(slots=True)
class Tally:
    """What the passes of one answer brought.

    Attributes:
        proposed: int64 [MAX_DEPTH]: passes whose tree had a node of that depth (from 1).
        accepted: int64 [MAX_DEPTH, MAX_RANKS]: accepted nodes by depth and rank among their siblings.
        rounds: (milliseconds since the start, tokens delivered, how many of them drafted, rejected (depth, token)).
    """

    proposed: Any = field(default_factory=lambda: np.zeros(MAX_DEPTH, np.int64))
    accepted: Any = field(default_factory=lambda: np.zeros((MAX_DEPTH, MAX_RANKS), np.int64))
    rounds: list[tuple[float, int, int, list[tuple[int, int]]]] = field(default_factory=list)

    def add(self, one: Round, ms: float) -> None:
        tree, walk = one.tree, one.walk
        self.proposed[: min(tree.depth, MAX_DEPTH)] += 1
        for depth, rank in enumerate(walk.ranks[: one.delivered][:MAX_DEPTH]):
            self.accepted[depth, min(rank, MAX_RANKS - 1)] += 1
        path = set(walk.rows)
        rejected = [
            (depth, token)
            for row, (depth, token) in enumerate(zip(tree.depths.tolist(), tree.tokens.tolist(), strict=True))
            if row not in path
        ]
        self.rounds.append((ms, one.delivered, min(one.delivered, len(walk.tokens) - 1), rejected))


class LoopSystem:
    """Answers through the readable loop with a drafter and an acceptor.

    Args:
        name: of the method.
        backend: the target's engine; the passes that count are made on it through `Counted`.
        make_drafter: a drafter for the sampling of a request. It gets the backend's cache of each text anew.
        acceptor: decides what becomes text.
        width: nodes of a tree at most, the root counted; 1 decodes plainly.
        streams: name of the pass that gives streams or heads; None: the drafter reads none.
        own_passes: how often models of the drafter's own have run so far.
        read: processes a prompt with the drafter's own model, before its first draft.
        observe: sees every pass too.
    """

    def __init__(
        self,
        name: str,
        backend: Backend,
        make_drafter: MakeDrafter,
        acceptor: Acceptor,
        width: int,
        streams: str | None = None,
        own_passes: Callable[[], Counter[str]] = Counter,
        read: Callable[[Sequence[int]], object] = lambda prompt: None,
        observe: Callable[[Round], None] = lambda one: None,
    ) -> None:
        self.name, self.width = name, width
        self._backend, self._make, self._acceptor = backend, make_drafter, acceptor
        self._streams, self._own, self._read, self._observe = streams, own_passes, read, observe

    def answer(self, request: Request) -> Answer:
        """Timing starts at the pass of the last prompt token, as for every other system; by then both models have
        prefilled the rest of the prompt."""
        sampling = SamplingConfig(temperature=request.temperature, seed=request.seed)
        drafter, tally, passes = self._make(sampling), Tally(), Counter[str]()
        before = Counter(self._own())
        self._backend.truncate(0)
        config = GenerationConfig(
            max_new_tokens=request.max_new_tokens, sampling=sampling, speculative=self.width > 1,
            width=self.width if self.width > 1 else None,
        )  # fmt: skip
        started = time.perf_counter()

        def since() -> float:
            return 1000 * (time.perf_counter() - started)

        def see(one: Round) -> None:
            tally.add(one, since())
            self._observe(one)

        counted = Counted(self._backend, self._streams, passes)
        loop = Loop(counted, list(request.prompt_ids), config, drafter, self._acceptor, observe=see)
        loop.prefill()
        self._read(request.prompt_ids)
        prefill_ms = since()
        first_ms, tokens = 0.0, []
        for one in loop.run():
            first_ms = first_ms or since()
            tokens.append(one.token)
        decode_ms = since() - prefill_ms
        passes.update({name: count - before[name] for name, count in self._own().items()})
        counts, ended = loop.counts, loop.counts.finish_reason == "stop"  # by a token that is not delivered
        return Answer(
            tuple(tokens),
            decode_ms,
            {
                "first_token_ms": first_ms,
                "target_forward_passes": counts.target_forward_passes,
                "mean_accepted_tokens": (len(tokens) + ended) / max(counts.target_forward_passes, 1),
                "passes": {name: count for name, count in passes.items() if count},
                "proposed": tally.proposed,
                "accepted": tally.accepted,
                "rounds": tally.rounds,
                "accept_lengths": [delivered for _, delivered, _, _ in tally.rounds],
                "prefill_ms": prefill_ms,
            },
        )


def system_of(
    method: Method,
    parts: Parts,
    backend: Backend | None = None,
    acceptor: Acceptor | None = None,
    observe: Callable[[Round], None] = lambda one: None,
) -> LoopSystem:
    """A method of the comparison on the parts of its run; None: the engine of its bundle, its own acceptor."""
    streams = STREAMS_OF[method.bundle] if method.reads_streams else None

    def make(sampling: SamplingConfig) -> Drafter:
        return StreamDrafter() if method.make is None else method.make(parts, sampling)

    target = parts.backends[method.bundle] if backend is None else backend
    decides = acceptor or method.acceptor()
    own = parts.draft if DRAFT in method.needs else None
    read = (lambda prompt: None) if own is None else own.read
    return LoopSystem(method.name, target, make, decides, method.width, streams, parts.passes, read, observe)


def plain_system(parts: Parts) -> LoopSystem:
    """The baseline: one token per pass of the target."""
    return system_of(next(method for method in METHODS if method.name == BASELINE), parts)
