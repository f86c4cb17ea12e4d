"""sf_grow against the growth in numpy. Run: pytest tests/unit/test_runtime_native_grow.py"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from streamfuse.runtime.native_grow import NativeGrower, NativeNgrams, library_with_grow

from streamfuse.runtime.reference.draft import DraftTables, StreamDrafter, grow
from streamfuse.runtime.reference.ngram_table import NgramTable
from streamfuse.runtime.reference.tree import Tree

SOURCE = Path(__file__).parents[2] / "kernels" / "engine" / "grow.cpp"
VOCAB, SLOTS = 60, 40


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The one file by itself, with the checks of the address and undefined-behaviour kind that need no runtime."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        found = library_with_grow()
        if found is None:
            pytest.skip("neither a C++ compiler nor the engine is here")
        return found
    target = tmp_path_factory.mktemp("grow") / "libgrow.so"
    flags = ["-O2", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-D_GLIBCXX_ASSERTIONS", "-shared", "-fPIC"]
    subprocess.run([compiler, *flags, "-o", str(target), str(SOURCE)], check=True)
    return ctypes.CDLL(str(target))


def streams_of(rng: np.random.Generator, count: int, k: int, tied: bool) -> tuple[np.ndarray, np.ndarray]:
    ids = np.stack([rng.permutation(SLOTS)[:k] for _ in range(count)]).astype(np.int64)
    if tied:
        return ids, -np.sort(rng.integers(1, 4, (count, k)), axis=1).astype(np.float32)
    probs = np.sort(rng.dirichlet(np.full(k + 1, 0.5), count)[:, :k] * 0.98 + 1e-3)[:, ::-1]
    return ids, np.log(probs).astype(np.float32)


def assert_same(native: Tree, reference: Tree, tolerance: float) -> None:
    gaps = np.abs(np.diff(np.sort(reference.log_probs)))
    np.testing.assert_allclose(native.log_probs, reference.log_probs, rtol=0, atol=tolerance)
    if not tolerance or not len(gaps) or gaps.min() > 4 * tolerance:
        assert native.tokens.tolist() == reference.tokens.tolist()
        assert native.parents.tolist() == reference.parents.tolist()
        assert native.depths.tolist() == reference.depths.tolist()
    again = Tree.of(native.tokens.tolist(), native.parents.tolist())
    assert native.depths.tolist() == again.depths.tolist()
    assert native.ancestors().tolist() == again.ancestors().tolist()


@pytest.mark.parametrize("tied", [True, False])
def test_without_a_parent_term_the_trees_are_equal_to_the_bit(
    library: ctypes.CDLL, rng: np.random.Generator, tied: bool
) -> None:
    native = NativeGrower(library, None)
    for _ in range(600):
        ids, log_probs = streams_of(rng, int(rng.integers(0, 5)) or 1, int(rng.integers(1, 9)), tied)
        width, depth = int(rng.integers(1, 18)), int(rng.integers(0, 6))
        assert_same(native(7, ids, log_probs, width, depth), grow(7, ids, log_probs, width, depth, None), 0.0)


@pytest.mark.parametrize("rank", [1, 8, 13, 32])
def test_with_the_parent_term_they_agree_to_rounding(library: ctypes.CDLL, rng: np.random.Generator, rank: int) -> None:
    for _ in range(60):
        left = (rng.normal(size=(VOCAB, rank)) * 10.0 ** rng.integers(-8, 1)).astype(np.float16)  # subnormal ones too
        right, gate = rng.normal(size=(SLOTS, rank)).astype(np.float32), rng.normal(size=(4, rank)).astype(np.float32)
        tables = DraftTables.of(left, right, gate, np.arange(SLOTS, dtype=np.int32))
        native = NativeGrower(library, tables)
        for _ in range(5):
            ids, log_probs = streams_of(rng, 4, int(rng.integers(1, 17)), tied=False)
            width, depth = int(rng.integers(1, 18)), int(rng.integers(1, 6))
            assert_same(native(7, ids, log_probs, width, depth), grow(7, ids, log_probs, width, depth, tables), 3e-5)


def test_a_candidate_outside_the_stream_vocabulary_is_refused(library: ctypes.CDLL) -> None:
    table = DraftTables.of(
        np.ones((VOCAB, 2), np.float16), np.ones((SLOTS, 2), np.float32), np.ones((1, 2), np.float32),
        np.arange(SLOTS, dtype=np.int32),
    )  # fmt: skip
    native = NativeGrower(library, table)
    for token in (SLOTS + 1, VOCAB + 5, -1):
        with pytest.raises(ValueError, match=r"draft\.safetensors"):
            native(0, np.array([[token]]), np.array([[-1.0]], np.float32), 4, 1)


def test_candidates_without_probability_are_not_drafted(library: ctypes.CDLL) -> None:
    log_probs = np.array([[-0.5, -np.inf, np.nan]], np.float32)
    assert NativeGrower(library, None)(1, np.array([[4, 5, 6]]), log_probs, 8, 4).tokens.tolist() == [1, 4]


def test_a_tree_stays_as_it_is_when_the_next_one_grows(library: ctypes.CDLL, rng: np.random.Generator) -> None:
    drafter = StreamDrafter(None, NativeGrower(library, None))
    first_ids, first = streams_of(rng, 3, 4, tied=False)
    tree = drafter._grow(1, first_ids, first, 8, 3)
    before = tree.tokens.tolist()
    drafter._grow(2, *streams_of(rng, 3, 4, tied=False), 8, 3)
    assert tree.tokens.tolist() == before


def random_table(random: np.random.Generator, vocab_size: int = 60, contexts: int = 300) -> NgramTable:
    keys = np.unique(random.integers(0, vocab_size * (vocab_size + 1), contexts))
    starts = np.concatenate([[0], np.cumsum(random.integers(0, 5, len(keys)))])
    probs = np.sort(random.choice([0.6, 0.3, 0.3, 0.2, 0.1, 0.05], starts[-1]).astype(np.float32))[::-1]
    return NgramTable.of(vocab_size, keys, starts, random.integers(0, vocab_size, starts[-1]), np.log(probs))


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16, 64])
def test_trees_of_the_n_gram_table_are_the_same_to_the_bit(
    library: ctypes.CDLL, width: int, rng: np.random.Generator
) -> None:
    grown = 0
    for _ in range(20):
        table = random_table(rng)
        native = NativeNgrams(library, table)
        for _ in range(20):
            tokens, depth = rng.integers(0, 60, rng.integers(1, 4)).tolist(), int(rng.integers(0, 9))
            here, there = native.grow(tokens, width, depth), table.grow(tokens, width, depth)
            for name in ("tokens", "parents", "depths", "log_probs"):
                assert getattr(here, name).tolist() == getattr(there, name).tolist()
            assert here.ancestors().tolist() == there.ancestors().tolist()
            grown += len(here) > 2
    assert grown > 20 or width < 3


def test_an_n_gram_tree_outlives_the_next_one(library: ctypes.CDLL, rng: np.random.Generator) -> None:
    native = NativeNgrams(library, random_table(rng))
    first = native.grow([3, 5], 8, 4)
    before = first.tokens.tolist()
    native.grow([5, 7], 8, 4)
    assert first.tokens.tolist() == before
    with pytest.raises(ValueError, match="outside the vocabulary"):
        native.grow([60], 8, 4)
