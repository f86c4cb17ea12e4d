"""Static tree shapes of the literature: which ranks to verify, fixed before the text begins.

A shape is the paths of its drafted nodes, each a tuple of ranks from the root down: (0,) is the best candidate of the
first level, (0, 2) the third-best candidate below it. The root has no path. Parents come before their children, and
every prefix of a path is a path. `fill` puts a drafter's candidates on a shape; `growth.py` has trees that are grown
from live probabilities instead.

`nodes` always counts the root, as the widths of verify methods do. An accuracy is float64 [depth, rank], from 0 to 1:
how often the candidate of that rank, at that depth, is the token of the text, once its parent is.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from streamfuse.runtime.backend import FloatArray, IntArray
from streamfuse.runtime.reference.tree import Tree

Float64Array = npt.NDArray[np.float64]
Path: TypeAlias = tuple[int, ...]
Shape: TypeAlias = tuple[Path, ...]


def shape_of(tree: Tree) -> Shape:
    """The shape of a tree, where a node's rank is its place among its siblings."""
    paths: list[Path] = [()]
    born = [0] * len(tree)
    for parent in tree.parents.tolist()[1:]:
        paths.append((*paths[parent], born[parent]))
        born[parent] += 1
    return tuple(paths[1:])


def fill(shape: Shape, root: int, ids: IntArray, log_probs: FloatArray) -> Tree:
    """The tree of a shape, with the candidates of a parallel drafter: rows in the order of the shape.

    ids int64 [G, k], log_probs float32 [G, k], best first: those of the first level in row 0.
    ValueError for a path whose parent does not come before it, or that asks for more levels or ranks than there are.
    """
    levels, ranks = ids.shape
    rows: dict[Path, int] = {(): 0}
    tokens, parents, sums = [root], [-1], [0.0]
    for path in shape:
        if path[:-1] not in rows or path in rows:
            raise ValueError(f"path {path} must come once, after its parent")
        if len(path) > levels or not 0 <= path[-1] < ranks:
            raise ValueError(f"path {path} asks for more than {levels} levels of {ranks} candidates")
        parent = rows[path[:-1]]
        rows[path] = len(tokens)
        tokens.append(int(ids[len(path) - 1, path[-1]]))
        parents.append(parent)
        sums.append(sums[parent] + float(log_probs[len(path) - 1, path[-1]]))
    return Tree.of(tokens, parents, sums)


def rank_accuracy(candidates: IntArray, truth: IntArray, given_parent: bool) -> Float64Array:
    """float64 [G, k]: how often each candidate was the text's token, from N positions of calibration text.

    candidates int64 [N, G, k], truth int64 [N, G]. Medusa measures each head for itself (a_k^(i)). Given the parent,
    a level counts only positions where every earlier level had the true token among its candidates: that is what a node
    of that depth meets (Sequoia). 0 where nothing was counted. ValueError unless the shapes fit.
    """
    if candidates.ndim != 3 or candidates.shape[:2] != truth.shape:
        raise ValueError(f"candidates {candidates.shape} and truth {truth.shape} are not [N, G, k] and [N, G]")
    hits = candidates == truth[:, :, None]
    counted = np.ones(truth.shape, np.bool_)
    if given_parent:
        counted[:, 1:] = np.logical_and.accumulate(hits.any(axis=2), axis=1)[:, :-1]
    seen = (hits & counted[:, :, None]).sum(axis=0)
    accuracy: Float64Array = seen / np.maximum(counted.sum(axis=0), 1)[:, None]
    return accuracy


def expected_tokens(shape: Shape, accuracy: Float64Array) -> float:
    """Tokens per pass with this shape, the one after the accepted path counted: 1 + the sum of the paths' products."""
    return 1 + sum(_value(path, accuracy) for path in shape)


def sequoia_shape(accuracy: npt.ArrayLike, nodes: int, depth: int | None = None) -> Shape:
    """The shape of most expected tokens among all of at most `nodes` nodes (Sequoia 2402.12374, proposition 3.4).

    Accuracy by rank [k], or by depth and rank [D, k], which also bounds the depth; `depth` bounds it further. A node's
    children take the first ranks. The dynamic programme is exact; its time grows as depth nodes^2 k. Paths come
    likeliest first. ValueError for an accuracy beyond 0 to 1, or fewer than 1 node.
    """
    table = _checked(accuracy, nodes, depth)
    levels, ranks = table.shape
    most = np.ones(nodes + 1)  # tokens of the best subtree of at most n nodes, from the deepest level up
    takes = np.zeros(
        (levels, ranks + 1, nodes), np.int64
    )  # nodes for the child of a rank where n are left; 0: no child
    for level in reversed(range(levels)):
        gain = np.zeros((ranks + 1, nodes))  # of the children from a rank on, with n nodes
        for rank in reversed(range(ranks)):
            for left in range(1, nodes):
                gains = table[level, rank] * most[1 : left + 1] + gain[rank + 1, left - 1 :: -1]
                take = int(np.argmax(gains)) + 1
                if gains[take - 1] > 0:
                    gain[rank, left], takes[level, rank, left] = gains[take - 1], take
        most = np.concatenate(([0.0], 1 + gain[0]))
    shape: list[Path] = []

    def add_children(path: Path, left: int) -> None:
        for rank in range(ranks if len(path) < levels else 0):
            take = int(takes[len(path), rank, left])
            if not take:
                return
            shape.append((*path, rank))
            add_children((*path, rank), take - 1)
            left -= take

    add_children((), nodes - 1)
    return tuple(sorted(shape, key=lambda path: (-_value(path, table), len(path), path)))


def sized_shape(
    accuracy: npt.ArrayLike, verify_costs: Mapping[int, float], draft_cost: Callable[[int], float]
) -> Shape:
    """Sequoia's shape of the size and depth that pay best on a device (2402.12374, section 3.3).

    The best shape of each size and depth has its expected tokens divided by what a round costs: one pass over so many
    nodes and the drafts of so many levels. Of equal ones the smaller, then the shallower.

    Args:
        accuracy: as `sequoia_shape` takes it, by depth and rank.
        verify_costs: of a verifying pass by its nodes, the root counted; in the unit of `draft_cost`.
        draft_cost: of drafting a tree of a depth; for a drafter that gives all levels at once it is the same for all.

    Raises:
        ValueError: as `sequoia_shape`; or no size is above 1, or a cost is not above 0.
    """
    sizes = sorted(nodes for nodes in verify_costs if nodes > 1)
    if not sizes or min(verify_costs.values()) <= 0:
        raise ValueError(f"costs {dict(verify_costs)} must be above 0, one of them of 2 nodes or more")
    best: tuple[float, Shape] = (0.0, ())
    for nodes in sizes:
        table = _checked(accuracy, nodes, None)
        for depth in range(1, len(table) + 1):
            shape = sequoia_shape(table, nodes, depth)
            value = expected_tokens(shape, table) / (verify_costs[nodes] + draft_cost(depth))
            best = max(best, (value, shape), key=lambda one: one[0])
    return best[1]


def medusa_shape(accuracy: npt.ArrayLike, nodes: int) -> Shape:
    """Medusa's greedy rule (2401.10774, section 2.3.3): add the connected node of the highest product, until full.

    Accuracy [G, k]: of head and rank. Paths come in the order in which they are added; of equal ones the shallower,
    then the better rank. Where accuracy falls with rank this is the best shape of each size.
    ValueError for an accuracy beyond 0 to 1, or fewer than 1 node.
    """
    table = _checked(accuracy, nodes, None)
    levels, ranks = table.shape
    shape: list[Path] = []
    open_paths: list[tuple[float, int, Path]] = []

    def add_children(path: Path, value: float) -> None:
        for rank in range(ranks if len(path) < levels else 0):
            heapq.heappush(open_paths, (-value * table[len(path), rank], len(path) + 1, (*path, rank)))

    add_children((), 1.0)
    while len(shape) < nodes - 1 and open_paths:
        negative, _, path = heapq.heappop(open_paths)
        shape.append(path)
        add_children(path, -negative)
    return tuple(shape)


def cartesian_shape(counts: Sequence[int], nodes: int) -> Shape:
    """All combinations of the best counts[d] candidates of each level: Speculative Streaming's and Medusa's full tree.

    A tree that is too wide loses its deepest levels: it has as many whole levels as fit, none where the first does not.
    Paths come level by level, best ranks first. ValueError for a count or nodes below 1.
    """
    if nodes < 1 or min(counts, default=1) < 1:
        raise ValueError(f"counts {tuple(counts)} and nodes {nodes} must be at least 1")
    shape: list[Path] = []
    level: list[Path] = [()]
    for count in counts:
        level = [(*path, rank) for path in level for rank in range(count)]
        if 1 + len(shape) + len(level) > nodes:
            break
        shape += level
    return tuple(shape)


def _value(path: Path, accuracy: Float64Array) -> float:
    """The product along a path."""
    return float(np.prod([accuracy[level, rank] for level, rank in enumerate(path)]))


def _checked(accuracy: npt.ArrayLike, nodes: int, depth: int | None) -> Float64Array:
    """float64 [levels, ranks], no deeper than the nodes allow; the accuracy of ranks alone holds at every depth."""
    if nodes < 1:
        raise ValueError(f"nodes must be at least 1, not {nodes}")
    found = np.asarray(accuracy, np.float64)
    deepest = nodes - 1 if depth is None else min(depth, nodes - 1)
    table = np.tile(found, (deepest, 1)) if found.ndim == 1 else found[:deepest]
    if found.ndim not in (1, 2) or not ((found >= 0) & (found <= 1)).all():
        raise ValueError("accuracy is one or two-dimensional, with numbers from 0 to 1")
    return table
