"""The graphs in eager mode: which nodes survive and in which order, who carries streams, and the deferred schedule.

Run: python -m pytest tests/export/test_export_graphs.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from export_samples import TEXT, config_for, decode_rows, prefill, tiny_model, verify_rows

from streamfuse.export import facts
from streamfuse.export.executorch import native
from streamfuse.export.graphs import build_methods
from streamfuse.export.pruning import SigmoidEdges, Survivors
from streamfuse.export.weights import Weights
from streamfuse.model.low_rank import SigmoidPruner
from streamfuse.model.streams import StreamFused
from streamfuse.model.transformer import RMSNorm
from streamfuse.runtime.backend import PassOutput
from streamfuse.runtime.backends.reference import ReferenceBackend
from streamfuse.runtime.reference.tree import Tree

TREE = Tree.of(
    tokens=[TEXT[10], 7, TEXT[11], 9, TEXT[12], 11, 12, 13, TEXT[13], 15], parents=[-1, 0, 0, 1, 2, 2, 4, 4, 4, 8]
)


@pytest.fixture(scope="module")
def model() -> StreamFused:
    torch.manual_seed(3)
    return tiny_model()


def backend(model: StreamFused, kernels: bool = True, **changes: Any) -> ReferenceBackend:
    config = config_for((Path(), Path()), Path("bundle"), **changes)
    weights = Weights(model, config.shapes, native.Form(config.grids) if kernels and config.grids else None).eval()
    return ReferenceBackend(build_methods(weights), facts.model_spec(model, config), [(2, 16)] * 3, num_lower=1)


def passed(engine: ReferenceBackend, method: str = "verify_12") -> PassOutput:
    prefill(engine, TEXT[:10])
    return engine.run(method, TREE.tokens, 10 + TREE.depths, TREE.ancestors(), True)


def expected_survivors(keep: int, edges: np.ndarray) -> tuple[list[int], list[int]]:
    """Rows by path score, and places among them by the probability of being last; edges [child, parent]."""
    path = np.zeros(len(TREE))
    for row, parent in enumerate(TREE.parents.tolist()[1:], start=1):
        path[row] = path[parent] + np.log(edges[row, parent])
    kept = np.argsort(-path + 1e-3 * TREE.depths, kind="stable")[:keep].tolist()
    last = {row: np.exp(path[row]) for row in kept}
    for row in kept[1:]:
        last[int(TREE.parents[row])] -= np.exp(path[row])
    return kept, [0, *sorted(range(1, keep), key=lambda place: -last[kept[place]])]


@pytest.mark.parametrize("keep", [4, 6, 10])
def test_survivors_are_the_best_paths_and_their_order_is_by_who_is_last(keep: int, model: StreamFused) -> None:
    torch.manual_seed(keep)
    rows, real = 12, len(TREE)
    pruner = cast("SigmoidPruner", model.pruner)
    norm = RMSNorm(64, 1e-5)
    with torch.no_grad():
        norm.weight.uniform_(0.5, 1.5)
        pruner.slope.fill_(0.4)
        pruner.offset.fill_(0.3)
    x, candidates = torch.randn(rows, 64), torch.randn(rows, 64) * 0.5
    ancestors = torch.zeros(rows, rows, dtype=torch.bool)
    ancestors[:real, :real] = torch.from_numpy(TREE.ancestors())
    edges_scored = SigmoidEdges(pruner, norm, rows)
    choose = Survivors(edges_scored, rows, keep, ordered=True, threshold=0.0)
    kept, named, seen, order = choose(x, candidates, ancestors)
    assert kept is not None
    assert order is not None
    z = candidates @ pruner.early_exit(norm(x)).T
    edges = torch.sigmoid(pruner.edge_logit(z) - 0.35 * torch.arange(rows)[:, None]).detach().numpy()
    rows_expected, order_expected = expected_survivors(keep, edges)
    assert kept.tolist() == rows_expected
    assert order.tolist() == order_expected
    assert torch.equal(seen, ancestors[kept][:, kept])
    choose.ordered = False
    unordered, _, _, no_order = choose(x, candidates, ancestors)
    assert unordered is not None
    assert torch.equal(unordered, kept)
    assert named is no_order is None


def softmax_model() -> StreamFused:
    torch.manual_seed(4)
    return tiny_model({"pruner_score": "softmax"})


def tree_states(model: StreamFused) -> torch.Tensor:
    """States [nodes, h] of TREE below the top layers, each node's from its own path alone."""
    states = []
    for row in range(len(TREE)):
        path = [i for i in range(len(TREE)) if TREE.ancestors()[row, i]]
        ids = torch.tensor([TEXT[:10] + TREE.tokens[path].tolist()])
        states.append(model.run_main(model.base.embed_tokens(ids), 0, model.num_lower_layers)[0, -1])
    return torch.stack(states)


@torch.no_grad()
def slow_probabilities(model: StreamFused) -> list[float]:
    """Of each node's edge from its parent, by the early exit's softmax over the vocabulary; the root's is 1."""
    states, found = tree_states(model), [1.0]
    for row, parent in enumerate(TREE.parents.tolist()[1:], start=1):
        logits = model.pruner.early_exit(model.base.norm(states[parent])) @ model.base.lm_head.weight.T
        found.append(float(torch.softmax(logits.double(), 0)[int(TREE.tokens[row])]))
    return found


def test_a_softmax_pruner_keeps_the_paths_that_the_early_exit_finds_probable() -> None:
    model = softmax_model()
    edges = np.tile(np.array(slow_probabilities(model))[:, None], len(TREE))
    kept = passed(backend(model, False, prune_keep={12: 6}, stream_nodes=6)).kept.tolist()
    assert kept == expected_survivors(6, edges)[0]


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("keep", [6, 11])
@pytest.mark.parametrize("carrying", [2, "all"])
def test_a_threshold_drops_an_improbable_edge_with_all_that_follows_it(
    keep: int, carrying: int | str, kernels: bool
) -> None:
    model = softmax_model()
    probable = slow_probabilities(model)
    for threshold in (sorted(probable)[2] * 1.1, sorted(probable)[6] * 1.1, 0.999):
        whole = set()
        for row, parent in enumerate(TREE.parents.tolist()):
            if parent < 0 or (parent in whole and probable[row] >= threshold):
                whole.add(row)
        out = passed(backend(model, kernels, prune_keep=keep, stream_nodes=carrying, prune_threshold=threshold))
        kept = out.kept.tolist()
        assert kept[0] == 0
        assert set(kept) <= whole
        assert len(kept) == min(keep, len(whole))
        assert all(int(TREE.parents[row]) in kept for row in kept[1:])
        unpruned = passed(backend(model, kernels, prune_keep=12, stream_nodes="all"))
        assert out.logits is not None
        assert unpruned.logits is not None
        places = [unpruned.kept.tolist().index(row) for row in kept]
        np.testing.assert_allclose(out.logits, unpruned.logits[places], atol=1e-4)
        carriers = min(len(kept), len(out.stream_ids))
        assert carriers == min(len(kept), 2 if carrying == 2 else keep)
        assert np.array_equal(out.stream_ids[:carriers], unpruned.stream_ids[places[:carriers]])


def test_a_threshold_of_nothing_keeps_every_node() -> None:
    model = softmax_model()
    assert sorted(passed(backend(model, prune_keep=11, prune_threshold=1e-30)).kept) == list(range(len(TREE)))
    assert passed(backend(model, prune_keep=12, stream_nodes=12)).kept.tolist() == list(range(len(TREE)))


def test_padding_survives_last(model: StreamFused) -> None:
    engine = backend(model, prune_keep={12: 12}, stream_nodes=12)
    out = passed(engine)
    assert sorted(out.kept.tolist()) == list(range(len(TREE)))
    tight = passed(backend(model, prune_keep={12: 11}, stream_nodes=5))
    assert sorted(tight.kept.tolist()) == list(range(len(TREE)))
    assert tight.kept[0] == 0
    assert tight.stream_ids.shape == (5, 3, 5)


@pytest.mark.parametrize("kernels", [True, False])
def test_fewer_carriers_change_the_order_and_nothing_else(model: StreamFused, kernels: bool) -> None:
    every = passed(backend(model, kernels, stream_nodes=6))
    some = passed(backend(model, kernels, stream_nodes=3))
    assert every.logits is not None
    assert some.logits is not None
    assert (len(every.stream_ids), len(some.stream_ids)) == (6, 3)
    assert set(every.kept.tolist()) == set(some.kept.tolist())
    place = {row: i for i, row in enumerate(every.kept.tolist())}
    for i, row in enumerate(some.kept.tolist()):
        np.testing.assert_allclose(some.logits[i], every.logits[place[row]], atol=1e-4)
        assert some.best[i] == some.logits[i].argmax()
    for i, row in enumerate(some.kept.tolist()[:3]):
        assert np.array_equal(some.stream_ids[i], every.stream_ids[place[row]])
        np.testing.assert_allclose(some.stream_log_probs[i], every.stream_log_probs[place[row]], atol=1e-4)


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("row", [0, 2, 4])
def test_deferred_streams_are_those_of_the_verifying_pass(model: StreamFused, kernels: bool, row: int) -> None:
    fused = passed(backend(model, kernels, stream_nodes=12, prune_keep=12))
    engine = backend(model, kernels, schedule="deferred", prune_keep=12)
    out = passed(engine)
    assert out.stream_ids.size == 0
    engine.commit([i for i in range(row + 1) if TREE.ancestors()[row, i]])
    found = engine.streams(out.kept.tolist().index(row), 0)
    place = fused.kept.tolist().index(row)
    assert np.array_equal(found.stream_ids[0], fused.stream_ids[place])
    np.testing.assert_allclose(found.stream_log_probs[0], fused.stream_log_probs[place], atol=1e-4)


def test_both_schedules_live_in_one_set_of_methods(model: StreamFused) -> None:
    engine = backend(model, schedule="both")
    out = passed(engine)
    assert len(out.stream_ids) == 3
    engine.commit([0])
    assert np.array_equal(engine.streams(0, 0).stream_ids[0], out.stream_ids[0])
    prefill(engine, TEXT[:10])
    engine.run("decode", np.array(TEXT[10:11]), np.array([10]), np.ones((1, 1), np.bool_))
    engine.commit([0])
    assert np.array_equal(engine.streams(0, 0).stream_ids[0], out.stream_ids[0])


def test_packed_weights_cost_what_rounding_activations_costs(model: StreamFused) -> None:
    exact = decode_rows(backend(model, kernels=False), TEXT[:16])
    packed = decode_rows(backend(model), TEXT[:16])
    assert 10 * np.log10((exact**2).sum() / ((packed - exact) ** 2).sum()) > 25
    np.testing.assert_allclose(verify_rows(backend(model), "verify_12", TEXT[:16])[:16], packed, atol=1e-3)


@pytest.mark.parametrize(
    "changes", [{"num_msa_layers": 3}, {"value_rotation": 0.02}, {"eta_rank": 2}, {"adapter_rank": 0}]
)
def test_every_kind_of_stream_has_graphs(changes: dict[str, Any]) -> None:
    """Streams in all layers, rotated values instead of names, a map at the insertion, no adapters."""
    torch.manual_seed(5)
    other = tiny_model(changes)
    config = config_for((Path(), Path()), Path("bundle"), schedule="both")
    assert config.grids is not None
    outputs = []
    for form in (native.Form(config.grids), None):
        weights = Weights(other, config.shapes, form).eval()
        spec = facts.model_spec(other, config)
        lower = other.num_lower_layers
        outputs.append(passed(ReferenceBackend(build_methods(weights), spec, [(2, 16)] * 3, lower)))
    packed, exact = outputs
    shared = [row for row in packed.kept.tolist() if row in exact.kept.tolist()]
    assert shared[0] == 0
    assert packed.logits is not None
    assert exact.logits is not None
    difference = packed.logits[0] - exact.logits[0]
    assert 10 * np.log10((exact.logits[0] ** 2).sum() / (difference**2).sum()) > 20
    np.testing.assert_allclose(packed.stream_log_probs[0][:, 0], exact.stream_log_probs[0][:, 0], atol=0.5)
