"""The n-gram table: what it knows, the trees it grows, and what its counting says.

Run: python -m pytest tests/runtime/test_runtime_ngram_table.py
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product

import numpy as np
import pytest
from torch import Tensor

from streamfuse.model.ngrams import ARRAYS, bytes_of, pruned
from streamfuse.runtime.reference.draft import DraftTables
from streamfuse.runtime.reference.ngram_table import ANY, MAX_DEPTH, NgramTable
from streamfuse.train import ngram_counts
from streamfuse.train.formats import Example
from streamfuse.train.ngram_counts import count_ngrams

V = 20
ROWS = {  # (before, token): continuations
    (ANY, 1): {2: 0.5, 3: 0.25},
    (ANY, 2): {4: 0.5},
    (ANY, 3): {1: 0.75, 5: 0.125},
    (1, 2): {6: 0.8, 4: 0.1},
}


def table(rows: dict[tuple[int, int], dict[int, float]] = ROWS) -> NgramTable:
    keys = sorted(token * (V + 1) + before + 1 for before, token in rows)
    entries = [list(rows[(key % (V + 1) - 1, key // (V + 1))].items()) for key in keys]
    flat = [one for row in entries for one in row]
    starts = np.cumsum([0, *map(len, entries)])
    ids, probs = np.array([token for token, _ in flat]), np.log([p for _, p in flat])
    return NgramTable.of(V, np.array(keys), starts, ids, probs)


def paths(found: NgramTable, before: int, token: int, depth: int) -> dict[tuple[int, ...], float]:
    """All paths of a table with their probabilities, by enumeration."""
    result = {}
    for length in range(1, depth + 1):
        for path in product(range(V), repeat=length):
            p, context = 1.0, (before, token)
            for child in path:
                p *= math.exp(dict(found.after(*context)).get(child, -math.inf))
                context = (context[1], child)
            if p:
                result[path] = p
    return result


def test_a_known_pair_comes_before_its_last_token_alone() -> None:
    found = table()
    assert [token for token, _ in found.after(1, 2)] == [6, 4]
    assert [token for token, _ in found.after(7, 2)] == [4]
    assert [token for token, _ in found.after(ANY, 2)] == [4]
    assert found.after(1, 19) == []


@pytest.mark.parametrize("width", [1, 2, 3, 5, 16])
def test_a_tree_holds_the_most_probable_paths_best_first(width: int) -> None:
    found = table()
    tree = found.grow([9, 1], width, 3)
    wanted = sorted((p for p in paths(found, 9, 1, 3).values() if p > 0.02), reverse=True)[: width - 1]
    assert np.exp(tree.log_probs[1:]) == pytest.approx(wanted)
    assert (np.diff(tree.log_probs) <= 0).all()
    known = paths(found, 9, 1, 3)
    for row in range(1, len(tree)):
        path, at = [], row
        while at:
            path.append(int(tree.tokens[at]))
            at = int(tree.parents[at])
        assert known[tuple(reversed(path))] == pytest.approx(math.exp(tree.log_probs[row]))


def test_depth_and_unknown_tokens_end_a_tree() -> None:
    found = table({(ANY, 1): {1: 0.99}})
    assert found.grow([1], 16, 3).depth == 3
    assert found.grow([1], 16, 100).depth == MAX_DEPTH
    assert len(found.grow([1], 16, 0)) == 1
    assert len(found.grow([5], 16, 4)) == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ids": [3, V]}, "outside the vocabulary"),
        ({"keys": [4, 4]}, "not ascending"),
        ({"starts": [0, 1, 3]}, "does not divide"),
        ({"log_probs": [0.5, -1.0]}, "no log-probability"),
        ({"log_probs": [-1.0]}, "do not belong together"),
    ],
)
def test_damaged_tables_are_refused(changes: dict[str, list[float]], words: str) -> None:
    arrays = {"keys": [4, 5], "starts": [0, 1, 2], "ids": [3, 1], "log_probs": [-1.0, -0.5], **changes}
    rest = {
        "parent_left": np.zeros((V, 0), np.float16), "parent_right": np.zeros((3, 0), np.float16),
        "gate": np.zeros((2, 0), np.float32), "stream_vocab": np.array([1, 2, 3], np.int32),
    }  # fmt: skip
    dtypes = {"keys": np.int64, "starts": np.int32, "ids": np.int32, "log_probs": np.float16}
    table = {f"ngram_{name}": np.array(value, dtypes[name]) for name, value in arrays.items()}
    with pytest.raises(ValueError, match=words):
        DraftTables.load({**rest, **table})


def table_from(arrays: Mapping[str, Tensor]) -> NgramTable:
    return NgramTable.of(V, *(arrays[name].numpy() for name in ARRAYS))


def counted(texts: list[list[int]]) -> NgramTable:
    return table_from(count_ngrams([Example([1, *text], 1) for text in texts], V))


def test_counts_become_interpolated_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("_SEEN", 1), ("_LEAST", 0.0), ("_MOST", V)):
        monkeypatch.setattr(ngram_counts, name, value)
    found = counted([[2, 3], [2, 3], [2, 4], [5, 2, 3]])
    # After 2 alone: 3 three times, 4 once; two kinds, so 4 of 6 parts are its own.
    assert dict(found.after(ANY, 2)) == pytest.approx({3: math.log(3 / 6), 4: math.log(1 / 6)}, abs=1e-3)
    # After 5, 2: 3 once; half is its own, half of the rest from the shorter context.
    assert dict(found.after(5, 2)) == pytest.approx({3: math.log(0.5 + 0.5 * 3 / 6), 4: math.log(0.5 / 6)}, abs=1e-3)


def test_rare_pairs_and_unlikely_continuations_are_left_out() -> None:
    found = counted([[2, 3]] * 3 + [[2, i] for i in range(5, V)])
    assert [token for token, _ in found.after(ANY, 2)] == [3]
    assert found.after(9, 2) == found.after(ANY, 2)


def test_the_longest_known_context_is_asked() -> None:
    found = counted([[2, 3, 4, 5, 6]] * 4 + [[9, 3, 4, 5, 7]] * 9)
    assert found.after(3, 4, 5)[0][0] == 7
    assert found.after(2, 3, 4, 5)[0][0] == 6
    assert found.after(9, 3, 4, 5)[0][0] == 7
    assert found.after(8, 3, 4, 5) == found.after(3, 4, 5)
    assert [int(token) for token in found.grow([1, 2, 3, 4], 3, 4).tokens] == [4, 5, 6]


def test_contexts_are_pruned_by_what_they_add() -> None:
    """Of two longer contexts the one that says something else stays; a smaller table answers with a shorter one."""
    arrays = count_ngrams([Example([1, *text], 1) for text in [[2, 3, 4]] * 9 + [[5, 3, 6]] * 9 + [[7, 3, 4]] * 9], V)
    sizes = range(0, bytes_of(arrays) + 1, 20)
    tables = [pruned(arrays, V, size) for size in sizes]
    assert all(bytes_of(one) <= size for one, size in zip(tables, sizes, strict=True))
    assert bytes_of(pruned(arrays, V, 10**6)) == bytes_of(arrays)
    kept = [table_from(one) for one in tables if one]
    first = next(one for one in kept if one.after(5, 3)[0][0] == 6)
    assert first.after(2, 3) == first.after(ANY, 3)


def test_prompts_are_not_counted() -> None:
    arrays = count_ngrams([Example([5, 6, 7, 2, 3], 3)] * 5, V)
    found = table_from(arrays)
    assert found.after(5, 6) == []
    assert [token for token, _ in found.after(6, 7)] == [2]
