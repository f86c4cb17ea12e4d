"""A bundle's sampling defaults: those of the model's generation_config.json, read as transformers reads it.

Run: python -m pytest tests/export/test_export_sampling.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from export_samples import config_for, tiny_model, write_checkpoint
from gguf_samples import Source
from typer.testing import CliRunner

from streamfuse.bundle import open_bundle
from streamfuse.cli import app
from streamfuse.export.pipeline import run_export
from streamfuse.export.sampling import sampling_defaults
from streamfuse.model.config import CheckpointError
from streamfuse.model.gguf import convert
from streamfuse.options import OptionError

GREEDY = {"temperature": 0.0, "max_new_tokens": 128}
QWEN = {"do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05}


def folder(tmp_path: Path, **settings: Any) -> Path:
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    return tmp_path


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {}),
        ({"eos_token_id": 2}, {}),
        ({"temperature": 0.6, "top_p": 0.9}, {}),  # without do_sample transformers does not sample
        ({"do_sample": False, "temperature": 0.6}, {}),
        ({"repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
        (QWEN, {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0.0, "repetition_penalty": 1.05}),
        ({"do_sample": True}, {"temperature": 1.0, "top_p": 1.0, "top_k": 50, "min_p": 0.0}),
        ({"do_sample": True, "top_k": 0, "min_p": 0.05}, {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.05}),
        ({"do_sample": True, "top_k": None}, {"temperature": 1.0, "top_p": 1.0, "top_k": 50, "min_p": 0.0}),
    ],
)
def test_values_mean_what_they_mean_in_transformers(
    settings: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    found = sampling_defaults(folder(tmp_path, **settings), "model")
    assert found.values == {**GREEDY, **expected}
    assert (found.note is None) is (not expected)
    assert sampling_defaults(tmp_path, "greedy").values == GREEDY


def test_what_is_taken_and_what_is_left_out_is_said(tmp_path: Path) -> None:
    found = sampling_defaults(folder(tmp_path, **QWEN, typical_p=0.9, num_beams=1), "model")
    assert found.note == (
        "sampling defaults from generation_config.json: temperature 0.7, top_k 20, top_p 0.8, repetition_penalty 1.05 "
        "(--sampling greedy takes none); left out, not supported: typical_p 0.9"
    )
    left = sampling_defaults(tmp_path, "greedy").note
    assert left is not None
    assert left.startswith("sampling defaults: greedy; generation_config.json has temperature 0.7, top_k 20")
    assert left.endswith("which --sampling model takes")


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"top_p": 1.5}, "top_p must be above 0"), ({"temperature": "hot"}, "temperature must be a number, not 'hot'"),
     ({"top_k": 2.5}, "top_k must be a number"), ({"repetition_penalty": -1}, "repetition_penalty must be")],
)  # fmt: skip
def test_a_value_out_of_range_is_named(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"generation_config.json: {words}"):
        sampling_defaults(folder(tmp_path, do_sample=True, **settings), "model")


def test_values_that_are_not_used_may_be_out_of_range(tmp_path: Path) -> None:
    found = sampling_defaults(folder(tmp_path, do_sample=True, top_k=-1), "greedy")
    assert found.values == GREEDY
    assert "top_k -1" in str(found.note)


@pytest.mark.parametrize(("choice", "temperature"), [("model", 0.7), ("greedy", 0.0)])
def test_the_bundle_has_the_chosen_defaults(choice: str, temperature: float, tmp_path: Path) -> None:
    made = write_checkpoint(tmp_path / "base", tiny_model())
    folder(made[0], **QWEN)
    settings = {"target": "onnx", "quantize": "none", "sampling": choice}
    report = run_export(config_for(made, tmp_path / "bundle", **settings))
    assert open_bundle(tmp_path / "bundle").manifest.sampling_defaults.temperature == temperature
    assert report.config["sampling"] == choice


def test_the_command_line_says_it_and_refuses_another_word(tmp_path: Path) -> None:
    made = write_checkpoint(tmp_path / "base", tiny_model())
    folder(made[0], **QWEN)
    command = ["export", "--model", str(made[0]), "--adapter", "none", "-o", str(tmp_path / "out"), "--dry-run"]
    command += ["--target", "onnx", "--max-context-len", "64"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.stderr
    assert "sampling defaults from generation_config.json: temperature 0.7" in done.stderr
    assert "model: temperature 0.7, top_k 20, top_p 0.8, repetition_penalty 1.05" in done.stdout
    with pytest.raises(OptionError, match="sampling must be one of model, greedy, not random"):
        config_for(made, tmp_path, sampling="random")


def test_a_warning_of_a_checkpoint_is_a_line_of_its_own(tmp_path: Path) -> None:
    folder_, _ = write_checkpoint(tmp_path / "base", tiny_model(), rope_parameters={"rope_theta": 5e5},
                                  rope_scaling={"type": "linear", "factor": 2.0})  # fmt: skip
    command = ["export", "--model", str(folder_), "--adapter", "none", "-o", str(tmp_path / "out"), "--dry-run"]
    done = CliRunner().invoke(app, [*command, "--target", "onnx", "--max-context-len", "64"])
    assert done.exit_code == 0, done.stderr
    assert done.stderr.startswith(f"warning: {folder_}/config.json: rope_scaling replaces rope_parameters")
    assert ".py:" not in done.stderr


def test_sampling_of_a_gguf_has_llama_cpps_defaults(tmp_path: Path) -> None:
    source = Source()
    source.fields |= {"general.sampling.temp": 0.6, "general.sampling.top_k": 20}
    convert(source.write(tmp_path / "m.gguf"), tmp_path / "hf")
    expected = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.0}
    assert sampling_defaults(tmp_path / "hf", "model").values == {
        **GREEDY,
        **{name: value for name, value in expected.items() if name != "repetition_penalty"},
    }
    source.fields = {}
    convert(source.write(tmp_path / "n.gguf"), tmp_path / "plain")
    assert sampling_defaults(tmp_path / "plain", "model").values == GREEDY
