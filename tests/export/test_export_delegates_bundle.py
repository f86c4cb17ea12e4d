"""A tiny model as a .pte for Core ML and for Vulkan: what is delegated, what was proven, and what cannot be run here.

pytest tests/export/test_export_delegates_bundle.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import export_samples as samples
import pytest
import torch
from bundle_samples import write_bundle
from typer.testing import CliRunner

from streamfuse.bundle import open_bundle
from streamfuse.cli import app
from streamfuse.cli.shared.console import SafeConsole
from streamfuse.engines import engines_of
from streamfuse.export.pipeline import Report, run_export
from streamfuse.options import OptionError
from streamfuse.runtime.backend import BackendError

ONE_WIDTH: dict[str, Any] = {
    "widths": (4,),
    "default_width": 4,
    "prune_keep": 4,
    "schedule": "deferred",
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    torch.manual_seed(0)
    changes = {"num_hidden_layers": 2}
    model = samples.tiny_model({"num_msa_layers": 1}, **changes)
    return samples.write_checkpoint(tmp_path_factory.mktemp("model"), model, **changes)


def _export(checkpoint: tuple[Path, Path], folder: Path, **changes: Any) -> Report:
    return run_export(samples.config_for(checkpoint, folder, **{**ONE_WIDTH, **changes}))


@pytest.fixture(scope="module")
def coreml(checkpoint: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    folder = tmp_path_factory.mktemp("coreml") / "bundle"
    return folder, _export(checkpoint, folder, backend="coreml", quantize="int4")


@pytest.fixture(scope="module")
def vulkan(checkpoint: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    folder = tmp_path_factory.mktemp("vulkan") / "bundle"
    return folder, _export(checkpoint, folder, backend="vulkan", quantize="int8", scheme={"mlp": "int4:32:symmetric"})


def test_core_ml_takes_every_method_whole(coreml: tuple[Path, Report]) -> None:
    delegation = coreml[1].target["delegation"]
    assert set(delegation) == {"prefill", "decode", "verify_4", "streams"}
    for method in delegation.values():
        assert method["delegates"] == 1
        assert set(method["outside"]) <= {"aten._to_copy"}  # indices to int32, the matrix of ancestors to numbers


def test_core_ml_is_proven_by_the_program_in_the_file(coreml: tuple[Path, Report]) -> None:
    folder, report = coreml
    assert report.target["proof"] == "emulator"
    assert report.parity["lowering"]["decode"]["snr_db"] > 35  # float16 arithmetic, not PyTorch's own float32
    assert report.parity["lowering"]["decode"]["snr_db"] < 120
    manifest = json.loads((folder / "manifest.json").read_text())
    assert (manifest["target"], manifest["backend"]) == ("executorch", "coreml")


def test_core_ml_stores_weights_once(coreml: tuple[Path, Report]) -> None:
    """Every delegate is a reference; four methods' weights would be four times as large."""
    _, report = coreml
    assert all(method["delegate_bytes"] < 1000 for method in report.target["delegation"].values())


def test_core_ml_says_which_operations_leave_the_neural_engine(
    coreml: tuple[Path, Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, report = coreml
    functions = report.target["functions"]
    assert set(functions) == {"prefill", "decode", "verify_4", "streams"}
    for found in functions.values():
        assert found["leaves"]["look-ups and searches"]["gather"] >= 1
        assert found["trips"] == 0
    monkeypatch.setattr("streamfuse.cli.commands.bundle.inspect.out", SafeConsole(width=200))
    printed = CliRunner().invoke(app, ["bundle", "inspect", str(folder)]).stdout
    assert "leave the Neural Engine" in printed


@pytest.mark.full  # nothing here runs a Vulkan program; that a delegate takes methods whole, Core ML's shows by default
def test_vulkan_leaves_look_ups_and_top_k_outside(vulkan: tuple[Path, Report]) -> None:
    report = vulkan[1].target
    assert report["proof"] == "graph"
    delegation = report["delegation"]
    for name in ("prefill", "decode", "verify_4"):
        assert delegation[name]["delegates"] == 1
        assert delegation[name]["outside"] == {"quantized_decomposed.embedding_byte": 1}
    assert set(delegation["streams"]["outside"]) == {"aten.topk", "aten.embedding"}


@pytest.mark.parametrize(
    ("backend", "carriers"),
    [("vulkan", "no library of streamfuse supports"), ("coreml", "only libraries for Apple's systems support")],
)
def test_a_delegate_that_is_not_here_is_named(
    backend: str, carriers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.system", lambda: "Linux")
    bundle = write_bundle(tmp_path / "bundle", backend=backend, kernels=False, required_operators=[])
    with pytest.raises(
        BackendError, match=f"needs ExecuTorch's delegate {backend}, which {carriers}; this machine supports"
    ):
        engines_of(open_bundle(bundle), None)


@pytest.mark.skipif(sys.platform == "darwin", reason="there the library carries the delegate")
def test_on_a_mac_the_engine_is_asked_and_says_which_library_has_the_delegate(
    coreml: tuple[Path, Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    with pytest.raises(
        BackendError, match=r"CoreMLBackend, which this library does not include: .*xcframework --coreml"
    ):
        engines_of(open_bundle(coreml[0]), None)


def test_schemes_that_a_delegate_lacks_are_refused(checkpoint: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="quantize must be one of none, int4, int8 with backend coreml"):
        _export(checkpoint, tmp_path / "a", backend="coreml", quantize="8da4w")
    with pytest.raises(OptionError, match="scheme embedding must be float or int8"):
        _export(checkpoint, tmp_path / "b", backend="vulkan", scheme={"embedding": "int4:32"})
    assert not (tmp_path / "a").exists()
