"""`streamfuse devices`: what it lists, what a bundle needs, and its exit code.

Run: python -m pytest tests/cli/test_cli_devices.py
"""

from __future__ import annotations

import json
import subprocess
import sys
from hashlib import sha256
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from bundle_samples import write_bundle
from typer.testing import CliRunner

from streamfuse.cli import app
from streamfuse.cli.shared import devices_facts
from streamfuse.native.library import LibraryError, list_backends
from streamfuse.runtime.backends.onnx_providers import PROVIDERS

MISSING = "libQnnSystem.so cannot be loaded (no such file); on a desktop `pip install 'streamfuse[qnn]'` has it"


def listed(*arguments: object, code: int = 0) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["devices", *map(str, arguments), "--json"])
    assert result.exit_code == code, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def usable(found: dict[str, Any], target: str) -> dict[str, bool]:
    return {one["name"]: one["usable"] for one in found["devices"] if one["target"] == target}


def bundle_of(folder: Path, backend: str, target: str = "executorch", **compiled: str) -> Path:
    """A bundle of that backend with an export report."""
    write_bundle(folder)
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    manifest["target"], manifest["backend"] = target, backend
    files = {"export_report.json": json.dumps({"target": compiled}).encode()}
    if target == "onnx":
        files |= {f"{method}.onnx": b"a graph" for method in manifest["methods"]}
    for name, data in files.items():
        (folder / name).write_bytes(data)
        manifest["files"][name] = {"bytes": len(data), "sha256": sha256(data).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return folder


@pytest.fixture
def no_qnn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices_facts, "list_backends", lambda: {"kernels": None, "xnnpack": None, "qnn": MISSING})


def test_the_engine_has_its_kernels_and_xnnpack_and_says_why_another_cannot_run() -> None:
    found = list_backends()
    assert list(found)[:2] == ["kernels", "xnnpack"]
    assert found["kernels"] is None
    assert found["xnnpack"] is None
    assert "vulkan" not in found  # no library for desktops links it
    assert found["qnn"] is None or "cannot be loaded" in found["qnn"]


def test_the_vendors_libraries_leave_onnx_runtime_alone() -> None:
    lines = "from streamfuse.native.library import list_backends; list_backends(); import onnxruntime"
    assert subprocess.run([sys.executable, "-c", lines], check=False, timeout=60).returncode == 0


def test_every_backend_and_provider_is_listed_with_the_reason_why_not(no_qnn: None) -> None:
    found = listed()
    assert found["bundle"] is None
    assert usable(found, "executorch") == {"kernels": True, "xnnpack": True, "qnn": False}
    assert list(usable(found, "onnx")) == list(PROVIDERS)
    assert usable(found, "coreml") == {"mlprogram": True}
    assert all(one["usable"] is (one["problem"] is None) for one in found["devices"])
    page = " ".join(CliRunner().invoke(app, ["devices"]).stdout.split())
    assert "executorch: kernels here" in page
    assert "streamfuse[qnn]" in page


def test_a_bundle_that_runs_here_is_said_so(no_qnn: None, tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "sound")
    found = listed(folder)["bundle"]
    assert (found["backend"], found["usable"], found["soc"]) == ("xnnpack", True, None)
    assert "needs executorch (xnnpack): runs here" in " ".join(
        CliRunner().invoke(app, ["devices", str(folder)]).stdout.split()
    )


def test_a_bundle_whose_delegate_is_missing_says_what_to_install(no_qnn: None, tmp_path: Path) -> None:
    folder = bundle_of(tmp_path / "npu", "qnn", soc="SM8650", weight_sharing="off")
    found = listed(folder, code=1)["bundle"]
    assert (found["soc"], found["weight_sharing"], found["problem"]) == ("SM8650", "off", MISSING)


def test_graphs_that_share_their_weights_run_on_a_phone_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(devices_facts, "list_backends", lambda: {"kernels": None, "qnn": None})
    shared = bundle_of(tmp_path / "shared", "qnn", soc="SM8750", weight_sharing="on")
    assert "phone only" in listed(shared, code=1)["bundle"]["problem"]
    apart = bundle_of(tmp_path / "apart", "qnn", soc="SM8750", weight_sharing="off")
    assert listed(apart)["bundle"]["usable"]


def test_an_onnx_bundle_says_whether_its_provider_is_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    present = {"cpu": None, "webgpu": None, "coreml": "only on Apple's systems"}
    monkeypatch.setattr(devices_facts, "providers", lambda: present)
    for provider, expected in {
        "cpu": "runs here",
        "webgpu": "runs here; with --provider webgpu, on the device it was exported for",
        "coreml": "runs here on the CPU only; it was exported for coreml: only on Apple's systems",
    }.items():
        folder = bundle_of(tmp_path / provider, "onnxruntime", "onnx", provider=provider)
        bundle = listed(folder)["bundle"]
        assert (bundle["provider"], bundle["provider_problem"]) == (provider, present[provider])
        output = " ".join(CliRunner().invoke(app, ["devices", str(folder)]).stdout.split())
        assert output.endswith(expected)


def test_a_device_that_openvino_lacks_here_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Core:
        available_devices = ("CPU", "GPU.0", "GPU.1")

    module = ModuleType("openvino")
    module.__spec__ = ModuleSpec("openvino", None)
    vars(module)["Core"] = Core
    monkeypatch.setitem(sys.modules, "openvino", module)
    monkeypatch.setattr(devices_facts, "list_backends", lambda: {"kernels": None, "openvino": None})
    for device in ("cpu", "gpu"):
        assert listed(bundle_of(tmp_path / device, "openvino", device=device))["bundle"]["usable"]
    found = listed(bundle_of(tmp_path / "npu", "openvino", device="npu"), code=1)["bundle"]
    assert (found["device"], found["problem"]) == (
        "npu",
        "OpenVINO has cpu, gpu here, not npu: export with --device of one of those",
    )


def test_a_delegate_that_no_library_carries_is_refused_by_name(no_qnn: None, tmp_path: Path) -> None:
    found = listed(bundle_of(tmp_path / "gpu", "vulkan"), code=1)
    assert "vulkan" not in usable(found, "executorch")
    assert "no library of streamfuse carries vulkan here" in found["bundle"]["problem"]


def test_without_the_native_library_the_kernels_say_how_to_build_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise LibraryError("the native engine is not built; build it with: python -m streamfuse.native.build")

    monkeypatch.setattr(devices_facts, "list_backends", missing)
    assert usable(listed(), "executorch") == {"kernels": False}
