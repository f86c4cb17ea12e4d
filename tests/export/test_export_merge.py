"""What tunes the base: added to its weights, or kept beside them so that four bits need not be rounded anew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from export_samples import TEXT, config_for, decode_rows, prefill, tiny_model, verify_rows, write_checkpoint

from streamfuse.bench.shared.work import weight_bytes
from streamfuse.bundle import open_bundle
from streamfuse.export import reference
from streamfuse.export.config import GraphShapes
from streamfuse.export.graphs import Weights, build_methods, example_inputs
from streamfuse.export.pipeline import run_export
from streamfuse.export.preview import preview
from streamfuse.export.sizes import part_sizes
from streamfuse.model.streams import StreamFused
from streamfuse.options import OptionError
from streamfuse.runtime.backends.executorch import ExecuTorchBackend

TUNED = {"base_rank": 2, "base_layers": 2, "adapter_rank": 0}
BOTH = {"base_rank": 2, "base_layers": 2, "adapter_rank": 2}
DEFERRED: dict[str, Any] = {"schedule": "deferred"}
LAYERS = {"num_hidden_layers": 2}  # all of them tuned; test_export_tasks.py tunes one of two


@pytest.fixture(scope="module")
def tuned() -> StreamFused:
    torch.manual_seed(0)
    return tiny_model(TUNED, **LAYERS)


@pytest.fixture(scope="module")
def checkpoint(tuned: StreamFused, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_checkpoint(tmp_path_factory.mktemp("tuned"), tuned, **LAYERS)


@torch.inference_mode()
def test_beside_the_weights_is_the_same_function(tuned: StreamFused) -> None:
    shapes = GraphShapes(64, 8, ((4, 4),), 5, (4,), deferred=True)
    apart, merged = (Weights(model, shapes).eval() for model in (tuned, tuned.merged()))
    plain = Weights(StreamFused(tuned.base, tuned.merged().streams_config, tuned.stream_vocab), shapes).eval()
    for name, method in build_methods(apart).items():
        inputs = example_inputs(apart, method)
        ours, theirs = method(*inputs), build_methods(merged)[name](*inputs)
        for a, b in zip(ours, theirs, strict=True):
            if a.dtype == torch.float32:
                torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
        if name == "decode":
            assert not torch.allclose(ours[0], build_methods(plain)[name](*inputs)[0], atol=1e-2)


def test_beside_four_bits_it_is_kept_apart(checkpoint: tuple[Path, Path], tuned: StreamFused, tmp_path: Path) -> None:
    streams = tuned.streams_config
    cases: list[tuple[dict[str, Any], bool]] = [
        ({}, False),
        ({"merge_adapter": "on"}, True),
        ({"quantize": "q8_0"}, True),
        ({"quantize": "q8_0", "merge_adapter": "off"}, False),
        ({"scheme": {"attention": "q8_0"}}, False),
        ({"scheme": {"attention": "q8_0", "mlp": "q8_0"}}, True),
        ({"backend": "xnnpack", "quantize": "none"}, True),
        ({"target": "onnx"}, False),
    ]
    for settings, merges in cases:
        config = config_for(checkpoint, tmp_path / "none", **settings)
        assert config.merges(streams) is merges, settings
    apart, merged = (
        preview(config_for(checkpoint, tmp_path / "none", merge_adapter=choice)).parts for choice in ("off", "on")
    )
    more = {part: apart[part].parameters - merged[part].parameters for part in apart}
    assert sum(more.values()) == sum(p.numel() for p in tuned.base_adapters.parameters())
    assert {part for part, count in more.items() if count} == {"attention", "mlp"}, "every pass reads them"
    with pytest.raises(OptionError, match="merge_adapter must be one of auto, on, off, not maybe"):
        config_for(checkpoint, tmp_path / "none", merge_adapter="maybe")


@pytest.fixture(scope="module")
def both() -> StreamFused:
    """A tuned base, and streams with adapters of their own: what the lossless recipes make."""
    torch.manual_seed(0)
    return tiny_model(BOTH, **LAYERS)


def test_two_kinds_need_a_pass_for_the_streams_alone(both: StreamFused, tmp_path: Path) -> None:
    files = write_checkpoint(tmp_path / "both", both, **LAYERS)
    for settings, merges in (
        (DEFERRED, False),
        ({"schedule": "both"}, True),
        ({**DEFERRED, "target": "onnx"}, True),
        ({**DEFERRED, "quantize": "q8_0"}, True),
    ):
        config = config_for(files, tmp_path / "none", **settings)
        assert config.merges(both.streams_config) is merges, settings
        assert preview(config).parts
    for settings in ({"schedule": "fused"}, {**DEFERRED, "target": "onnx"}):
        with pytest.raises(OptionError, match="merge_adapter must be on for this adapter"):
            preview(config_for(files, tmp_path / "none", merge_adapter="off", **settings))
    with pytest.raises(ValueError, match="must be merged"):
        Weights(both, GraphShapes())
    with pytest.raises(ValueError, match="a separate pass"):
        build_methods(Weights(both, GraphShapes(64, 8, ((4, 4),), 5, (4,), deferred=True), reference.Form()))


@torch.inference_mode()
def test_both_kinds_beside_the_weights_are_the_same_function(both: StreamFused) -> None:
    shapes = GraphShapes(64, 8, ((4, 4),), 5, (0,), deferred=True)
    apart, merged = (Weights(model, shapes, reference.Form()).eval() for model in (both, both.merged()))
    for name, method in build_methods(apart).items():
        inputs = [x + 0.1 if x.dtype == torch.float32 else x for x in example_inputs(apart, method)]
        for a, b in zip(method(*inputs), build_methods(merged)[name](*inputs), strict=True):
            if a.dtype == torch.float32:
                torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_a_bundle_with_both_kinds_keeps_the_grid_and_agrees(both: StreamFused, tmp_path: Path) -> None:
    one_tree = {"widths": (4,), "default_width": 4, "prune_keep": 4}
    checkpoint = write_checkpoint(tmp_path / "both", both, **LAYERS)
    config = config_for(checkpoint, tmp_path / "bundle", **DEFERRED, **one_tree)
    report = run_export(config)  # below its parity floors it raises
    assert report.parity["lowering"]["streams"]["snr_db"] > 60
    for part in ("attention", "mlp"):
        assert report.target["grid"][part]["exact_share"] == 1.0
    bundle = open_bundle(config.output_dir)
    own = [p for name, p in both.named_parameters() if not name.startswith(("base.", "base_adapters."))]
    assert bundle.manifest.speculation.extra_parameters == sum(p.numel() for p in own)
    with ExecuTorchBackend(bundle.graph, bundle.spec()) as engine:
        plain = decode_rows(engine, TEXT)
        assert np.array_equal(verify_rows(engine, "verify_4", TEXT)[: len(plain)], plain)


def test_streams_with_products_of_their_own_beside_a_tuned_base_need_a_pass_of_their_own(tmp_path: Path) -> None:
    own = write_checkpoint(tmp_path / "both", tiny_model(BOTH))
    usual = {**DEFERRED, "widths": (), "default_width": None}
    assert config_for(own, tmp_path, **usual).widths == (4, 8, 16)
    assert config_for(own, tmp_path, **usual, merge_adapter="on").widths == (1, 4, 8, 16)
    with pytest.raises(OptionError, match="widths must not name 1 for this adapter"):
        preview(config_for(own, tmp_path / "bundle", **DEFERRED, widths=(1, 12)))


def test_a_tuned_bundle_keeps_the_law_and_the_grid(
    checkpoint: tuple[Path, Path], tuned: StreamFused, tmp_path: Path
) -> None:
    config = config_for(checkpoint, tmp_path / "apart")
    report = run_export(config)
    for part in ("attention", "mlp"):
        assert report.target["grid"][part]["exact_share"] == 1.0
    bundle = open_bundle(config.output_dir)
    own = [p for name, p in tuned.named_parameters() if not name.startswith(("base.", "base_adapters."))]
    assert bundle.manifest.speculation.extra_parameters == sum(p.numel() for p in own)
    facts = (
        tuned.base.config,
        replace(tuned.streams_config, base_rank=0, base_layers=0),
        len(tuned.stream_vocab),
        config,
    )
    untuned, adapters = part_sizes(*facts), sum(p.numel() for p in tuned.base_adapters.parameters())
    assert bundle.manifest.quantization.streams.bytes == untuned["streams"].bytes
    read = sum(untuned[part].bytes for part in ("attention", "mlp", "head"))
    table = 0 if untuned["head"].bytes else untuned["embedding"].bytes
    assert weight_bytes(bundle.manifest) == read + table + 2 * adapters, "float16, in each pass of plain decoding"
    with ExecuTorchBackend(bundle.graph, bundle.spec()) as engine:
        plain = decode_rows(engine, TEXT)
        for method in ("verify_4", "verify_12"):
            assert np.array_equal(verify_rows(engine, method, TEXT)[: len(plain)], plain)
        prefill(engine, TEXT[:9])
        assert np.array_equal(decode_rows(engine, TEXT[9:], 9), plain[9:])


@pytest.mark.parametrize(
    ("streams", "options", "warned"),
    [
        (BOTH, {"schedule": "fused"}, True),
        (BOTH, {"schedule": "fused", "quantize": "q8_0"}, False),
        (BOTH, DEFERRED, False),
        ({"base_rank": 0, "base_layers": 0, "adapter_rank": 2}, {"schedule": "fused"}, False),
    ],
)
def test_a_preview_warns_where_the_tuning_is_rounded_to_four_bits(
    streams: dict[str, int], options: dict[str, Any], warned: bool, tmp_path: Path
) -> None:
    checkpoint = write_checkpoint(tmp_path, tiny_model(streams))
    found = preview(config_for(checkpoint, tmp_path / "bundle", **{"quantize": "q4_1"} | options)).warning
    assert (found is not None) is warned
