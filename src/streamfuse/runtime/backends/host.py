"""What backends share that keep their caches in Python: one sequence's length, and which rows a commit may take."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from streamfuse.runtime.backend import STREAMS, BackendError, IntArray, ModelSpec

_Self = TypeVar("_Self", bound="HostBackend")


@dataclass(frozen=True, slots=True)
class Ring:
    """The caches of layers with a sliding window or convolution of `window` positions: ring buffers of `positions`
    each."""

    window: int
    positions: int


class HostBackend:
    """The base of a runtime.backend.Backend; a subclass adds `run`, `streams`, `_write` and `_release`.

    `ring` is None if all caches have positions for the whole context.
    """

    def __init__(self, spec: ModelSpec, ring: Ring | None = None) -> None:
        self._spec, self._length, self._ring = spec, 0, ring
        self._oldest = 0  # the first position that every cache still has
        self._places: dict[int, int] = {}  # row of the last run -> its index in `kept`

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    @property
    def length(self) -> int:
        return self._length

    def commit(self, rows: Sequence[int]) -> None:
        lost = [row for row in rows if row not in self._places]
        if lost:
            raise BackendError(f"row {lost[0]} is not among the surviving rows of the last pass")
        end = self._length + len(rows)
        if end > self._spec.capacity:
            raise BackendError(f"{end} rows do not fit into the cache of {self._spec.capacity}")
        if rows:
            self._write(slice(self._length, end), list(rows), [self._places[row] for row in rows])
        self._length = end
        if self._ring is not None:
            self._oldest = max(self._oldest, end - self._ring.positions)

    def truncate(self, length: int) -> None:
        if not 0 <= length <= self._length:
            raise BackendError(f"cannot truncate a cache of {self._length} rows to {length}")
        if self._ring is not None and self.truncatable(length) != length:
            raise BackendError(
                f"cannot truncate to {length}: layers with a sliding window or convolution of {self._ring.window} "
                f"positions have only those from {self._oldest} on; truncate to 0 and run the tokens again"
            )
        self._length, self._places = length, {}
        if length == 0:
            self._oldest = 0

    def truncatable(self, length: int) -> int:
        """The longest prefix of at most `length` positions that `truncate` accepts."""
        length = max(0, min(length, self._length))
        return length if self._ring is None or self._oldest <= max(0, length - self._ring.window) else 0

    def trim(self) -> None:
        """Free the memory of an empty cache and of inputs and outputs; the next run allocates it again. Graphs and
        weights stay loaded."""
        if self._length:
            raise BackendError("the cache is not empty: truncate it to 0 first")
        self._places = {}
        self._release()
        # The C library keeps freed memory for reuse; glibc's malloc_trim returns it to the system.
        give_back = getattr(ctypes.pythonapi, "malloc_trim", None)
        if give_back is not None:
            give_back(ctypes.c_size_t(0))

    def close(self) -> None:
        self._length, self._places, self._oldest = 0, {}, 0

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, positions: slice, rows: list[int], places: list[int]) -> None:
        """Copy new rows to cache positions (`in_cache`): below the top layers they lie by `rows`, in these by
        `places`."""
        raise NotImplementedError

    def _release(self) -> None:
        """Let go of the caches, and of the inputs and outputs of passes."""
        raise NotImplementedError

    def _begin(self, method: str, count: int) -> int:
        """The rows of a method that is to run with `count` real ones; should it fail, nothing is left to commit."""
        rows = self._spec.rows(method)
        if not 1 <= count <= rows:
            raise BackendError(f"{method} takes from 1 to {rows} rows, not {count}")
        self._places = {}
        return rows

    def _remember(self, kept: Iterable[int]) -> None:
        """The real surviving rows of the pass that was just run, in their order."""
        self._places = {row: index for index, row in enumerate(kept)}

    def _survivors(self, kept: IntArray, count: int) -> int:
        """Remember the real rows of `kept` int64 [K], padding rows last, and say how many they are."""
        real = int(np.count_nonzero(kept < count))
        self._remember(kept[:real].tolist())
        return real

    def _check_survivor(self, index: int, has_hidden: bool) -> None:
        """Refuse streams where there are none to compute."""
        if not self._spec.deferred:
            raise BackendError(f"this bundle has no method {STREAMS!r}")
        if not has_hidden or not 0 <= index < len(self._places):
            raise BackendError(f"the last pass has no survivor {index} with a hidden state")


def in_cache(positions: slice, count: int) -> slice | list[int]:
    """Where positions of a sequence are in a cache of `count` positions: position t is at t modulo `count`."""
    first = positions.start % count
    last = first + positions.stop - positions.start
    return slice(first, last) if last <= count else [t % count for t in range(positions.start, positions.stop)]
