"""What the passes of every method cost: measured here, and placed on other devices from what a pass reads."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from streamfuse.research.drafters.model import DRAFT as DRAFT_METHOD
from streamfuse.runtime.backend import DECODE, PREFILL, Backend

from .methods import DRAFT, SELF, STREAMS, STREAMS_OF, TARGET, Parts

_ROUNDS, _CONTEXT, _SETTLE_S = 15, 96, 0.05


@dataclass(frozen=True, slots=True)
class Device:
    """A device by the shape of its cost curve: a verifying pass of 4, 8 and 16 nodes over a plain one.

    The shapes are those that the plan is tested on; a pass over a part of the weights costs its share of a plain one.
    """

    verify: tuple[float, float, float]

    def cost(self, nodes: int) -> float:
        """Of a pass over so many nodes."""
        return float(np.interp(nodes, (1, 4, 8, 16), (1.0, *self.verify)))


_Pass: TypeAlias = Callable[[], float]  # runs a pass, and gives its milliseconds

DEVICES = {
    "flat (NPU)": Device((1.05, 1.075, 1.15)),
    "stepped (GPU)": Device((1.1, 1.1, 2.17)),
    "linear (phone CPU)": Device((2.4, 4.4, 8.4)),
}


def measured(parts: Parts, tokens: Sequence[int]) -> dict[str, float]:
    """Median milliseconds of every pass that the methods run, over a context of `tokens`, repeated to a length.

    The passes of an engine take turns, so that a slow moment meets all alike. Engines come one after another, when the
    threads of the one before sleep.
    """
    context = (list(tokens) * (_CONTEXT // max(len(tokens), 1) + 1))[:_CONTEXT]
    engines: dict[str, dict[str, _Pass]] = {
        bundle: {STREAMS_OF[bundle]: _streams(parts.backends[bundle], context)}
        for bundle in STREAMS_OF
        if bundle in parts.backends
    }
    engines[STREAMS] |= _passes(TARGET, parts.backends[STREAMS], context)
    if parts.draft is not None:
        engines[DRAFT] = _passes(parts.draft.name, parts.draft.backend, context)
    if parts.itself is not None:
        _fill(parts.itself.backend, context)
        engines[SELF] = {f"{parts.itself.name}: {DRAFT_METHOD}": _row(parts.itself.backend, DRAFT_METHOD, context, 1)}
    found: dict[str, float] = {}
    for passes in engines.values():
        time.sleep(_SETTLE_S)
        spent = [{name: run() for name, run in passes.items()} for _ in range(1 + _ROUNDS)][1:]  # the first warms up
        found |= {name: float(np.median([one[name] for one in spent])) for name in passes}
    return found


def _passes(name: str, backend: Backend, context: list[int]) -> dict[str, _Pass]:
    """`decode` and all verify methods of a model."""
    _fill(backend, context)
    rows = {DECODE: 1, **{method: rows for method, (rows, _) in backend.spec.widths.items()}}
    return {f"{name}: {method}": _row(backend, method, context, count) for method, count in rows.items()}


def _streams(backend: Backend, context: list[int]) -> _Pass:
    _fill(backend, context)
    before = _row(backend, DECODE, context, 1)

    def run() -> float:
        before()
        backend.commit([0])
        ms = _ms(lambda: backend.streams(0, context[-1]))
        backend.truncate(len(context))
        return ms

    return run


def _fill(backend: Backend, context: list[int]) -> None:
    backend.truncate(0)
    rows = backend.spec.prefill_rows
    for start in range(0, len(context), rows):
        ids = np.array(context[start : start + rows], np.int64)
        backend.run(PREFILL, ids, np.arange(start, start + len(ids)), np.tri(len(ids), dtype=np.bool_))
        backend.commit(range(len(ids)))


def _row(backend: Backend, method: str, context: list[int], rows: int) -> _Pass:
    """A pass over a chain of so many tokens."""
    ids, places = np.array(context[:rows], np.int64), np.arange(len(context), len(context) + rows)
    seen = np.tri(rows, dtype=np.bool_)
    return lambda: _ms(lambda: backend.run(method, ids, places, seen))


def _ms(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return 1000 * (time.perf_counter() - started)


def table(device: Device, here: Mapping[str, float]) -> dict[str, float]:
    """Cost of each pass on a device, over a plain pass of the target.

    A pass of one row, and one of streams or heads, costs its share of a plain one as measured here, where both read
    their weights at the memory's speed. A verifying pass costs what one row of the same model does, times the device's
    own factor for its nodes.
    """
    plain, found = here[f"{TARGET}: {DECODE}"], dict[str, float]()
    for name, ms in here.items():
        model, method = name.split(": ")
        rows = int(method.removeprefix("verify_")) if method.startswith("verify_") else 0
        found[name] = here[f"{model}: {DECODE}"] / plain * device.cost(rows) if rows > 1 else ms / plain
    return found


def everywhere(here: Mapping[str, float]) -> dict[str, Mapping[str, float]]:
    """`here`, and the table of each device."""
    return {"here": here, **{name: table(device, here) for name, device in DEVICES.items()}}


def computed_speedup(passes: Mapping[str, int], tokens: int, costs: Mapping[str, float]) -> float:
    """Over plain decoding of as many tokens, those that ended texts counted, by the passes of a live run.

    Loops and prompts are left out.
    """
    spent = sum(count * costs[name] for name, count in passes.items() if not name.endswith(PREFILL))
    return tokens * costs[f"{TARGET}: {DECODE}"] / spent if spent else 0.0
