"""Trees grown from live draft probabilities: EAGLE-2, OPT-Tree, their form for parallel drafters, and ours.

`nodes` counts the root. Rows come likeliest first, equal ones by depth, then in the order in which they were found; so
a narrower tree is a prefix (`Tree.first`). All children are chosen by rule, not drawn (see `research/proposal.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from streamfuse.research.trees import Path, Shape, fill, medusa_shape
from streamfuse.runtime.backend import FloatArray, IntArray, PassOutput
from streamfuse.runtime.reference.draft import DraftTables, grow
from streamfuse.runtime.reference.tree import Tree

# Token paths below the root -> for each, its children: ids int64 [k] and log-probabilities float32 [k], best first.
Expand: TypeAlias = Callable[[Sequence[Path]], Sequence[tuple[IntArray, FloatArray]]]
# Root, stream_ids int64 [G, k], stream_log_probs float32 [G, k], nodes -> tree.
Build: TypeAlias = Callable[[int, IntArray, FloatArray, int], Tree]


def eagle2_tree(root: int, expand: Expand, nodes: int, depth: int, per_layer: int) -> Tree:
    """EAGLE-2 (2406.16858, section 4): expand the likeliest few of each layer, then keep the likeliest of all.

    A node's value is the product of the draft's probabilities along its path. Each of `depth` layers expands the
    `per_layer` best nodes of the layer above by their `per_layer` best children; then the `nodes` - 1 best of all
    layers stay, ties to the shallower. No child is worth more than its parent, so they are closed under ancestors.
    ValueError unless nodes and per_layer are at least 1.
    """
    return _layered(root, expand, nodes, depth, per_layer, -np.inf)


def opt_tree(root: int, expand: Expand, nodes: int, depth: int, least_gain: float = 0.0) -> Tree:
    """OPT-Tree (2406.17276, algorithm 1): the tree of most expected tokens, deepened while a layer adds enough.

    As EAGLE-2's with nodes - 1 per layer, and no further layer once the last one raised the sum of the best path
    probabilities by `least_gain` or less (the paper's delta). With 0 and depth to spare it is the best tree of all.
    ValueError unless nodes is at least 1.
    """
    return _layered(root, expand, nodes, depth, max(nodes - 1, 1), least_gain)


def parallel_tree(root: int, ids: IntArray, log_probs: FloatArray, nodes: int) -> Tree:
    """The same for parallel drafters, where a level has one distribution whatever its parents: a best-first search.

    ids int64 [G, k], log_probs float32 [G, k], best first. It is Medusa's rule on live probabilities instead of
    measured ones, and `grow` without a parent term.
    """
    return fill(medusa_shape(np.exp(np.minimum(log_probs.astype(np.float64), 0)), nodes), root, ids, log_probs)


def our_tree(tables: DraftTables | None = None) -> Build:
    """The runtime's own: best first, with the parent term of a bundle's tables (`runtime/reference/draft.py`)."""
    return lambda root, ids, log_probs, nodes: grow(root, ids, log_probs, nodes, len(ids), tables)


def static_tree(shape: Shape) -> Build:
    """A shape, filled: its first nodes - 1 paths, of those that the candidates reach."""

    def build(root: int, ids: IntArray, log_probs: FloatArray, nodes: int) -> Tree:
        levels, ranks = ids.shape
        reached = [path for path in shape if len(path) <= levels and max(path) < ranks]
        return fill(tuple(reached[: nodes - 1]), root, ids, log_probs)

    return build


class ShapedDrafter:
    """Drafts from the streams of the last accepted node, as the runtime does, in a tree of another rule.

    Medusa's and blockwise heads are streams too, so every parallel drafter can be measured with every tree.
    """

    def __init__(self, build: Build) -> None:
        self.build = build
        self._candidates: tuple[IntArray, FloatArray] | None = None

    def reset(self) -> None:
        self._candidates = None

    def learn(self, output: PassOutput, index: int) -> None:
        carries = output.carries_streams(index)
        self._candidates = (output.stream_ids[index], output.stream_log_probs[index]) if carries else None

    def draft(self, tokens: Sequence[int], width: int, depth: int) -> Tree:
        if self._candidates is None:
            return Tree.root(tokens[-1])
        ids, log_probs = self._candidates
        return self.build(tokens[-1], ids[:depth], log_probs[:depth], width)


def _layered(root: int, expand: Expand, nodes: int, depth: int, per_layer: int, least_gain: float) -> Tree:
    if nodes < 1 or per_layer < 1:
        raise ValueError(f"nodes {nodes} and per_layer {per_layer} must be at least 1")
    paths: list[Path] = [()]
    parents, values = [-1], [0.0]
    layer, best_sum = [0], 0.0
    for _ in range(depth if nodes > 1 else 0):
        chosen = sorted(layer, key=lambda row: -values[row])[:per_layer]
        layer = []
        for row, (ids, log_probs) in zip(chosen, expand([paths[row] for row in chosen]), strict=True):
            for token, step in zip(ids[:per_layer].tolist(), log_probs[:per_layer].tolist(), strict=True):
                layer.append(len(paths))
                paths.append((*paths[row], token))
                parents.append(row)
                values.append(values[row] + min(float(step), 0.0))
        total = float(np.sort(np.exp(values[1:]))[::-1][: nodes - 1].sum())
        if not layer or total - best_sum <= least_gain:
            break
        best_sum = total
    order = np.argsort(-np.array(values), kind="stable")[:nodes].tolist()
    row_of = {row: place for place, row in enumerate(order)}
    tokens = [root, *(paths[row][-1] for row in order[1:])]
    return Tree.of(tokens, [-1, *(row_of[parents[row]] for row in order[1:])], [values[row] for row in order])
