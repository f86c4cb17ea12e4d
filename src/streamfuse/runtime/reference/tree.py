"""A tree of drafted tokens, in the form that one verify pass takes: rows with a token, a parent and a depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from streamfuse.runtime.backend import BoolArray, IntArray


@dataclass(frozen=True, slots=True)
class Tree:
    """n nodes. Row 0 is the root, the last accepted token; a parent always has a smaller row than its children.

    Example, for "the cat" with two continuations drafted after it:

        row     0     1     2     3           ancestors()   1 0 0 0
        token   cat   sat   ran   down                      1 1 0 0
        parent  -1    0     0     1                         1 0 1 0
        depth   0     1     1     2                         1 1 0 1
    """

    tokens: IntArray  # int64 [n]
    parents: IntArray  # int64 [n], rows; -1 for the root
    depths: IntArray  # int64 [n], 0 for the root
    log_probs: npt.NDArray[np.float64]  # [n], of the path from the root, natural log; 0 for the root
    visible: BoolArray | None = None  # what `ancestors` gives, where whoever grew the tree has it at hand

    @classmethod
    def root(cls, token: int) -> Tree:
        """The tree of one node: nothing is drafted."""
        return cls(np.array([token], np.int64), _NO_PARENT, _NO_DEPTH, _CERTAIN, _ITSELF)

    @classmethod
    def of(cls, tokens: Sequence[int], parents: Sequence[int], log_probs: Sequence[float] | None = None) -> Tree:
        """A tree from plain lists; depths follow from the parents. ValueError unless parents come before children."""
        depths = [0] * len(tokens)
        for row, parent in enumerate(parents):
            if not (-1 <= parent < row and (parent == -1) == (row == 0)):
                raise ValueError(f"row {row} has parent {parent}: parents come first, and only row 0 is a root")
            depths[row] = depths[parent] + 1 if row else 0
        probs = np.zeros(len(tokens)) if log_probs is None else np.asarray(log_probs, np.float64)
        return cls(np.asarray(tokens, np.int64), np.asarray(parents, np.int64), np.asarray(depths, np.int64), probs)

    @property
    def depth(self) -> int:
        """Of the deepest node."""
        return int(max(self.depths.tolist()))

    def __len__(self) -> int:
        return len(self.tokens)

    def ancestors(self) -> BoolArray:
        """bool [n, n]: [i, j] where j lies on the path from the root to i. A node is its own ancestor."""
        if self.visible is not None:
            return self.visible
        result = np.eye(len(self), dtype=np.bool_)
        for row, parent in enumerate(self.parents.tolist()[1:], start=1):
            result[row] |= result[parent]
        return result

    def positions(self, root_position: int) -> IntArray:
        """int64 [n]: the absolute position of each node's token."""
        return self.depths + root_position

    def first(self, count: int) -> Tree:
        """The tree of the first `count` rows, which is closed under ancestors because parents come first."""
        if count >= len(self):
            return self
        visible = None if self.visible is None else self.visible[:count, :count]
        return Tree(self.tokens[:count], self.parents[:count], self.depths[:count], self.log_probs[:count], visible)

    def child(self, row: int, token: int) -> int | None:
        """The row of the child of `row` that carries the token; None where nobody drafted it there."""
        found = np.flatnonzero((self.parents == row) & (self.tokens == token))
        return int(found[0]) if len(found) else None


_NO_PARENT: IntArray = np.full(1, -1, np.int64)
_NO_DEPTH: IntArray = np.zeros(1, np.int64)
_CERTAIN: npt.NDArray[np.float64] = np.zeros(1)
_ITSELF: BoolArray = np.ones((1, 1), np.bool_)
