"""The choice of ONNX Runtime's execution provider: which are found, which are refused and with what message.

Run: python -m pytest tests/onnx/test_onnx_providers.py
"""

from __future__ import annotations

import os
import platform
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from bundle_samples import write_bundle
from export_samples import TEXT, config_for, decode_rows, prefill, tiny_model, verify_rows
from native_samples import tiny_bundle
from onnx_samples import write

import streamfuse
from streamfuse import engines
from streamfuse.options import OptionError
from streamfuse.runtime.backend import BackendError
from streamfuse.runtime.backends import onnx_providers
from streamfuse.runtime.backends.onnx_providers import PROVIDERS, Assignment, Choice, assigned
from streamfuse.runtime.backends.onnxruntime import OnnxBackend

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'streamfuse[onnx]'")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bundle(tmp_path_factory.mktemp("onnx"), target="onnx", widths=(4,), default_width=4, stream_nodes="all")


def test_a_choice_has_a_name_and_options_of_the_provider_and_of_the_session() -> None:
    assert Choice.parse("cpu") == Choice()
    found = Choice.parse("qnn:soc_model=57,session.disable_cpu_ep_fallback=1,htp_arch=75")
    assert found.provider is PROVIDERS["qnn"]
    assert found.options == {"soc_model": "57", "htp_arch": "75"}
    assert found.session == {"session.disable_cpu_ep_fallback": "1"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cuda", "provider must be cpu, webgpu, qnn, coreml or directml, not 'cuda'"),
        ("webgpu:deviceId", "provider webgpu takes options as webgpu:OPTION=VALUE,..., not 'deviceId'"),
    ],
)
def test_other_names_and_forms_are_refused(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Choice.parse(text)


@pytest.mark.parametrize(
    ("name", "system", "message"),
    [
        ("coreml", "Linux", "Core ML is on macOS only; take --provider cpu here"),
        ("directml", "Darwin", "DirectML is on Windows only"),
        ("webgpu", "Linux", "pip install onnxruntime-webgpu, in an environment of its own, since it replaces onnxr"),
        ("directml", "Windows", "has no DirectML: pip install onnxruntime-directml"),
        ("qnn", "Linux", "QNN needs the package onnxruntime-qnn: pip install onnxruntime-qnn"),
    ],
)
def test_what_is_missing_is_said_with_the_next_step(
    monkeypatch: pytest.MonkeyPatch, name: str, system: str, message: str
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(onnx_providers, "find_spec", lambda name: None)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    reason = PROVIDERS[name].missing()
    assert reason is not None
    assert message in reason
    with pytest.raises(BackendError, match=PROVIDERS[name].title):
        Choice.parse(name).check()


def test_a_model_refuses_a_provider_before_it_loads_anything(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    with pytest.raises(BackendError, match="DirectML is on Windows only"):
        streamfuse.load(bundle, provider="directml")
    with pytest.raises(OptionError, match="provider must be cpu"):
        streamfuse.load(bundle, provider="gpu")
    with pytest.raises(OptionError, match=r"provider is for ONNX Runtime, but .* was exported for executorch"):
        streamfuse.load(write_bundle(tmp_path / "other"), provider="cpu")


def test_the_provider_is_part_of_what_costs_are_kept_for(bundle: Path) -> None:
    with streamfuse.load(bundle, provider="cpu", cost_cache=False) as model, model.session() as session:
        assert session.backend.description == {"provider": "cpu"}
        devices = {engines.device_of(model.bundle, 1, name) for name in (None, "cpu", "webgpu")}
        assert len(devices) == 3
        assert all(f"onnxruntime {onnxruntime.__version__}" in device for device in devices)


def test_costs_are_measured_again_for_another_version_of_a_plug_in(monkeypatch: pytest.MonkeyPatch) -> None:
    known = onnx_providers.distribution
    versions = {"onnxruntime-qnn": "2.5.0"}

    def found(package: str) -> Any:
        return SimpleNamespace(version=versions[package]) if package in versions else known(package)

    monkeypatch.setattr(onnx_providers, "distribution", found)
    before, cpu = onnx_providers.stamp("qnn:soc_model=57"), onnx_providers.stamp(None)
    assert before == f"{cpu}, onnxruntime-qnn 2.5.0"
    versions["onnxruntime-qnn"] = "2.6.0"
    assert onnx_providers.stamp("qnn:soc_model=57") != before
    assert onnx_providers.stamp(None) == onnx_providers.stamp("cpu") == cpu


def test_a_provider_that_fails_is_not_replaced_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package itself would take the CPU then."""
    torch.manual_seed(1)
    written = write(tmp_path, tiny_model(), "float32", "none")

    def failing(file: str, options: Any, providers: Any, enable_fallback: int = 1) -> Any:
        if not enable_fallback:
            raise RuntimeError("no adapter\nof that kind")
        return session(file, options, providers=["CPUExecutionProvider"])

    session = onnxruntime.InferenceSession
    monkeypatch.setattr(onnxruntime, "InferenceSession", failing)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["WebGpuExecutionProvider"])
    with pytest.raises(BackendError, match=r"WebGPU cannot load .*decode.onnx: no adapter; --provider cpu runs"):
        OnnxBackend(tmp_path, written.spec, provider=Choice.parse("webgpu"))


@dataclass
class Subgraph:
    ep_name: str
    operators: tuple[str, ...]

    def get_nodes(self) -> list[Any]:
        return [type("Node", (), {"op_type": operator}) for operator in self.operators]


class FakeSession:
    def __init__(self, *subgraphs: Subgraph) -> None:
        self._subgraphs = subgraphs

    def get_modelmeta(self) -> Any:
        return type("Meta", (), {"custom_metadata_map": {}})

    def get_provider_graph_assignment_info(self) -> list[Subgraph]:
        return list(self._subgraphs)


class FakeOptions:
    def __getattr__(self, name: str) -> Any:
        return lambda *given: None


def test_plug_ins_compile_one_at_a_time_and_the_output_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed: pip install 'streamfuse[qnn]'")
    qnn, running, found = PROVIDERS["qnn"], threading.Semaphore(1), []

    def session(*given: Any, **more: Any) -> FakeSession:
        found.append(running.acquire(blocking=False))
        time.sleep(0.05)
        if found[-1]:
            running.release()
        return FakeSession(Subgraph(qnn.identifier, ("Add",)))

    device = type("Device", (), {"ep_name": qnn.identifier})
    monkeypatch.setattr(onnxruntime, "get_ep_devices", lambda: [device])
    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    before = os.fstat(1)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: Choice.parse("qnn").open(Path("decode.onnx"), FakeOptions()), range(3)))
    assert found == [True] * 3
    assert os.path.samestat(os.fstat(1), before)


def test_nodes_on_the_cpu_are_counted_and_refused_where_that_is_asked_for() -> None:
    webgpu = PROVIDERS["webgpu"]
    session = FakeSession(
        Subgraph(webgpu.identifier, ("Add", "Mul", "MatMul")),
        Subgraph("CPUExecutionProvider", ("Less", "TopK", "Less")),
    )
    found = Assignment.of(session, webgpu)
    assert (found.own, found.nodes, found.on_cpu) == (3, 6, {"Less": 2, "TopK": 1})
    found.check(Path("decode.onnx"), strict=False)
    with pytest.raises(BackendError, match=r"runs 3 of the 6 nodes of decode.onnx; .* as they are there: Less, TopK"):
        found.check(Path("decode.onnx"), strict=True)
    nothing = Assignment.of(FakeSession(Subgraph("CPUExecutionProvider", ("Less",))), webgpu)
    with pytest.raises(BackendError, match=r"runs 0 of the 1 nodes of decode.onnx.*--provider cpu runs the bundle"):
        nothing.check(Path("decode.onnx"), strict=False)
    assert assigned({"decode": found, "prefill": found}) == {
        "nodes": 12, "nodes_on_cpu": 6, "operators_on_cpu": {"Less": 4, "TopK": 2},
    }  # fmt: skip
    assert assigned({"decode": Assignment(PROVIDERS["cpu"])}) == {}


def test_the_cpu_named_gives_what_it_gives_unnamed(tmp_path: Path) -> None:
    torch.manual_seed(1)
    written = write(tmp_path, tiny_model(), "float32", "int4")
    rows = [
        decode_rows(OnnxBackend(tmp_path, written.spec, 1, provider=choice), TEXT[:4])
        for choice in (None, Choice.parse("cpu"))
    ]
    assert (rows[0] == rows[1]).all()


def test_graphs_for_another_provider_have_no_type_that_it_lacks(tmp_path: Path) -> None:
    """WebGPU's kernels know no float64, and join, gather and slice no int64 and no truth values."""
    onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'streamfuse[onnx]'")
    torch.manual_seed(1)
    for provider in ("cpu", "webgpu"):
        folder = tmp_path / provider
        write(folder, tiny_model(), "float32", "int4", provider=provider)
        assert (folder / "commit.onnx").is_file() == (provider != "cpu")
        for file in sorted(folder.glob("*.onnx")):
            graph = onnx.load(file, load_external_data=False).graph
            casts = {node.attribute[0].i for node in graph.node if node.op_type == "Cast"}
            assert (onnx.TensorProto.DOUBLE in casts) == (provider == "cpu")
            assert not {"LogSoftmax", "Max"} & {node.op_type for node in graph.node}
            readers = {name: node.op_type for node in graph.node for name in node.input}
            whole = {"input_ids", "position_ids", "cache_length", "ancestors", "next_token"}
            assert {readers[name] for name in whole & set(readers)} <= {"Cast"}


def test_a_plan_is_for_a_provider_with_the_target_onnx_alone(tmp_path: Path) -> None:
    nowhere = (tmp_path, tmp_path)  # only named
    assert config_for(nowhere, tmp_path, target="onnx").provider == "cpu"
    assert config_for(nowhere, tmp_path, target="onnx", provider="webgpu").quantize == "int4"
    for provider in ("qnn", "coreml", "directml"):
        assert config_for(nowhere, tmp_path, target="onnx", provider=provider).quantize == "none"
    with pytest.raises(OptionError, match="provider must be one of cpu, webgpu, qnn, coreml, directml, not cuda"):
        config_for(nowhere, tmp_path, target="onnx", provider="cuda")
    with pytest.raises(OptionError, match="provider goes with target onnx, not with backend kernels"):
        config_for(nowhere, tmp_path, provider="webgpu")


def test_graphs_for_qnn_turn_keys_with_operators_that_every_provider_has(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed: pip install 'streamfuse[onnx]'")
    found = []
    for provider in ("cpu", "qnn"):
        torch.manual_seed(1)
        written = write(tmp_path / provider, tiny_model(), "float32", "none", provider=provider)
        graph = onnx.load(tmp_path / provider / "decode.onnx", load_external_data=False).graph
        assert ("RotaryEmbedding" in {node.op_type for node in graph.node}) == (provider == "cpu")
        found.append(decode_rows(OnnxBackend(tmp_path / provider, written.spec, 1), TEXT[:20]))
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)


def test_caches_on_a_device_take_the_rows_that_those_of_the_host_take(tmp_path: Path) -> None:
    """With the CPU as a device that has memory of its own."""
    torch.manual_seed(1)
    written = write(tmp_path, tiny_model(), "float32", "int4", provider="webgpu")
    device = Choice(replace(PROVIDERS["cpu"], device="cpu"))
    found = []
    for choice in (Choice(), device):
        with OnnxBackend(tmp_path, written.spec, 1, choice) as backend:
            prefill(backend, TEXT[:20])
            rows = [verify_rows(backend, method, TEXT[20:40], start=20) for method in ("verify_4", "verify_12")]
            streams = backend.streams(0, 0)
            found.append((*rows, decode_rows(backend, TEXT[40:50], start=20), streams.stream_log_probs.copy()))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
