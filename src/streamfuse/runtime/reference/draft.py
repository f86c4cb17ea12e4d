"""Draft: grow the most probable tree under the streams' distributions, sharpened by the parent term.

docs/contracts.md, section 8, specifies the computation. It affects only drafts, never the output.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from streamfuse.runtime.backend import FloatArray, IntArray, PassOutput
from streamfuse.runtime.reference.coupling import GREEDY, Coupling
from streamfuse.runtime.reference.guide import FORCED_LOG_PROB, FREE, Guide, Path
from streamfuse.runtime.reference.ngram_table import NgramTable
from streamfuse.runtime.reference.numbers import exponential, logarithm
from streamfuse.runtime.reference.tree import Tree

Float64Array = npt.NDArray[np.float64]
_MOST_RATIO = 10
_NEEDED = {"parent_left": "<f2", "parent_right": "<f2", "gate": "<f4", "stream_vocab": "<i4"}
_MEASURED = {"calibration": "<f4"}  # may be missing
_NGRAMS = {"ngram_keys": "<i8", "ngram_starts": "<i4", "ngram_ids": "<i4", "ngram_log_probs": "<f2"}  # all or none


class Drafter(Protocol):
    """Proposes a tree, from the tokens so far, the results of the last pass, or both."""

    def reset(self) -> None:
        """A new generation begins: forget the last pass."""
        ...

    def learn(self, output: PassOutput, index: int) -> None:
        """The last accepted node was output's `index`-th surviving node; output is valid until the next run."""
        ...

    def draft(self, tokens: Sequence[int], width: int, depth: int) -> Tree:
        """At most `width` nodes and `depth` levels below the root, which is tokens[-1]."""
        ...


@dataclass(frozen=True, slots=True)
class DraftTables:
    """The parent term: how much parent u changes the log-probability that stream j assigns to candidate c."""

    parent_left: npt.NDArray[np.float16]  # [V, r]
    parent_right: FloatArray  # [S, r]
    gate: FloatArray  # [G, r]
    slot_of: npt.NDArray[np.int32]  # [V]: row of a token in parent_right; -1 outside the stream vocabulary
    calibration: tuple[float, ...] = ()  # [G] hits per predicted hit at each depth; empty if not measured
    ngrams: NgramTable | None = None  # None if there is no n-gram table

    @classmethod
    def of(
        cls,
        parent_left: npt.NDArray[np.float16],
        parent_right: npt.NDArray[np.floating],
        gate: FloatArray,
        stream_vocab: npt.NDArray[np.int32],
        calibration: npt.ArrayLike | None = None,
        ngrams: NgramTable | None = None,
    ) -> DraftTables:
        """From the arrays of draft.safetensors. ValueError, naming the array, for an invalid shape or value."""
        shapes = f"parent_left {parent_left.shape}, parent_right {parent_right.shape}, gate {gate.shape}"
        if {parent_left.ndim, parent_right.ndim, gate.ndim} != {2} or stream_vocab.ndim != 1:
            raise ValueError(f"{shapes} and stream_vocab {stream_vocab.shape} have not 2, 2, 2 and 1 dimensions")
        (vocab_size, rank), streams = parent_left.shape, len(gate)
        if parent_right.shape != (len(stream_vocab), rank) or gate.shape[1] != rank:
            raise ValueError(f"{shapes} and stream_vocab {stream_vocab.shape} do not belong together")
        for name, array in (("parent_left", parent_left), ("parent_right", parent_right), ("gate", gate)):
            if not np.isfinite(array).all():
                raise ValueError(f"{name} holds what is no finite number")
        if len(stream_vocab) and not 0 <= int(stream_vocab.min()) <= int(stream_vocab.max()) < vocab_size:
            raise ValueError(f"stream_vocab names a token outside the vocabulary of {vocab_size}")
        if (stream_vocab[1:] <= stream_vocab[:-1]).any():
            raise ValueError("stream_vocab is not ascending")
        if ngrams is not None and ngrams.vocab_size != vocab_size:
            raise ValueError(f"the n-gram table is of {ngrams.vocab_size} tokens, the vocabulary has {vocab_size}")
        slot_of = np.full(vocab_size, -1, np.int32)
        slot_of[stream_vocab] = np.arange(len(stream_vocab), dtype=np.int32)
        right, gate = parent_right.astype(np.float32), gate.astype(np.float32)
        return cls(parent_left, right, gate, slot_of, _ratios(calibration, streams), ngrams)

    @classmethod
    def load(cls, tensors: Mapping[str, npt.NDArray[Any]], where: object = "draft.safetensors") -> DraftTables:
        """From the tensors of a bundle's draft.safetensors, named `where` in messages; parent_left is not copied.

        Raises:
            ValueError: an array is missing, unknown, or not as docs/contracts.md, section 4, specifies; the
                message names the file and the array.
        """
        try:
            arrays: dict[str, Any] = dict(tensors)
            _check_kinds(arrays)
            ngrams = [arrays.pop(name) for name in _NGRAMS if name in arrays]
            tables = cls.of(**arrays)
            return replace(tables, ngrams=NgramTable.of(len(tables.slot_of), *ngrams)) if ngrams else tables
        except ValueError as error:
            raise ValueError(f"cannot read the drafting data {where}: {error}") from error

    def check(self, num_streams: int, vocab_size: int) -> None:
        """ValueError if these tables are not for a model with this number of streams and tokens."""
        if self.rank and len(self.gate) != num_streams:
            raise ValueError(f"draft.safetensors is of {len(self.gate)} streams, the model has {num_streams}")
        if len(self.slot_of) != vocab_size:
            raise ValueError(f"draft.safetensors is of {len(self.slot_of)} tokens, the model has {vocab_size}")

    @property
    def rank(self) -> int:
        return int(self.gate.shape[1])

    def right_of(self, candidates: IntArray) -> FloatArray:
        """float32 [..., r] for candidate ids [...]. ValueError for a token outside the stream vocabulary."""
        slots = self.slot_of[candidates]
        if slots.size and int(slots.min()) < 0:
            raise ValueError("a stream proposed a token outside the stream vocabulary of draft.safetensors")
        return self.parent_right[slots]


def _ratios(calibration: npt.ArrayLike | None, streams: int) -> tuple[float, ...]:
    """The calibration, checked; empty for None."""
    if calibration is None:
        return ()
    found = np.asarray(calibration, np.float64)
    if found.shape != (streams,) or not ((found >= 0) & (found <= _MOST_RATIO)).all():
        raise ValueError(f"calibration {found.shape} is not {streams} ratios from 0 to {_MOST_RATIO}")
    return tuple(found.tolist())


def _check_kinds(arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """ValueError, naming the array, if one is missing, unknown or of the wrong dtype."""
    dtypes = {**_NEEDED, **_MEASURED, **_NGRAMS}
    needed = [*_NEEDED, *(_NGRAMS if arrays.keys() & _NGRAMS.keys() else ())]
    if missing := [name for name in needed if name not in arrays]:
        raise ValueError(f"it lacks {', '.join(missing)}")
    for name, array in arrays.items():
        if name not in dtypes:
            raise ValueError(f"it holds {name!r:.80}, which this version does not know")
        if array.dtype != np.dtype(dtypes[name]):
            raise ValueError(f"{name} is {array.dtype}, not {np.dtype(dtypes[name])}")


def grow(
    root: int, stream_ids: IntArray, stream_log_probs: FloatArray, width: int, depth: int, tables: DraftTables | None,
    coupling: Coupling = GREEDY, position: int = 0,
) -> Tree:  # fmt: skip
    """The most probable ancestor-closed tree of at most `width` nodes, rows in best-first order.

    stream_ids int64 [G, k], stream_log_probs float32 [G, k]: those of the last accepted node. `position` is that of the
    root's children. A node of depth d takes
    its children from stream d + 1, so the tree is at most min(depth, G) deep. Rows are ordered by log-probability, ties
    by depth, then by the parent's row, then by the candidate's rank, so a narrower tree is a prefix of a wider one.
    A conditional probability never exceeds 1, so the best nodes of all levels are closed under ancestors, and each
    level needs only its best `width - 1` nodes: one small matrix per level, parents by candidates.
    """
    budget, levels = width - 1, min(depth, len(stream_ids))
    if budget < 1 or levels < 1:
        return Tree.root(root)
    conditional = _Conditional(stream_ids[:levels], stream_log_probs[:levels], tables, coupling, position)
    tokens, probs, parents = [np.array([root])], [np.zeros(1)], [np.array([-1])]
    first_row, floor = 0, -np.inf
    for level in range(levels):
        flat = (probs[level][:, None] + np.minimum(conditional(level, tokens[level]), 0.0)).ravel()
        best = _best(flat, budget, floor)
        if not len(best):
            break
        parent, rank = np.divmod(best, stream_ids.shape[1])
        tokens.append(stream_ids[level][rank])
        probs.append(flat[best])
        parents.append(parent + first_row)
        first_row += len(tokens[level])
        floor = _floor(probs, budget)
    return _in_order(np.concatenate(tokens), np.concatenate(probs), np.concatenate(parents), width)


class _Conditional:
    """Log-probability of each candidate of a stream given each parent, and in sampled text the noise. Sums are computed
    in index order."""

    def __init__(
        self, ids: IntArray, log_probs: FloatArray, tables: DraftTables | None, coupling: Coupling, position: int
    ) -> None:
        self.ids, self.coupling, self.position = ids, coupling, position
        self.log_probs = log_probs.astype(np.float64)
        self.tables = tables if tables is not None and tables.rank else None
        if self.tables is not None:
            self.right = self.tables.right_of(ids).astype(np.float64)  # [levels, k, r]
            self.tails = np.maximum(0.0, 1.0 - np.cumsum(exponential(self.log_probs), axis=1)[:, -1])

    def __call__(self, level: int, parents: IntArray) -> Float64Array:
        """float64 [parents, k] for parent tokens; without a parent term [1, k], the same for all."""
        return self.coupling.apply(self.position + level, self.ids[level].tolist(), self._alone(level, parents))

    def _alone(self, level: int, parents: IntArray) -> Float64Array:
        if self.tables is None:
            marginal: Float64Array = self.log_probs[level][None]
            return marginal
        left = self.tables.parent_left[parents].astype(np.float64) * self.tables.gate[level].astype(np.float64)
        term = np.zeros((len(parents), self.right.shape[1]))
        for i in range(self.tables.rank):
            term += left[:, i, None] * self.right[level, :, i]
        scores = self.log_probs[level] + term
        mass = np.cumsum(exponential(scores), axis=1)[:, -1] + self.tails[level]
        conditional: Float64Array = scores - logarithm(mass)[:, None]
        return conditional


def _best(values: Float64Array, count: int, floor: float) -> IntArray:
    """Indices of the `count` largest values above the floor, largest first, ties by index."""
    found = np.flatnonzero(values > floor)
    if len(found) > count:
        threshold = np.partition(values[found], len(found) - count)[len(found) - count]
        found = found[values[found] >= threshold]
    return found[np.argsort(-values[found], kind="stable")[:count]]


def _floor(probs: list[Float64Array], budget: int) -> float:
    """The lowest path probability among the best `budget` nodes so far; a deeper node must exceed it."""
    drafted = np.concatenate(probs[1:])
    return -np.inf if len(drafted) < budget else float(np.partition(drafted, len(drafted) - budget)[-budget])


def _in_order(tokens: IntArray, probs: Float64Array, parents: IntArray, width: int) -> Tree:
    order = np.argsort(-probs, kind="stable")[:width]
    row_of = np.full(len(tokens) + 1, -1, np.int64)  # the last entry is for the root's parent, -1
    row_of[order] = np.arange(len(order))
    kept_parents = row_of[parents[order]]
    depths = np.zeros(len(order), np.int64)
    for row, parent in enumerate(kept_parents.tolist()[1:], start=1):
        depths[row] = depths[parent] + 1
    return Tree(tokens[order], kept_parents, depths, probs[order])


def grow_along(
    guide: Guide, root: int, streams: tuple[IntArray, FloatArray] | None, width: int, depth: int,
    tables: DraftTables | None, coupling: Coupling = GREEDY, position: int = 0,
) -> Tree:  # fmt: skip
    """The same under a constraint, node by node: the best candidate of all joins the tree and offers its children.

    A token that is forced is its parent's only child, and deeper than the streams there are such tokens only. Without
    streams the tree has no others.
    """
    drafted, parents, probs, paths = [root], [-1], [0.0], [Path()]
    levels = 0 if streams is None else min(depth, len(streams[0]))
    conditional = None
    if streams is not None:
        conditional = _Conditional(streams[0][:levels], streams[1][:levels], tables, coupling, position)
    heap: list[tuple[float, int, int, int, int]] = []  # (-log-probability, depth, parent's row, rank, token)

    def offer(row: int) -> None:
        level, forced = len(paths[row]), guide.forced(paths[row])
        if forced is not None:
            heapq.heappush(heap, (-(probs[row] + FORCED_LOG_PROB), level + 1, row, -1, forced))
        elif streams is not None and conditional is not None and level < levels:
            tokens = streams[0][level].tolist()
            scores = conditional(level, np.array([drafted[row]]))[0].tolist()
            for rank, score in enumerate(_restrict(scores, guide.may_follow(paths[row], tokens))):
                if score > -math.inf:
                    heapq.heappush(heap, (-(probs[row] + min(score, 0.0)), level + 1, row, rank, tokens[rank]))

    if depth > 0:
        offer(0)
    while heap and len(drafted) < width:
        path, level, parent, _, token = heapq.heappop(heap)
        drafted.append(token)
        parents.append(parent)
        probs.append(-path)
        paths.append((*paths[parent], token))
        if level < depth:
            offer(len(drafted) - 1)
    return Tree.of(drafted, parents, probs)


def _restrict(scores: list[float], allowed: list[bool]) -> list[float]:
    """Log-probabilities among those allowed: the others have minus infinity, and these share what remains."""
    refused = 0.0
    for score, ok in zip(scores, allowed, strict=True):
        refused += 0.0 if ok else float(exponential(np.array([score]))[0])
    if refused == 0.0:
        return [score if ok else -math.inf for score, ok in zip(scores, allowed, strict=True)]
    norm = float(logarithm(np.array([max(1.0 - refused, 1e-9)]))[0])
    return [score - norm if ok else -math.inf for score, ok in zip(scores, allowed, strict=True)]


class StreamDrafter:
    """Drafts from the streams of the last accepted node. Right after prefill there are none: a tree of one node, unless
    a constraint forces the next tokens."""

    def __init__(self, tables: DraftTables | None = None) -> None:
        self.tables = tables
        self.guide, self.coupling = FREE, GREEDY
        self._streams: tuple[IntArray, FloatArray] | None = None

    def reset(self) -> None:
        self._streams = None

    def learn(self, output: PassOutput, index: int) -> None:
        carries = output.carries_streams(index)
        self._streams = (output.stream_ids[index], output.stream_log_probs[index]) if carries else None

    def draft(self, tokens: Sequence[int], width: int, depth: int) -> Tree:
        noise = (self.coupling, len(tokens))
        if self.guide.constrained:
            return grow_along(self.guide, tokens[-1], self._streams, width, depth, self.tables, *noise)
        if self._streams is None:
            return Tree.root(tokens[-1])
        return grow(tokens[-1], *self._streams, width, depth, self.tables, *noise)
