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
STREAMS = "streams"  # the second, short pass of the deferred schedule
VERIFY_PREFIX = "verify_"  # and the number of nodes
NEXT_TOKEN = "next_token"  # its input where streams are told the token after their node


class BackendError(ValueError):
    """A request that the engine cannot serve; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """The facts of a bundle that the loop needs; every number comes from the manifest.

    `widths` maps each verify method to (rows, keep): the nodes it takes and how many of them survive its pruner.
    `stream_nodes` maps a verify method to M, how many of the survivors carry streams; one that is not named gives
    streams to all that it keeps. `deferred` says that `Backend.streams` works: streams after the commit, for one node.
    `default_width` is the number of rows of the verify method to use when nobody measures; None means the middle one.
    """

    capacity: int  # committed rows that the cache can hold = tokens of context
    vocab_size: int
    num_streams: int  # G; 0 where the bundle has no streams
    top_k: int  # candidates per stream
    prefill_rows: int  # P, prompt tokens per prefill pass
    widths: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    eos_token_ids: tuple[int, ...] = ()
    default_width: int | None = None
    stream_nodes: Mapping[str, int] = field(default_factory=dict)
    deferred: bool = False
    stream_vocab_size: int = 0  # tokens that streams may propose; 0: not known

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
        for method, carrying in self.stream_nodes.items():
            if method not in self.widths or not 0 <= carrying <= self.widths[method][1]:
                raise ValueError(f"stream_nodes says {carrying} for {method}, which does not keep so many nodes")

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

    def streams_of(self, method: str) -> int:
        """How many surviving nodes of a method carry streams; 0 for `prefill` and `decode`."""
        if method not in self.widths or not self.num_streams:
            return 0
        return self.stream_nodes.get(method, self.widths[method][1])

    @property
    def verify_widths(self) -> tuple[int, ...]:
        """Nodes of a tree that one may ask for, ascending; `verify_1` takes no draft, so it is none of them."""
        return tuple(sorted(rows for rows, _ in self.widths.values() if rows > 1))

    def verify_method(self, nodes: int) -> str:
        """The narrowest verify method that takes a tree of `nodes` nodes. BackendError if none does."""
        fitting = [(rows, method) for method, (rows, _) in self.widths.items() if rows >= nodes]
        if not fitting:
            raise BackendError(f"no verify method takes {nodes} nodes; the widths are {self.verify_widths}")
        return min(fitting)[1]


_NOBODY: IntArray = np.zeros(0, np.int64)
_ROOT: IntArray = np.zeros(1, np.int64)
_NO_IDS: IntArray = np.zeros((1, 0, 0), np.int64)
_NO_LOG_PROBS: FloatArray = np.zeros((1, 0, 0), np.float32)


@dataclass(frozen=True, slots=True)
class PassOutput:
    """What one pass says, for its K' real surviving nodes only. Arrays may be views, valid until the next `run`."""

    logits: FloatArray | None  # [K', V]; None for prefill, and unless they were asked for
    best: IntArray  # [K'] the most probable next token of each survivor, the smaller id of equal ones
    kept: IntArray  # [K'] rows, in any order, the root among them; empty for prefill
    # [M', G, k] of the first M' <= K' survivors: full-vocabulary ids, best first; natural log
    stream_ids: IntArray = field(default_factory=lambda: _NO_IDS[:0])
    stream_log_probs: FloatArray = field(default_factory=lambda: _NO_LOG_PROBS[:0])

    def carries_streams(self, index: int) -> bool:
        """Whether the `index`-th survivor has streams."""
        return bool(index < self.stream_ids.shape[0] and self.stream_ids.shape[1])

    @classmethod
    def of_prefill(cls) -> PassOutput:
        """Prefill says nothing: no logits, no nodes, no streams."""
        return cls(None, _NOBODY, _NOBODY)

    @classmethod
    def of_decode(cls, logits: FloatArray | None, best: IntArray) -> PassOutput:
        """One node and no streams; logits float32 [1, V] or None, best int64 [1]."""
        return cls(logits, best, _ROOT, _NO_IDS, _NO_LOG_PROBS)


class Backend(Protocol):
    """The whole interface between the loop and an engine. One instance serves one sequence and one thread."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def length(self) -> int:
        """Committed rows, which is the number of valid cache positions."""
        ...

    def run(
        self,
        method: str,
        input_ids: IntArray,
        position_ids: IntArray,
        ancestors: BoolArray,
        want_logits: bool = False,
    ) -> PassOutput:
        """One pass over n <= R real rows, padded here. ids and positions int64 [n], ancestors bool [n, n].

        It changes no cache row. A backend may give logits that nobody asked for. Raises BackendError.
        """
        ...

    def streams(self, index: int, next_token: int) -> PassOutput:
        """Streams of one survivor of the last pass, all rows up to which are committed: the deferred schedule.

        `index` is its place among the survivors, `next_token` what the model chose after it, for streams that are told
        it. In the answer only stream_ids [1, G, k] and stream_log_probs have
        meaning. Raises BackendError where the spec does not say `deferred`.
        """
        ...

    def commit(self, rows: Sequence[int]) -> None:
        """Copy the keys and values of these rows of the last run to cache positions length, length + 1, ...

        Every row must have survived; a second commit after one run continues. Raises BackendError.
        """
        ...

    def truncate(self, length: int) -> None:
        """Forget every cache position from `length` on. Raises BackendError unless 0 <= length <= self.length.

        An engine that keeps fewer positions for layers with a sliding window, convolution or linear attention cannot go
        back to every length. It has a method `truncatable(length)`, which gives the longest prefix of at most `length`
        positions that this accepts.
        """
        ...

    def close(self) -> None:
        """Give the engine's memory back; the backend cannot be used afterwards."""
        ...
