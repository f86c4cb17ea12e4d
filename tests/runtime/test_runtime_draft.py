"""Growth against an oracle that enumerates the full tree. Run: pytest tests/runtime/test_runtime_draft.py"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import oracle
import pytest

from streamfuse.runtime.backend import ModelSpec
from streamfuse.runtime.core import CoreModel, TablesError
from streamfuse.runtime.reference.draft import DraftTables, StreamDrafter, grow
from streamfuse.runtime.reference.tree import Tree

VOCAB, SLOTS, RANK = 30, 20, 4
PAIRS = VOCAB * (VOCAB + 1)  # keys of contexts of three tokens begin here


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
    with pytest.raises(ValueError, match=r"draft\.safetensors"):
        grow(0, np.array([[SLOTS + 1]]), np.array([[-1.0]], np.float32), 4, 1, random_tables(rng))


def sound() -> dict[str, np.ndarray]:
    """The arrays of a bundle with 3 streams, rank 2."""
    random = np.random.default_rng(5)
    return {
        "parent_left": random.normal(size=(VOCAB, 2)).astype(np.float16),
        "parent_right": random.normal(size=(SLOTS, 2)).astype(np.float16),
        "gate": random.normal(size=(3, 2)).astype(np.float32),
        "stream_vocab": np.arange(5, 5 + SLOTS, dtype=np.int32),
        "calibration": np.array([1, 0.5, 10], np.float32),
        "ngram_keys": np.array([4, 5, 40]),
        "ngram_starts": np.array([0, 2, 2, 3], np.int32),
        "ngram_ids": np.array([3, 1, VOCAB - 1], np.int32),
        "ngram_log_probs": np.array([-0.5, -1, 0], np.float16),
    }


def test_drafting_data_is_read_by_name() -> None:
    arrays = sound()
    tables = DraftTables.load(arrays)
    assert tables.rank == 2
    np.testing.assert_array_equal(tables.parent_left, arrays["parent_left"])
    np.testing.assert_array_equal(tables.right_of(np.array([5, 6])), arrays["parent_right"][:2].astype(np.float32))
    assert tables.calibration == (1, 0.5, 10)
    assert tables.ngrams is not None
    assert tables.ngrams.after(-1, 0) == []
    assert tables.ngrams.ids.tolist() == [3, 1, VOCAB - 1]
    tables.check(3, VOCAB)
    with pytest.raises(ValueError, match="of 3 streams, the model has 4"):
        tables.check(4, VOCAB)
    with pytest.raises(ValueError, match=f"of {VOCAB} tokens, the model has 7"):
        tables.check(3, 7)
    tables = DraftTables.load({name: array for name, array in arrays.items() if name in list(arrays)[:4]})
    assert (tables.calibration, tables.ngrams) == ((), None)


def changed(name: str, place: object, value: float) -> np.ndarray:
    array = sound()[name]
    array[place] = value
    return array


DAMAGES: list[tuple[str, np.ndarray | None, str]] = [
    ("gate", None, "lacks gate"),
    ("ngram_ids", None, "lacks ngram_ids"),
    ("ngram_keys", None, "lacks ngram_keys"),
    ("path_mix", np.zeros((2, 2), np.float32), "'path_mix', which this version does not know"),
    ("parent_left", np.zeros((VOCAB, 2), np.float32), "parent_left is float32, not float16"),
    ("parent_right", np.zeros((SLOTS, 2), np.float32), "parent_right is float32, not float16"),
    ("gate", np.zeros((3, 2), np.float16), "gate is float16, not float32"),
    ("stream_vocab", np.arange(SLOTS), "stream_vocab is int64, not int32"),
    ("calibration", np.ones(3, np.float16), "calibration is float16"),
    ("ngram_starts", np.array([0, 2, 2, 3]), "ngram_starts is int64"),
    ("parent_left", np.zeros(VOCAB, np.float16), "dimensions"),
    ("parent_left", np.zeros((), np.float16), "dimensions"),
    ("parent_right", np.zeros((SLOTS, 2, 1), np.float16), "dimensions"),
    ("gate", np.zeros(3, np.float32), "dimensions"),
    ("stream_vocab", np.zeros((SLOTS, 1), np.int32), "dimensions"),
    ("parent_right", np.zeros((SLOTS, 3), np.float16), "do not belong together"),
    ("gate", np.zeros((3, 3), np.float32), "do not belong together"),
    ("stream_vocab", np.arange(SLOTS - 1, dtype=np.int32), "do not belong together"),
    ("parent_left", changed("parent_left", (3, 1), np.nan), "parent_left holds what is no finite number"),
    ("parent_right", changed("parent_right", (3, 1), np.inf), "parent_right holds what is no finite number"),
    ("gate", changed("gate", (2, 1), -np.inf), "gate holds what is no finite number"),
    ("stream_vocab", changed("stream_vocab", -1, VOCAB), "stream_vocab names a token outside"),
    ("stream_vocab", changed("stream_vocab", 0, -1), "stream_vocab names a token outside"),
    ("stream_vocab", changed("stream_vocab", 3, 7), "stream_vocab is not ascending"),
    ("calibration", np.ones(2, np.float32), "calibration"),
    ("calibration", np.ones((3, 1), np.float32), "calibration"),
    ("calibration", np.ones(0, np.float32), "calibration"),
    ("calibration", changed("calibration", 1, np.nan), "calibration"),
    ("calibration", changed("calibration", 1, 10.5), "calibration"),
    ("calibration", changed("calibration", 1, -0.5), "calibration"),
    ("ngram_keys", changed("ngram_keys", 0, -1), "ngram_keys names a token outside"),
    ("ngram_keys", changed("ngram_keys", 2, PAIRS + 2 * VOCAB), "ngram_keys lengthens a context that does not come"),
    ("ngram_keys", np.array([4, VOCAB + 1, PAIRS + VOCAB]), "ngram_keys lengthens a context of one token"),
    ("ngram_keys", changed("ngram_keys", 2, 5), "ngram_keys are not ascending"),
    ("ngram_keys", np.array([2**62, -(2**62), 2**62]), "ngram_keys are not ascending"),
    ("ngram_starts", changed("ngram_starts", 1, 4), "ngram_starts"),
    ("ngram_starts", np.array([0, 2**31 - 1, -(2**31), 3], np.int32), "ngram_starts"),
    ("ngram_starts", changed("ngram_starts", 0, 1), "ngram_starts"),
    ("ngram_starts", changed("ngram_starts", 3, 2), "ngram_starts"),
    ("ngram_starts", np.array([0, 3], np.int32), "ngram_starts"),
    ("ngram_starts", np.zeros(0, np.int32), "ngram_starts"),
    ("ngram_ids", changed("ngram_ids", 2, VOCAB), "ngram_ids names a token outside"),
    ("ngram_ids", changed("ngram_ids", 2, -1), "ngram_ids names a token outside"),
    ("ngram_ids", np.zeros((3, 1), np.int32), "ngram_ids"),
    ("ngram_keys", np.zeros((), np.int64), "ngram"),
    ("ngram_log_probs", changed("ngram_log_probs", 0, 0.5), "ngram_log_probs"),
    ("ngram_log_probs", changed("ngram_log_probs", 0, -np.inf), "ngram_log_probs"),
    ("ngram_log_probs", changed("ngram_log_probs", 1, np.nan), "ngram_log_probs"),
    ("ngram_log_probs", changed("ngram_log_probs", 0, -2), "ngram_log_probs rises"),
]


@pytest.mark.parametrize(("name", "array", "words"), DAMAGES)
def test_damaged_drafting_data_is_refused_by_file_and_array(name: str, array: np.ndarray | None, words: str) -> None:
    arrays = sound()
    arrays.pop(name, None)
    with pytest.raises(ValueError, match=r"^cannot read the drafting data .*draft\.safetensors: ") as caught:
        DraftTables.load({**arrays, **({} if array is None else {name: array})}, Path("bundle", "draft.safetensors"))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "array", "words"), DAMAGES)
def test_the_core_refuses_the_same_tables_and_names_the_array(name: str, array: np.ndarray | None, words: str) -> None:
    spec = ModelSpec(64, VOCAB, 3, 4, 8, {"verify_4": (4, 4)})
    CoreModel(spec, sound()).close()
    arrays = sound()
    arrays.pop(name, None)
    with pytest.raises(TablesError, match=name):
        CoreModel(spec, {**arrays, **({} if array is None else {name: array})})


@pytest.mark.parametrize("parents", [[-1, 1], [0], [-1, -1], [-1, 2, 0]])
def test_a_tree_whose_parents_do_not_come_first_is_refused(parents: list[int]) -> None:
    with pytest.raises(ValueError, match="parents come first"):
        Tree.of([0] * len(parents), parents)
