"""What is not installed is named before work begins, and running bundles needs none of it.

Run: python -m pytest tests/cli/test_extras.py
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from bundle_samples import write_bundle
from typer.testing import CliRunner

import streamfuse
from streamfuse.bench.quality.scores import needs_rouge, quality
from streamfuse.bundle import open_bundle
from streamfuse.cli import app
from streamfuse.extras import NEEDS, MissingExtra, need, need_native, package_of
from streamfuse.native.library import LibraryError, core_name, file_name, library_name
from streamfuse.train.formats import Sample

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = ("torch", "executorch", "transformers", "accelerate", "datasets", "coremltools", "onnx", "onnxruntime", "gguf",
          "huggingface_hub", "safetensors", "yaml", "filelock", "matplotlib", "rouge_score", "llama_cpp",
          "cryptography", "scipy", "starlette", "uvicorn")  # fmt: skip
WITHOUT = f"import sys; sys.modules.update(dict.fromkeys({EXTRAS}))\n"  # None: not to be imported


def brought_by(extras: str) -> set[str]:
    """Packages that `pip install 'streamfuse[extras]'` names."""
    found = set()
    for requirement in [line for extra in extras.split(",") for line in PROJECT["optional-dependencies"][extra]]:
        own = re.fullmatch(r"streamfuse\[(.*)\]", requirement)
        found |= brought_by(own[1]) if own else {re.split(r"[<>=;]", requirement)[0]}
    return found


@pytest.mark.parametrize("name", NEEDS)
def test_the_named_extras_bring_what_a_part_needs(name: str) -> None:
    assert {package_of(module) for module in NEEDS[name].modules} <= brought_by(NEEDS[name].extras)


def test_the_runtime_brings_no_package_of_an_extra() -> None:
    plain = {re.split(r"[<>=]", line)[0] for line in PROJECT["dependencies"]}
    assert plain == {"numpy", "pydantic", "rich", "typer"}


def test_a_missing_part_is_one_sentence_with_the_line_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    need("pull")
    monkeypatch.setitem(sys.modules, "gguf", None)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtra) as caught:
        need("pull")
    assert str(caught.value) == "pulling needs gguf, huggingface-hub: pip install 'streamfuse[export]'"


@pytest.mark.parametrize(
    ("command", "missing", "line"),
    [
        ("pull", "gguf", "pulling needs gguf: pip install 'streamfuse[export]'"),
        ("export -o new", "executorch", "exporting needs executorch: pip install 'streamfuse[export]'"),
        ("export -o new --config plan.yaml", "yaml", "exporting needs pyyaml: pip install 'streamfuse[export]'"),
        ("export -o new --target onnx", "onnx", "exporting to ONNX needs onnx: pip install 'streamfuse[export,onnx]'"),
        ("export -o new --backend coreml", "coremltools", "pip install 'streamfuse[export,coreml]'"),
        ("export -o new --backend openvino", "openvino", "pip install 'streamfuse[openvino]'"),
        ("serve bundle", "uvicorn", "serving needs uvicorn: pip install 'streamfuse[serve]'"),
        ("bundle keygen new", "cryptography", "a signature needs cryptography: pip install 'streamfuse[sign]'"),
        ("export -o new --sign-key file", "cryptography", "pip install 'streamfuse[sign]'"),
        ("data synthesize new", "torch", "writing prompts needs torch: pip install 'streamfuse[export]'"),
        ("data distill prompts new", "torch", "distilling needs torch: pip install 'streamfuse[export]'"),
        ("train --data answers -o new", "accelerate", "training needs accelerate: pip install 'streamfuse[train]'"),
        ("train --recipe e2e-shared -o new", "transformers", "pip install 'streamfuse[train]'"),
        ("bench ablations --data answers -o new", "transformers", "pip install 'streamfuse[train]'"),
        ("bench acceptance --adapter file --data answers", "torch", "pip install 'streamfuse[export]'"),
        ("bench latency bundle", "executorch", "bench latency needs executorch: pip install 'streamfuse[export]'"),
        ("bench latency bundle --report new", "matplotlib", "a report needs matplotlib"),
        ("bench quantization --data answers", "torch", "pip install 'streamfuse[export]'"),
        ("bench scale", "executorch", "bench scale needs executorch: pip install 'streamfuse[export]'"),
        ("bench tasks bundle --data answers --report new", "matplotlib", "pip install 'streamfuse[bench]'"),
        ("research export new --leave-out mlp.1", "executorch", "exporting needs executorch"),
        ("research layer-skip new --model m --data answers", "optuna", "pip install 'streamfuse[research]'"),
        ("research train-heads chat-medusa -o new", "transformers", "pip install 'streamfuse[train]'"),
    ],
)
def test_a_command_asks_before_it_begins(
    command: str, missing: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, missing, None)
    result = CliRunner().invoke(app, command.split())
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert line in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["export -o new", "export -o new --target onnx", "bench scale"])
def test_an_engine_that_is_not_built_is_said_before_work_begins(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STREAMFUSE_ENGINE", str(tmp_path / "nowhere.so"))
    result = CliRunner().invoke(app, command.split())
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert "nowhere.so, which is not a file" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("lacking", [library_name(), core_name(), file_name("streamfuse_text")])
def test_each_native_library_is_needed(lacking: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {library_name(), core_name(), file_name("streamfuse_text")}
    for name in names - {lacking}:
        (tmp_path / name).touch()
    monkeypatch.setenv("STREAMFUSE_ENGINE", str(tmp_path / library_name()))
    with pytest.raises(LibraryError, match=re.escape(lacking)):
        need_native()


@pytest.mark.parametrize(
    ("target", "system", "missing", "line"),
    [
        ("onnx", platform.system(), "onnxruntime", "an ONNX bundle needs onnxruntime: pip install 'streamfuse[onnx]'"),
        ("coreml", "Darwin", "coremltools", "on a Mac needs coremltools: pip install 'streamfuse[coreml]'"),
    ],
)
def test_a_bundle_of_another_engine_says_so_before_it_is_loaded(
    target: str, system: str, missing: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = open_bundle(write_bundle(tmp_path / "demo"))
    bundle = replace(bundle, manifest=bundle.manifest.model_copy(update={"target": target}))
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setattr(platform, "system", lambda: system)
    with pytest.raises(MissingExtra, match=re.escape(line)):
        streamfuse.load(bundle)


def test_rouge_is_asked_for_where_quality_would_use_it() -> None:
    writes, answered = Sample(("hi",)), Sample(("hi",), ("hello",))
    query = Sample(("how many?",), ("SELECT count(*) FROM t",), schema="CREATE TABLE t (a int)")
    for samples, rouge in (([], False), ([writes], False), ([query, writes], False), ([query, answered], True)):
        assert needs_rouge(samples) is rouge
        assert ("rouge1" in quality(samples, ["hello"] * len(samples))) is rouge


def test_commands_explain_themselves_and_run_without_the_extras(tmp_path: Path) -> None:
    """The engine is the arithmetic model of fakes.py."""
    code = WITHOUT + (
        f"sys.path.append({str(Path(__file__).parents[1] / 'helpers')!r})\n"
        "from bundle_samples import fake_engines\n"
        "from typer.testing import CliRunner\n"
        "from streamfuse import engines\n"
        "from typer.main import get_command\n"
        "from streamfuse.cli import app\n"
        "_, engines.engines_of = fake_engines()\n"
        "def leaves(command, path=()):\n"
        "    below = getattr(command, 'commands', {})\n"
        "    return [leaf for name in below for leaf in leaves(below[name], (*path, name))] or [path]\n"
        "runs = [[*path, '--help'] for path in leaves(get_command(app))]\n"
        "assert len(runs) > 25\n"
        f"bundle = {str(write_bundle(tmp_path / 'demo'))!r}\n"
        "runs += [['bundle', 'inspect', bundle], ['run', bundle, 'hi']]\n"
        "print([run for run in runs if CliRunner().invoke(app, run).exit_code])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
