"""The ONNX graphs of a tiny model: what they compute, their names, and the one file of weights.

Run: python -m pytest tests/export/test_export_onnx.py
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from export_samples import TEXT, config_for, tiny_model, write_checkpoint
from onnx_samples import Written, write

from streamfuse.bundle import open_bundle
from streamfuse.export import selftest
from streamfuse.export.integers import to_q4_1, to_q8_0
from streamfuse.export.onnx import rules
from streamfuse.export.onnx.blocks import dequantized, to_blocks
from streamfuse.export.onnx.emit import WEIGHTS_FILE, contrib_operators
from streamfuse.export.onnx.record import UnsupportedOperator
from streamfuse.export.pipeline import run_export
from streamfuse.export.preview import preview
from streamfuse.export.schemes import PartScheme
from streamfuse.model.streams import StreamFused
from streamfuse.runtime.backends.onnxruntime import OnnxBackend

onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'streamfuse[onnx]'")

# Without rounded activations ONNX Runtime and PyTorch differ by the order of additions alone.
KINDS = {("float32", "none"): 90.0, ("float32", "int8"): 90.0, ("float32", "int4"): 90.0, ("float16", "none"): 40.0}


@pytest.fixture(scope="module")
def model() -> StreamFused:
    torch.manual_seed(1)
    return tiny_model()


@pytest.fixture(scope="module")
def written(model: StreamFused, tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write(tmp_path_factory.mktemp("onnx") / "int4", model, "float32", "int4")


def graphs(written: Written) -> dict[str, Any]:
    return {path.stem: onnx.load(path, load_external_data=False) for path in written.folder.glob("*.onnx")}


@pytest.mark.parametrize(("dtype", "quantize"), KINDS)
def test_the_graphs_compute_what_the_modules_compute(
    model: StreamFused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, quantize: str
) -> None:
    monkeypatch.setattr(rules, "ACCURACY_LEVEL", 0)
    written = write(tmp_path, model, dtype, quantize)
    script = selftest.Script.of(written.spec, TEXT)
    with OnnxBackend(tmp_path, written.spec, 1) as backend:
        figures = selftest.compare(script.run(backend), script.run(written.reference()))
    assert set(figures) == {"walk", "decode", "streams", "verify_4", "verify_12"}
    for row in figures.values():
        assert row["snr_db"] > KINDS[dtype, quantize]
        assert row["top1_agreement"] == 1.0
        assert row.get("kept_agreement", 1.0) == 1.0


@pytest.mark.parametrize("changes", [
    {"tie_word_embeddings": False},
    {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 16},
    {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"},
], ids=["untied head", "head norms", "biases"])  # fmt: skip
def test_other_families_are_written_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    monkeypatch.setattr(rules, "ACCURACY_LEVEL", 0)
    torch.manual_seed(2)
    written = write(tmp_path, tiny_model({"eta_rank": 2, "value_rotation": 0.1}, **changes), "float32", "int4")
    script = selftest.Script.of(written.spec, TEXT)
    with OnnxBackend(tmp_path, written.spec, 1) as backend:
        figures = selftest.compare(script.run(backend), script.run(written.reference()))
    assert min(row["snr_db"] for row in figures.values()) > 90


def test_a_model_of_one_layer_has_the_inputs_that_every_pass_is_asked_with(tmp_path: Path) -> None:
    torch.manual_seed(2)
    written = write(tmp_path, tiny_model({"num_msa_layers": 1}, num_hidden_layers=1), "float32", "none")
    assert [t["name"] for t in written.facts["prefill"]["inputs"]] == [
        "input_ids", "position_ids", "ancestors", "cache_length"
    ]  # fmt: skip
    script = selftest.Script.of(written.spec, TEXT)
    with OnnxBackend(tmp_path, written.spec, 1) as backend:
        figures = selftest.compare(script.run(backend), script.run(written.reference()))
    assert min(row["snr_db"] for row in figures.values()) > 90


def test_every_graph_is_valid_and_says_its_opset(written: Written) -> None:
    for name in graphs(written):
        onnx.checker.check_model(str(written.folder / f"{name}.onnx"), full_check=False)
    opsets = {entry.domain: entry.version for entry in graphs(written)["decode"].opset_import}
    assert opsets == {"": 23, "com.microsoft": 1}


def test_float_graphs_use_the_standard_alone(model: StreamFused, tmp_path: Path, written: Written) -> None:
    write(tmp_path, model, "float16", "none")
    assert contrib_operators(tmp_path) == []
    assert contrib_operators(written.folder) == [
        "com.microsoft::GatherBlockQuantized",
        "com.microsoft::MatMulNBits",
    ]


def test_inputs_and_outputs_have_the_names_that_optimum_uses(written: Written) -> None:
    facts = written.facts["verify_12"]
    inputs, outputs = ({t["name"]: t["shape"] for t in facts[key]} for key in ("inputs", "outputs"))
    caches = [f"past_key_values.{i}.{kind}" for i in range(3) for kind in ("key", "value")]
    assert list(inputs) == ["input_ids", "position_ids", "ancestors", "cache_length", *caches]
    assert inputs["past_key_values.2.value"] == [1, 2, 128, 16]
    assert [outputs[f"present.{i}.key"] for i in range(3)] == [[1, 2, rows, 16] for rows in (12, 6, 6)]
    assert list(outputs)[:5] == ["logits", "best", "kept", "stream_ids", "stream_log_probs"]
    assert outputs["hidden"] == [6, 64]
    assert [t["name"] for t in written.facts["prefill"]["outputs"]] == [
        f"present.{i}.{kind}" for i in range(3) for kind in ("key", "value")
    ]


def test_all_graphs_share_one_copy_of_every_weight(written: Written, model: StreamFused) -> None:
    places: dict[str, set[tuple[str, str]]] = {}
    for graph in graphs(written).values():
        for tensor in graph.graph.initializer:
            if tensor.external_data:
                facts = {entry.key: entry.value for entry in tensor.external_data}
                assert facts["location"] == WEIGHTS_FILE
                places.setdefault(tensor.name, set()).add((facts["offset"], facts["length"]))
    assert {len(found) for found in places.values()} == {1}
    assert places["embed_tokens.values"] == places["embed_tokens.values.258x64"]
    content = (written.folder / WEIGHTS_FILE).read_bytes()
    row = to_q4_1(model.base.blocks[1].mlp.down_proj.weight).q[0]
    assert content.count((row[::2] | row[1::2] << 4).numpy().tobytes()) == 1


def test_attention_repeats_no_key_and_joins_no_cache(written: Written) -> None:
    nodes = graphs(written)["verify_4"].graph.node
    caches = {f"past_key_values.{i}.{kind}" for i in range(3) for kind in ("key", "value")}
    assert {node.op_type for node in nodes if caches & set(node.input)} == {"Transpose", "Cast"}


@pytest.mark.parametrize(("bits", "symmetric"), [(4, False), (8, True)])
def test_weights_on_a_grid_come_back_bit_for_bit(bits: int, symmetric: bool) -> None:
    torch.manual_seed(3)
    weight = torch.randn(48, 64)
    weight = to_q4_1(weight).dequantized() if bits == 4 else to_q8_0(weight).dequantized()
    blocks = to_blocks(weight, PartScheme(bits, 32, symmetric))
    found = dequantized(blocks.values, blocks.scales, blocks.zero_points, bits)
    if blocks.offsets is not None:
        found = found + blocks.offsets.T.repeat_interleave(32, dim=1)
    assert blocks.exact
    torch.testing.assert_close(found, weight, rtol=0, atol=1e-7)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("size", [None, 64])
def test_other_weights_go_through_the_quantizer(bits: int, symmetric: bool, size: int | None) -> None:
    torch.manual_seed(4)
    weight = torch.randn(48, 128)
    blocks = to_blocks(weight, PartScheme(bits, size, symmetric))
    found = dequantized(blocks.values, blocks.scales, blocks.zero_points, bits)
    error = float((found - weight).norm() / weight.norm())
    assert not blocks.exact
    assert (blocks.block_size, blocks.zero_points is None) == (size or 32, symmetric)
    assert error < (0.12 if bits == 4 else 0.01)


def test_a_block_must_divide_the_inputs() -> None:
    with pytest.raises(ValueError, match="group_size 64 does not divide the 96 inputs"):
        to_blocks(torch.randn(4, 96), PartScheme(4, 64, False))


def test_an_operator_without_a_rule_is_named(
    model: StreamFused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(rules.RULES, torch.ops.aten.silu.default)
    with pytest.raises(UnsupportedOperator, match=r"aten\.silu\.default"):
        write(tmp_path, model, "float32", "none")


def test_a_whole_export_gives_a_bundle(model: StreamFused, tmp_path: Path) -> None:
    config = config_for(write_checkpoint(tmp_path / "checkpoint", model), tmp_path / "bundle", target="onnx")
    report = run_export(config)
    bundle = open_bundle(config.output_dir)
    assert (bundle.manifest.target, bundle.manifest.backend) == ("onnx", "onnxruntime")
    assert report.target["opset"] == 23
    assert {part["exact"] / part["matrices"] for part in report.target["weights"].values()} == {1.0}
    assert {row.floor for row in bundle.manifest.parity.values()} == {"int8"}
    stored = sum(part.bytes or 0 for _, part in bundle.manifest.quantization)
    assert 0.5 < stored / report.bytes[WEIGHTS_FILE] < 1  # tensors begin at pages, which counts in so small a model
    recorded = np.load(bundle.folder / "selftest.npz")
    assert recorded["verify_12.logits"].shape == (6, 258)


def test_the_taps_of_convolutions_count_as_attention(tmp_path: Path) -> None:
    """With three taps each for more channels than a graph itself would hold, in float32."""
    torch.manual_seed(0)
    changes = {
        "architectures": ["Lfm2ForCausalLM"], "hidden_size": 128, "num_hidden_layers": 2,
        "layer_types": ["conv", "conv"], "block_auto_adjust_ff_dim": False,
    }  # fmt: skip
    checkpoint = write_checkpoint(tmp_path / "lfm", tiny_model({"num_msa_layers": 1}, **changes), **changes)
    config = config_for(checkpoint, tmp_path / "bundle", target="onnx", quantize="none", dtype="float32")
    run_export(config)
    weights, norms = 2 * (4 * 128 + 3) * 128, 2 * 128  # q, k, v and o, and taps; norms are in the graph
    expected = preview(replace(config, overwrite=True)).parts["attention"].bytes
    counted = open_bundle(config.output_dir).manifest.quantization.attention.bytes
    assert counted == 4 * weights == expected - 4 * norms


def test_what_tunes_the_base_counts_with_the_matrices_that_it_adapts(tmp_path: Path) -> None:
    """As in the preview, and as with the kernels (test_export_merge.py); every pass reads it."""
    layers = {"num_hidden_layers": 2}
    torch.manual_seed(0)
    # of a rank whose matrices are in the file of weights; smaller ones are in the graphs
    tuned = tiny_model({"base_rank": 8, "base_layers": 2, "adapter_rank": 0}, **layers)
    checkpoint = write_checkpoint(tmp_path / "tuned", tuned, **layers)
    counted, expected = [], []
    for merge in ("off", "on"):
        config = config_for(
            checkpoint, tmp_path / merge, target="onnx", quantize="none", dtype="float32", merge_adapter=merge
        )
        run_export(config)
        counted.append(
            {part: scheme.bytes or 0 for part, scheme in open_bundle(config.output_dir).manifest.quantization}
        )
        expected.append({part: size.bytes for part, size in preview(replace(config, overwrite=True)).parts.items()})
    apart, merged = counted
    more = {part: size - merged[part] for part, size in apart.items()}
    assert more == {part: size - expected[1][part] for part, size in expected[0].items()}
    assert {part for part, size in more.items() if size} == {"attention", "mlp"}
