"""A plan on simulated devices and texts: `python tools/plan_simulation.py` prints the table.

The text is a fixed sequence; streams predict it with known odds, so that a cost table and a regime are all that a plan
meets. Time is virtual: each pass advances a clock by its cost in the table (with noise where the device has it), and a
step that is planned by DRAFT_MS more, because drafting takes time whether its tree is verified or not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

import arm_cycles
from streamfuse.runtime.backend import DECODE, PREFILL, BoolArray, FloatArray, IntArray, ModelSpec, PassOutput
from streamfuse.runtime.config import GenerationConfig
from streamfuse.runtime.core import CoreModel, CoreSession
from streamfuse.runtime.reference import watch

VOCAB, STREAMS, TOP_K = 1000, 4, 8
DRAFT_MS = 0.01  # of the core on a desktop: a tree of 16 nodes, with what learning takes
SPEC = ModelSpec(4096, VOCAB, STREAMS, TOP_K, 512, {f"verify_{n}": (n, n) for n in (4, 8, 16)})


@dataclass(frozen=True)
class Device:
    """Milliseconds per method; `noise` is the spread of a pass's time, one pass in fifty takes five times as long."""

    decode: float
    verify: tuple[float, float, float]  # of 4, 8, 16 nodes
    noise: float = 0.0
    streams: float | None = None  # the deferred schedule: verify passes carry none
    carrying: float | None = None  # a plain pass with its streams, `verify_1`; None: there is no such method
    keep: tuple[int, int, int] = (4, 8, 16)  # of 4, 8, 16 nodes those that a pruner leaves: the first ones

    @property
    def spec(self) -> ModelSpec:
        none = {} if self.streams is None else dict.fromkeys(SPEC.widths, 0)
        one = {} if self.carrying is None else {"verify_1": (1, 1)}
        kept = {name: (rows, keep) for (name, (rows, _)), keep in zip(SPEC.widths.items(), self.keep, strict=True)}
        return ModelSpec(
            4096, VOCAB, STREAMS, TOP_K, 512, {**one, **kept}, stream_nodes=none, deferred=self.streams is not None,
        )  # fmt: skip

    @property
    def costs(self) -> dict[str, float]:
        table = {DECODE: self.decode, **dict(zip(SPEC.widths, self.verify, strict=True))}
        table |= {} if self.carrying is None else {"verify_1": self.carrying}
        return table if self.streams is None else {**table, "streams": self.streams}


DEVICES = {
    "flat (NPU)": Device(4.0, (4.2, 4.3, 4.6)),
    "this CPU": Device(2.5, (2.9, 3.6, 6.4)),
    "linear (phone CPU)": Device(2.5, (6.0, 11.0, 21.0)),
    "stepped (GPU)": Device(3.0, (3.3, 3.3, 6.5)),
    "noisy CPU": Device(2.5, (2.9, 3.6, 6.4), noise=0.3),
    "deferred CPU": Device(2.5, (2.75, 3.2, 5.6), streams=0.7),
    "expensive streams": Device(3.4, (4.6, 6.9, 12.5), streams=1.35),
    "expensive and noisy": Device(3.4, (4.6, 6.9, 12.5), noise=0.3, streams=1.35),
    "deferred CPU, carrying": Device(2.5, (2.75, 3.2, 5.6), streams=0.7, carrying=2.8),
    "expensive streams, carrying": Device(3.4, (4.6, 6.9, 12.5), streams=1.35, carrying=3.9),
    **{f"{name}, estimated": Device(*phone.costs) for name, phone in arm_cycles.PHONES.items()},
}


@dataclass(frozen=True)
class Regime:
    """How often streams are right: `hit` is the chance that the next token is among the predicted ones, per depth given
    the parent; `overstate` multiplies the odds that the streams state."""

    hit: float
    overstate: float = 1.0
    period: int = 0  # above 0: `hit` alternates with nothing, this many tokens each


REGIMES = {
    "adversarial": Regime(0.0),
    "boasting": Regime(0.02, overstate=30.0),
    "poor": Regime(0.2),
    "fair": Regime(0.45),
    "good": Regime(0.65),
    "excellent": Regime(0.9),
    "modest": Regime(0.8, overstate=0.5),
    "changing": Regime(0.8, period=150),
}


NOTHING: tuple[IntArray, FloatArray] = np.zeros((STREAMS, TOP_K), np.int64), np.full((STREAMS, TOP_K), -9, np.float32)


@dataclass(frozen=True)
class Section:
    """A stretch of a text on a device in one state."""

    tokens: int
    regime: Regime
    wide: float = 1.0  # how much longer passes of several rows take, and streams
    every: float = 1.0  # how much longer all passes take
    begins: bool = False  # a new text begins here


@cache
def predictions(regime: Regime, position: int, seed: int = 0) -> tuple[IntArray, FloatArray, list[int]]:
    """Candidates, what the streams say of them, and the rank (or TOP_K) at which the text stands, of one place.

    Ranks are right in proportion to their odds; confidence varies from place to place.
    """
    random = np.random.default_rng((position, seed))
    hit = 0.0 if regime.period and position // regime.period % 2 else regime.hit
    ids, ranks = random.integers(0, VOCAB, (STREAMS, TOP_K)), []
    log_probs = np.zeros((STREAMS, TOP_K), np.float32)
    for stream in range(STREAMS):
        mass = min(0.98, max(1e-4, hit + 0.3 * hit * (1 - hit) * float(random.normal())))
        shares = np.sort(random.dirichlet(np.full(TOP_K, 0.35)))[::-1] * mass
        rank = int(np.searchsorted(np.cumsum(shares), float(random.random())))
        ranks.append(rank if hit else TOP_K)
        stated = np.minimum(shares * regime.overstate, 1.0)
        log_probs[stream] = np.log(stated / max(1.0, float(stated.sum()) / 0.98) + 1e-6)
    return ids, log_probs, ranks


class MadeUpBackend:
    """A text that is fixed, streams with known odds, and a clock that runs by the cost table."""

    def __init__(
        self, device: Device, regime: Regime | Sequence[Section], seed: int = 0, draft_ms: float = 0.0
    ) -> None:
        self.spec = device.spec
        self.draft_ms = draft_ms
        self.length = 0
        self.now_ms = 0.0
        self._device = device
        self.sections = [Section(1 << 20, regime)] if isinstance(regime, Regime) else list(regime)
        # Before which call of the clock time stands still, and for how many milliseconds.
        self.stall: tuple[int, float] | None = None
        self.stalled_ms = 0.0
        self._calls = 0
        self._seed = seed
        self.text = np.random.default_rng(seed).integers(0, VOCAB, 8192)
        self._last: list[tuple[int, bool]] = []  # survivors: position, and whether the path is the text's

    def clock(self) -> float:
        if self.stall is not None and self._calls == self.stall[0]:
            self.stalled_ms = self.stall[1]
        self._calls += 1
        return (self.now_ms + self.stalled_ms) / 1000

    def _section(self, position: int) -> Section:
        end = 0
        for section in self.sections:
            end += section.tokens
            if position < end:
                return section
        return self.sections[-1]

    def _spend(self, method: str) -> None:
        ms, now = self._device.costs.get(method, 0.0), self._section(self.length)
        ms *= now.every * (1.0 if method in (DECODE, "verify_1", PREFILL) else now.wide)
        if self._device.noise:
            # Of this place, not of this pass: ways of decoding that are compared meet the same noise.
            random = np.random.default_rng((self._seed, self.length))
            ms *= float(np.exp(self._device.noise * random.normal())) * (5 if random.random() < 0.02 else 1)
        self.now_ms += ms + (self.draft_ms if method != "streams" else 0.0)

    def run(
        self, method: str, input_ids: IntArray, position_ids: IntArray, ancestors: BoolArray, want_logits: bool = False
    ) -> PassOutput:
        self._spend(method)
        if method == PREFILL:
            return PassOutput.of_prefill()
        nodes = range(len(input_ids))
        kept = np.arange(min(len(input_ids), self.spec.widths.get(method, (1, 1))[1]))
        right = input_ids == self.text[position_ids]
        right[0] = True
        on_text = [bool(right[np.flatnonzero(ancestors[node])].all()) for node in nodes]
        best = np.where(on_text, self.text[position_ids + 1], 0)
        self._last = [(int(position_ids[node]), on_text[node]) for node in nodes]
        if not self.spec.streams_of(method):
            return PassOutput(None, best[kept], kept)
        streams = [self._streams(*self._last[node]) for node in kept]
        return PassOutput(None, best[kept], kept, np.stack([s[0] for s in streams]), np.stack([s[1] for s in streams]))

    def streams(self, index: int, next_token: int) -> PassOutput:
        self._spend("streams")
        ids, log_probs = self._streams(*self._last[index])
        return PassOutput(None, np.zeros(1, np.int64), np.zeros(1, np.int64), ids[None], log_probs[None])

    def _streams(self, position: int, on_text: bool) -> tuple[IntArray, FloatArray]:
        if not on_text:
            return NOTHING
        ids, log_probs, ranks = predictions(self._section(position).regime, position, self._seed)
        ids = ids.copy()
        for stream, rank in enumerate(ranks):
            if rank < TOP_K:
                ids[stream, rank] = self.text[position + 2 + stream]
        return ids, log_probs

    def commit(self, rows: Sequence[int]) -> None:
        self.length += len(rows)

    def truncate(self, length: int) -> None:
        self.length = length

    def close(self) -> None:
        self.length = 0


def tables_knowing(share: float) -> dict[str, np.ndarray]:
    """An n-gram table that is certain of what follows each pair of tokens, and right in this share of them."""
    text, random = MadeUpBackend(DEVICES["this CPU"], REGIMES["fair"]).text, np.random.default_rng(1)
    keys = text[1:-1] * (VOCAB + 1) + text[:-2] + 1
    keys, first = np.unique(keys, return_index=True)
    ids = np.where(random.random(len(keys)) < share, text[first + 2], random.integers(0, VOCAB, len(keys)))
    return {
        "ngram_keys": keys,
        "ngram_starts": np.arange(len(keys) + 1, dtype=np.int32),
        "ngram_ids": ids.astype(np.int32),
        "ngram_log_probs": np.full(len(keys), np.log(0.9), np.float16),
    }


@dataclass(frozen=True)
class Outcome:
    ms_per_token: float
    text: list[int]
    widths: dict[str, int]
    reason: str | None


def session_on(backend: MadeUpBackend, device: Device, tables: dict[str, np.ndarray] | None = None) -> CoreSession:
    """The core on this backend, with the device's true mean costs."""
    session = CoreSession(CoreModel(device.spec, tables), backend, clock=backend.clock)
    session.set_costs(device.costs, frozen=not device.noise)
    return session


def simulate(
    device: Device,
    regime: Regime,
    width: int | None,
    tokens: int = 600,
    plain: bool = False,
    generations: int = 1,
    tables: dict[str, np.ndarray] | None = None,
    observe: Callable[[watch.Pass], None] | None = None,
    seed: int = 0,
) -> Outcome:
    """One way of decoding; None as the width is the plan, which gets the device's true mean costs."""
    backend = MadeUpBackend(device, regime, seed, draft_ms=0.0 if plain else DRAFT_MS)
    config = GenerationConfig(tokens, width=width, speculative=not plain)
    spent = 0.0
    with session_on(backend, device, tables) as session:
        if observe is not None:
            watch.observe(session, observe)
        for _ in range(generations):
            session.reset()
            started = backend.now_ms
            session.start([1, 2], config)
            while session.next() is not None:
                pass
            spent += backend.now_ms - started
        facts, text = session.statistics, session.tokens[2:]
    return Outcome(spent / (tokens * generations), text, facts.widths, facts.fallback_reason)


def main(tokens: int) -> None:
    head = f"{'device':20} {'regime':12} {'plan':>6} {'best fixed':>14} {'plan/best':>9}   passes of the plan"
    print(f"Speed over plain decoding, {tokens} tokens\n{head}")
    for device_name, device in DEVICES.items():
        for regime_name, regime in REGIMES.items():
            plain = simulate(device, regime, None, tokens, plain=True).ms_per_token
            fixed = {width: plain / simulate(device, regime, width, tokens).ms_per_token for width in (4, 8, 16)}
            fixed[1] = 1.0
            best = max(fixed, key=lambda width: fixed[width])
            plan = simulate(device, regime, None, tokens)
            gain = plain / plan.ms_per_token
            print(
                f"{device_name:20} {regime_name:12} {gain:6.3f} {fixed[best]:6.3f} (w={best:2}) "
                f"{gain / fixed[best]:9.3f}  " + " ".join(f"{name}:{count}" for name, count in plan.widths.items())
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 600)
