"""What the model usually says next: a table counted in its own text when its streams were trained.

A static n-gram model of order 3 with order 2 behind it. It knows nothing of the context but the last two tokens, and
it costs nothing: no weights are read. So it drafts where the streams' pass would cost more than it brings, and where
there are no streams yet. Its probabilities say what is tried, never what is said.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from streamfuse.runtime.reference.tree import Tree

ANY = -1  # in the place of the token before the last one: whatever it was
MAX_DEPTH = 6
LEAST = math.log(0.02)  # a path less likely than this is not worth a row anywhere

IntRows = npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class NgramTable:
    """Continuations of contexts of one and two tokens.

    Attributes:
        vocab_size: of the model.
        keys: int64 [n], ascending: v * (vocab_size + 1) + u + 1 for the context u, v; u is `ANY` for v alone.
        starts: int32 [n + 1]: where each context's entries begin; the last one is the number of entries m.
        ids: int32 [m], most probable first within a context.
        log_probs: float32 [m], natural log, at most 0.
    """

    vocab_size: int
    keys: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int32]
    ids: npt.NDArray[np.int32]
    log_probs: npt.NDArray[np.float32]
    _known: dict[int, list[tuple[int, float]]] = field(default_factory=dict, repr=False)  # contexts met so far

    @classmethod
    def of(cls, vocab_size: int, keys: IntRows, starts: IntRows, ids: IntRows, log_probs: npt.ArrayLike) -> NgramTable:
        """From the arrays of draft.safetensors. ValueError, naming the array, where a shape or a value cannot be."""
        probs = np.asarray(log_probs, np.float32)
        if any(array.ndim != 1 for array in (keys, starts, ids, probs)) or len(ids) != len(probs):
            raise ValueError(
                f"ngram_keys {keys.shape}, ngram_starts {starts.shape}, ngram_ids {ids.shape} and ngram_log_probs "
                f"{probs.shape} do not belong together"
            )
        places = starts.astype(np.int64)  # the difference of two int32 may be none
        if len(places) != len(keys) + 1 or places[0] != 0 or places[-1] != len(ids) or (np.diff(places) < 0).any():
            raise ValueError(f"ngram_starts does not divide {len(ids)} entries among {len(keys)} contexts")
        if (keys[1:] <= keys[:-1]).any():
            raise ValueError("ngram_keys are not ascending")
        if len(keys) and not 0 <= int(keys[0]) <= int(keys[-1]) < vocab_size * (vocab_size + 1):
            raise ValueError(f"ngram_keys names a token outside the vocabulary of {vocab_size}")
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
            raise ValueError(f"ngram_ids names a token outside the vocabulary of {vocab_size}")
        if not (np.isfinite(probs) & (probs <= 0)).all():
            raise ValueError("ngram_log_probs holds what is no log-probability")
        if not np.isin(np.flatnonzero(probs[1:] > probs[:-1]) + 1, places).all():
            raise ValueError("ngram_log_probs rises within a context; the most probable comes first")
        return cls(vocab_size, keys.astype(np.int64), starts.astype(np.int32), ids.astype(np.int32), probs)

    def after(self, before: int, token: int) -> list[tuple[int, float]]:
        """Continuations of `before`, `token`, most probable first: (token, log-probability). Empty where unknown."""
        key = token * (self.vocab_size + 1) + before + 1
        found = self._known.get(key)
        if found is None:
            found = self._entries(key)
            if found is None:
                found = self._entries(key - before - 1) or []
            self._known[key] = found
        return found

    def _entries(self, key: int) -> list[tuple[int, float]] | None:
        place = int(self.keys.searchsorted(key))
        if place == len(self.keys) or self.keys[place] != key:
            return None
        part = slice(int(self.starts[place]), int(self.starts[place + 1]))
        return list(zip(self.ids[part].tolist(), self.log_probs[part].tolist(), strict=True))

    def grow(self, tokens: Sequence[int], width: int, depth: int) -> Tree:
        """The most probable tree of at most `width` nodes, min(depth, MAX_DEPTH) levels below tokens[-1], best first.

        Equal paths stand in the order in which they were found. Paths below a probability of 0.02 are left out.
        """
        drafted, parents, probs, depths = [tokens[-1]], [-1], [0.0], [0]
        befores = [tokens[-2] if len(tokens) > 1 else ANY]
        levels, count = min(depth, MAX_DEPTH), 0
        heap: list[tuple[float, int, int, int]] = []  # (-log-probability, order, parent's row, rank among its children)
        children: list[list[tuple[int, float]]] = []

        def offer(parent: int, rank: int) -> None:
            nonlocal count
            if rank < len(children[parent]):
                path = probs[parent] + children[parent][rank][1]
                if path > LEAST:
                    heapq.heappush(heap, (-path, count, parent, rank))
                    count += 1

        children.append(self.after(befores[0], tokens[-1]) if levels > 0 else [])
        offer(0, 0)
        while heap and len(drafted) < width:
            path, _, parent, rank = heapq.heappop(heap)
            token = children[parent][rank][0]
            row = len(drafted)
            drafted.append(token)
            parents.append(parent)
            probs.append(-path)
            depths.append(depths[parent] + 1)
            befores.append(drafted[parent])
            children.append(self.after(drafted[parent], token) if depths[row] < levels else [])
            offer(parent, rank + 1)
            offer(row, 0)
        return Tree.of(drafted, parents, probs)
