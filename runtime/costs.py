"""What a pass costs on this device: measured at load, remembered per bundle and device, followed while running."""

from __future__ import annotations

import json
import os
import platform
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from streamfuse.runtime.backend import DECODE, STREAMS, Backend, ModelSpec
from streamfuse.runtime.stats import Clock

_ROUNDS = 5
_CHECKS = 3  # of a remembered table
_FORMAT = 1
_SAME = 1.25  # a ratio of costs that differs by less has not changed
_MAX_AGE_S = 30 * 86400
_FOLLOW = 0.05  # how much of a difference one pass teaches about its method, and how much about the device's speed
_CLIP = 1.5  # a pass that took longer than this many times the expected was interrupted


@dataclass(slots=True)
class CostTable:
    """Milliseconds per method: (with one real row, with all rows). A static graph costs the same for both."""

    ms: dict[str, tuple[float, float]]  # before `speed` is applied
    frozen: bool = False  # True: `observe` changes nothing
    spans: dict[str, int] = field(default_factory=dict)  # rows of a method less one
    speed: float = 1.0  # what all methods are multiplied with by now: the device's heat and load

    @classmethod
    def of(cls, spec: ModelSpec, ms: Mapping[str, float | tuple[float, float]], frozen: bool = False) -> CostTable:
        """Costs of every method of `spec` that the loop may choose. ValueError where one is missing or not positive."""
        table = {name: pair if isinstance(pair, tuple) else (pair, pair) for name, pair in ms.items()}
        for name in methods_of(spec):
            if name not in table or not all(0 < value < float("inf") for value in table[name]):
                raise ValueError(f"the cost table needs a positive time for {name}")
        return cls(table, frozen, {name: max(1, rows - 1) for name, (rows, _) in spec.widths.items()})

    def of_pass(self, method: str, nodes: int = 1) -> float:
        """Milliseconds of a pass with this many real rows."""
        first, last = self.ms[method]
        if nodes > 1:
            first += (last - first) * (nodes - 1) / self.spans.get(method, 1)
        return self.speed * first

    def per_node(self, method: str) -> float:
        """What one more real row adds, at least 0."""
        first, last = self.ms[method]
        return self.speed * max(0.0, (last - first) / self.spans.get(method, 1))

    def observe(self, method: str, nodes: int, ms: float) -> None:
        """A pass took `ms`. Half of a difference is the device's (heat, load, a longer cache) and moves all methods."""
        if self.frozen or method not in self.ms or ms <= 0:
            return
        ratio = min(max(ms / self.of_pass(method, nodes), 1 / _CLIP), _CLIP) ** _FOLLOW
        first, last = self.ms[method]
        self.ms[method] = (first * ratio, last * ratio)
        self.speed *= ratio

    def of_full_passes(self) -> dict[str, float]:
        """Milliseconds per method with all its rows in use."""
        return {name: last for name, (_, last) in self.to_dict().items()}

    def to_dict(self) -> dict[str, list[float]]:
        return {name: [self.speed * first, self.speed * last] for name, (first, last) in self.ms.items()}


def methods_of(spec: ModelSpec) -> list[str]:
    """The methods that the plan chooses between."""
    return [DECODE, *spec.widths, *([STREAMS] if spec.deferred else [])]


def measure(backend: Backend, clock: Clock = time.perf_counter, rounds: int = _ROUNDS) -> CostTable:
    """Run every method a few times, taking turns so that a change of speed meets all alike; the second best counts.

    Other work on the device only ever adds time, so the median of a few is too much; the best may be luck. The backend
    must be empty, and is empty afterwards.
    """
    spec = backend.spec
    found: dict[tuple[str, int], list[float]] = {}
    for index in range(rounds + 1):  # the first one warms up
        for method, nodes in _trials(spec):
            started = clock()
            _pass(backend, method, nodes)
            if index:
                found.setdefault((method, nodes), []).append(1000 * (clock() - started))
        if spec.deferred:
            _pass(backend, DECODE, 1)
            backend.commit([0])
            started = clock()
            backend.streams(0)
            if index:
                found.setdefault((STREAMS, 1), []).append(1000 * (clock() - started))
            backend.truncate(0)
    good = {key: max(sorted(values)[min(1, len(values) - 1)], 1e-6) for key, values in found.items()}
    pairs = {
        name: (good[name, 1], good.get((name, spec.widths[name][0] if name in spec.widths else 1), 0.0))
        for name in methods_of(spec)
    }
    return CostTable.of(spec, pairs)


def agrees(table: CostTable, backend: Backend, clock: Clock = time.perf_counter) -> bool:
    """Whether a few full passes of every width stand to one of `decode` as the table says.

    A table that was measured while the device did other work does not, though two of its methods may have met the same
    trouble. The backend must be empty, and stays so.
    """
    rows = {name: backend.spec.rows(name) for name in (DECODE, *backend.spec.widths)}
    methods = [name for name, count in rows.items() if count <= backend.spec.capacity]
    best = dict.fromkeys(methods, float("inf"))
    for _ in range(_CHECKS):
        for method in methods:
            started = clock()
            _pass(backend, method, rows[method])
            best[method] = min(best[method], clock() - started)
    decode = max(best[DECODE], 1e-9)
    then = {method: table.of_pass(method, rows[method]) / table.of_pass(DECODE) for method in methods}
    return all(1 / _SAME < best[method] / decode / then[method] < _SAME for method in methods)


def _trials(spec: ModelSpec) -> Iterator[tuple[str, int]]:
    yield DECODE, 1
    for method, (rows, _) in spec.widths.items():
        if rows <= spec.capacity:
            yield method, 1
            if rows > 1:
                yield method, rows


def _pass(backend: Backend, method: str, nodes: int) -> None:
    backend.run(method, np.zeros(nodes, np.int64), np.arange(nodes), np.tri(nodes, dtype=np.bool_))


def device_name(threads: int | None = None) -> str:
    """What makes two machines cost differently, as far as Python can see."""
    model = platform.processor() or platform.machine()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{platform.system()} {platform.machine()}, {model}, {cores} cores, threads {threads or 'default'}"


class PlanCache:
    """One small JSON per bundle and device under `folder`. What is damaged, old or foreign is measured again."""

    def __init__(self, folder: Path, files: Mapping[str, str], device: str) -> None:
        """`files` are the bundle's names and their sha256."""
        import hashlib  # here, because a process that remembers nothing need not load a library of ciphers

        bundle = hashlib.sha256("\n".join(f"{name} {files[name]}" for name in sorted(files)).encode()).hexdigest()
        self._facts = {"format": _FORMAT, "bundle": bundle, "device": device}
        key = hashlib.sha256(f"{bundle}\n{device}".encode()).hexdigest()[:24]
        self.path = folder / f"{key}.json"

    def load(self, spec: ModelSpec) -> CostTable | None:
        """The remembered table; None where there is none that can be used."""
        try:
            data: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
            if {key: data[key] for key in self._facts} != self._facts or time.time() - data["measured"] > _MAX_AGE_S:
                return None
            return CostTable.of(spec, {name: (float(a), float(b)) for name, (a, b) in data["ms"].items()})
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def store(self, table: CostTable) -> None:
        """Write the file in one piece. A folder that cannot be written costs a measurement next time, nothing more."""
        text = json.dumps({**self._facts, "measured": time.time(), "ms": table.to_dict()}, indent=1)
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.path.parent, suffix=".tmp")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    file.write(text)
                os.replace(name, self.path)
            except OSError:
                Path(name).unlink(missing_ok=True)
                raise
