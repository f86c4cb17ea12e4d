"""Growth against an oracle that enumerates the full tree. Run: pytest tests/unit/test_runtime_draft.py"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import oracle
from streamfuse.runtime.draft import DraftTables, StreamDrafter, grow
from streamfuse.runtime.native_grow import native_grower
from streamfuse.runtime.tree import Tree

VOCAB, SLOTS, RANK = 30, 20, 4


def random_streams(rng: np.random.Generator, tied: bool) -> tuple[np.ndarray, np.ndarray]:
    streams, k = int(rng.integers(1, 5)), int(rng.integers(1, 5))
    ids = np.stack([rng.permutation(np.arange(0, VOCAB, 1)[:SLOTS])[:k] for _ in range(streams)]).astype(np.int64)
    if tied:
        log_probs = -np.sort(rng.integers(1, 4, (streams, k)), axis=1).astype(np.float32)
    else:
        probs = np.sort(rng.dirichlet(np.full(k + 1, 0.5), streams)[:, :k] * 0.98 + 1e-3)[:, ::-1]
        log_probs = np.log(probs).astype(np.float32)
    return ids, log_probs


@pytest.mark.parametrize("tied", [True, False])
def test_growth_takes_the_trees_of_the_oracle(rng: np.random.Generator, tied: bool) -> None:
    for _ in range(1200):
        ids, log_probs = random_streams(rng, tied)
        width, depth = int(rng.integers(1, 17)), int(rng.integers(0, 5))
        tree = grow(7, ids, log_probs, width, depth, None)
        tokens, parents, paths = oracle.grow(7, ids, width, depth, oracle.marginal(log_probs))
        assert (tree.tokens.tolist(), tree.parents.tolist()) == (tokens, parents)
        assert tree.log_probs.tolist() == paths
        assert tree.depths.tolist() == [len(oracle.path_to(parents, row)) - 1 for row in range(len(parents))]


def random_tables(rng: np.random.Generator) -> DraftTables:
    left = rng.normal(size=(VOCAB, RANK)).astype(np.float16)
    right = rng.normal(size=(SLOTS, RANK)).astype(np.float16)
    gate = rng.normal(size=(4, RANK)).astype(np.float32)
    return DraftTables.of(left, right, gate, np.arange(SLOTS, dtype=np.int32))


def test_growth_with_the_parent_term_takes_the_trees_of_the_oracle(rng: np.random.Generator) -> None:
    for _ in range(400):
        tables = random_tables(rng)
        ids, log_probs = random_streams(rng, tied=False)
        width, depth = int(rng.integers(1, 17)), int(rng.integers(1, 5))
        tree = grow(7, ids, log_probs, width, depth, tables)
        slow = oracle.with_parent_term(
            ids, log_probs, tables.parent_left, tables.parent_right, tables.gate, np.arange(SLOTS)
        )
        tokens, parents, paths = oracle.grow(7, ids, width, depth, slow)
        np.testing.assert_allclose(tree.log_probs, paths, rtol=0, atol=2e-5)
        gaps = np.abs(np.diff(paths))
        if len(paths) > 1 and gaps.min() > 1e-4:  # no near tie: the very same tree
            assert (tree.tokens.tolist(), tree.parents.tolist()) == (tokens, parents)


def state_of(path: list[int], tables: DraftTables) -> np.ndarray:
    """The parent term's state at the end of a path from the root, token by token."""
    assert tables.mix is not None
    rows = [tables.parent_left[token].astype(np.float64) for token in path]
    if not tables.cell:
        return rows[-1] + (rows[-2] @ tables.mix if len(rows) > 1 else 0)
    state = np.zeros(tables.rank)
    for row in rows:
        state = np.tanh(row + state @ tables.mix)
    return state


@pytest.mark.parametrize("cell", [False, True], ids=["grandparent", "cell"])
def test_growth_along_paths_gives_each_node_what_its_own_path_says(rng: np.random.Generator, cell: bool) -> None:
    for _ in range(60):
        tables = replace(random_tables(rng), mix=rng.normal(size=(RANK, RANK)).astype(np.float32), cell=cell)
        ids, log_probs = random_streams(rng, tied=False)
        tree = grow(7, ids, log_probs, 16, 4, tables)
        paths = {0: [7]}
        for row in range(1, len(tree)):
            parent, stream = int(tree.parents[row]), int(tree.depths[row]) - 1
            paths[row] = [*paths[parent], int(tree.tokens[row])]
            state = state_of(paths[parent], tables) * tables.gate[stream]
            scores = log_probs[stream].astype(np.float64) + tables.right_of(ids[stream]) @ state
            mass = np.exp(scores).sum() + max(0.0, 1 - np.exp(log_probs[stream]).sum())
            expected = min(0.0, scores[ids[stream].tolist().index(tree.tokens[row])] - np.log(mass))
            assert tree.log_probs[row] - tree.log_probs[parent] == pytest.approx(expected, abs=1e-4)
        assert native_grower(tables) is None  # the C++ growth knows the parent alone


def test_a_narrower_tree_is_a_prefix_of_a_wider_one(rng: np.random.Generator) -> None:
    for _ in range(200):
        ids, log_probs = random_streams(rng, tied=True)
        wide = grow(3, ids, log_probs, 16, 4, None)
        for width in range(1, 16):
            narrow = grow(3, ids, log_probs, width, 4, None)
            assert narrow.tokens.tolist() == wide.tokens.tolist()[: len(narrow)]
            assert narrow.parents.tolist() == wide.parents.tolist()[: len(narrow)]
            assert len(narrow) == min(width, len(wide))


def test_candidates_without_probability_are_not_drafted() -> None:
    log_probs = np.array([[-0.5, -np.inf, -np.inf]], np.float32)
    tree = grow(1, np.array([[4, 5, 6]]), log_probs, 8, 4, None)
    assert tree.tokens.tolist() == [1, 4]


def test_a_parent_term_of_rank_zero_is_off() -> None:
    empty = np.zeros((VOCAB, 0), np.float16), np.zeros((SLOTS, 0), np.float16), np.zeros((2, 0), np.float32)
    tables = DraftTables.of(*empty, np.arange(SLOTS, dtype=np.int32))
    ids, log_probs = np.array([[1, 2], [3, 4]]), np.log(np.array([[0.6, 0.2], [0.5, 0.3]], np.float32))
    with_tables, without = (grow(0, ids, log_probs, 5, 2, choice) for choice in (tables, None))
    assert with_tables.tokens.tolist() == without.tokens.tolist()
    assert with_tables.log_probs.tolist() == without.log_probs.tolist()


def test_a_drafter_that_has_seen_no_pass_drafts_nothing() -> None:
    drafter = StreamDrafter()
    assert len(drafter.draft([1, 2, 9], 8, 3)) == 1


def test_a_candidate_outside_the_stream_vocabulary_is_refused(rng: np.random.Generator) -> None:
    with pytest.raises(ValueError, match=r"draft\.npz"):
        grow(0, np.array([[SLOTS + 1]]), np.array([[-1.0]], np.float32), 4, 1, random_tables(rng))


@pytest.mark.parametrize("damage", ["missing", "truncated", "shape", "foreign"])
def test_damaged_drafting_data_is_refused_by_file_name(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "draft.npz"
    arrays = {
        "parent_left": np.zeros((VOCAB, 2), np.float16),
        "parent_right": np.zeros((SLOTS, 3 if damage == "shape" else 2), np.float16),
        "gate": np.zeros((4, 2), np.float32),
        "stream_vocab": np.arange(SLOTS, dtype=np.int32) + (VOCAB if damage == "foreign" else 0),
    }
    if damage == "missing":
        del arrays["gate"]
    np.savez(path, **arrays)
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ValueError, match=r"cannot read the drafting data .*draft\.npz"):
        DraftTables.load(path)


def test_drafting_data_survives_the_file(tmp_path: Path, rng: np.random.Generator) -> None:
    left, right = rng.normal(size=(VOCAB, 2)).astype(np.float16), rng.normal(size=(SLOTS, 2)).astype(np.float16)
    gate, vocab = rng.normal(size=(4, 2)).astype(np.float32), np.arange(5, 5 + SLOTS, dtype=np.int32)
    np.savez(tmp_path / "draft.npz", parent_left=left, parent_right=right, gate=gate, stream_vocab=vocab)
    tables = DraftTables.load(tmp_path / "draft.npz")
    assert tables.rank == 2
    np.testing.assert_array_equal(tables.right_of(np.array([5, 6])), right[:2].astype(np.float32))
    assert tables.mix is None
    mix = rng.normal(size=(2, 2)).astype(np.float32)
    arrays = {"parent_left": left, "parent_right": right, "gate": gate, "stream_vocab": vocab}
    np.savez(tmp_path / "draft.npz", **arrays, path_mix=mix, path_cell=np.array(True))
    tables = DraftTables.load(tmp_path / "draft.npz")
    np.testing.assert_array_equal(tables.mix, mix)
    assert tables.cell
    np.savez(tmp_path / "draft.npz", **arrays, path_mix=mix[:1])
    with pytest.raises(ValueError, match="path_mix"):
        DraftTables.load(tmp_path / "draft.npz")


@pytest.mark.parametrize("parents", [[-1, 1], [0], [-1, -1], [-1, 2, 0]])
def test_a_tree_whose_parents_do_not_come_first_is_refused(parents: list[int]) -> None:
    with pytest.raises(ValueError, match="parents come first"):
        Tree.of([0] * len(parents), parents)
