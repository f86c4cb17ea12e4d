"""`--target coreml` on tiny models: the loop over the package, what the package holds and says. On a Mac by Core ML.

Run: python -m pytest tests/export/test_export_coreml.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from coreml_bundles import CHUNK, KINDS, WIDE, Made
from export_samples import (
    TEXT,
    VOCAB_SIZE,
    config_for,
    decode_rows,
    prefill,
    tiny_model,
    verify_rows,
    write_checkpoint,
)
from typer.testing import CliRunner

from streamfuse.bundle import open_bundle
from streamfuse.cli import app
from streamfuse.cli.shared.console import SafeConsole
from streamfuse.emulator.program import Package
from streamfuse.export.coreml.target import DESCRIPTIONS
from streamfuse.export.pipeline import run_export
from streamfuse.export.selftest import FLOORS
from streamfuse.runtime.backend import BackendError
from streamfuse.runtime.backends.coreml import open_package
from streamfuse.runtime.config import GenerationConfig
from streamfuse.runtime.reference.draft import DraftTables, StreamDrafter
from streamfuse.runtime.reference.loop import Loop

pytest.importorskip("coremltools", reason="coremltools is not installed: pip install 'streamfuse[coreml]'")


# By default both layouts, types and schedules. The default's weights of four bits run in test_export_families.py, a
# plan that prunes nothing in test_export_windows_float.py.
DEFAULT = ("plain-float32", "ane-float16-int8")


@pytest.fixture(scope="module", params=[k if k in DEFAULT else pytest.param(k, marks=pytest.mark.full) for k in KINDS])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(request.param, tmp_path_factory.mktemp("coreml"))


def text(made: Made, prompt: list[int], **settings: Any) -> Loop:
    tables = DraftTables.load(made.bundle.tables) if made.bundle.tables else None
    loop = Loop(made.backend(), list(prompt), GenerationConfig(24, **settings), StreamDrafter(tables))
    list(loop.run())
    return loop


def test_speculation_does_not_change_the_text(made: Made) -> None:
    """Near ties could fall otherwise, since sums are not row-invariant; these texts have none."""
    accepted = 0
    for prompt in (TEXT[:5], TEXT[7:26]):
        plain = text(made, prompt, speculative=False)
        fused = text(made, prompt)
        assert fused.tokens == plain.tokens
        assert len(fused.tokens) == len(prompt) + 24
        accepted += fused.counts.draft_tokens_accepted
    assert accepted > 0


def test_every_method_gives_the_logits_of_decode(made: Made) -> None:
    backend = made.backend()
    prefill(backend, TEXT[:19])
    want = decode_rows(backend, TEXT[19:30], 19)
    for method in backend.spec.widths:
        prefill(backend, TEXT[:19])
        np.testing.assert_allclose(
            verify_rows(backend, method, TEXT[19:30], 19), want, atol=0.03 if made.half else 1e-4
        )


def test_parity_is_measured_and_its_floor_is_named(made: Made) -> None:
    floor = "float16" if made.half else "float32"
    assert {parity.floor for parity in made.bundle.manifest.parity.values()} == {floor}
    for row in made.report.parity["lowering"].values():
        assert row["snr_db"] > FLOORS[floor].snr_db


def test_the_manifest_names_the_tensors_of_the_package(made: Made) -> None:
    names = {"fp16": "float16", "fp32": "float32", "int32": "int32"}
    manifest = made.bundle.manifest
    assert set(made.package.functions) == set(manifest.methods)
    for method, facts in manifest.methods.items():
        for found, stated in (
            (made.package.inputs(method), facts.inputs),
            (made.package.outputs(method), facts.outputs),
        ):
            assert {n: (names[t.dtype], t.shape) for n, t in found.items()} == {
                t.name: (t.dtype, t.shape) for t in stated
            }
    assert manifest.cache.layout == ("channels_position" if made.channels else "position_head_dim")
    decode = {tensor.name: tensor.shape for tensor in manifest.methods["decode"].outputs}
    if made.channels:
        assert [decode[f"logits_{i}"][1] for i in range(3)] == [CHUNK, CHUNK, VOCAB_SIZE - 2 * CHUNK]
    else:
        assert decode["logits"] == (1, VOCAB_SIZE)


@pytest.mark.parametrize(
    "plan",
    [
        pytest.param({"schedule": "fused", "prune_keep": 4, "stream_nodes": {4: 2}}, id="ordered, not pruned"),
        pytest.param({"schedule": "deferred", "layout": "ane", "widths": (1, 4)}, id="streams of verify_1"),
    ],
)
def test_streams_of_a_verify_pass_are_those_of_the_model(tmp_path: Path, plan: dict[str, Any]) -> None:
    torch.manual_seed(2)
    checkpoint = write_checkpoint(tmp_path / "checkpoint", tiny_model())
    common = {"target": "coreml", "quantize": "none", "dtype": "float32", "widths": (4,), "default_width": 4}
    report = run_export(config_for(checkpoint, tmp_path / "bundle", **{**common, **plan}))
    carrying = {name: row for name, row in report.parity["lowering"].items() if "stream_snr_db" in row}
    assert {"verify_4" if "stream_nodes" in plan else "verify_1"} <= set(carrying)
    for row in carrying.values():
        assert row["stream_snr_db"] > 80
        assert row.get("own_best", 1) == row.get("kept_agreement", 1) == 1


def test_every_weight_is_stored_once(made: Made) -> None:
    """The file holds the parts' bytes, and beside them what is small: norms, adapters, rotary tables."""
    parts = sum(scheme.bytes or 0 for scheme in vars(made.bundle.manifest.quantization).values())
    config, streams = made.model.base.config, made.model.streams_config
    floats = 2 if made.half else 4
    rotary = 2 * (128 + streams.num_streams + 1) * config.head_dim
    extra = sum(p.numel() for name, p in made.model.named_parameters() if "adapters" in name or "pruner" in name)
    small = floats * (rotary + 4 * extra + 40 * config.hidden_size)  # joined adapters have zeros between their blocks
    headers = 128 * 400
    assert parts < made.weights_file.stat().st_size < parts + small + headers
    made.package.inputs("decode")
    one = made.package.constants_bytes
    for method in made.package.functions:
        made.package.inputs(method)
    assert made.package.constants_bytes < 1.5 * one


def test_the_package_describes_itself(made: Made) -> None:
    metadata = made.package.user_metadata
    assert metadata["streamfuse.layout"] == made.config.layout
    assert json.loads(metadata["streamfuse.methods"]) == list(made.package.functions)
    assert metadata["streamfuse.compute_units"] == "cpu_and_ne"
    assert json.loads(metadata["streamfuse.schemes"])["mlp"] == made.config.part_scheme("mlp").name
    import coremltools

    metadata = coremltools.utils.load_spec(str(made.bundle.graph)).description.metadata
    assert metadata.author == "streamfuse"
    assert metadata.license
    assert "speculative streams" in metadata.shortDescription
    for method in made.package.functions:
        interface = made.package.interface(method)
        assert all(feature.description in DESCRIPTIONS.values() for feature in (*interface.inputs, *interface.outputs))


def test_the_report_counts_operations_and_names_rules(made: Made) -> None:
    report = made.report.target
    for method in made.package.functions:
        found = report["functions"][method]
        assert found["operations"] == made.package.operation_counts(method)
        assert {*found["leaves"], *found["suits_less"]} <= set(report["rules"])
        assert ("padding" in report["rules"]) == made.channels
        products = found["suits_less"].get("products", {})
        assert bool(products) == (not made.channels or (method == "verify_12" and made.config.shapes.pruning))
        assert "wide" not in found["leaves"]
    products = "conv" if made.channels else "linear"
    assert report["functions"]["decode"]["operations"][products] > 10


def test_gate_and_up_are_two_products_where_one_would_be_too_wide(made: Made) -> None:
    both, package = 2 * made.model.base.config.layer_mlp_sizes[0], Package(made.bundle.graph)
    assert both > CHUNK
    for method in package.functions:
        results = [kind for operation in package.function(method).operations for _, kind in operation.outputs]
        assert any(both in kind.shape for kind in results) == (not made.channels)


def test_gate_up_and_down_are_in_pieces_where_each_would_be_too_wide(tmp_path: Path) -> None:
    made = Made(WIDE, tmp_path)  # whose export compares it with PyTorch
    size, package = made.model.base.config.layer_mlp_sizes[0], Package(made.bundle.graph)
    assert size > 2 * CHUNK
    for method in package.functions:
        operations = package.function(method).operations
        assert not any(size in kind.shape for operation in operations for _, kind in operation.outputs)
        products = [operation for operation in operations if operation.kind == "conv"]
        assert 96 in {kind.shape[1] for operation in products for _, kind in operation.outputs}, "whole groups of 32"
    assert text(made, TEXT[:5]).tokens == text(made, TEXT[:5], speculative=False).tokens


def test_the_report_says_which_operations_leave_the_neural_engine_and_where_a_pass_comes_back(made: Made) -> None:
    for method, found in made.report.target["functions"].items():
        prunes = method == "verify_12" and made.config.shapes.pruning
        assert found["leaves"]["look-ups and searches"]["gather"] >= 2  # tokens, rotary tables
        if made.half:  # but for the pruner, whose probabilities need it
            assert ("float32" in found["leaves"]) == prunes
            assert found["trips"] == prunes
        else:
            assert sum(found["leaves"]["float32"].values()) > 100
            assert found["trips"] == 0  # it never is there


def test_a_package_that_coremltools_opened_is_still_the_one_of_the_manifest(made: Made) -> None:
    import coremltools

    coremltools.models.MLModel(str(made.bundle.graph), skip_model_load=True)
    assert open_bundle(made.bundle.folder).identity == made.bundle.identity


def test_inspect_prints_the_report(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamfuse.cli.commands.bundle.inspect.out", SafeConsole(width=200))
    printed = CliRunner().invoke(app, ["bundle", "inspect", str(made.bundle.folder)]).stdout
    assert "leave the Neural Engine" in printed
    assert "look-ups and searches: gather:" in printed
    assert "layer_norm:" in printed


def test_caches_of_unused_positions_do_not_matter(made: Made) -> None:
    clean, dirty = made.backend(), made.backend()
    for backend in (clean, dirty):
        prefill(backend, TEXT[:19])
    for token in range(8):
        dirty.run("decode", np.array([token]), np.array([dirty.length]), np.ones((1, 1), np.bool_))
        dirty.commit([0])
    dirty.truncate(19)
    rows = [decode_rows(backend, TEXT[19:22], 19) for backend in (clean, dirty)]
    np.testing.assert_array_equal(*rows)


def test_a_folder_that_is_no_package_is_refused(made: Made) -> None:
    with pytest.raises(BackendError, match=r"not an \.mlpackage"):
        open_package(made.bundle.folder, made.bundle.spec())
