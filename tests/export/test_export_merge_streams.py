"""A `streams` pass with matrices of its own: the low-rank products of stream rows merged, and the base's untouched.

Run: python -m pytest tests/export/test_export_merge_streams.py
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from export_samples import (
    STREAM_VOCAB,
    STREAMS,
    TEXT,
    Logits,
    config_for,
    decode_rows,
    prefill,
    tiny_model,
    verify_rows,
    write_checkpoint,
)
from tiny import fused

from streamfuse.bench.shared.work import work_of
from streamfuse.bundle import Bundle, open_bundle
from streamfuse.engines import engines_of
from streamfuse.export import reference
from streamfuse.export.config import GraphShapes
from streamfuse.export.executorch.native import Adapter
from streamfuse.export.executorch.native import Form as Kernels
from streamfuse.export.graphs import Weights, build_methods, example_inputs
from streamfuse.export.pipeline import Report, run_export
from streamfuse.export.preview import preview
from streamfuse.export.schemes import Schemes
from streamfuse.model.checkpoint import load_base, save_adapter
from streamfuse.model.config import CheckpointError
from streamfuse.options import OptionError

DEFERRED: dict[str, Any] = {"schedule": "deferred"}
# An export compares a text with PyTorch by its widest pass that prunes nothing, or else token by token.
ONE_WIDTH: dict[str, Any] = {**DEFERRED, "widths": (12,), "prune_keep": 12}
RANKS = {"small": {"adapter_rank": 2}, "large": {"adapter_rank": 48}}
KINDS: dict[str, dict[str, int]] = {**RANKS, "tuned": {"adapter_rank": 48, "base_rank": 2, "base_layers": 1}}
LAYERS = {"num_hidden_layers": 2}  # sooner exported; modules of three are compared without an export
GRAPHS = 60_000  # at most, of a model's methods without their weights
DIFFERENCE = 6000  # at most, of those of two such graphs

Checkpoint = tuple[Path, Path]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Checkpoint]:
    """One base with an adapter of each of KINDS."""
    torch.manual_seed(0)
    folder, model = tmp_path_factory.mktemp("checkpoint"), tiny_model(**LAYERS)
    folder, _ = write_checkpoint(folder, model, **LAYERS)
    found = {}
    for name, settings in KINDS.items():
        found[name] = (folder, folder / f"{name}.safetensors")
        save_adapter(fused(model.base, STREAM_VOCAB, **{**STREAMS, **settings}), found[name][1], {})
    return found


class Form(reference.Form):
    """PyTorch's float32, with merged streams."""

    merges_streams = True


@torch.inference_mode()
@pytest.mark.parametrize("settings", KINDS.values(), ids=KINDS)
def test_merged_streams_are_the_same_function(settings: dict[str, int]) -> None:
    torch.manual_seed(0)
    model = tiny_model(settings)
    shapes = GraphShapes(64, 8, ((4, 4),), 5, (0,), deferred=True)
    beside, merged = (Weights(model, shapes, form).eval() for form in (reference.Form(), Form()))
    for name, method in build_methods(beside).items():
        inputs = [x + 0.1 if x.dtype == torch.float32 else x for x in example_inputs(beside, method)]
        for a, b in zip(method(*inputs), build_methods(merged)[name](*inputs), strict=True):
            if name != "streams":
                assert torch.equal(a, b)
            elif a.dtype == torch.float32:
                torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
    with pytest.raises(ValueError, match="need a separate pass"):
        build_methods(Weights(model, GraphShapes(64, 8, ((4, 4),), 5, (4,), deferred=True), Form()))


def test_streams_are_merged_if_that_makes_them_smaller(tmp_path: Path) -> None:
    found = {}
    for rank in (8, 20, 32):  # the low-rank products grow with it, the matrices do not
        checkpoint = write_checkpoint(tmp_path / str(rank), tiny_model({"adapter_rank": rank}))
        for more in ({}, {"adapter_dtype": "int8"}, {"quantize": "q8_0"}, {"scheme": {"mlp": "q8_0"}}):
            off, on, auto = (
                config_for(checkpoint, tmp_path / "none", **DEFERRED, **more, merge_streams=choice)
                for choice in ("off", "on", "auto")
            )
            parts = {choice: preview(config).parts for choice, config in (("off", off), ("on", on), ("auto", auto))}
            smaller = parts["on"]["streams"].bytes < parts["off"]["streams"].bytes
            assert auto.merges_streams is smaller, (rank, more)
            found[rank, str(more)] = smaller
            assert parts["auto"] == parts["on" if smaller else "off"]
    assert set(found.values()) == {True, False}


def test_a_tuned_base_counts_with_the_streams_products(tmp_path: Path) -> None:
    for base_rank, merged in ((2, False), (24, True)):
        settings = {"adapter_rank": 8, "base_rank": base_rank, "base_layers": 3}
        checkpoint = write_checkpoint(tmp_path / str(base_rank), tiny_model(settings))
        assert config_for(checkpoint, tmp_path / "none", **DEFERRED).merges_streams is merged
        assert not config_for(checkpoint, tmp_path / "none", **DEFERRED, quantize="q8_0").merges_streams


class Made:
    """Bundles of one base: `large` and `tuned` with merged streams, and with products beside the matrices."""

    def __init__(self, folder: Path, checkpoints: dict[str, Checkpoint]) -> None:
        self.folder, self.checkpoints = folder, checkpoints
        self.reports: dict[str, Report] = {}
        # One of BUNDLES, exported for the first test that asks.
        self.bundle = cache(lambda name: self.export(name, name.split("-")[0], **BUNDLES[name]))

    def export(self, name: str, adapter: str | None, **options: Any) -> Bundle:
        checkpoint = self.checkpoints[adapter or "large"][0], adapter and self.checkpoints[adapter][1]
        config = config_for(checkpoint, self.folder / name, **ONE_WIDTH, **options)  # type: ignore[arg-type]
        self.reports[name] = run_export(config)
        return open_bundle(config.output_dir)


BUNDLES: dict[str, dict[str, str]] = {"large": {}, "large-off": {"merge_streams": "off"}}
BUNDLES |= {"tuned": {}, "tuned-off": {"merge_streams": "off"}}
# By default the tuned one is compared with PyTorch, its own products counted, and its bits in a bundle of tasks.
MERGED = ["large", pytest.param("tuned", marks=pytest.mark.full)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, checkpoints: dict[str, Checkpoint]) -> Made:
    return Made(tmp_path_factory.mktemp("bundles"), checkpoints)


def passes(bundle: Bundle, chosen: Bundle) -> tuple[list[Logits], list[np.ndarray[Any, Any]]]:
    """Logits of plain decoding and of drafted trees, and the streams; with an engine of `chosen`."""
    backend = engines_of(bundle, 1)(chosen)
    prefill(backend, TEXT[:10])
    rows = [decode_rows(backend, TEXT[10:20], 10), verify_rows(backend, "verify_12", TEXT[10:20], 10)]
    backend.run("decode", np.array([5]), np.array([backend.length]), np.ones((1, 1), np.bool_))
    backend.commit([0])
    out = backend.streams(0, 7)
    streams = [out.stream_ids.copy(), out.stream_log_probs.copy()]
    backend.close()
    return rows, streams


@pytest.mark.parametrize("kind", MERGED)
def test_the_base_keeps_its_bits_and_the_streams_agree_with_pytorch(made: Made, kind: str) -> None:
    merged, beside = made.bundle(kind), made.bundle(f"{kind}-off")
    assert made.reports[kind].config["merge_streams"] == "on"
    (rows, streams), (others, other_streams) = passes(merged, merged), passes(beside, beside)
    for one, other in zip(rows, others, strict=True):
        np.testing.assert_array_equal(one, other)
    assert not np.array_equal(streams[1], other_streams[1])  # rounded to four bits
    parity = made.reports[kind].parity
    assert parity["lowering"]["streams"]["snr_db"] > 60
    for part in ("attention", "mlp"):
        assert made.reports[kind].target["grid"][part]["exact_share"] == 1.0
    assert made.reports[kind].target["grid"]["streams"]["exact_share"] < 1.0


@pytest.mark.parametrize("kind", MERGED)
def test_a_preview_has_the_sizes_of_the_file(made: Made, kind: str) -> None:
    expected = [
        preview(config_for(made.checkpoints[kind], made.folder / "none", **ONE_WIDTH, **BUNDLES[name]))
        for name in (kind, f"{kind}-off")
    ]
    bundles = [made.bundle(name) for name in (kind, f"{kind}-off")]
    real = [made.reports[name].bytes["model.pte"] for name in (kind, f"{kind}-off")]
    files = [found.files["model.pte"] for found in expected]
    assert real[1] - real[0] == pytest.approx(files[1] - files[0], abs=DIFFERENCE)
    assert files[1] - files[0] > 4 * DIFFERENCE
    assert "in the top 2 layers with matrices of their own" in expected[0].adapter
    assert "own" not in expected[1].adapter
    for bundle, found in zip(bundles, expected, strict=True):
        assert bundle.manifest.quantization.streams.bytes == found.parts["streams"].bytes
        assert bundle.manifest.quantization.mlp.bytes == found.parts["mlp"].bytes


def test_a_merged_pass_reads_its_own_matrices_alone(made: Made) -> None:
    for name, own in (("large", True), ("large-off", False)):
        manifest = made.bundle(name).manifest
        assert manifest.speculation.merged_streams is own
        read = sum(part.bytes for part in work_of(manifest, "streams", context=0).values())
        stored, base = manifest.quantization.streams.bytes, manifest.quantization.mlp.bytes
        assert stored is not None
        assert base is not None
        if own:
            assert read == pytest.approx(stored)
        else:
            assert read > stored + base / manifest.model.num_layers


def test_a_merged_pass_has_no_low_rank_products(checkpoints: dict[str, Checkpoint]) -> None:
    model = tiny_model({"adapter_rank": 48, "base_rank": 2, "base_layers": 1})
    shapes = config_for(checkpoints["tuned"], Path("none"), **DEFERRED).shapes
    methods = build_methods(Weights(model, shapes, Kernels(Schemes(), merges_streams=True)))
    held = {
        name: sum(part.down is not None for part in method.modules() if isinstance(part, Adapter))
        for name, method in methods.items()
    }
    assert held["streams"] == 0
    assert held["decode"] == held["verify_4"] == 4, "of the tuned top layer"


def test_tasks_have_matrices_of_their_own(made: Made) -> None:
    files = {name: checkpoint[1] for name, checkpoint in made.checkpoints.items()}
    config = config_for((made.checkpoints["large"][0], None), made.folder / "none", **ONE_WIDTH, task=files)
    assert {name: task.merges_streams for name, task in config.tasks.items()} == {
        "small": False, "large": True, "tuned": True,
    }  # fmt: skip
    del files["large"]  # the others are one of each kind
    whole = made.export("whole", None, task=files)
    config = config_for((made.checkpoints["large"][0], None), made.folder / "none", **ONE_WIDTH, task=files)
    expected, real = preview(config).files["model.pte"], made.reports["whole"].bytes["model.pte"]
    assert expected < real < expected + 4 * GRAPHS
    alone = made.bundle("tuned")
    for ours, theirs in zip(passes(whole, whole.adapter("tuned")), passes(alone, alone), strict=True):
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"schedule": "fused"}, "merge_streams on needs schedule deferred, not fused"),
        ({"schedule": "both"}, "merge_streams on needs schedule deferred, not both"),
        ({**DEFERRED, "widths": (1, 12)}, "merge_streams on needs widths without 1"),
        ({**DEFERRED, "backend": "xnnpack"}, "merge_streams goes with backend kernels, not with backend xnnpack"),
        ({**DEFERRED, "target": "onnx"}, "merge_streams goes with backend kernels, not with target onnx"),
    ],
)
def test_merging_is_refused_where_it_cannot_apply(
    checkpoints: dict[str, Checkpoint], tmp_path: Path, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(OptionError, match=problem):
        config_for(checkpoints["large"], tmp_path, merge_streams="on", **options)
    assert not config_for(checkpoints["large"], tmp_path, **options).merges_streams


def test_streams_without_low_rank_products_cannot_be_merged(tmp_path: Path) -> None:
    shared = write_checkpoint(tmp_path, tiny_model({"adapter_rank": 0, "base_rank": 24, "base_layers": 3}))
    assert not config_for(shared, tmp_path / "none", **DEFERRED).merges_streams
    for options in ({}, {"task": {"own": shared[1]}}):
        with pytest.raises(OptionError, match="which adapter tiny does not have"):
            config_for(shared, tmp_path / "none", **DEFERRED, **options, merge_streams="on")
    with pytest.raises(OptionError, match="merge_streams is about streams"):
        config_for((shared[0], None), tmp_path / "none", merge_streams="on", stream_nodes="auto", **DEFERRED)


def test_a_plain_pass_that_carries_streams_is_not_there_with_matrices_of_their_own(
    checkpoints: dict[str, Checkpoint], tmp_path: Path
) -> None:
    usual = {**DEFERRED, "widths": (), "default_width": None}
    widths = {
        choice: config_for(checkpoints["large"], tmp_path, **usual, merge_streams=choice).widths
        for choice in ("auto", "on", "off")
    }
    assert widths == {"auto": (4, 8, 16), "on": (4, 8, 16), "off": (1, 4, 8, 16)}
    assert not config_for(checkpoints["large"], tmp_path, **DEFERRED, widths=(1, 12)).merges_streams
    tasks = {name: checkpoints[name][1] for name in RANKS}
    for chosen, merging in (((1, 12), set()), ((12,), {"large"})):
        found = config_for(checkpoints["small"], tmp_path, **DEFERRED, task=tasks, widths=chosen)
        assert {task.widths for task in found.tasks.values()} == {chosen}
        assert {name for name, task in found.tasks.items() if task.merges_streams} == merging


def test_a_product_beyond_the_scales_is_named(checkpoints: dict[str, Checkpoint], tmp_path: Path) -> None:
    folder, _ = checkpoints["large"]
    model = fused(load_base(folder), STREAM_VOCAB, **{**STREAMS, **RANKS["large"]})
    with torch.no_grad():
        for parameter in model.adapters.parameters():
            parameter.mul_(4e3)
    save_adapter(model, tmp_path / "huge.safetensors", {})
    with pytest.raises(CheckpointError, match=r"huge\.safetensors: tensor 'adapters\.0\.self_attn"):
        run_export(config_for((folder, tmp_path / "huge.safetensors"), tmp_path / "bundle", **DEFERRED))
