"""Full passes of each method on random tokens, to be timed: a chunk, one token, a tree, or the deferred streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from streamfuse.bundle.manifest import DECODE, PREFILL, STREAMS, Manifest
from streamfuse.runtime.backend import Backend, BoolArray, IntArray


class Pass(Protocol):
    """One thing to time, again and again, behind the same context."""

    @property
    def method(self) -> str: ...

    def prepare(self, backend: Backend) -> None:
        """What must happen before, on nobody's clock."""
        ...

    def run(self, backend: Backend) -> list[int]:
        """The pass; rows that could be committed after it."""
        ...


@dataclass(frozen=True, slots=True)
class RowsPass:
    """`prefill`, `decode` or `verify_T` with all its rows."""

    method: str
    ids: IntArray
    positions: IntArray
    ancestors: BoolArray

    def prepare(self, backend: Backend) -> None:
        return

    def run(self, backend: Backend) -> list[int]:
        """The rows are all of a chunk, or a path of a tree."""
        kept = backend.run(self.method, self.ids, self.positions, self.ancestors).kept
        if self.method == PREFILL:
            return list(range(len(self.ids)))
        return [int(row) for row in np.flatnonzero(self.ancestors[kept[min(1, len(kept) - 1)]])]


@dataclass(frozen=True, slots=True)
class StreamsPass:
    """`streams`: after a committed `decode`, the streams of its node."""

    before: RowsPass
    method: str = STREAMS

    def prepare(self, backend: Backend) -> None:
        backend.commit(self.before.run(backend))

    def run(self, backend: Backend) -> list[int]:
        backend.streams(0, int(self.before.ids[-1]))
        return []


def fill(backend: Backend, ids: IntArray) -> None:
    """Commit the rest of the context `ids` [n] to a cache that holds its beginning, or nothing."""
    for start in range(backend.length, len(ids), backend.spec.prefill_rows):
        chunk = ids[start : start + backend.spec.prefill_rows]
        positions = np.arange(start, start + len(chunk))
        backend.run(PREFILL, chunk, positions, np.tri(len(chunk), dtype=np.bool_))
        backend.commit(range(len(chunk)))


def passes_of(manifest: Manifest, context: int, random: np.random.Generator) -> list[Pass]:
    """One pass per method of a bundle, behind `context` tokens."""
    rows: dict[str, RowsPass] = {}
    for name, method in manifest.methods.items():
        if name != STREAMS:
            ids = random.integers(manifest.model.vocab_size, size=method.rows)
            rows[name] = _chunk(ids, context) if name == PREFILL else _tree(name, ids, context)
    found: list[Pass] = list(rows.values())
    return [*found, StreamsPass(rows[DECODE])] if STREAMS in manifest.methods else found


def _chunk(ids: IntArray, context: int) -> RowsPass:
    return RowsPass(PREFILL, ids, np.arange(context, context + len(ids)), np.tri(len(ids), dtype=np.bool_))


def _tree(name: str, ids: IntArray, context: int) -> RowsPass:
    """A binary tree in row order."""
    ancestors = np.eye(len(ids), dtype=np.bool_)
    for row in range(1, len(ids)):
        ancestors[row] |= ancestors[(row - 1) // 2]
    return RowsPass(name, ids, context - 1 + ancestors.sum(axis=1), ancestors)
