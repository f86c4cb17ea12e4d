"""A model that no adapter fits: it exports without streams on every target, and drafts by look-up in the text.

Run: python -m pytest tests/export/test_export_without_adapter.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from export_samples import TEXT, config_for, tiny_model, write_checkpoint
from typer.testing import CliRunner

import streamfuse
from streamfuse.adapters import shipped
from streamfuse.api import load
from streamfuse.bundle import open_bundle
from streamfuse.cli import app
from streamfuse.export.adapter import choose_adapter, usual_adapter
from streamfuse.export.config import ExportConfig
from streamfuse.export.pipeline import run_export
from streamfuse.export.resolve import resolve
from streamfuse.model.checkpoint import load_base
from streamfuse.model.config import CheckpointError
from streamfuse.model.streams import StreamFused
from streamfuse.options import OptionError
from streamfuse.runtime.reference.lookup import ALONE, DIFFER, LONGEST, THRICE, TWICE, LookUpDrafter, Match, find

PROMPT = [*TEXT[:20], *TEXT[:18]]
SIZES: dict[str, Any] = {"max_context_len": 128, "prefill_len": 8, "widths": (4, 8), "default_width": 4}
FLAGS = ("--max-context-len", "128", "--prefill-len", "8", "--widths", "4,8", "--default-width", "4")
KINDS: dict[str, dict[str, Any]] = {
    "kernels": {},
    "xnnpack": {"backend": "xnnpack", "quantize": "none"},
    "8da4w": {"backend": "xnnpack"},
    "onnx": {"target": "onnx", "quantize": "none"},
    "onnx int4": {"target": "onnx"},
    "coreml": {"target": "coreml", "quantize": "none", "dtype": "float32"},
    "ane": {"target": "coreml", "layout": "ane", "quantize": "none", "dtype": "float32"},
}
# Whole exports by default: our operators, PyTorch's (ONNX's graphs, which XNNPACK's are too), and Core ML. That weights
# are rounded and that the layout `ane` computes the same, does not depend on streams: test_export_families.py.
FULL = ("xnnpack", "8da4w", "onnx int4", "ane")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(1)
    model = tiny_model({"num_msa_layers": 1}, num_hidden_layers=2)
    return write_checkpoint(tmp_path_factory.mktemp("tiny") / "mine", model, num_hidden_layers=2)[0]


@pytest.mark.parametrize("kind", [pytest.param(k, marks=pytest.mark.full) if k in FULL else k for k in KINDS])
def test_it_runs_on_every_target_and_speculation_changes_no_token(kind: str, folder: Path, tmp_path: Path) -> None:
    config = resolve(ExportConfig(folder, None, tmp_path / "bundle", **{**SIZES, **KINDS[kind]}))
    report = run_export(config)
    assert report.calibration == []
    bundle = open_bundle(config.output_dir)
    manifest = bundle.manifest
    assert list(manifest.methods) == ["prefill", "decode", "verify_4", "verify_8"]
    assert [(m.keep, m.stream_nodes) for m in manifest.verify_methods.values()] == [(4, 0), (8, 0)]
    speculation = manifest.speculation
    assert (speculation.num_streams, speculation.top_k, speculation.num_msa_layers) == (0, 0, 0)
    assert (speculation.adapter, speculation.extra_parameters, speculation.schedule) == (None, 0, "fused")
    assert bundle.draft is None
    assert (manifest.quantization.streams.parameters, manifest.quantization.streams.bytes) == (0, 0)
    accepted = 0
    with load(bundle, cost_cache=False) as model:
        for temperature in (0.0, 0.5):
            options = {"max_new_tokens": 40, "temperature": temperature, "seed": 3, "ignore_eos": True}
            plain = model.generate(PROMPT, speculative=False, **options)
            for width in (4, 8, None):
                found = model.generate(PROMPT, width=width, **options)
                assert found.tokens == plain.tokens
                assert found.statistics.speculative
                assert set(found.statistics.accepted_by_source) == {"streams", "lookup", "table", "grammar", "memory"}
                assert not found.statistics.accepted_by_source["streams"]
                accepted += found.statistics.accepted_by_source["lookup"]
    assert accepted > 0


def test_without_a_word_about_adapters_a_model_that_none_fits_exports_and_says_how_to_train_one(
    folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "bundle"
    with pytest.warns(UserWarning, match="^no streams: the shipped adapter chat-small does not fit") as caught:
        report = streamfuse.export_bundle(out, model=folder, **SIZES)
    (line,) = (str(warning.message) for warning in caught if warning.category is UserWarning)
    assert "(trained on a base with vocab_size 49152, this one has 258)" in line
    assert f"streamfuse train --model {folder} --data answers.jsonl -o build/train/mine" in line
    assert "\n" not in line
    assert report.config["adapter"] == "none"
    assert open_bundle(out).manifest.speculation.num_streams == 0


def test_defaults_are_those_of_the_adapter_that_is_taken_in_the_end(folder: Path, tmp_path: Path) -> None:
    sizes = ("--max-context-len", "128", "--prefill-len", "8")
    command = ["export", "--model", str(folder), "-o", str(tmp_path / "bundle"), *sizes, "--dry-run", "--json"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["widths"] == [4, 8, 16]  # the shipped adapter, which does not fit, would add 1


@pytest.mark.parametrize("chosen", [(), ("--adapter", "auto"), ("--adapter", "none")])
def test_the_command_line_says_it_on_standard_error_alone(
    chosen: tuple[str, ...], folder: Path, tmp_path: Path
) -> None:
    command = ["export", "--model", str(folder), "-o", str(tmp_path / "bundle"), *FLAGS, "--dry-run", *chosen]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0
    assert ("streamfuse train --model" in done.stderr) == ("none" not in chosen)
    assert done.stderr.count("\n") == ("none" not in chosen)
    assert "none: no streams, drafts are look-ups in the text" in done.stdout
    assert "top_k" not in done.stdout


def test_an_adapter_that_is_named_and_does_not_fit_is_an_error(folder: Path, tmp_path: Path) -> None:
    command = ["export", "--model", str(folder), "--adapter", "chat-lossless", "-o", str(tmp_path / "b"), *FLAGS]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1
    assert "trained on a base with vocab_size 49152, this one has 258" in done.stderr
    with pytest.raises(CheckpointError, match="vocab_size 49152"):
        streamfuse.export_bundle(tmp_path / "b", model=folder, adapter="chat-lossless", **SIZES)
    assert list(tmp_path.iterdir()) == []


def test_the_shipped_adapter_is_taken_where_it_fits(tmp_path: Path) -> None:
    config = {"vocab_size": 49152, "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9}
    more = {"num_key_value_heads": 3, "intermediate_size": 1536, "architectures": ["LlamaForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps({**config, **more, "rope_theta": 1e5}))
    chosen = choose_adapter("auto", tmp_path, "mine")
    assert chosen.path is not None
    assert (chosen.path.stem, chosen.word, chosen.note) == ("chat-small", "chat-small", None)


@pytest.mark.parametrize(
    ("options", "stem"),
    [
        ({}, "chat-small"),
        ({"backend": "kernels"}, "chat-small"),
        ({"schedule": "fused"}, "chat-lossless"),
        ({"schedule": "both"}, "chat-lossless"),
        ({"backend": "xnnpack"}, "chat-lossless"),
        ({"target": "coreml"}, "chat-lossless"),
    ],
)
def test_small_streams_are_taken_where_they_have_a_pass_of_their_own_on_a_cpu(
    options: dict[str, Any], stem: str
) -> None:
    assert usual_adapter(options) == stem
    assert stem in shipped()


def test_a_config_file_and_a_report_say_none_too(folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("adapter: none\nmax_context_len: 128\nprefill_len: 8\n")
    command = ["export", "--model", str(folder), "-o", str(tmp_path / "b"), "--config", str(config), "--dry-run"]
    for text in (config.read_text(), yaml.dump(plain_plan(folder).to_dict())):
        config.write_text(text)
        done = CliRunner().invoke(app, [*command, "--json"])
        assert (done.exit_code, done.stderr) == (0, "")
        found = json.loads(done.stdout)
        assert (found["adapter"], found["max_context_len"]) == ("none", 128)
        assert "schedule" not in found


def plain_plan(folder: Path, **changes: Any) -> ExportConfig:
    return resolve(ExportConfig(folder, None, Path("bundle"), **{**SIZES, **changes}))


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"num_streams": 2}, "--num-streams"),
        ({"top_k": 5}, "--top-k"),
        ({"schedule": "fused"}, "--schedule"),
        ({"prune_keep": 4}, "--prune-keep"),
        ({"merge_adapter": "on"}, "--merge-adapter"),
        ({"ngram_table_mb": 4.0}, "--ngram-table-mb"),
        ({"scheme": {"streams": "q8_0"}}, "--scheme streams=..."),
    ],
)
def test_what_is_about_streams_is_refused_by_its_flag(changes: dict[str, Any], flag: str, folder: Path) -> None:
    with pytest.raises(OptionError) as error:
        plain_plan(folder, **changes)
    assert error.value.flags.startswith(f"{flag} is about streams, and this export has none")


def test_a_model_without_streams_is_the_base_alone(folder: Path) -> None:
    base = load_base(folder)
    model = StreamFused.without_streams(base)
    assert model.base is base
    assert model.extra_state().keys() == {"stream_embeddings", "stream_vocab"}
    assert sum(value.numel() for value in model.extra_state().values()) == 0
    assert model.num_lower_layers == base.config.num_layers


def test_a_plan_with_an_adapter_is_as_before(folder: Path) -> None:
    assert config_for((folder, folder / "tiny.safetensors"), Path("bundle")).shapes.stream_nodes == (4, 3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ([1, 2, 3, 4, 5, 1, 2], Match(2, ALONE, (3,))),
        ([1, 2, 9, 1, 2, 8, 1, 2], Match(2, DIFFER, (8, 9))),  # the latest first
        ([7, 1, 2, 9, 6, 1, 2, 8, 7, 1, 2], Match(3, ALONE, (9,))),  # the longest
        ([1, 2, 9, 1, 2, 8, 1, 2, 8, 1, 2], Match(5, ALONE, (8,))),
        ([6, 2, 9, 7, 2, 8, 5, 2, 8, 4, 2], Match(1, TWICE, (8, 9))),
        ([6, 2, 8, 7, 2, 8, 5, 2, 8, 4, 2], Match(1, THRICE, (8,))),
        ([3, 2, 1, 2, 9, 2, 8, 2, 7, 2], Match(1, DIFFER, (7, 8, 9))),  # three of four
        ([5, 5, 5], Match(2, ALONE, (5,))),
        ([1, 2, 3], Match(0, ALONE, ())),
        ([1], Match(0, ALONE, ())),
    ],
)
def test_the_look_up_takes_the_longest_match_and_all_its_places(text: list[int], expected: Match) -> None:
    assert find(text, text[-LONGEST:]) == expected


def test_the_look_up_goes_on_within_its_own_draft() -> None:
    """Text that repeats itself is drafted beyond its end, and each node has the tokens that followed its own path."""
    again = LookUpDrafter().draft([5, 5, 5, 5, 5], 8, 7)
    assert again.tokens.tolist() == [5] * 8
    assert again.parents.tolist() == list(range(-1, 7))
    fork = LookUpDrafter().draft([1, 2, 9, 4, 1, 2, 8, 3, 1, 2], 6, 2)
    paths = {(int(fork.tokens[parent]), int(token)) for token, parent in zip(fork.tokens, fork.parents, strict=True)}
    assert {(2, 8), (2, 9), (8, 3), (9, 4)} <= paths
    assert fork.depth == 2
