"""Trees of other methods against all trees that there are, or by hand.

Run: python -m pytest tests/research/test_trees.py
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from fakes import ArithmeticBackend, spec

from streamfuse.research.growth import Build, ShapedDrafter, eagle2_tree, opt_tree, our_tree, parallel_tree, static_tree
from streamfuse.research.trees import (
    Path,
    Shape,
    cartesian_shape,
    expected_tokens,
    fill,
    medusa_shape,
    rank_accuracy,
    sequoia_shape,
    shape_of,
    sized_shape,
)
from streamfuse.runtime.config import GenerationConfig
from streamfuse.runtime.reference.draft import StreamDrafter, grow
from streamfuse.runtime.reference.loop import Loop
from streamfuse.runtime.reference.tree import Tree

IDS = np.array([[10, 11, 12], [20, 21, 22]])
LOG_PROBS = np.log(np.array([[0.5, 0.3, 0.1], [0.6, 0.2, 0.1]], np.float32))


def all_shapes(nodes: int, levels: int, ranks: int) -> Iterator[Shape]:
    """Every shape of at most `nodes` nodes whose siblings have the first ranks."""

    def forests(left: int, path: Path, rank: int) -> Iterator[tuple[Shape, int]]:
        """Children of a path from a rank on, and the nodes that are left then."""
        yield (), left
        if left and rank < ranks and len(path) < levels:
            for below, left_below in forests(left - 1, (*path, rank), 0):
                for beside, rest in forests(left_below, path, rank + 1):
                    yield ((*path, rank), *below, *beside), rest

    for shape, _ in forests(nodes - 1, (), 0):
        yield shape


def is_closed(shape: Shape) -> bool:
    return all(path[:-1] in ((), *shape[:place]) for place, path in enumerate(shape)) and len(set(shape)) == len(shape)


def test_all_shapes_are_counted_by_catalan() -> None:
    sizes = [len(shape) + 1 for shape in all_shapes(6, 6, 6)]
    assert [sizes.count(size) for size in range(1, 7)] == [1, 1, 2, 5, 14, 42]


@pytest.mark.parametrize("nodes", range(1, 8))
def test_sequoias_shape_is_the_best_of_all(nodes: int, rng: np.random.Generator) -> None:
    """Accuracies by rank, by depth and rank, in any order, some of them 0."""
    for case in range(6):
        levels, ranks = 1 + case % 4, 1 + int(rng.integers(4))
        table = rng.random((levels, ranks)) * (rng.random((levels, ranks)) < 0.9)
        accuracy = table if case % 2 else table[0]
        depth = None if case < 2 else 1 + case % 3
        bound = min(levels if case % 2 else nodes, depth or nodes)
        full = table if case % 2 else np.tile(table[0], (nodes, 1))
        shape = sequoia_shape(accuracy, nodes, depth)
        best = max(expected_tokens(other, full) for other in all_shapes(nodes, bound, ranks))
        assert expected_tokens(shape, full) == pytest.approx(best, abs=1e-12)
        assert len(shape) < nodes
        assert is_closed(shape)
        assert max(map(len, shape), default=0) <= bound
        values = [math.prod(full[level, rank] for level, rank in enumerate(path)) for path in shape]
        assert values == sorted(values, reverse=True)


@pytest.mark.parametrize(
    ("accuracy", "nodes", "depth", "shape"),
    [
        ([0.8, 0.1], 3, None, ((0,), (0, 0))),  # 1 + .8 + .64 against 1 + .8 + .1
        ([0.5, 0.4], 3, None, ((0,), (1,))),  # 1 + .5 + .4 against 1 + .5 + .25
        ([0.8, 0.1], 3, 1, ((0,), (1,))),
        ([[0.5, 0.4], [0.9, 0.1]], 4, None, ((0,), (0, 0), (1,))),
        ([0.5], 1, None, ()),
    ],
)
def test_sequoias_shape_of_small_cases_is_the_one_by_hand(
    accuracy: list, nodes: int, depth: int | None, shape: Shape
) -> None:
    assert sequoia_shape(accuracy, nodes, depth) == shape


@pytest.mark.parametrize(
    ("verify_costs", "draft_cost", "shape"),
    [
        ({2: 1.0, 4: 1.0, 8: 1.0}, 0.1, ((0,), (0, 0), (1,), (0, 0, 0), (1, 0), (0, 1), (1, 0, 0))),  # flat: the widest
        ({2: 2.0, 4: 4.0, 8: 8.0}, 0.1, ((0,),)),  # linear: the narrowest
        ({1: 1.0, 2: 1.5, 4: 1.6, 8: 3.2}, 0.1, ((0,), (0, 0), (1,))),  # stepped: up to the step
    ],
)
def test_sequoias_size_follows_the_costs(verify_costs: dict[int, float], draft_cost: float, shape: Shape) -> None:
    table = np.array([[0.6, 0.3], [0.6, 0.2], [0.6, 0.2]])
    assert sized_shape(table, verify_costs, lambda depth: draft_cost) == shape
    best = {nodes: expected_tokens(sequoia_shape(table, nodes), table) / (cost + draft_cost)
            for nodes, cost in verify_costs.items() if nodes > 1}  # fmt: skip
    assert max(best, key=lambda nodes: best[nodes]) == len(shape) + 1


def test_sequoias_depth_follows_what_a_level_costs() -> None:
    table = np.array([[0.6, 0.3], [0.6, 0.2], [0.6, 0.2]])
    depths = [max(map(len, sized_shape(table, {8: 1.0}, lambda d, c=cost: c * d))) for cost in (0.0, 0.3, 1.0)]
    assert depths == [3, 2, 1]
    with pytest.raises(ValueError, match="must be above 0, one of them of 2 nodes or more"):
        sized_shape(table, {1: 1.0}, lambda depth: 0.0)


def test_medusas_rule_is_best_first_and_best_where_accuracy_falls_with_rank(rng: np.random.Generator) -> None:
    for nodes in (1, 2, 5, 9, 16):
        table = -np.sort(-rng.random((3, 4)), axis=1)
        shape = medusa_shape(table, nodes)
        assert is_closed(shape)
        everything = [path for depth in (1, 2, 3) for path in itertools.product(range(4), repeat=depth)]
        values = sorted((math.prod(table[i, rank] for i, rank in enumerate(path)) for path in everything), reverse=True)
        found = [math.prod(table[i, rank] for i, rank in enumerate(path)) for path in shape]
        np.testing.assert_allclose(found, values[: nodes - 1])
        assert expected_tokens(shape, table) == pytest.approx(expected_tokens(sequoia_shape(table, nodes), table))


def test_medusas_rule_takes_a_better_rank_before_the_ones_above_it() -> None:
    accuracy = [[0.2, 0.7], [0.5, 0.1]]
    assert medusa_shape(accuracy, 4) == ((1,), (1, 0), (0,))
    assert medusa_shape(accuracy, 99) == ((1,), (1, 0), (0,), (0, 0), (1, 1), (0, 1))


def test_of_equal_nodes_medusas_rule_takes_the_shallower_and_then_the_better_rank() -> None:
    assert medusa_shape([[0.5, 0.5], [1.0, 1.0]], 5) == ((0,), (1,), (0, 0), (0, 1))


def test_expected_tokens_are_those_of_all_texts() -> None:
    """Each level's true rank is independent here; 2 stands for a token that is not among the candidates."""
    accuracy = np.array([[0.5, 0.3], [0.6, 0.1], [0.4, 0.4]])
    shape = ((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 1, 1))
    total = 0.0
    for truth in itertools.product(range(3), repeat=3):
        prob = math.prod([*accuracy[level], 1 - accuracy[level].sum()][rank] for level, rank in enumerate(truth))
        accepted = max(depth for depth in range(4) if not depth or truth[:depth] in shape)
        total += prob * (accepted + 1)
    assert expected_tokens(shape, accuracy) == pytest.approx(total)


@pytest.mark.parametrize(
    ("nodes", "shape"),
    [
        (9, ((0,), (1,), (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2))),
        (8, ((0,), (1,))),
        (3, ((0,), (1,))),
        (2, ()),
    ],
)
def test_a_full_tree_has_as_many_whole_levels_as_fit(nodes: int, shape: Shape) -> None:
    assert cartesian_shape((2, 3), nodes) == shape


def test_accuracy_is_counted_for_each_head_or_where_its_parent_was_right() -> None:
    candidates = np.array([[[1, 2], [3, 4], [5, 6]]] * 4)
    truth = np.array([[1, 3, 5], [2, 9, 6], [1, 4, 9], [9, 3, 6]])
    np.testing.assert_allclose(rank_accuracy(candidates, truth, False), [[0.5, 0.25], [0.5, 0.25], [0.25, 0.5]])
    np.testing.assert_allclose(rank_accuracy(candidates, truth, True), [[0.5, 0.25], [1 / 3, 1 / 3], [0.5, 0]])
    with pytest.raises(ValueError, match="are not"):
        rank_accuracy(candidates, truth[:3], True)


def test_a_shape_is_filled_with_candidates_and_found_again() -> None:
    shape = ((0,), (1,), (1, 0), (0, 0), (0, 1))
    tree = fill(shape, 5, IDS, LOG_PROBS)
    assert tree.tokens.tolist() == [5, 10, 11, 20, 20, 21]
    assert tree.parents.tolist() == [-1, 0, 0, 2, 1, 1]
    np.testing.assert_allclose(np.exp(tree.log_probs), [1, 0.5, 0.3, 0.18, 0.3, 0.1], rtol=1e-6)
    assert shape_of(tree) == shape
    assert len(fill((), 5, IDS, LOG_PROBS)) == 1


@pytest.mark.parametrize("shape", [((0, 0), (0,)), ((0,), (0,)), ((3,),), ((0,), (0, 0), (0, 0, 0)), ((-1,),)], ids=str)
def test_a_shape_that_cannot_be_filled_is_refused(shape: Shape) -> None:
    with pytest.raises(ValueError, match="path"):
        fill(shape, 5, IDS, LOG_PROBS)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda: sequoia_shape([0.5], 0), "nodes must be"),
        (lambda: sequoia_shape([1.5], 3), "from 0 to 1"),
        (lambda: medusa_shape([[[0.5]]], 3), "one or two-dimensional"),
        (lambda: cartesian_shape((2, 0), 3), "at least 1"),
        (lambda: eagle2_tree(0, draft_of(), 3, 2, 0), "at least 1"),
    ],
)
def test_numbers_out_of_range_are_refused(wrong, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        wrong()


# Live probabilities.


class Draft:
    """A drafter whose three candidates depend on the whole path. It counts the calls and the paths it was asked for."""

    def __init__(self) -> None:
        self.calls: list[list[Path]] = []

    def __call__(self, paths: Sequence[Path]) -> list[tuple[np.ndarray, np.ndarray]]:
        self.calls.append(list(paths))
        return [self.children(path) for path in paths]

    @staticmethod
    def children(path: Path) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng([7, *path])
        probs = -np.sort(-rng.dirichlet(np.ones(4)))[:3]
        return rng.permutation(8)[:3], np.log(probs).astype(np.float32)


def draft_of() -> Draft:
    return Draft()


def values_of_all_paths(depth: int) -> dict[Path, float]:
    """Log-probabilities of all paths down to a depth."""
    found: dict[Path, float] = {(): 0.0}
    for path in (paths := list(found)):
        if len(path) < depth:
            for token, step in zip(*Draft.children(path), strict=True):
                found[(*path, int(token))] = found[path] + float(step)
                paths.append((*path, int(token)))
    return found


def paths_of(tree: Tree) -> dict[Path, float]:
    paths: list[Path] = [()]
    for token, parent in zip(tree.tokens.tolist()[1:], tree.parents.tolist()[1:], strict=True):
        paths.append((*paths[parent], token))
    return dict(zip(paths, tree.log_probs.tolist(), strict=True))


@pytest.mark.parametrize("nodes", [1, 2, 6, 15])
def test_live_trees_with_layers_wide_enough_are_the_best_of_all(nodes: int) -> None:
    everything = values_of_all_paths(4)
    best = dict(sorted(everything.items(), key=lambda item: -item[1])[:nodes])
    for tree in (opt_tree(9, draft_of(), nodes, 4), eagle2_tree(9, draft_of(), nodes, 4, 20)):
        assert tree.tokens[0] == 9
        found = paths_of(tree)
        assert found.keys() == best.keys()
        np.testing.assert_allclose(list(found.values()), list(best.values()))


def test_eagle2_expands_the_best_of_each_layer_and_ranks_all_again() -> None:
    draft = draft_of()
    tree = eagle2_tree(9, draft, 6, 3, 2)
    assert [len(call) for call in draft.calls] == [1, 2, 2]
    everything = values_of_all_paths(3)
    candidates: list[Path] = []
    layer: list[Path] = [()]
    for call in draft.calls:
        assert sorted(call) == sorted(sorted(layer, key=everything.__getitem__)[-2:])
        layer = [(*path, int(token)) for path in call for token in Draft.children(path)[0][:2]]
        candidates += layer
    assert set(paths_of(tree)) == {(), *sorted(candidates, key=everything.__getitem__)[-5:]}


def test_eagle2_with_one_per_layer_is_the_greedy_chain() -> None:
    chain: Path = ()
    for _ in range(4):
        chain = (*chain, int(Draft.children(chain)[0][0]))
    assert set(paths_of(eagle2_tree(9, draft_of(), 16, 4, 1))) == {chain[:length] for length in range(5)}


@pytest.mark.parametrize(
    ("nodes", "least_gain", "layers"), [(16, 0.2, 3), (16, 0.1, 4), (16, 0.0, 6), (16, 0.6, 1), (3, 0.0, 3)]
)
def test_opt_tree_deepens_while_a_layer_adds_enough(nodes: int, least_gain: float, layers: int) -> None:
    """A chain of halves: the layers add 1/2, 1/4, 1/8, ...; one that adds too little is the last."""
    calls = []

    def halves(paths: Sequence[Path]) -> list[tuple[np.ndarray, np.ndarray]]:
        calls.append(paths)
        return [(np.array([1]), np.log(np.array([0.5], np.float32)))] * len(paths)

    tree = opt_tree(9, halves, nodes, 6, least_gain)
    assert len(calls) == layers
    assert tree.depth == min(layers, nodes - 1)


def test_a_parallel_tree_is_ours_without_the_parent_term(rng: np.random.Generator) -> None:
    for nodes in (1, 2, 7, 16):
        ids = np.stack([rng.permutation(20)[:4] for _ in range(3)])
        log_probs = np.log(-np.sort(-rng.dirichlet(np.ones(6), 3), axis=1)[:, :4]).astype(np.float32)
        found, ours = parallel_tree(9, ids, log_probs, nodes), grow(9, ids, log_probs, nodes, 3, None)
        assert found.tokens.tolist() == ours.tokens.tolist()
        assert found.parents.tolist() == ours.parents.tolist()
        np.testing.assert_allclose(found.log_probs, ours.log_probs)


# In the loop.

SHAPES = {
    "Sequoia": static_tree(sequoia_shape([0.5, 0.2, 0.1], 8)),
    "Medusa": static_tree(medusa_shape([[0.5, 0.2], [0.4, 0.2]], 8)),
    "Cartesian": static_tree(cartesian_shape((2, 2), 8)),
    "wider than the pass": static_tree(cartesian_shape((3, 3, 3), 99)),
    "parallel": parallel_tree,
    "ours": our_tree(),
}


@pytest.mark.parametrize("build", SHAPES.values(), ids=SHAPES)
def test_a_text_is_plain_decodings_whatever_the_tree(build: Build) -> None:
    model = spec(widths={"verify_8": (8, 6)})
    plain = Loop(ArithmeticBackend(model), [1, 2, 3], GenerationConfig(40, speculative=False))
    list(plain.run())
    trees: list[Tree] = []
    loop = Loop(
        ArithmeticBackend(model), [1, 2, 3], GenerationConfig(40), ShapedDrafter(build),
        observe=lambda done: trees.append(done.tree),
    )  # fmt: skip
    list(loop.run())
    assert loop.tokens == plain.tokens
    assert loop.counts.mean_accepted_tokens > 1.5
    assert max(map(len, trees)) in (7, 8)


def test_ours_drafts_what_the_runtime_does() -> None:
    texts = [Loop(ArithmeticBackend(spec()), [1, 2, 3], GenerationConfig(40), drafter) for drafter in
             (ShapedDrafter(our_tree()), StreamDrafter())]  # fmt: skip
    for loop in texts:
        list(loop.run())
    assert texts[0].tokens == texts[1].tokens
    assert texts[0].counts == texts[1].counts


@pytest.mark.parametrize("build", SHAPES.values(), ids=SHAPES)
def test_a_tree_is_no_wider_or_deeper_than_it_may_be(build: Build) -> None:
    drafter = ShapedDrafter(build)
    assert len(drafter.draft([1, 2], 8, 3)) == 1, "nothing is known before the first pass"
    backend = ArithmeticBackend(spec())
    drafter.learn(backend.run("verify_2", np.array([1]), np.array([0]), np.ones((1, 1), np.bool_)), 0)
    assert [drafter.draft([1], 8, depth).depth for depth in (1, 2)] == [1, 2]
    assert len(drafter.draft([1], 3, 2)) == 3
    drafter.reset()
    assert len(drafter.draft([1], 8, 3)) == 1
