"""Drafters of other methods on a tiny exported bundle: a model for another, a model for itself, and when chains end.

Run: python -m pytest tests/research/test_drafters.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from export_samples import TEXT, config_for, tiny_model, write_checkpoint
from typer.testing import CliRunner

from streamfuse.cli import app
from streamfuse.export.pipeline import run_export
from streamfuse.export.preview import preview
from streamfuse.model.checkpoint import load_base
from streamfuse.model.config import CheckpointError, ModelConfig
from streamfuse.model.streams import StreamFused
from streamfuse.options import OptionError
from streamfuse.research import layer_skip
from streamfuse.research.acceptors import CertainAcceptor, Match, NamedAcceptor, SequoiaAcceptor, SpecTrAcceptor
from streamfuse.research.acceptors import SpeculativeAcceptor as Speculative
from streamfuse.research.drafters.chain import AdaptiveExit, ChainDrafter
from streamfuse.research.drafters.drawn import DrawnTreeDrafter, SequencesDrafter
from streamfuse.research.drafters.model import DraftModel, SelfModel
from streamfuse.research.drafters.tree import TreeDrafter
from streamfuse.research.first_layers import write_first_layers
from streamfuse.research.layer_skip import agreement, cost_of, expected_speedup, read
from streamfuse.research.proposal import How, ProposedTree
from streamfuse.research.self_draft import checked, leaving_out
from streamfuse.runtime.backends.executorch import ExecuTorchBackend, ExecuTorchProgram
from streamfuse.runtime.config import GenerationConfig, SamplingConfig
from streamfuse.runtime.reference.draft import Drafter
from streamfuse.runtime.reference.loop import Loop
from streamfuse.runtime.reference.tree import Tree

SKIP = ("attention.1", "mlp.2")
TOKENS = 24


@pytest.fixture(scope="module")
def model() -> StreamFused:
    torch.manual_seed(3)
    return tiny_model()


@pytest.fixture(scope="module")
def checkpoint(model: StreamFused, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("model"), model)[0]


@pytest.fixture(scope="module")
def program(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> ExecuTorchProgram:
    folder = tmp_path_factory.mktemp("bundle") / "bundle"
    none = {"prune_keep": "auto", "stream_nodes": "auto", "schedule": "deferred", "top_k": 32}
    config = config_for(
        (checkpoint, None), folder, widths=(4, 8), default_width=8, extra_methods=leaving_out(SKIP), **none
    )  # type: ignore[arg-type]
    run_export(config)
    return ExecuTorchProgram(folder, num_threads=1)


@pytest.fixture
def backend(program: ExecuTorchProgram) -> Iterator[ExecuTorchBackend]:
    with ExecuTorchBackend(program) as one:
        yield one


def written(backend: ExecuTorchBackend, drafter: Drafter, acceptor: NamedAcceptor, temperature: float) -> Loop:
    sampling = SamplingConfig(temperature=temperature, seed=5)
    config = GenerationConfig(TOKENS, sampling=sampling, width=8, ignore_eos=True)
    loop = Loop(backend, list(TEXT[:9]), config, drafter, acceptor)
    list(loop.run())
    return loop


def plain(backend: ExecuTorchBackend, temperature: float) -> list[int]:
    sampling = SamplingConfig(temperature=temperature, seed=5)
    loop = Loop(
        backend, list(TEXT[:9]), GenerationConfig(TOKENS, sampling=sampling, speculative=False, ignore_eos=True)
    )
    list(loop.run())
    backend.truncate(0)
    return loop.tokens


@torch.no_grad()
def test_the_method_draft_is_the_model_without_the_sub_layers_left_out(
    backend: ExecuTorchBackend, model: StreamFused
) -> None:
    rows = []
    for i, token in enumerate(TEXT[:30]):
        out = backend.run("draft", np.array([token]), np.array([i]), np.ones((1, 1), np.bool_), True)
        assert out.logits is not None
        rows.append(out.logits[0])
        backend.commit([0])
    x = model.base.embed_tokens(torch.tensor([TEXT[:30]]))
    ((cos, sin),) = model.base.rotary(torch.arange(30))
    for i, block in enumerate(model.base.blocks):
        if i != 1:
            q, k, v = block.qkv(x, cos, sin)
            seen = torch.nn.functional.scaled_dot_product_attention(
                *(t.transpose(1, 2) for t in (q, k, v)), is_causal=True, enable_gqa=True
            )
            x = x + block.self_attn.o_proj(seen.transpose(1, 2).flatten(2))
        x = x if i == 2 else block.feed_forward(x)
    expected = model.base.lm_head(model.base.norm(x))[0].numpy()
    noise = ((np.stack(rows) - expected) ** 2).sum() / ((expected - expected.mean(1, keepdims=True)) ** 2).sum()
    assert noise < 0.01  # activations are rounded to eight bits


def test_what_the_manifest_does_not_name_the_runtime_does_not_know(backend: ExecuTorchBackend) -> None:
    assert "draft" in backend.description["methods"]
    assert set(backend.spec.widths) == {"verify_4", "verify_8"}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_that_drafts_for_itself_changes_no_text(backend: ExecuTorchBackend, temperature: float) -> None:
    expected = plain(backend, temperature)
    itself = SelfModel(backend)
    loop = written(backend, ChainDrafter(itself, SamplingConfig(temperature=temperature, seed=5)), Match(), temperature)
    assert loop.tokens == expected
    assert itself.passes["itself: draft"] == loop.counts.draft_tokens_proposed > 0
    assert backend.length == len(loop.tokens) - 1


def test_the_target_as_its_own_draft_model_is_always_right(
    backend: ExecuTorchBackend, program: ExecuTorchProgram
) -> None:
    expected = plain(backend, 0.0)
    with ExecuTorchBackend(program) as other:
        draft = DraftModel(other)
        chain = written(backend, ChainDrafter(draft, length=4), Match(), 0.0)
        assert chain.tokens == expected
        assert chain.counts.draft_tokens_accepted == chain.counts.draft_tokens_proposed
        backend.truncate(0)
        tree = written(backend, TreeDrafter(draft, depth=3, per_layer=2), Match(), 0.0)
        assert tree.tokens == expected
        assert tree.counts.mean_accepted_tokens > 3  # three levels hold the text wherever they fit


@pytest.mark.parametrize("acceptor", [Speculative(), SpecTrAcceptor(), SequoiaAcceptor(), CertainAcceptor()])
def test_drawn_drafts_of_the_same_distribution_are_accepted(
    acceptor: NamedAcceptor, backend: ExecuTorchBackend, program: ExecuTorchProgram
) -> None:
    sampling = SamplingConfig(temperature=1.0, seed=5)
    with ExecuTorchBackend(program) as other:
        draft = DraftModel(other)
        drafter: Drafter = ChainDrafter(draft, sampling, length=3)
        if not isinstance(acceptor, Speculative):
            how = How.WITHOUT_REPLACEMENT if isinstance(acceptor, SequoiaAcceptor) else How.INDEPENDENT
            drafter = DrawnTreeDrafter(draft, sampling, how, (2, 1))
        if isinstance(acceptor, CertainAcceptor):
            drafter = TreeDrafter(draft, sampling, depth=2, per_layer=2)
        loop = written(backend, drafter, acceptor, 1.0)
        backend.truncate(0)
        again = written(backend, drafter, acceptor, 1.0)
    assert loop.tokens == again.tokens
    if isinstance(acceptor, Speculative):  # p is q, so min(1, p / q) is 1
        assert loop.counts.draft_tokens_accepted == loop.counts.draft_tokens_proposed
    assert loop.counts.generated_tokens == TOKENS


def test_a_tree_of_draws_that_the_draft_model_has_no_room_for_is_refused(backend: ExecuTorchBackend) -> None:
    with pytest.raises(ValueError, match="reads 8 nodes per pass, but this tree has 21 inner nodes"):
        DrawnTreeDrafter(DraftModel(backend), SamplingConfig(temperature=1.0), How.INDEPENDENT, (4, 4, 4))
    with pytest.raises(ValueError, match="reads 8 nodes per pass, but this tree has 9 inner nodes"):
        SequencesDrafter(DraftModel(backend), SamplingConfig(temperature=1.0), count=4, length=3)


def draws_by_depth(tree: Tree) -> list[int]:
    assert isinstance(tree, ProposedTree)
    found = [0] * int(tree.depths.max() + 1)
    for row, proposal in tree.proposals.items():
        found[tree.depths[row]] += len(proposal.draws)
    return found


def test_each_node_of_a_drawn_tree_is_extended_not_only_the_first_one(backend: ExecuTorchBackend) -> None:
    sampling = SamplingConfig(temperature=1.0, seed=5)
    tree = DrawnTreeDrafter(DraftModel(backend), sampling, How.WITHOUT_REPLACEMENT, (2, 2)).draft(TEXT[:9], 8, 9)
    assert tree.depths.tolist() == [0, 1, 1, 2, 2, 2, 2]
    assert tree.parents.tolist() == [-1, 0, 0, 1, 1, 2, 2]


def test_sequences_are_drawn_whole_and_share_the_nodes_of_what_begins_alike(backend: ExecuTorchBackend) -> None:
    shared = 0
    for seed in range(12):
        sampling = SamplingConfig(temperature=0.2, seed=seed)
        tree = SequencesDrafter(DraftModel(backend), sampling, count=2, length=3).draft(TEXT[:9], 8, 9)
        drawn = draws_by_depth(tree)[:3]
        assert drawn == [2, 2, 2]  # two sequences, whatever they have in common
        shared += len(tree) < 7
        for row, proposal in tree.proposals.items():  # type: ignore[attr-defined]
            if row > 0:
                reaching = tree.proposals[tree.parents[row]].draws.count(tree.tokens[row])  # type: ignore[attr-defined]
                assert len(proposal.draws) == reaching
    assert shared > 0


def test_an_adaptive_exit_moves_its_threshold_as_the_authors_do() -> None:
    rule = AdaptiveExit()
    assert rule.ends(0.79)
    assert not rule.ends(0.81)
    rule.learn(4, 2, whole=False)  # share 0.5 * 1 + 0.5 * 0.5 = 0.75, too low: 0.9 * 0.8 + 0.1 * 0.81
    assert rule.threshold == pytest.approx(0.801)
    rule.share = 1.0
    rule.learn(4, 4, whole=False)  # high enough, and a longer chain was possible: 0.9 * 0.801 + 0.1 * 0.791
    assert rule.threshold == pytest.approx(0.8)
    rule.learn(7, 7, whole=True)  # as long as it may be: nothing to gain below
    assert rule.threshold == pytest.approx(0.8)


def test_the_rule_of_a_chain_knows_whether_it_was_as_long_as_the_pass_allows(backend: ExecuTorchBackend) -> None:
    learned: list[tuple[int, bool]] = []

    class Watched(AdaptiveExit):
        def ends(self, probability: float) -> bool:
            return len(learned) == 1  # the second chain ends after its first token

        def learn(self, drafted: int, accepted: int, whole: bool) -> None:
            learned.append((drafted, whole))

    drafter = ChainDrafter(DraftModel(backend), exit_=Watched())
    for length in (5, 6, 7):
        drafter.draft(TEXT[:length], 8, 16)
    assert learned == [(7, True), (1, False)]


def test_layers_left_out_cost_their_share_and_agree_less(checkpoint: Path, model: StreamFused) -> None:
    base, config = load_base(checkpoint), model.base.config
    texts = [(list(TEXT), 5)]
    whole = [f"{kind}.{i}" for i in range(config.num_layers) for kind in ("attention", "mlp")]
    head = 2 * config.vocab_size * config.hidden_size
    layers = 3 * (64 * (2 * 64 + 2 * 32) + 3 * 64 * 96)
    assert cost_of(config, whole) == pytest.approx(head / (head + layers))
    assert cost_of(config, []) == 1
    chosen = base(torch.tensor([TEXT[:-1]]))[0, 4:].argmax(-1)
    assert agreement(base, read(base, texts), []) == float((chosen == torch.tensor(TEXT[5:])).float().mean())


@torch.no_grad()
def test_a_shorter_model_is_searched_for_over_the_whole_models_cache(model: StreamFused) -> None:
    base, skip = model.base, ("attention.0", "mlp.1")
    caches = read(base, [(list(TEXT), 5)])[0].caches
    for end in range(5, len(TEXT)):
        x = base.embed_tokens(torch.tensor([[TEXT[end - 1]]]))  # the pass of a first draft, as the engine runs it
        ((cos, sin),) = base.rotary(torch.arange(end - 1, end))
        for i, (block, (keys, values)) in enumerate(zip(base.blocks, caches, strict=True)):
            if f"attention.{i}" not in skip:
                q, k, v = block.qkv(x, cos, sin)
                k, v = torch.cat([keys[:, : end - 1], k], 1), torch.cat([values[:, : end - 1], v], 1)
                seen = torch.nn.functional.scaled_dot_product_attention(
                    *(t.transpose(1, 2) for t in (q, k, v)), enable_gqa=True
                )
                x = x + block.self_attn.o_proj(seen.transpose(1, 2).flatten(2))
            x = x if f"mlp.{i}" in skip else block.feed_forward(x)
        drafted = int(base.lm_head(base.norm(x))[0, -1].argmax())
        assert agreement(base, read(base, [([*TEXT[:end], drafted], end)]), skip) == 1


def test_expected_speedup_is_leviathans_for_the_best_length() -> None:
    assert expected_speedup(0.8, 0.1, 1.0, longest=1) == pytest.approx(1.8 / 1.1)
    by_length = [(1 - 0.8 ** (g + 1)) / (0.2 * (g * 0.1 + 1)) for g in range(1, 9)]
    assert expected_speedup(0.8, 0.1, 1.0) == pytest.approx(max(by_length))


def test_a_search_for_sub_layers_writes_its_choice_and_goes_on_where_it_stopped(
    checkpoint: Path, model: StreamFused, tmp_path: Path
) -> None:
    data, out = tmp_path / "answers.jsonl", tmp_path / "found" / "self.json"
    row = {"id": 0, "source": "test", "prompt": "", "input_ids": TEXT[:5], "completion_ids": TEXT[5:]}
    data.write_text(json.dumps(row) + "\n")
    words = ["research", "layer-skip", str(out), "--model", str(checkpoint), "--data", str(data), "--verify", "1.5"]
    assert CliRunner().invoke(app, [*words, "--trials", "4"]).exit_code == 0
    first = json.loads(out.read_text())
    assert set(first["skip"]) < {f"{kind}.{i}" for i in range(3) for kind in ("attention", "mlp")}
    contexts = read(model.base, [(list(TEXT), 5)])
    assert first["agreement"] == pytest.approx(agreement(model.base, contexts, first["skip"]), abs=1e-4)
    expected = expected_speedup(first["agreement"], first["cost"], verify=1.5)
    assert first["speedup"] == pytest.approx(expected, abs=1e-3)
    assert (first["model"], first["trials"], first["answers"], first["seed"]) == (str(checkpoint), 4, 16, 0)

    seen: list[int] = []
    base, texts = load_base(checkpoint), [(list(TEXT), 5)]
    journal = tmp_path / "found" / "self.json.journal"
    again = layer_skip.search(base, texts, 7, 1.5, journal=journal, progress=lambda done, best: seen.append(done))
    assert seen == [4, 5, 6, 7]
    assert again.speedup >= first["speedup"] - 1e-4
    assert [path.name for path in out.parent.iterdir() if path.suffix == ".tmp"] == []

    for more, sentence in (
        (["--trials", "0"], "--trials must be at least 1, not 0"),
        (["--data", str(tmp_path / "none.jsonl")], "none.jsonl: no such file"),
    ):
        assert sentence in CliRunner().invoke(app, [*words, *more]).stderr


def test_the_first_layers_are_a_checkpoint_of_their_own(checkpoint: Path, model: StreamFused, tmp_path: Path) -> None:
    write_first_layers(checkpoint, 2, tmp_path / "small")
    small = load_base(tmp_path / "small")
    assert small.config.num_layers == 2
    for name, parameter in small.named_parameters():
        torch.testing.assert_close(parameter, dict(model.base.named_parameters())[name], rtol=0, atol=0)
    with pytest.raises(CheckpointError, match="has 3 layers; a draft model has from 1 to one less, not 3"):
        write_first_layers(checkpoint, 3, tmp_path / "other")
    write_first_layers(checkpoint, 1, tmp_path / "small")
    assert ModelConfig.load(tmp_path / "small").num_layers == 1, "a draft model may be written again"
    with pytest.raises(CheckpointError, match="exists and was not written by this command"):
        write_first_layers(checkpoint, 2, checkpoint)
    assert ModelConfig.load(checkpoint).num_layers == 3
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["attention.9"], "must name sub-layers from attention.0 to mlp.2, not attention.9"),
        ([f"{kind}.{i}" for kind in ("attention", "mlp") for i in range(3)], "must leave at least one sub-layer"),
    ],
    ids=["unknown", "all"],
)
def test_sub_layers_that_cannot_be_left_out_are_refused(names: list[str], message: str) -> None:
    with pytest.raises(OptionError) as error:
        checked(names, 3)
    assert f"--leave-out {message}" in error.value.flags


def test_a_method_of_ones_own_goes_with_the_kernels_alone(checkpoint: Path, tmp_path: Path) -> None:
    own = {"widths": (4,), "default_width": 4, "backend": "xnnpack", "extra_methods": leaving_out(SKIP)}
    none = {"prune_keep": "auto", "stream_nodes": "auto", "schedule": "deferred", "top_k": 32}
    with pytest.raises(OptionError) as error:
        preview(config_for((checkpoint, None), tmp_path / "b", **own, **none))
    assert str(error.value).startswith("extra_methods goes with backend kernels")
