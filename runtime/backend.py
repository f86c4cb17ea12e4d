"""What the loop asks of an engine: run a method, commit rows, truncate. See docs/contracts.md, sections 2 and 3.

A backend runs the methods of one bundle and owns the cache memory. The loop never sees a key or a value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

IntArray: TypeAlias = npt.NDArray[np.int64]
FloatArray: TypeAlias = npt.NDArray[np.float32]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

PREFILL = "prefill"
DECODE = "decode"


class BackendError(ValueError):
    """A request that the engine cannot serve, said in one sentence."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The facts of a bundle that the loop needs; every number comes from the manifest.

    `widths` maps each verify method to (rows, keep): the nodes it takes and how many of them survive its pruner.
    `default_width` is the number of rows of the verify method to use when nobody chooses; None means the middle one.
    """

    capacity: int  # committed rows that the cache can hold = tokens of context
    vocab_size: int
    num_streams: int  # G; 0 where the bundle has no streams
    top_k: int  # candidates per stream
    prefill_rows: int  # P, prompt tokens per prefill pass
    widths: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    eos_token_ids: tuple[int, ...] = ()
    default_width: int | None = None

    def __post_init__(self) -> None:
        for name in ("capacity", "vocab_size", "prefill_rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("num_streams", "top_k"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, but is {getattr(self, name)}")
        for method, (rows, keep) in self.widths.items():
            if not 1 <= keep <= rows:
                raise ValueError(f"{method} must keep between 1 and {rows} of its {rows} rows, not {keep}")

    def rows(self, method: str) -> int:
        """Rows R of a method: P, 1, or the width of a verify method. BackendError for an unknown name."""
        if method == PREFILL:
            return self.prefill_rows
        if method == DECODE:
            return 1
        if method not in self.widths:
            raise BackendError(f"this bundle has no method {method!r}; it has {', '.join(self.methods)}")
        return self.widths[method][0]

    @property
    def methods(self) -> tuple[str, ...]:
        return (PREFILL, DECODE, *self.widths)

    @property
    def verify_widths(self) -> tuple[int, ...]:
        """Rows of the verify methods, ascending."""
        return tuple(sorted(rows for rows, _ in self.widths.values()))

    def verify_method(self, nodes: int) -> str:
        """The narrowest verify method that takes a tree of `nodes` nodes. BackendError if none does."""
        fitting = [(rows, method) for method, (rows, _) in self.widths.items() if rows >= nodes]
        if not fitting:
            raise BackendError(f"no verify method takes {nodes} nodes; the widths are {self.verify_widths}")
        return min(fitting)[1]


@dataclass(frozen=True, slots=True)
class PassOutput:
    """What one pass says, for its K' real surviving nodes only. Arrays may be views, valid until the next `run`."""

    logits: FloatArray | None  # [K', V]; None for prefill
    kept: IntArray  # [K'], ascending along any path, kept[0] = 0; empty for prefill
    stream_ids: IntArray  # [K', G, k] full-vocabulary token ids, best first; [K', 0, 0] without streams
    stream_log_probs: FloatArray  # [K', G, k] natural log under the stream's own softmax

    @classmethod
    def of_prefill(cls) -> PassOutput:
        """Prefill says nothing: no logits, no nodes, no streams."""
        return cls(None, np.zeros(0, np.int64), np.zeros((0, 0, 0), np.int64), np.zeros((0, 0, 0), np.float32))

    @classmethod
    def of_decode(cls, logits: FloatArray) -> PassOutput:
        """One node and no streams; logits float32 [1, V]."""
        return cls(logits, np.zeros(1, np.int64), np.zeros((1, 0, 0), np.int64), np.zeros((1, 0, 0), np.float32))


class Backend(Protocol):
    """The whole interface between the loop and an engine. One instance serves one sequence and one thread."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def length(self) -> int:
        """Committed rows, which is the number of valid cache positions."""
        ...

    def run(self, method: str, input_ids: IntArray, position_ids: IntArray, ancestors: BoolArray) -> PassOutput:
        """One pass over n <= R real rows, padded here. ids and positions int64 [n], ancestors bool [n, n].

        It changes no cache row. Raises BackendError.
        """
        ...

    def commit(self, rows: Sequence[int]) -> None:
        """Copy the keys and values of these rows of the last run to cache positions length, length + 1, ...

        Every row must have survived; a second commit after one run continues. Raises BackendError.
        """
        ...

    def truncate(self, length: int) -> None:
        """Forget every cache position from `length` on. Raises BackendError unless 0 <= length <= self.length."""
        ...

    def close(self) -> None:
        """Give the engine's memory back; the backend cannot be used afterwards."""
        ...
