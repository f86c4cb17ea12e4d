"""Random trees: visibility, acceptance and commit against the oracle.

Run: pytest tests/runtime/test_runtime_trees.py
"""

from __future__ import annotations

import numpy as np
import oracle
import pytest
from fakes import ArithmeticBackend, spec

from streamfuse.runtime.backend import PassOutput
from streamfuse.runtime.reference.accept import MatchAcceptor
from streamfuse.runtime.reference.tree import Tree

TREES = 2500


def random_tree(rng: np.random.Generator, vocab: int = 12) -> Tree:
    """Up to 16 nodes; siblings carry different tokens."""
    tokens, parents, used = [int(rng.integers(vocab))], [-1], set()
    for row in range(1, int(rng.integers(1, 17))):
        parent = int(rng.integers(max(0, row - 4), row))
        free = [token for token in range(vocab) if (parent, token) not in used]
        token = int(rng.choice(free))
        used.add((parent, token))
        tokens.append(token)
        parents.append(parent)
    return Tree.of(tokens, parents)


def random_survivors(rng: np.random.Generator, tree: Tree) -> list[int]:
    """Closed under ancestors, every path in path order, rows otherwise in any order."""
    kept = [0]
    for row in range(1, len(tree)):
        if int(tree.parents[row]) in kept and rng.random() < 0.8:
            kept.append(row)
    depth_first = sorted(kept, key=lambda row: oracle.path_to(tree.parents.tolist(), row))
    return kept if rng.random() < 0.5 else depth_first


def test_a_row_sees_its_own_path_and_nothing_else(rng: np.random.Generator) -> None:
    for _ in range(TREES):
        tree = random_tree(rng)
        assert tree.ancestors().tolist() == oracle.visible(tree.parents.tolist())
        paths = [oracle.path_to(tree.parents.tolist(), row) for row in range(len(tree))]
        assert tree.positions(40).tolist() == [40 + len(path) - 1 for path in paths]


def test_match_walks_the_path_of_the_oracle(rng: np.random.Generator) -> None:
    for _ in range(TREES):
        tree = random_tree(rng)
        kept = random_survivors(rng, tree)
        # The model's choice at a row is mostly one of its children, so that deep paths occur.
        wishes = rng.integers(0, 12, len(tree))
        for row in range(1, len(tree)):
            if rng.random() < 0.7:
                wishes[tree.parents[row]] = tree.tokens[row]
        output = PassOutput(None, wishes[kept], np.array(kept))
        history = [5, 5, int(tree.tokens[0])]
        seen: list[tuple[list[int], int]] = []

        def pick(
            index: int, before: list[int], position: int, seen: list = seen, best: np.ndarray = output.best
        ) -> int:
            seen.append((list(before), position))
            return int(best[index])

        walk = MatchAcceptor().accept(tree, output, history, pick)
        rows, tokens = oracle.accept(
            tree.tokens.tolist(), tree.parents.tolist(), kept, lambda row, _, wishes=wishes: int(wishes[row])
        )
        assert (walk.rows, walk.tokens) == (rows, tokens)
        assert kept[walk.last] == rows[-1]
        for row, offers in zip(rows, walk.offers, strict=True):
            assert offers == np.count_nonzero(tree.parents == row)
        assert len(walk.ranks) == len(rows) - 1
        for parent, child, rank in zip(rows, rows[1:], walk.ranks, strict=False):
            assert np.flatnonzero(tree.parents == parent)[rank] == child
        for index, (before, position) in enumerate(seen):
            assert before == history + tokens[:index]
            assert position == len(before)


def test_committing_a_path_leaves_the_cache_of_the_oracle(rng: np.random.Generator) -> None:
    backend = ArithmeticBackend(spec(capacity=64, vocab_size=12, widths={"verify_16": (16, 16)}))
    for _ in range(300):
        backend.truncate(int(rng.integers(0, backend.length + 1)) if backend.length < 40 else 0)
        tree = random_tree(rng)
        before = list(backend.cache)
        backend.run("verify_16", tree.tokens, tree.positions(backend.length), tree.ancestors())
        assert backend.cache == before, "a pass writes nothing"
        path = oracle.path_to(tree.parents.tolist(), int(rng.integers(len(tree))))
        delivered = int(rng.integers(1, len(path) + 1))
        first = int(rng.integers(0, delivered + 1))
        backend.commit(path[:first])
        backend.commit(path[first:delivered])
        assert backend.cache == oracle.commit(before, tree.tokens.tolist(), path, delivered)


def test_a_pass_without_survivors_cannot_be_accepted() -> None:
    with pytest.raises(ValueError, match="without survivors"):
        MatchAcceptor().accept(Tree.root(1), PassOutput.of_prefill(), [1], lambda *_: 0)
