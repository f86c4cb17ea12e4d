"""OpenVINO: a tiny model's graphs compiled for this machine's processor, and run by our engine.

Run: python -m pytest --slow tests/export/test_export_openvino.py
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import export_samples
import pytest
import torch

import streamfuse
from streamfuse.bundle import open_bundle
from streamfuse.export.pipeline import Report, run_export
from streamfuse.options import OptionError
from streamfuse.runtime.backend import BackendError
from streamfuse.runtime.backends.executorch import ExecuTorchBackend

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("openvino") is None,
        reason="openvino is not installed: pip install 'streamfuse[openvino]' (x86-64 Linux)",
    ),
]

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
)
NEWER = r"""
struct Version { const char *build, *description; };
extern "C" int ov_get_openvino_version(Version* version) { return version->build = "2099.1.0-1", 0; }
extern "C" void ov_version_free(Version*) {}
"""


def exported(folder: Path, **changes: Any) -> Report:
    torch.manual_seed(0)
    folder.mkdir()
    model = export_samples.tiny_model({"num_msa_layers": 1}, num_hidden_layers=2)
    checkpoint = export_samples.write_checkpoint(folder, model, num_hidden_layers=2)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return run_export(export_samples.config_for(checkpoint, folder / "bundle", backend="openvino", **changes))


def engine_of(folder: Path, graph: Path | None = None) -> ExecuTorchBackend:
    bundle = open_bundle(folder)
    return ExecuTorchBackend(graph or bundle.graph, bundle.spec())


@pytest.fixture(scope="module")
def fused(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    """Float weights; graphs with their streams, a pass that prunes 12 nodes to 6 among them."""
    root = tmp_path_factory.mktemp("openvino") / "fused"
    report = exported(root, schedule="fused", quantize="none")
    return root / "bundle", report


@pytest.fixture(scope="module")
def deferred(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Report]:
    """Weights in four bits; streams in a pass of their own."""
    root = tmp_path_factory.mktemp("openvino") / "deferred"
    report = exported(root, schedule="deferred", widths=(4,), default_width=4, prune_keep=4)
    return root / "bundle", report


def test_every_method_is_one_delegate_that_agrees_with_pytorch(
    fused: tuple[Path, Report], deferred: tuple[Path, Report]
) -> None:
    for (folder, report), methods in ((fused, {"verify_4", "verify_12"}), (deferred, {"verify_4", "streams"})):
        assert report.target["proof"] == "engine"
        assert report.target["device"] == "cpu"
        delegation = report.target["delegation"]
        assert set(delegation) == {"prefill", "decode", *methods}
        assert {method["delegates"] for method in delegation.values()} == {1}
        for figures in report.parity["lowering"].values():
            assert figures["snr_db"] > 100  # bfloat16, which this processor may have, gives 45
            assert figures.get("kept_agreement", 1.0) == 1.0
            assert figures.get("stream_top1_agreement", 1.0) == 1.0
        manifest = open_bundle(folder).manifest
        assert (manifest.backend, manifest.cache.dtype) == ("openvino", "float32")
    assert open_bundle(deferred[0]).manifest.quantization.mlp.bits == 4


@pytest.mark.parametrize(("schedule", "width"), [("fused", 4), ("fused", 12), ("deferred", 4)])
@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.9, "seed": 5}], ids=["greedy", "sampled"])
def test_drafting_and_pruning_change_no_token(
    schedule: str, width: int, sampling: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    folder, _ = request.getfixturevalue(schedule)
    options = {"max_new_tokens": 24, "raw": True, "ignore_eos": True, **sampling}
    with streamfuse.load(folder, cost_cache=False) as model:
        plain = model.generate("the keeper climbed", speculative=False, **options)
        drafted = model.generate("the keeper climbed", width=width, **options)
    assert drafted.tokens == plain.tokens
    assert drafted.statistics.accepted_by_source["streams"] > 0


@pytest.mark.parametrize("schedule", ["fused", "deferred"])
def test_a_chat_of_two_turns_is_the_same_with_and_without_drafts(schedule: str, request: pytest.FixtureRequest) -> None:
    folder, _ = request.getfixturevalue(schedule)
    answers = []
    for options in ({"speculative": False}, {"width": 4}):
        with streamfuse.load(folder, cost_cache=False) as model:
            chat = model.chat(max_new_tokens=10, ignore_eos=True, **options)
            answers.append([chat.send(words).tokens for words in ("Hello", "And now?")])
    assert answers[0] == answers[1]


def test_without_its_library_a_bundle_says_how_to_get_it(
    deferred: tuple[Path, Report], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENVINO_LIB_PATH", "/nowhere/libopenvino_c.so")
    with pytest.raises(
        BackendError, match=r"OPENVINO_LIB_PATH cannot be loaded .*pip install 'streamfuse\[openvino\]'"
    ):
        engine_of(deferred[0])


def test_a_forked_process_says_what_it_cannot_do(deferred: tuple[Path, Report], tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", export_samples.FORKED.replace(", threads=2", ""), str(deferred[0])]
    environment = {**os.environ, "STREAMFUSE_HOME": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "the model's delegate has no threads in it: load models after forking only" in done.stdout


def test_a_library_of_another_release_on_the_search_path_is_passed_over(
    deferred: tuple[Path, Report], tmp_path: Path
) -> None:
    newer_library(tmp_path)
    found = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("LD_LIBRARY_PATH")]))
    environment = {**os.environ, "LD_LIBRARY_PATH": found, "STREAMFUSE_HOME": str(tmp_path)}
    environment.pop("OPENVINO_LIB_PATH", None)
    script = (
        "import streamfuse, sys; print(len(streamfuse.load(sys.argv[1]).generate([1, 2], max_new_tokens=1).tokens))"
    )
    command = [sys.executable, "-W", "ignore", "-c", script, str(deferred[0])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def newer_library(folder: Path) -> Path:
    """OpenVINO's C library of a release that does not exist."""
    (folder / "newer.cpp").write_text(NEWER)
    library = folder / "libopenvino_c.so"
    compiler = os.environ.get("CXX", "c++")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(folder / "newer.cpp")], check=True)
    return library


def test_another_release_is_named_by_what_exports_and_by_what_runs(
    deferred: tuple[Path, Report], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import openvino

    monkeypatch.setenv("OPENVINO_LIB_PATH", str(newer_library(tmp_path)))
    with pytest.raises(BackendError, match=r"is OpenVINO 2099\.1\.0, .*2025\.4 compiled; .*streamfuse\[openvino\]"):
        engine_of(deferred[0])
    monkeypatch.setattr(openvino, "__version__", "2099.1.0-1")
    with pytest.raises(OptionError, match=r"OpenVINO 2025\.4, but 2099\.1\.0 is installed: .*streamfuse\[openvino\]"):
        exported(tmp_path / "model")
    assert not (tmp_path / "model" / "bundle").exists()


def test_openvino_sends_no_statistics(tmp_path: Path) -> None:
    """It would make a client id in the home folder first. `CI` turns its statistics off too."""
    environment = {name: value for name, value in os.environ.items() if name != "CI"} | {"HOME": str(tmp_path)}
    script = (
        "from streamfuse.export.executorch import openvino_model; import openvino.tools.ovc as ovc; "
        "print(openvino_model.release(), type(ovc.telemetry).__module__)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.stdout.split()[1:] == ["openvino.tools.ovc.telemetry_stub"], done.stderr
    assert not list(tmp_path.rglob("openvino_ga_cid"))


def test_a_device_that_is_not_here_is_named_by_what_exports_and_by_what_runs(
    deferred: tuple[Path, Report], tmp_path: Path
) -> None:
    from streamfuse.export.executorch.openvino_model import check_device

    # OpenVINO has no device of this name on any machine.
    with pytest.raises(OptionError, match=r"device xpu was not found: .* has cpu"):
        check_device("XPU")
    moved = tmp_path / "model.pte"
    moved.write_bytes(
        open_bundle(deferred[0]).graph.read_bytes().replace(b"\x03\x00\x00\x00CPU", b"\x03\x00\x00\x00XPU")
    )
    with pytest.raises(BackendError, match=r"'XPU'.*OpenVINO has CPU.*export it with --device"):
        export_samples.prefill(engine_of(deferred[0], moved), export_samples.TEXT)


def test_a_device_is_one_that_is_known_and_for_this_backend_alone(tmp_path: Path) -> None:
    checkpoint = export_samples.write_checkpoint(tmp_path, export_samples.tiny_model())
    with pytest.raises(OptionError, match="device must be one of cpu, gpu, npu, not tpu"):
        export_samples.config_for(checkpoint, tmp_path / "bundle", backend="openvino", device="tpu")
    with pytest.raises(OptionError, match=r"device goes with .*backend openvino"):
        export_samples.config_for(checkpoint, tmp_path / "bundle", device="gpu")
