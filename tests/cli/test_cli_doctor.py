"""`streamfuse doctor`: what it finds, what it says to do, and its exit code.

Run: python -m pytest tests/cli/test_cli_doctor.py
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import fakes
import pytest
from bundle_samples import fake_engines, manifest_fields, write_bundle
from export_samples import tiny_model, write_checkpoint
from typer.testing import CliRunner

from streamfuse import engines
from streamfuse.cli import app
from streamfuse.cli.shared import doctor_facts
from streamfuse.native.library import LibraryError

KEYS = [
    "usable", "streamfuse", "python", "machine", "memory_gb_per_s", "instruction_set", "forced_isa", "engines",
    "cost_cache", "packages", "bundles", "models", "missing", "to_do",
]  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder without bundles, and a cost cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STREAMFUSE_HOME", str(tmp_path / "home"))


def examined(*arguments: object, code: int = 0) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["doctor", *map(str, arguments), "--json"])
    assert result.exit_code == code, result.stderr
    assert result.stdout.count("\n") == 1
    found: dict[str, Any] = json.loads(result.stdout)
    assert list(found) == KEYS
    assert found["usable"] is (code == 0)
    return found


def test_a_whole_installation_has_nothing_to_do() -> None:
    started = time.monotonic()
    found = examined()
    assert time.monotonic() - started < 10
    assert found["to_do"] == []
    assert 0.5 < found["memory_gb_per_s"]["value"] < 2000
    assert found["engines"]["native"]["problem"] is None
    assert found["packages"]["numpy"].count(".") == 2
    page = CliRunner().invoke(app, ["doctor"])
    assert page.exit_code == 0
    for words in ("GB/s", "cost cache", "engine: native", "unknown until an ExecuTorch bundle", "Nothing to do"):
        assert words in page.stdout


def test_the_cost_cache_is_counted_and_the_command_clears_it(tmp_path: Path) -> None:
    folder = engines.cost_folder()
    folder.mkdir(parents=True)
    (folder / "a.costs").touch()
    cache = examined()["cost_cache"]
    assert cache == {"folder": str(folder), "entries": 1, "clear": f"rm -r {folder}"}


def test_what_is_missing_comes_with_the_line_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    found = examined()
    lines = {row["pip"]: row for row in found["missing"]}
    assert lines["pip install 'streamfuse[onnx]'"]["work"] == "running an ONNX bundle"
    assert "matplotlib" in lines["pip install 'streamfuse[bench]'"]["packages"]
    assert found["engines"]["onnxruntime"]["problem"].endswith("pip install 'streamfuse[onnx]'")
    assert found["to_do"] == []  # bundles of the native engine run


@pytest.mark.parametrize("loader", ["load_core", "text_library", "load_library"])
def test_without_a_native_library_nothing_runs(loader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise LibraryError("the native engine is not built; build it with: python -m streamfuse.native.build")

    monkeypatch.setattr(doctor_facts, loader, missing)
    found = examined(code=1)
    assert "python -m streamfuse.native.build" in found["to_do"][0]
    page = CliRunner().invoke(app, ["doctor"])
    assert (page.exit_code, "To do: no bundle runs without" in page.stdout) == (1, True)


def test_bundles_that_are_named_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Described(fakes.ArithmeticBackend):
        description = {"instruction_set": "avx9000"}  # noqa: RUF012

    monkeypatch.setattr(engines, "engines_of", fake_engines(Described)[1])
    sound, damaged = write_bundle(tmp_path / "sound"), write_bundle(tmp_path / "damaged")
    (damaged / "model.pte").write_bytes(b"short")
    assert examined(sound)["instruction_set"] == "avx9000"
    found = examined(sound, damaged, tmp_path / "nowhere", code=1)
    assert [bool(one["problem"]) for one in found["bundles"]] == [False, True, True]
    assert "model.pte" in found["bundles"][1]["problem"]
    assert len(found["to_do"]) == 2
    assert found["to_do"][0].startswith(str(damaged))
    page = CliRunner().invoke(app, ["doctor", str(sound)]).stdout
    assert "sound is sound: test/bytes, executorch (xnnpack), by the native engine" in " ".join(page.split())


def checkpoint(folder: Path, **changes: Any) -> Path:
    made, _ = write_checkpoint(folder, tiny_model(), **changes)
    return made


def test_bundles_that_nobody_named_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are code."""
    monkeypatch.setattr(engines, "engines_of", lambda *_: pytest.fail("opened"))
    monkeypatch.setattr(doctor_facts, "open_bundle", lambda *_, **__: pytest.fail("opened"))
    write_bundle(tmp_path / "found")
    assert examined()["instruction_set"] is None


def test_a_models_folder_that_can_be_exported_is_said_so(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "mine")
    (model,) = examined(folder)["models"]
    assert model == {
        "folder": str(folder),
        "about": "LlamaForCausalLM, 3 layers, without a chat template",
        "problem": None,
    }


@pytest.mark.parametrize(
    ("changes", "template", "words"),
    [
        ({"quantization_config": {"quant_method": "gptq"}}, None, "quantization_config: the weights are quantized"),
        ({"num_hidden_layers": 4}, None, "tensors do not fit config.json (missing: layers.3."),
        ({}, "{% unknown %}", "the chat template is not valid Jinja"),
        ({}, "{{ raise_exception('no') }}", "the chat template refuses these messages (no)"),
    ],
)  # fmt: skip
def test_why_a_models_folder_cannot_be_exported_is_said(
    changes: dict[str, Any], template: str | None, words: str, tmp_path: Path
) -> None:
    folder = checkpoint(tmp_path / "mine", **changes)
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    found = examined(folder, code=1)
    assert words in found["models"][0]["problem"]
    (to_do,) = found["to_do"]
    assert to_do.startswith(str(folder))
    assert to_do.count(str(folder)) == 1
    assert words in to_do


def test_a_peft_folder_is_called_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "lora").mkdir()
    (tmp_path / "lora" / "adapter_config.json").write_text("{}")
    found = examined(tmp_path / "lora", code=1)
    assert "is a PEFT adapter" in found["models"][0]["problem"]
    assert sum(line.count(str(tmp_path / "lora")) for line in found["to_do"]) == 1


def test_a_bundle_whose_chat_template_fails_is_not_sound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "engines_of", fake_engines()[1])
    model = {**manifest_fields()["model"], "chat_template": "{% unknown %}"}
    write_bundle(tmp_path / "bundle", model=model)
    (bundle,) = examined(tmp_path / "bundle", code=1)["bundles"]
    assert "the chat template is not valid Jinja" in bundle["problem"]
