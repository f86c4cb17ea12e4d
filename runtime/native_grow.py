"""Tree growth by the engine's library (kernels/engine/grow.h), where there is one; `draft.grow` is the reference.

The library computes the parent term's sums in another order than numpy, so path probabilities agree to about 1e-6.
They decide what is tried, never what is said.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from streamfuse.kernels.library import LibraryError, load_library
from streamfuse.runtime.backend import FloatArray, IntArray
from streamfuse.runtime.draft import DraftTables
from streamfuse.runtime.ngram_table import ANY, LEAST, MAX_DEPTH, NgramTable
from streamfuse.runtime.tree import Tree


class _Growth(ctypes.Structure):
    """sf_growth."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("parent_left", "parent_right", "gate", "slot_of")),
        *((name, ctypes.c_int64) for name in ("vocab_size", "rank")),
        *((name, ctypes.c_void_p) for name in ("stream_ids", "stream_log_probs")),
        *((name, ctypes.c_int64) for name in ("streams", "top_k", "root", "width", "depth")),
        *((name, ctypes.c_void_p) for name in ("tokens", "parents", "depths", "log_probs", "ancestors")),
    ]


class _NgramGrowth(ctypes.Structure):
    """sf_ngram_growth."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("keys", "first", "starts", "ids", "log_probs")),
        *((name, ctypes.c_int64) for name in ("vocab_size", "before", "root", "width", "depth")),
        ("least", ctypes.c_double),
        *((name, ctypes.c_void_p) for name in ("tokens", "parents", "depths", "tree_log_probs", "ancestors")),
    ]


def library_with_grow() -> ctypes.CDLL | None:
    """The engine's library if it is built and grows trees."""
    try:
        library = load_library()
    except LibraryError:
        return None
    return library if hasattr(library, "sf_grow") else None


def native_grower(tables: DraftTables | None) -> NativeGrower | None:
    """A grower for these tables; None where there is no library that grows trees."""
    library = library_with_grow()
    return None if library is None else NativeGrower(library, tables)


def native_ngrams(tables: DraftTables | None) -> NativeNgrams | None:
    """A faster grower for the n-gram table; None where there is no table, or no library that knows it."""
    library = library_with_grow() if tables is not None and tables.ngrams is not None else None
    if library is None or tables is None or tables.ngrams is None or not hasattr(library, "sf_grow_ngrams"):
        return None
    return NativeNgrams(library, tables.ngrams)


class _Place:
    """Memory of one tree, and the trees of each size that have lain there."""

    def __init__(self, width: int) -> None:
        self._rows, self._probs = np.empty((3, width), np.int64), np.empty(width)
        self._visible = np.empty(width**2, np.bool_)
        arrays = (*self._rows, self._probs, self._visible)
        self.addresses = tuple(array.ctypes.data for array in arrays)
        self._trees: dict[int, Tree] = {}

    def tree(self, rows: int) -> Tree:
        """The first `rows` rows of what lies here."""
        if rows not in self._trees:
            visible = self._visible[: rows * rows].reshape(rows, rows)
            tokens, parents, depths = self._rows[:, :rows]
            self._trees[rows] = Tree(tokens, parents, depths, self._probs[:rows], visible)
        return self._trees[rows]


class NativeGrower:
    """Grows trees for one set of tables. Not thread-safe; a tree's arrays are valid until the next but one grows.

    Trees lie in two places in turn, and what points there is made once: asking numpy for an address, or for a copy,
    costs as much as growing a tree.
    """

    def __init__(self, library: ctypes.CDLL, tables: DraftTables | None) -> None:
        self._grow = library.sf_grow
        self._grow.restype = ctypes.c_int
        self._grow.argtypes = [ctypes.c_void_p]
        self._growth = growth = _Growth()
        self._address = ctypes.addressof(growth)
        self._held: list[np.ndarray[Any, Any]] = []  # what the structure points to
        self._width, self._turn = 0, 0
        self._ids: IntArray = np.empty((0, 0), np.int64)
        if tables is not None and tables.rank:
            growth.parent_left = self._hold(tables.parent_left, np.float16)
            growth.parent_right = self._hold(tables.parent_right, np.float32)
            growth.gate = self._hold(tables.gate, np.float32)
            growth.slot_of = self._hold(tables.slot_of, np.int32)
            growth.vocab_size, growth.rank = len(tables.slot_of), tables.rank

    def __call__(self, root: int, stream_ids: IntArray, stream_log_probs: FloatArray, width: int, depth: int) -> Tree:
        """As `draft.grow`. ValueError for a candidate outside the stream vocabulary."""
        if stream_ids.shape != self._ids.shape or width > self._width:
            self._make_room(stream_ids.shape, width)
        self._ids[:], self._stated[:] = stream_ids, stream_log_probs
        self._turn ^= 1
        growth, place = self._growth, self._places[self._turn]
        growth.root, growth.width, growth.depth = root, max(width, 1), depth
        growth.tokens, growth.parents, growth.depths, growth.log_probs, growth.ancestors = place.addresses
        rows = self._grow(self._address)
        if rows < 1:
            raise ValueError("a stream proposed a token outside the stream vocabulary of draft.safetensors")
        return place.tree(rows)

    def _make_room(self, shape: tuple[int, ...], width: int) -> None:
        growth, self._width = self._growth, max(width, self._width)
        self._ids, self._stated = np.empty(shape, np.int64), np.empty(shape, np.float32)
        self._places = [_Place(self._width), _Place(self._width)]
        growth.stream_ids, growth.stream_log_probs = self._ids.ctypes.data, self._stated.ctypes.data
        growth.streams, growth.top_k = shape

    def _hold(self, array: np.ndarray[Any, Any], dtype: Any) -> int:
        self._held.append(np.ascontiguousarray(array, dtype))
        return int(self._held[-1].ctypes.data)


class NativeNgrams:
    """Grows the trees of `NgramTable.grow`, to the bit; rules of use as for `NativeGrower`."""

    def __init__(self, library: ctypes.CDLL, table: NgramTable) -> None:
        self._grow = library.sf_grow_ngrams
        self._grow.restype = ctypes.c_int
        self._grow.argtypes = [ctypes.c_void_p]
        self._growth = growth = _NgramGrowth()
        self._address = ctypes.addressof(growth)
        self._width, self._turn = 0, 0
        first = np.searchsorted(table.keys, np.arange(table.vocab_size + 1) * (table.vocab_size + 1)).astype(np.int32)
        self._held = (table.keys, first, table.starts, table.ids, table.log_probs)  # what the structure points to
        growth.keys, growth.first, growth.starts, growth.ids, growth.log_probs = (a.ctypes.data for a in self._held)
        growth.vocab_size, growth.least = table.vocab_size, LEAST

    def grow(self, tokens: Sequence[int], width: int, depth: int) -> Tree:
        """As `NgramTable.grow`. ValueError for tokens outside the vocabulary."""
        if width > self._width:
            self._width, self._places = width, [_Place(width), _Place(width)]
        self._turn ^= 1
        growth, place = self._growth, self._places[self._turn]
        growth.before, growth.root = tokens[-2] if len(tokens) > 1 else ANY, tokens[-1]
        growth.width, growth.depth = max(width, 1), min(depth, MAX_DEPTH)
        growth.tokens, growth.parents, growth.depths, growth.tree_log_probs, growth.ancestors = place.addresses
        rows = self._grow(self._address)
        if rows < 1:
            raise ValueError(f"token {tokens[-1]} is outside the vocabulary of the n-gram table")
        return place.tree(rows)
