"""What a pass costs, method by method and part by part, against what the memory allows.

Methods take turns, so that a machine that slows down meets all alike; its read bandwidth is measured between them.
In its turn a method runs until caches hold what a loop of such passes keeps there, and only then is timed: where other
programs share the last-level cache, weights leave it during a long pass of another method and return over several.
Times of single operators come from the engine's own profile, in passes of their own, because measuring costs time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from streamfuse.bench.shared.statistics import Spread
from streamfuse.bench.shared.work import ATTENTION, EMBEDDING, HEAD, MLP, TOP_K, Work, weight_bytes, work_of
from streamfuse.bundle.manifest import DECODE, STREAMS, Manifest
from streamfuse.options import NamesOptions, OptionError
from streamfuse.runtime.backend import Backend

from .passes import Pass, fill, passes_of

OTHER, WAITS, COMMIT, LOOP = "other", "waits", "commit", "loop"
OUTSIDE = (COMMIT, LOOP)  # of a step, but not of its pass
# Operators by their name in the graph; docs/contracts.md, section 7. What is not named is `other`.
_PARTS = {
    "embedding_q8": EMBEDDING,
    "embedding_q4": EMBEDDING,
    "qkv": ATTENTION,
    "biased_qkv": ATTENTION,
    "query": ATTENTION,
    "tree_attention": ATTENTION,
    "window_attention": ATTENTION,
    "short_convolution": ATTENTION,
    "linear": ATTENTION,
    "biased_linear": ATTENTION,
    "gated_mlp": MLP,
    "gated_branch": MLP,
    "add_normed": OTHER,  # after attention, and after the MLP
    "gate_heads": ATTENTION,
    "silu_gate": ATTENTION,
    "gelu_gate": OTHER,  # of per-layer embeddings
    "delta_rows": ATTENTION,
    "gated_delta_rule": ATTENTION,
    "head": HEAD,
    "capped_head": HEAD,
    "stream_top_k": TOP_K,
}
WAIT = "wait"  # no operator: what the calling thread waited for others inside of operators
_BANDWIDTH_TIMES = 5  # in one run, at most
_TIMED = 4  # passes in a turn

Clock = Callable[[], float]  # monotonic seconds
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class LatencySettings:
    """How to measure. OptionError names the option and its range."""

    repetitions: int = 30  # timed passes per method
    context: int = 64  # tokens in the cache
    settle: int = 8  # passes of a method before its timed ones
    seed: int = 0

    def __post_init__(self) -> None:
        if self.repetitions < 1:
            raise OptionError(f"--repetitions must be at least 1, not {self.repetitions}")
        if self.settle < 0:
            raise ValueError(f"settle must be at least 0, not {self.settle}")
        if self.context < 1:
            raise OptionError(f"--context must be at least 1, not {self.context}")

    def check(self, manifest: Manifest) -> None:
        """OptionError where the widest method would not fit behind the context, NamesOptions where it fits behind
        none."""
        widest = max(method.rows for method in manifest.methods.values())
        room = manifest.cache.capacity - widest
        if room < 1:
            raise NamesOptions(
                f"the bundle's context of {manifest.cache.capacity} tokens has no room for a pass of {widest} rows "
                "behind any token, so its latency cannot be measured; export with a larger --max-context-len or a "
                "smaller --prefill-len"
            )
        if self.context > room:
            raise OptionError(f"--context must be from 1 to {room} for this bundle, not {self.context}")


class Profiler(Protocol):
    """Times of operators, from the engine."""

    def start(self) -> None:
        """Record from now on. It may make the engine forget its last pass."""
        ...

    def take(self) -> Callable[[], Mapping[str, float]]:
        """What was recorded since this was last asked; call it later, for milliseconds per operator and `WAIT`."""
        ...

    def stop(self) -> None:
        """Record no more."""
        ...


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a step: its median time, and the work that the manifest says it does."""

    ms: float
    work: Work | None = None

    def to_dict(self) -> dict[str, float]:
        if self.work is None or not self.ms:
            return {"ms": self.ms}
        return {"ms": self.ms, "gb_s": self.work.bytes / self.ms / 1e6, "gmac_s": self.work.macs / self.ms / 1e6}


@dataclass(frozen=True, slots=True)
class MethodLatency:
    """One method: `pass_ms` is the time of `run`, the parts `commit` and `loop` come on top of it."""

    pass_ms: Spread
    parts: Mapping[str, Part]
    work: Work
    carries_streams: bool = False

    def to_dict(self) -> dict[str, Any]:
        whole = Part(self.pass_ms.median, self.work).to_dict()
        quartiles = {"quartiles_ms": [self.pass_ms.low, self.pass_ms.high]}
        return {**whole, **quartiles, "parts": {name: part.to_dict() for name, part in self.parts.items()}}


@dataclass(frozen=True, slots=True)
class Latency:
    """The whole measurement; `to_dict` is the object of `--json`."""

    settings: LatencySettings
    read_bandwidth_gb_s: Spread
    weight_bytes: int
    methods: Mapping[str, MethodLatency]
    engine: Mapping[str, Any] = field(default_factory=dict)

    @property
    def roofline_ms(self) -> float:
        """The least time of a plain decoder's pass: its weights, read once at the machine's bandwidth."""
        return self.weight_bytes / self.read_bandwidth_gb_s.median / 1e6

    @property
    def decode_roofline_fraction(self) -> float:
        return self.roofline_ms / self.methods[DECODE].pass_ms.median

    @property
    def verify_8_cost(self) -> float | None:
        """A pass of eight nodes with its streams, in passes of `decode`. None where the bundle has no verify_8.

        Where the pass itself carries no streams, those of the accepted node come on top.
        """
        verify = self.methods.get("verify_8")
        if verify is None:
            return None
        ms = verify.pass_ms.median
        if STREAMS in self.methods and not verify.carries_streams:
            ms += self.methods[STREAMS].pass_ms.median
        return ms / self.methods[DECODE].pass_ms.median

    def to_dict(self) -> dict[str, Any]:
        bandwidth = self.read_bandwidth_gb_s
        return {
            "read_bandwidth_gb_s": bandwidth.median,
            "read_bandwidth_quartiles_gb_s": [bandwidth.low, bandwidth.high],
            "weight_bytes": self.weight_bytes,
            "roofline_ms": self.roofline_ms,
            "methods": {name: method.to_dict() for name, method in self.methods.items()},
            "decode_roofline_fraction": self.decode_roofline_fraction,
            "verify_8_cost": self.verify_8_cost,
            "context": self.settings.context,
            "repetitions": self.settings.repetitions,
            **self.engine,
        }


@dataclass(slots=True)
class _Samples:
    """Milliseconds."""

    passes: list[float] = field(default_factory=list)
    commits: list[float] = field(default_factory=list)
    profiled: list[dict[str, float]] = field(default_factory=list)  # per pass, by part


def measure(
    backend: Backend,
    manifest: Manifest,
    settings: LatencySettings,
    read_bandwidth: Callable[[], float],
    profiler: Profiler | None,
    loop_ms: Mapping[str, float],
    engine: Mapping[str, Any] | None = None,
    progress: Progress = lambda line: None,
    clock: Clock = time.perf_counter,
) -> Latency:
    """Measure every method of a `backend` that is empty, or holds a shorter context of an earlier measurement.

    Args:
        read_bandwidth: the machine's read bandwidth now, in GB/s.
        profiler: times of operators; None leaves the passes whole.
        loop_ms: per method, what the loop around a pass costs (see `loop_costs`).
        engine: facts for the JSON, such as the number of threads.
    """
    settings.check(manifest)
    random = np.random.default_rng(settings.seed)
    fill(backend, random.integers(manifest.model.vocab_size, size=settings.context))
    passes = passes_of(manifest, settings.context, random)
    samples = {one.method: _Samples() for one in passes}
    bandwidth = []
    turns = range(0, settings.repetitions, _TIMED)
    every = -(-len(turns) // _BANDWIDTH_TIMES)
    for turn, done in enumerate(turns):
        progress(f"repetition {done + 1} of {settings.repetitions}")
        if turn % every == 0:
            bandwidth.append(read_bandwidth())
        first = turn % len(passes)
        for one in passes[first:] + passes[:first]:
            for _ in range(settings.settle):
                _sample(backend, one, None, clock)
            for _ in range(min(_TIMED, settings.repetitions - done)):
                _sample(backend, one, samples[one.method], clock)
    if profiler is not None:
        for one in passes:
            progress(f"operators of {one.method}")
            samples[one.method].profiled = _profile(backend, one, settings.repetitions, profiler, clock)
    methods = {
        name: _method(found, work_of(manifest, name, settings.context), loop_ms.get(name))
        for name, found in samples.items()
    }
    return Latency(settings, Spread.of(bandwidth), weight_bytes(manifest), methods, engine or {})


def _sample(backend: Backend, one: Pass, samples: _Samples | None, clock: Clock) -> None:
    """One pass and one commit, timed where `samples` are given; the cache is left as it was."""
    length = backend.length
    one.prepare(backend)
    if samples is None:
        one.run(backend)
    else:
        start = clock()
        rows = one.run(backend)
        ran = clock()
        samples.passes.append(1000 * (ran - start))
        if rows:
            backend.commit(rows)
            samples.commits.append(1000 * (clock() - ran))
    backend.truncate(length)


def _profile(backend: Backend, one: Pass, times: int, profiler: Profiler, clock: Clock) -> list[dict[str, float]]:
    """Milliseconds per part of each of some passes."""
    length = backend.length
    found: list[tuple[Callable[[], Mapping[str, float]], float]] = []
    profiler.start()
    try:
        for _ in range(times):
            one.prepare(backend)
            profiler.take()
            start = clock()
            one.run(backend)
            ms = 1000 * (clock() - start)
            found.append((profiler.take(), ms))
            backend.truncate(length)
    finally:
        profiler.stop()
    return [_by_part(read(), ms) for read, ms in found]


def _by_part(operators: Mapping[str, float], pass_ms: float) -> dict[str, float]:
    """Milliseconds per part of one pass. `other` is what no named operator accounts for; `waits` lie in the others."""
    parts = dict.fromkeys((EMBEDDING, ATTENTION, MLP, HEAD, TOP_K), 0.0)
    for name, ms in operators.items():
        part = _PARTS.get(name.removeprefix("streamfuse::").removesuffix(".out"))
        if part in parts:  # OTHER is what remains, below
            parts[part] += ms
    return {**parts, OTHER: max(0.0, pass_ms - sum(parts.values())), WAITS: operators.get(WAIT, 0.0)}


def _method(samples: _Samples, work: Mapping[str, Work], loop_ms: float | None) -> MethodLatency:
    parts = {
        name: Part(float(np.median([one[name] for one in samples.profiled])), work.get(name))
        for name in (samples.profiled[0] if samples.profiled else ())
    }
    if samples.commits:
        parts[COMMIT] = Part(Spread.of(samples.commits).median)
    if loop_ms is not None:
        parts[LOOP] = Part(loop_ms)
    whole = Work(sum(part.bytes for part in work.values()), sum(part.macs for part in work.values()))
    return MethodLatency(Spread.of(samples.passes), parts, whole, work[TOP_K].macs > 0)
