"""Drafts from the text itself. Run: pytest tests/unit/test_runtime_ngram.py"""

from __future__ import annotations

import math

import numpy as np
from streamfuse.runtime.ngram import MAX_MATCH, MIN_MATCH, Chain, ChainOdds, NgramIndex, merge

import oracle
from streamfuse.runtime.reference.tree import Tree


def slow_chain(tokens: list[int], length: int) -> Chain | None:
    """The latest earlier place of the longest ending that occurs before."""
    for match in range(min(MAX_MATCH, len(tokens) - 1), MIN_MATCH - 1, -1):
        for place in range(len(tokens) - 1, match - 1, -1):
            if tokens[place - match : place] == tokens[len(tokens) - match :]:
                return Chain(tokens[place : place + length], match)
    return None


def test_the_index_finds_what_a_search_finds(rng: np.random.Generator) -> None:
    for _ in range(200):
        tokens = rng.integers(0, 4, int(rng.integers(1, 60))).tolist()
        index = NgramIndex()
        index.begin(tokens[:5])
        for end in range(5, len(tokens) + 1):
            index.follow(tokens[:end])
            assert index.chain(4) == slow_chain(tokens[:end], 4)


def test_a_new_text_forgets_the_old_one_and_a_longer_one_keeps_it() -> None:
    index = NgramIndex()
    index.begin([1, 2, 3, 4, 1, 2])
    assert index.chain(3) == Chain([3, 4, 1], 2)
    index.begin([1, 2, 3, 4, 1, 2, 3])
    assert index.chain(1) == Chain([4], 3)
    index.begin([9, 1, 2])
    assert index.chain(3) is None


def test_odds_follow_what_comes_true_and_a_longer_match_is_trusted_more() -> None:
    odds = ChainOdds()
    fresh = [odds.log_probs(Chain([5], match))[0] for match in (2, 3, 4)]
    assert fresh == sorted(fresh)
    for _ in range(60):
        odds.learn(Chain([5, 6], 2), [5, 9])
    after = odds.log_probs(Chain([5, 6, 7], 2))
    assert math.exp(after[0]) > 0.9
    assert math.exp(after[1] - after[0]) < 0.1
    assert after == sorted(after, reverse=True)


def random_tree(rng: np.random.Generator, width: int) -> Tree:
    tokens, parents, probs = [0], [-1], [0.0]
    for row in range(1, width):
        parent = int(rng.integers(row))
        tokens.append(int(rng.integers(1, 6)))
        parents.append(parent)
        probs.append(probs[parent] - float(rng.exponential()))
    order = sorted(range(width), key=lambda row: (-probs[row], row))
    place = {row: index for index, row in enumerate(order)}
    return Tree.of(
        [tokens[r] for r in order], [-1 if r == 0 else place[parents[r]] for r in order], [probs[r] for r in order]
    )


def test_a_merged_tree_is_best_first_and_holds_the_chain_where_it_is_likely(rng: np.random.Generator) -> None:
    for _ in range(500):
        tree = random_tree(rng, int(rng.integers(1, 9)))
        chain = Chain(rng.integers(1, 6, 4).tolist(), 3)
        probs = np.cumsum(-rng.exponential(0.5, 4)).tolist()
        merged, rows, alone = merge(tree, chain, probs, 8)
        assert set(alone) <= set(rows)
        assert len(merged) <= len(tree) + len(alone)
        assert len(merged) <= 8
        assert merged.log_probs.tolist() == sorted(merged.log_probs.tolist(), reverse=True)
        assert merged.ancestors().tolist() == oracle.visible(merged.parents.tolist())
        for depth, row in enumerate(rows):
            path = oracle.path_to(merged.parents.tolist(), row)[1:]
            assert merged.tokens[path].tolist() == chain.tokens[: depth + 1]
            assert merged.log_probs[row] >= probs[depth] - 1e-12
        assert len(merged) == 8 or len(rows) == 4, "what has room is in"
