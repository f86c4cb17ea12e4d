"""Qualcomm's processor: a tiny model's graphs through the vendor's compiler, and its simulator through our engine."""

import importlib.metadata
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import export_samples
import numpy as np
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
        importlib.util.find_spec("onnxruntime_qnn") is None,
        reason="onnxruntime-qnn is not installed: pip install 'streamfuse[qnn]' (x86-64 Linux, Python 3.11 or newer)",
    ),
]

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
)


def exported(folder: Path, width: int, schedule: str, sharing: str, quantize: str = "none") -> Report:
    torch.manual_seed(0)
    folder.mkdir()
    model = export_samples.tiny_model({"num_msa_layers": 1}, num_hidden_layers=2)
    checkpoint = export_samples.write_checkpoint(folder, model, num_hidden_layers=2)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    changes: dict[str, Any] = {"backend": "qnn", "quantize": quantize, "weight_sharing": sharing}
    changes |= {"widths": (width,), "default_width": width, "prune_keep": min(width, 6)}
    changes |= {"stream_nodes": {width: 3}} if schedule == "fused" else {}
    return run_export(export_samples.config_for(checkpoint, folder / "bundle", schedule=schedule, **changes))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("qnn")


@pytest.fixture(scope="module")
def fused(root: Path) -> tuple[Path, Report]:
    """Graphs with their streams, a pass that prunes 12 nodes to 6 among them, each with weights of its own."""
    return root / "fused" / "bundle", exported(root / "fused", 12, "fused", "off")


@pytest.fixture(scope="module")
def shared(root: Path) -> tuple[Path, Report]:
    """What a phone gets: the graphs of the deferred schedule, sharing their weights, which are in int8."""
    report = exported(root / "shared", 4, "deferred", "on", "int8")
    return root / "shared" / "bundle", report


def test_every_method_is_one_delegate_whose_caches_are_half_floats(fused: tuple[Path, Report]) -> None:
    folder, report = fused
    delegation = report.target["delegation"]
    assert set(delegation) == {"prefill", "decode", "verify_12"}
    for method in delegation.values():
        assert method["delegates"] == 1
        assert set(method["outside"]) <= {
            "aten._to_copy",
            "aten.embedding",
            "aten.squeeze_copy",
            "aten.mul",
            "aten.add",
        }
    assert delegation["verify_12"]["inside"]["aten.topk"] == 3  # the pruner's two, and the streams'
    manifest = open_bundle(folder).manifest
    assert manifest.backend == "qnn"
    assert manifest.cache.dtype == "float16"


def test_the_simulator_agrees_with_pytorch(fused: tuple[Path, Report], shared: tuple[Path, Report]) -> None:
    for _, report in (fused, shared):
        assert report.target["proof"] == "simulator"
        for figures in report.parity["lowering"].values():
            assert figures["snr_db"] > 40
            assert figures.get("kept_agreement", 1.0) == 1.0
            assert figures.get("stream_top1_agreement", 1.0) == 1.0


def test_shared_weights_are_stored_once_and_are_for_phones(
    fused: tuple[Path, Report], shared: tuple[Path, Report]
) -> None:
    (alone, _), (together, report) = fused, shared
    assert report.target["weight_sharing"] == "on"
    assert (together / "model.pte").stat().st_size < 0.55 * (alone / "model.pte").stat().st_size
    parts = open_bundle(together).manifest.quantization
    assert (parts.embedding.symmetric, parts.attention.symmetric) == (None, True), "floats have no zero points"
    assert [part.bits for part in (parts.embedding, parts.attention, parts.mlp, parts.head, parts.streams)] == [
        16, 8, 8, 8, 8
    ]  # fmt: skip
    with streamfuse.load(together) as model, pytest.raises(BackendError, match="--weight-sharing off"):
        model.generate("the keeper")


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 0.9, "seed": 5}], ids=["greedy", "sampled"])
def test_drafting_and_pruning_on_the_processor_changes_no_token(
    fused: tuple[Path, Report], sampling: dict[str, Any]
) -> None:
    options = {"max_new_tokens": 24, "raw": True, "ignore_eos": True, **sampling}
    with streamfuse.load(fused[0], cost_cache=False) as model:
        plain = model.generate("the keeper climbed", speculative=False, **options)
        drafted = model.generate("the keeper climbed", width=12, **options)
    assert drafted.tokens == plain.tokens
    assert drafted.statistics.accepted_by_source["streams"] > 0


def test_a_chat_of_two_turns_is_the_same_with_and_without_drafts(fused: tuple[Path, Report]) -> None:
    answers = []
    for options in ({"speculative": False}, {"width": 12}):
        with streamfuse.load(fused[0], cost_cache=False) as model:
            chat = model.chat(max_new_tokens=10, ignore_eos=True, **options)
            answers.append([chat.send(words).tokens for words in ("Hello", "And now?")])
    assert answers[0] == answers[1]


def test_a_row_has_the_same_bits_however_many_share_its_pass(fused: tuple[Path, Report]) -> None:
    """So a pass of one row through a verify graph is plain decoding to the bit, where `decode` is not."""
    bundle = open_bundle(fused[0])
    backend = ExecuTorchBackend(bundle.graph, bundle.spec())
    tokens = np.array(export_samples.TEXT[6:18])

    def rows_of(method: str, count: int) -> dict[int, np.ndarray[Any, Any]]:
        export_samples.prefill(backend, export_samples.TEXT[:6])
        causal = np.tril(np.ones((count, count), np.bool_))
        out = backend.run(method, tokens[:count], 6 + np.arange(count), causal, want_logits=True)
        return {node: np.array(out.logits[i]) for i, node in enumerate(out.kept.tolist())}

    whole = rows_of("verify_12", 12)
    for count in (1, 2, 11):
        part = rows_of("verify_12", count)
        for node in set(part) & set(whole):
            assert np.array_equal(part[node], whole[node])
    backend.close()


def test_what_the_vendor_prints_stays_out_of_a_programs_output(fused: tuple[Path, Report]) -> None:
    command = [sys.executable, "-m", "streamfuse", "run", str(fused[0]), "hello", "--max-new-tokens", "2", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["text"] is not None
    assert "QNN" not in done.stderr
    assert "Qnn" not in done.stderr


OTHER_LIBRARY = """
import ctypes
import torch
from streamfuse.export.executorch.qnn_sdk import load_compiler
load_compiler()
ctypes.CDLL("libQnnHtp.so", mode=ctypes.RTLD_GLOBAL)  # as ExecuTorch's delegate opens it
from streamfuse.export.executorch.openvino_model import check_device
check_device("CPU")
print("found")
"""


@pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="openvino is not installed")
def test_openvino_works_after_qualcomms_libraries_were_loaded() -> None:
    """OpenVINO throws and catches one when it lists devices; with the vendor's C++ runtime the process would abort."""
    done = subprocess.run([sys.executable, "-c", OTHER_LIBRARY], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "found\n"), done.stderr


def test_without_qualcomms_libraries_the_export_says_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.delenv("QNN_SDK_ROOT", raising=False)
    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    with pytest.raises(OptionError, match=r"streamfuse\[qnn\].*QNN_SDK_ROOT"):
        exported(tmp_path / "model", 12, "fused", "off")
    assert not (tmp_path / "model" / "bundle").exists()


def test_a_chip_is_one_that_is_known_and_for_this_backend_alone(tmp_path: Path) -> None:
    checkpoint = export_samples.write_checkpoint(tmp_path, export_samples.tiny_model())
    with pytest.raises(OptionError, match="soc must be one of SM8550, SM8650, SM8750, SM8850, not SM1"):
        export_samples.config_for(checkpoint, tmp_path / "bundle", backend="qnn", soc="SM1")
    with pytest.raises(OptionError, match=r"soc goes with .*backend qnn"):
        export_samples.config_for(checkpoint, tmp_path / "bundle", soc="SM8650")


@pytest.mark.parametrize("scheme", ["embedding=int8", "mlp=int4", "mlp=int8:32"])
def test_weights_that_the_processor_does_not_multiply_are_refused_by_name(tmp_path: Path, scheme: str) -> None:
    checkpoint = export_samples.write_checkpoint(tmp_path, export_samples.tiny_model())
    part, _, name = scheme.partition("=")
    with pytest.raises(OptionError, match=f"scheme {part} must be float"):
        export_samples.config_for(checkpoint, tmp_path / "bundle", backend="qnn", scheme={part: name})
