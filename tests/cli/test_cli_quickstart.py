"""`streamfuse quickstart` on a tiny random model: the whole way, what a second run skips, and what it refuses.

Run: python -m pytest tests/cli/test_cli_quickstart.py
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from export_samples import tiny_model, write_checkpoint
from typer.testing import CliRunner, Result

from streamfuse.api import Model, load
from streamfuse.bundle import open_bundle
from streamfuse.cli import app
from streamfuse.model.checkpoint import load_base, load_stream_fused, read_adapter
from streamfuse.runtime.session import Session
from streamfuse.train import distill as distillation
from streamfuse.train.general_prompts import HELD_OUT, PROMPTS

TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}<assistant>"
CHANGES: dict[str, Any] = {"max_position_embeddings": 256, "num_hidden_layers": 2}
TOKENS = 600


def written_to(folder: Path) -> Path:
    torch.manual_seed(1)
    folder, _ = write_checkpoint(folder, tiny_model({"num_msa_layers": 1}, **CHANGES), **CHANGES)
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return written_to(tmp_path / "mine")


@pytest.fixture(scope="module", autouse=True)
def _even_costs() -> Iterator[None]:
    """All passes cost the same, so that drafts are worth a pass on every machine."""
    with pytest.MonkeyPatch.context() as patch:
        _set_even_costs(patch)
        yield


def _set_even_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = Model.session

    def even(model: Model, **options: Any) -> Session:
        session = measured(model, **options)
        session.core.set_costs(dict.fromkeys(("decode", *model.bundle.spec().widths), 1.0), frozen=True)
        return session

    monkeypatch.setattr(Model, "session", even)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMFUSE_HOME", str(tmp_path / "home"))


def quickstart(model: object, out: Path, *flags: object) -> Result:
    command = ["quickstart", str(model), "-o", str(out), "--tokens", TOKENS, "--threads", 1, *flags]
    return CliRunner().invoke(app, [str(word) for word in command])


def found(model: object, out: Path, *flags: object) -> dict[str, Any]:
    result = quickstart(model, out, "--json", *flags)
    assert result.exit_code == 0, result.stderr
    facts: dict[str, Any] = json.loads(result.stdout)
    return facts


def refused(model: object, out: Path, *flags: object, code: int = 2) -> str:
    result = quickstart(model, out, *flags)
    assert (result.exit_code, result.stdout) == (code, ""), result.stderr
    return result.stderr.splitlines()[-1]


def rows(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "answers.jsonl").read_text(encoding="utf-8").splitlines()]


@dataclass(frozen=True)
class Made:
    """A checkpoint, the output folder of a complete run, and its JSON report. Tests must not modify them."""

    model: Path
    out: Path
    facts: dict[str, Any]

    def copied(self, folder: Path) -> Path:
        return shutil.copytree(self.out, folder / "out")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STREAMFUSE_HOME", str(folder / "home"))
        model = written_to(folder / "mine")
        return Made(model, folder / "out", found(model, folder / "out"))


def test_the_whole_way_and_a_second_run_skips_what_is_whole(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    model, out, facts = made.model, made.out, made.facts
    assert facts["skipped"] == []
    assert facts["tokens"] == sum(len(row["completion_ids"]) for row in rows(out)) >= TOKENS
    assert facts["table"]["tokens"] <= facts["tokens"]
    assert facts["table"]["entries"] > 0
    compared = facts["comparison"]
    assert compared["equal"]
    assert [row["prompt"] for row in compared["prompts"]] == list(HELD_OUT)
    assert compared["accepted_by_source"]["streams"] == 0
    assert compared["accepted_by_source"]["table"] > 0
    bundle = open_bundle(out / "bundle")
    assert bundle.manifest.speculation.num_streams == 0
    assert bundle.tables is not None
    assert len(bundle.tables["ngram_ids"]) == facts["table"]["entries"]
    assert facts["next"][-1].startswith(f"streamfuse export --model {model} --adapter {out}/train/adapter.safetensors")
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    monkeypatch.setattr(distillation, "choose_dtype", lambda name, device: torch.float16)  # as on another machine
    again = found(model, out)
    assert again["skipped"] == ["own text", "n-gram table", "bundle"]
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()} == before
    for key in ("tokens", "table", "next"):
        assert again[key] == facts[key]


def test_more_tokens_continue_the_text_and_renew_what_follows_from_it(made: Made, tmp_path: Path) -> None:
    model, out, first = made.model, made.copied(tmp_path), made.facts
    written = rows(out)
    more = found(model, out, "--tokens", 2000)
    assert more["tokens"] >= 2000 > first["tokens"]
    assert rows(out)[: len(written)] == written
    assert more["skipped"] == []
    tables = open_bundle(out / "bundle").tables
    assert tables is not None
    assert len(tables["ngram_ids"]) == more["table"]["entries"] > first["table"]["entries"]
    other = found(model, out, "--max-context-len", 224)
    assert other["skipped"] == ["own text", "n-gram table"]
    assert open_bundle(out / "bundle").manifest.cache.capacity == 224


def test_an_interrupted_run_continues_with_the_same_text(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    found(model, whole, "--tokens", 4200)  # more than a batch of 32 answers can have
    real = distillation.distill

    def interrupted(*arguments: Any) -> Iterator[Any]:
        for part in real(*arguments):
            yield part
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(distillation, "distill", interrupted)
        result = quickstart(model, out, "--tokens", 4200)
    assert result.exit_code == 130
    assert "the same command continues" in result.stderr
    written = rows(out)
    assert 0 < len(written) < len(rows(whole))
    assert not (out / "bundle").exists()
    with (out / "answers.jsonl").open("a") as file:
        file.write('{"id": 99')  # what a killed process leaves
    assert found(model, out, "--tokens", 4200)["comparison"]["equal"]
    assert rows(out) == rows(whole)


def test_a_damaged_table_or_bundle_is_made_again(made: Made, tmp_path: Path) -> None:
    model, out, facts = made.model, made.copied(tmp_path), made.facts
    (out / "ngrams.safetensors").write_bytes(b"\0" * 20)
    (out / "bundle" / "draft.safetensors").unlink()
    again = found(model, out)
    assert again["skipped"] == ["own text"]
    assert again["table"] == facts["table"]
    assert open_bundle(out / "bundle").tables is not None


def test_a_bundle_is_made_again_when_a_file_of_the_model_that_it_contains_has_changed(
    made: Made, tmp_path: Path
) -> None:
    out, settings = made.copied(tmp_path), made.model / "generation_config.json"
    before = settings.read_text() if settings.exists() else None
    settings.write_text(json.dumps({"do_sample": True, "temperature": 0.25}))
    try:
        again = found(made.model, out)
    finally:
        settings.unlink() if before is None else settings.write_text(before)
    assert again["skipped"] == ["own text", "n-gram table"]
    assert open_bundle(out / "bundle").manifest.sampling_defaults.temperature == 0.25


def test_a_model_without_chat_template_continues_raw_text(model: Path, tmp_path: Path) -> None:
    (model / "tokenizer_config.json").unlink()
    out = tmp_path / "out"
    result = quickstart(model, out)
    assert result.exit_code == 0, result.stderr
    assert "no chat template, so the model continues the prompts as raw text" in result.stderr
    assert "equal, token for token" in result.stdout
    assert "--raw" in result.stdout
    assert "data distill" not in result.stdout  # it needs a chat template
    (row, *_) = rows(out)
    assert len(row["input_ids"]) == len(row["prompt"].encode())  # a byte a token, and no template


def test_the_report_for_people_names_the_gain_the_sources_and_the_next_commands(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["quickstart", str(model.rename(tmp_path / "Mine2.5-tiny")), "--tokens", "600", "--threads", "1"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.stderr
    assert (tmp_path / "build/quickstart/Mine2.5-tiny/bundle/manifest.json").is_file()
    for words in ("speed-up", "accepted drafts", "table ", "streamfuse train --data", "/bundle\n"):
        assert words in result.stdout
    assert "own text: 600 tokens to generate, about " in result.stderr


def test_what_cannot_be_done_is_said_before_any_text_is_generated(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert "--tokens" in refused(model, out, "--tokens", 3)
    assert "--backend must be one of auto, kernels, xnnpack, onnxruntime" in refused(model, out, "--backend", "cuda")
    assert "--max-context-len must be from 32 to 256 for this model" in refused(model, out, "--max-context-len", 512)
    assert "--max-context-len must be at least" in refused(model, out, "--max-context-len", 64)
    assert "no such folder or .gguf file" in refused(tmp_path / "nowhere", out, code=1)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "architectures": ["MambaForCausalLM"]}))
    assert "MambaForCausalLM" in refused(model, out, code=1)
    assert not out.exists()


def test_a_folder_of_another_model_is_refused_and_kept(made: Made, tmp_path: Path) -> None:
    model, out = made.model, made.copied(tmp_path)
    other = shutil.copytree(model, tmp_path / "other")
    line = refused(other, out)
    assert f"--output-dir {out} was made with another model ({model}" in line
    (out / "quickstart.json").write_text("{")
    assert "quickstart.json is damaged" in refused(model, out)
    (out / "quickstart.json").unlink()
    assert "answers.jsonl that `streamfuse quickstart` did not write" in refused(model, out)
    assert rows(out)


def test_a_table_without_streams_is_an_adapter_of_export_too(made: Made, tmp_path: Path) -> None:
    model, table = made.model, made.out / "ngrams.safetensors"
    streams, state, facts = read_adapter(table)
    assert (streams.num_streams, facts["tokens"]) == (0, str(made.facts["table"]["tokens"]))
    assert load_stream_fused(load_base(model), table).ngrams["ids"].equal(state["ngrams.ids"])
    command = ["export", "--model", str(model), "--adapter", str(table), "--max-context-len", "128"]
    command += ["--widths", "4", "--default-width", "4", "-o"]  # sooner exported
    small = CliRunner().invoke(app, [*command, str(tmp_path / "b"), "--ngram-table-mb", "0.001"])
    assert small.exit_code == 0, small.stderr
    with load(tmp_path / "b", cost_cache=False) as opened:
        assert opened.bundle.tables is not None
        assert sum(opened.bundle.tables[name].nbytes for name in opened.bundle.tables if "ngram" in name) <= 1000
    refusal = CliRunner().invoke(app, [*command, str(tmp_path / "c"), "--num-streams", "2"])
    assert refusal.exit_code == 2
    assert "--num-streams is about streams, and this export has none" in refusal.stderr


def test_no_compared_prompt_is_among_those_of_the_table() -> None:
    assert not set(HELD_OUT) & set(PROMPTS)
    assert len(set(PROMPTS)) == len(PROMPTS)
