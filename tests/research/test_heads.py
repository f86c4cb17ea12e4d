"""Heads of other methods: what they compute, how they are trained, and their bundles on our engine and in the core.

Run: python -m pytest tests/research/test_heads.py
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from export_samples import TEXT, config_for, decode_rows, tiny_model, verify_rows, write_checkpoint
from torch.nn import functional as F
from typer.testing import CliRunner

from streamfuse.bundle import open_bundle
from streamfuse.cli import app
from streamfuse.engines import engines_of
from streamfuse.export.pipeline import run_export
from streamfuse.export.preview import preview
from streamfuse.model.checkpoint import load_stream_fused, read_adapter
from streamfuse.model.config import HEADS, StreamConfig
from streamfuse.model.streams import StreamFused
from streamfuse.options import OptionError
from streamfuse.research import files
from streamfuse.research.heads import BLOCKWISE, MEDUSA
from streamfuse.runtime.config import GenerationConfig
from streamfuse.runtime.session import Session
from streamfuse.train.config import TrainConfig
from streamfuse.train.data import Example
from streamfuse.train.evaluate import proposals
from streamfuse.train.objective import NGramObjective
from streamfuse.train.recipe import load, stages

NONE = {"num_msa_layers": 0, "adapter_rank": 0, "pruner_rank": 0, "parent_rank": 0, "num_streams": 3}
KINDS: dict[str, dict[str, Any]] = {
    "medusa": {**NONE, "heads": "medusa", "head_size": 4},
    "medusa, shared rows": {**NONE, "heads": "medusa", "head_size": 0},
    "blockwise": {**NONE, "heads": "blockwise", "head_size": 32},
}


def with_heads(kind: str) -> StreamFused:
    """A tiny model whose heads say something of their own."""
    torch.manual_seed(5)
    model = tiny_model(KINDS[kind])
    with torch.no_grad():
        for parameter in model.heads.parameters():
            parameter.normal_(std=0.3)
    return model


def expected_logits(model: StreamFused, hidden: torch.Tensor, j: int) -> torch.Tensor:
    """The formulas of the papers, one state and one head at a time."""
    heads, normed = model.heads, model.base.norm(hidden)
    hidden = hidden / hidden.pow(2).mean().sqrt()
    rows = model.base.lm_head.weight[model.stream_vocab]
    if model.streams_config.heads == "medusa":
        row = hidden + F.silu(heads.weight[j] @ normed + heads.bias[j])
        rows = rows + heads.up[j] @ heads.down[j]
    else:
        row = hidden + heads.outer[j] @ F.relu(heads.inner[j] @ normed + heads.inner_bias[j]) + heads.outer_bias[j]
    return rows @ model.base.norm(row)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_heads_are_the_formulas_of_their_papers(kind: str) -> None:
    model = with_heads(kind)
    frozen = model.frozen_states(torch.tensor([TEXT[:12]]))
    states = model.stream_states(frozen, torch.tensor([[3, 7]]))
    stream = torch.arange(3).repeat(2)
    logits = model.stream_logits(states.streams[0].flatten(0, 1), stream).view(2, 3, -1)
    for p, place in enumerate((3, 7)):
        for j in range(3):
            torch.testing.assert_close(logits[p, j], expected_logits(model, frozen[0, place], j), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["medusa", "blockwise"])
@torch.no_grad()
def test_new_heads_say_what_the_base_says_of_the_next_token(kind: str) -> None:
    torch.manual_seed(5)
    model = StreamFused(tiny_model().base, StreamConfig(**KINDS[kind]))
    frozen = model.frozen_states(torch.tensor([TEXT[:12]]))
    states = model.stream_states(frozen, torch.tensor([[7]]))
    logits = model.stream_logits(states.streams[0, 0], torch.arange(3))
    torch.testing.assert_close(logits, model.base.lm_head(states.main[0, 7:8]).expand(3, -1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_training_moves_heads_alone_and_brings_them_nearer_to_the_text(kind: str) -> None:
    torch.manual_seed(5)
    model = StreamFused(tiny_model().base, StreamConfig(**KINDS[kind]), torch.tensor(sorted(set(TEXT))))
    objective = NGramObjective(model)
    parameters = [p for p in model.extra_parameters() if p.requires_grad]
    assert {id(p) for p in parameters} == {id(p) for p in model.heads.parameters()}
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    ids = torch.tensor(TEXT)
    at = torch.arange(len(ids) - 1)
    losses = []
    for _ in range(30):
        out = objective(ids, model.frozen_states(ids[None])[0], at, len(ids) - 1 - at, [(len(ids), len(at))])
        losses.append(float(out["loss"].detach()))
        optimizer.zero_grad()
        out["loss"].backward()
        optimizer.step()
    assert losses[-1] < 0.5 * losses[0]


BY_DEFAULT = ("deferred", "blockwise"), ("both", "medusa")
BUNDLES = [
    pytest.param(kind, schedule, marks=[] if (schedule, kind) in BY_DEFAULT else pytest.mark.full)
    for kind in KINDS
    for schedule in ("fused", "deferred", "both")
]


@pytest.mark.parametrize(("kind", "schedule"), BUNDLES)
def test_a_bundle_with_heads_drafts_what_the_model_drafts_and_changes_no_text(
    kind: str, schedule: str, tmp_path: Path
) -> None:
    model = with_heads(kind)
    (tmp_path / "model").mkdir()
    checkpoint = write_checkpoint(tmp_path / "model", model)
    model = load_stream_fused(model.base, checkpoint[1])
    own = {"widths": (4, 8), "default_width": 8, "prune_keep": 8, "schedule": schedule}
    nodes = {} if schedule == "deferred" else {"stream_nodes": "all"}
    plan = config_for(checkpoint, tmp_path / "bundle", **own, **nodes)
    run_export(plan)
    bundle = open_bundle(plan.output_dir)
    sizes = preview(config_for(checkpoint, tmp_path / "other", **own, **nodes)).parts
    assert bundle.manifest.speculation.extra_parameters == sum(p.numel() for p in model.heads.parameters())
    stored = sizes["streams"].parameters - len(model.stream_vocab) * model.base.config.hidden_size
    assert stored == bundle.manifest.speculation.extra_parameters
    make = engines_of(bundle, 1)
    with make() as backend:
        plain = decode_rows(backend, TEXT)
        np.testing.assert_array_equal(verify_rows(backend, "verify_8", TEXT)[: len(plain)], plain)
        backend.truncate(0)
        output = backend.run("verify_4", np.array(TEXT[:1]), np.array([0]), np.ones((1, 1), np.bool_))
        backend.commit([0])
        output_of_streams = backend.streams(0, 0) if backend.spec.deferred else output
    (found,) = proposals(model, [Example(TEXT[:2], 1)], 5)
    same = [
        len({*a} & {*b})
        for a, b in zip(output_of_streams.stream_ids[0].tolist(), found.stream_ids[0].tolist(), strict=True)
    ]
    assert min(same) >= 3, "the graph proposes other tokens than the model"
    with Session(make(), bundle.tables) as session:
        texts = []
        for speculative in (False, True):
            config = GenerationConfig(24, speculative=speculative, width=8 if speculative else None, ignore_eos=True)
            generation = session.generate(TEXT[:9], config)
            generation.finish()
            texts.append(generation.token_ids)
    assert texts[0] == texts[1]


def test_heads_go_with_the_kernels_alone(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path, with_heads("medusa"))
    with pytest.raises(OptionError, match="medusa heads go with backend kernels"):
        preview(config_for(checkpoint, tmp_path / "bundle", backend="xnnpack", prune_keep=12, stream_nodes="all"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": "eagle"}, "heads must be one of medusa, blockwise"),
        ({"num_msa_layers": 2}, "num_msa_layers must be 0 with heads"),
        ({"pruner_rank": 4}, "pruner_rank must be 0 with heads"),
        ({"heads": "blockwise", "head_size": 0}, "head_size of blockwise heads cannot be 0"),
    ],
)
def test_settings_that_heads_cannot_have_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StreamConfig(**{**KINDS["medusa"], **changes})


@pytest.mark.parametrize("name", files.recipes())
def test_recipes_of_heads_are_well_formed(name: str, tmp_path: Path) -> None:
    last = stages(load(files.recipe(name)), tmp_path, tmp_path, tmp_path, tmp_path / "a.safetensors")[-1]
    assert isinstance(last, TrainConfig)
    assert (last.mode, last.task) == ("lossless", "chat")
    assert name == f"chat-{last.streams.heads}"


@pytest.mark.parametrize("name", [MEDUSA, BLOCKWISE])
def test_the_counted_sizes_are_those_of_the_heads(name: str) -> None:
    config = read_adapter(files.adapter(name))[0]
    made = HEADS[name](96, config.num_streams, 512, config.head_size)
    assert made.count(96, config.num_streams, 512, config.head_size)[0] == sum(p.numel() for p in made.parameters())


def test_commands_of_heads_refuse_in_one_line(tmp_path: Path) -> None:
    for words, sentence in (
        (["train-heads", "chat-eagle", "-o", str(tmp_path)], "not one of chat-blockwise, chat-medusa"),
        (["export", str(tmp_path / "new")], "give --adapter or --leave-out, and not both"),
    ):
        done = CliRunner().invoke(app, ["research", *words])
        assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
        assert sentence in done.stderr


def test_the_product_alone_knows_no_heads() -> None:
    code = (
        "import sys; from streamfuse.model.config import StreamConfig\n"
        "assert not any(name.startswith('streamfuse.research') for name in sys.modules)\n"
        "try: StreamConfig(heads='medusa', num_msa_layers=0)\n"
        "except ValueError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "heads must be empty for streams, not 'medusa'" in done.stdout
    assert "need `streamfuse research`" in done.stdout
