"""16-bit activations for Qualcomm's processor: a tiny model through the compiler, the simulator and our engine."""

import importlib.util
from pathlib import Path
from typing import Any

import export_samples
import numpy as np
import pytest
import torch
from torch import nn

import streamfuse
from streamfuse.bundle import open_bundle
from streamfuse.export.pipeline import Report, run_export
from streamfuse.export.preview import preview
from streamfuse.options import OptionError
from streamfuse.runtime.backends.executorch import ExecuTorchBackend

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("onnxruntime_qnn") is None,
        reason="onnxruntime-qnn is not installed: pip install 'streamfuse[qnn]' (x86-64 Linux, Python 3.11 or newer)",
    ),
]


def exported(folder: Path, quantize: str, streams: dict[str, Any] | None = None, **changes: Any) -> Report:
    torch.manual_seed(0)
    folder.mkdir(exist_ok=True)
    model = export_samples.tiny_model({"num_msa_layers": 1, **(streams or {})}, num_hidden_layers=2)
    checkpoint = export_samples.write_checkpoint(folder, model, num_hidden_layers=2)
    settings: dict[str, Any] = {"backend": "qnn", "quantize": quantize, "weight_sharing": "off", **changes}
    return run_export(export_samples.config_for(checkpoint, folder / "bundle", **settings))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    """Passes of 1, 8 and 12 rows, one that prunes among them, calibrated on a text of the caller's."""
    root = tmp_path_factory.mktemp("qnn")
    text = root / "text.txt"
    text.write_text("Every evening the keeper climbed the steps to light the lamp. " * 4)
    return root / "bundle", exported(
        root, "16a8w", widths=(12,), calibration_text=text, scheme={"mlp": "int4:channel:symmetric"}
    )


def test_the_simulator_agrees_with_pytorch_on_the_same_integers(bundle: tuple[Path, Report]) -> None:
    folder, report = bundle
    assert report.target["float_products"] == []
    for figures in report.parity["lowering"].values():
        assert figures["snr_db"] > 45
        assert figures.get("kept_agreement", 1.0) == 1.0
    manifest = open_bundle(folder).manifest
    assert manifest.cache.dtype == "float16"
    assert {row.floor for row in manifest.parity.values()} == {"16a8w"}
    assert (manifest.quantization.attention.bits, manifest.quantization.mlp.bits) == (8, 4)


def test_a_softmax_pruner_that_no_method_uses_is_left_out(tmp_path: Path) -> None:
    """It would have no rows to calibrate."""
    text = tmp_path / "text.txt"
    text.write_text("Every evening the keeper climbed the steps to light the lamp. " * 4)
    options: dict[str, Any] = {"widths": (4,), "default_width": 4, "prune_keep": 4, "stream_nodes": "all"}
    report = exported(tmp_path, "16a8w", {"pruner_score": "softmax"}, calibration_text=text, **options)
    assert all(figures["snr_db"] > 45 for figures in report.parity["lowering"].values())


def test_drafting_and_pruning_in_integers_changes_no_token(bundle: tuple[Path, Report]) -> None:
    options = {"max_new_tokens": 24, "raw": True, "ignore_eos": True, "temperature": 0.0}
    with streamfuse.load(bundle[0], cost_cache=False) as model:
        plain = model.generate("the keeper climbed", speculative=False, **options)
        drafted = model.generate("the keeper climbed", width=12, **options)
    assert drafted.tokens == plain.tokens
    assert drafted.statistics.accepted_by_source["streams"] > 0


def test_the_first_row_of_a_verify_pass_has_the_bits_of_decode(bundle: tuple[Path, Report]) -> None:
    """Products have the same ranges in all methods. A later row reads its parents as new rows, not from the cache."""
    opened = open_bundle(bundle[0])
    backend = ExecuTorchBackend(opened.graph, opened.spec())
    tokens = np.array(export_samples.TEXT[6:10])
    found = []
    for method, count in (("decode", 1), ("verify_12", 1), ("verify_12", 4)):
        export_samples.prefill(backend, export_samples.TEXT[:6])
        causal = np.tril(np.ones((count, count), np.bool_))
        out = backend.run(method, tokens[:count], 6 + np.arange(count), causal, want_logits=True)
        found.append(np.array(out.logits[out.kept.tolist().index(0)]))
    backend.close()
    assert all(np.array_equal(found[0], other) for other in found[1:])


@pytest.mark.full  # test_the_simulator_agrees_with_pytorch_on_the_same_integers has the weights of 16a8w
def test_weights_of_four_bits_run_too(tmp_path: Path) -> None:
    report = exported(tmp_path, "16a4w", widths=(4,), default_width=4, prune_keep=4, schedule="deferred")
    parts = open_bundle(tmp_path / "bundle").manifest.quantization
    assert [part.bits for part in (parts.attention, parts.mlp, parts.head)] == [4, 4, 8]
    assert report.below_floor == []


def test_a_product_keeps_its_rows_in_floats_where_one_number_is_thousands_of_times_the_others() -> None:
    from streamfuse.export.executorch.qnn_integers import Integers

    linear = nn.Linear(64, 32, bias=False).requires_grad_(False)
    rows, outlier = torch.randn(100, 64), torch.zeros(100, 64)
    outlier[0, 3] = 5000.0
    usual, massive = Integers(linear, 4), Integers(linear, 4)
    for module, x in ((usual, rows), (massive, rows + outlier)):
        module(x)
        module.settle()
    assert (usual.floats, massive.floats) == (False, True)
    assert torch.equal(massive(rows), torch.nn.functional.linear(rows, massive.dequantized(torch.float32)))
    assert 0 < (usual(rows) - massive(rows)).abs().max() < 1e-3


def test_a_calibration_text_is_for_activations_in_integers_and_must_be_there(tmp_path: Path) -> None:
    checkpoint = export_samples.write_checkpoint(tmp_path, export_samples.tiny_model())
    text = tmp_path / "text.txt"
    config = {"backend": "qnn", "calibration_text": text}
    with pytest.raises(OptionError, match=r"calibration.text goes with .*16a8w or 16a4w"):
        export_samples.config_for(checkpoint, tmp_path / "bundle", **config)
    there = export_samples.config_for(checkpoint, tmp_path / "bundle", quantize="16a8w", **config)
    with pytest.raises(OptionError, match=r"calibration.text .*text.txt: no such file"):
        preview(there)


@pytest.mark.parametrize("scheme", ["embedding=int8", "mlp=int8:32", "mlp=int4:32"])
def test_weights_that_the_processor_does_not_multiply_are_refused_by_name(tmp_path: Path, scheme: str) -> None:
    checkpoint = export_samples.write_checkpoint(tmp_path, export_samples.tiny_model())
    part, _, name = scheme.partition("=")
    with pytest.raises(OptionError, match=f"scheme {part} must be float"):
        export_samples.config_for(checkpoint, tmp_path / "bundle", backend="qnn", quantize="16a8w", scheme={part: name})
