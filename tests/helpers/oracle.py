"""The same decisions as the runtime's, written slowly and obviously: visibility, growth, acceptance, commit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np


def path_to(parents: Sequence[int], row: int) -> list[int]:
    """Rows from the root to `row`, both included."""
    return [row] if row == 0 else [*path_to(parents, parents[row]), row]


def visible(parents: Sequence[int]) -> list[list[bool]]:
    """Tree attention: a row sees the rows of its own path, and no others."""
    return [[j in path_to(parents, i) for j in range(len(parents))] for i in range(len(parents))]


@dataclass
class Candidate:
    path: tuple[int, ...]  # tokens after the root
    ranks: tuple[int, ...]
    log_prob: float


# (stream, 0-based, parent token, rank) -> log-probability
Conditional = Callable[[int, int, int], float]


def marginal(stream_log_probs: np.ndarray) -> Conditional:
    """The streams' own distributions, without a parent term."""
    return lambda stream, _, rank: min(float(stream_log_probs[stream, rank]), 0.0)


def with_parent_term(
    stream_ids: np.ndarray, stream_log_probs: np.ndarray, left: np.ndarray, right: np.ndarray, gate: np.ndarray,
    stream_vocab: np.ndarray,
) -> Conditional:  # fmt: skip
    """The parent term of docs/contracts.md, section 8, one candidate at a time."""
    slots = {int(token): slot for slot, token in enumerate(stream_vocab)}

    def conditional(stream: int, parent: int, rank: int) -> float:
        own = [float(value) for value in stream_log_probs[stream]]
        scores = []
        for log_prob, token in zip(own, stream_ids[stream], strict=True):
            term = sum(
                float(left[parent, i]) * float(gate[stream, i]) * float(right[slots[int(token)], i])
                for i in range(left.shape[1])
            )
            scores.append(log_prob + term)
        tail = max(0.0, 1 - sum(math.exp(value) for value in own))
        return min(0.0, scores[rank] - math.log(sum(math.exp(score) for score in scores) + tail))

    return conditional


def all_nodes(root: int, stream_ids: np.ndarray, depth: int, conditional: Conditional) -> list[Candidate]:
    """Every node of the full tree, level by level."""
    level = [Candidate((), (), 0.0)]
    found: list[Candidate] = []
    for stream in range(min(depth, len(stream_ids))):
        level = [
            Candidate(
                (*node.path, int(token)),
                (*node.ranks, rank),
                node.log_prob + conditional(stream, node.path[-1] if node.path else root, rank),
            )
            for node in level
            for rank, token in enumerate(stream_ids[stream])
        ]
        found += level
    return found


def grow(
    root: int, stream_ids: np.ndarray, width: int, depth: int, conditional: Conditional
) -> tuple[list[int], list[int], list[float]]:
    """Tokens, parents and path log-probabilities: take the best node whose parent is in, until the tree is full.

    Ties: the lesser depth, then the parent that came first, then the better rank.
    """
    nodes = all_nodes(root, stream_ids, depth, conditional)
    chosen: list[Candidate] = [Candidate((), (), 0.0)]
    parents = [-1]
    while len(chosen) < width:
        rows = {node.ranks: row for row, node in enumerate(chosen)}
        open_nodes = [node for node in nodes if node.ranks not in rows and node.ranks[:-1] in rows]
        if not open_nodes:
            break
        best = min(open_nodes, key=lambda n: (-n.log_prob, len(n.path), rows[n.ranks[:-1]], n.ranks[-1]))
        chosen.append(best)
        parents.append(rows[best.ranks[:-1]])
    return [node.path[-1] if node.path else root for node in chosen], parents, [node.log_prob for node in chosen]


def accept(
    tokens: Sequence[int], parents: Sequence[int], kept: Sequence[int], choose: Callable[[int, list[int]], int]
) -> tuple[list[int], list[int]]:
    """(rows walked, tokens emitted); choose(row, tokens of the path below the root) is the model's own choice there."""
    rows, emitted = [0], [choose(0, [])]
    while True:
        children = [r for r in kept if r != 0 and parents[r] == rows[-1] and tokens[r] == emitted[-1]]
        if not children:
            return rows, emitted
        rows.append(children[0])
        emitted.append(choose(children[0], list(emitted)))


def commit(cache: list[int], tree_tokens: Sequence[int], rows: Sequence[int], delivered: int) -> list[int]:
    """The cache after a round: the root and all delivered tokens but the last, which is the next root."""
    return cache + [tree_tokens[row] for row in rows[:delivered]]
