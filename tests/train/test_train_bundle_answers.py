"""`data distill --bundle`, and recipes with a bundle: answers are the bundle's own, and an interrupted run goes on.

Run: python -m pytest tests/train/test_train_bundle_answers.py
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from export_samples import tiny_model, write_checkpoint
from typer.testing import CliRunner, Result

from streamfuse.api import load
from streamfuse.bundle import open_bundle
from streamfuse.cli import app
from streamfuse.cli.shared import bundle_answers
from streamfuse.model.checkpoint import read_adapter
from streamfuse.runtime.config import GenerationConfig

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'streamfuse[train]'")

TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}<assistant>"
CHANGES: dict[str, Any] = {"max_position_embeddings": 256, "num_hidden_layers": 2, "eos_token_id": [1, 70]}
TOKENS = 20
LIMITS = ("--max-new-tokens", TOKENS, "--max-prompt-tokens", 100)
RECIPE = f"""
about = "A tuned base, whose bundle answers."
[[stage]]
name = "base"
kind = "train"
mode = "base"
data = ["rows.jsonl"]
held_out = 2
max_steps = 2
base_rank = 2
base_layers = 1
[[stage]]
name = "own"
kind = "distill"
data = "prompts.jsonl"
adapter = "@base"
bundle = true
max_new_tokens = {TOKENS}
max_prompt_tokens = 100
[[stage]]
name = "streams"
kind = "train"
base_adapter = "@base"
data = ["@own"]
held_out = 2
max_steps = 2
num_msa_layers = 1
num_streams = 2
optimizer = "muon"
stream_vocab_size = 0
"""


def invoke(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(1)
    folder, _ = write_checkpoint(
        tmp_path_factory.mktemp("model") / "mine", tiny_model({"num_msa_layers": 1}, **CHANGES), **CHANGES
    )
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder


@pytest.fixture(scope="module")
def bundle(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("bundle") / "tiny"
    result = invoke("export", "--model", model, "--adapter", "none", "-o", out, "--max-context-len", 128)
    assert result.exit_code == 0, result.stderr
    return out


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"Say {i}."}) + "\n" for i in range(40)))
    return path


def rows_of(path: Path) -> dict[int, dict[str, Any]]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row for row in rows}


@pytest.mark.parametrize("flags", [(), ("--temperature", 0.9, "--top-p", 0.9, "--seed", 3)])
def test_answers_are_the_bundles_own_and_end_as_it_ends_them(
    flags: tuple[object, ...], bundle: Path, prompts: Path, tmp_path: Path
) -> None:
    out = tmp_path / "answers.jsonl"
    command = ("data", "distill", prompts, out, "--bundle", bundle, *LIMITS, *flags)
    result = invoke(*command)
    assert result.exit_code == 0, result.stderr
    rows = rows_of(out)
    assert len(rows) == 40
    with load(bundle) as model, model.session(text=False) as session:
        ends = set(model.bundle.spec().eos_token_ids)
        if not flags:
            for row in list(rows.values())[::5]:
                generation = session.generate(row["input_ids"], GenerationConfig(TOKENS, speculative=False))
                plain = [piece.token for piece in generation]
                assert (row["completion_ids"][: len(plain)], row["finished"]) == (plain, len(plain) < TOKENS)
    for row in rows.values():
        assert row["finished"] == (row["completion_ids"][-1] in ends)
        assert not ends & set(row["completion_ids"][:-1])
        assert row["finished"] or len(row["completion_ids"]) == TOKENS
    lines = out.read_text().splitlines()
    out.write_text("\n".join(lines[:10]) + "\n")  # interrupted
    assert invoke(*command).exit_code == 0
    again = rows_of(out)
    assert {number: row["completion_ids"] for number, row in again.items()} == {
        number: row["completion_ids"] for number, row in rows.items()
    }


def test_a_bundle_writes_prompts_and_goes_on_with_the_same_ones(bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "prompts.jsonl"
    command = ("data", "synthesize", out, "--bundle", bundle, "--count", 6, "--seed", 2)
    command += ("--max-new-tokens", 90, "--max-prompt-tokens", 30)
    result = invoke(*command)
    assert result.exit_code == 0, result.stderr
    rows = rows_of(out)
    assert len({row["prompt"] for row in rows.values()}) == len(rows) == 6
    lines = out.read_text().splitlines()
    out.write_text("\n".join(lines[:2]) + "\n")  # interrupted
    assert invoke(*command).exit_code == 0
    assert out.read_text().splitlines() == lines
    refused = invoke(*command, "--batch-size", 4)
    assert (refused.exit_code, "--batch-size has no effect with --bundle" in refused.stderr) == (2, True), (
        refused.stderr
    )


def test_an_interrupted_run_keeps_whole_groups(
    bundle: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, begun = tmp_path / "answers.jsonl", []

    def interrupted(*arguments: Any, **options: Any) -> GenerationConfig:
        begun.append(1)
        if len(begun) == 30:
            raise KeyboardInterrupt
        return GenerationConfig(*arguments, **options)

    command = ("data", "distill", prompts, out, "--bundle", bundle, *LIMITS)
    monkeypatch.setattr(bundle_answers, "GenerationConfig", interrupted)
    assert invoke(*command).exit_code != 0
    assert 0 < len(rows_of(out)) < 40
    monkeypatch.undo()
    assert invoke(*command).exit_code == 0
    assert len(rows_of(out)) == 40


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ("--adapter", "e2e-lossless"),
            "--adapter has no effect with --bundle, which has its own weights and engine; leave it out",
        ),
        (("--dtype", "float32"), "--dtype has no effect with --bundle"),
        (("--max-new-tokens", 60), "holds 128 tokens, fewer than --max-prompt-tokens 100 and --max-new-tokens 60"),
    ],
)
def test_what_a_bundle_cannot_do_is_refused(
    flags: tuple[object, ...], words: str, bundle: Path, prompts: Path, tmp_path: Path
) -> None:
    result = invoke("data", "distill", prompts, tmp_path / "a.jsonl", "--bundle", bundle, *LIMITS, *flags)
    assert result.exit_code == 2
    assert words in result.stderr
    assert not (tmp_path / "a.jsonl").exists()


def test_a_file_of_one_writer_is_not_continued_by_another(
    model: Path, bundle: Path, prompts: Path, tmp_path: Path
) -> None:
    out = tmp_path / "answers.jsonl"
    command = ("data", "distill", prompts, out, *LIMITS)
    assert invoke(*command, "--bundle", bundle, "--limit", 4).exit_code == 0
    assert "answers.jsonl: written with --bundle, so it cannot be" in invoke(*command, "--model", model).stderr
    out.unlink()
    assert invoke(*command, "--model", model, "--limit", 4).exit_code == 0
    assert "answers.jsonl: written without --bundle, so it" in invoke(*command, "--bundle", bundle).stderr


def test_a_recipe_exports_the_bundle_that_answers_once(
    model: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, run = tmp_path / "small.toml", tmp_path / "run"
    recipe.write_text(RECIPE)
    rows = [{"prompt": f"Say {i}.", "completion": f"The number is {i}."} for i in range(8)]
    (prompts.parent / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ("train", "--recipe", recipe, "--data-root", prompts.parent, "-o", run, "--model", model)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "start the recipe without a launcher" in invoke(*command).stderr
    monkeypatch.delenv("WORLD_SIZE")
    result = invoke(*command)
    assert result.exit_code == 0, result.stderr
    streams = read_adapter(run / "adapter.safetensors")[0]
    assert (streams.num_streams, streams.base_rank) == (2, 2)
    (exported,) = run.glob("bundle-*")
    assert open_bundle(exported).spec().num_streams == 0
    assert len(rows_of(run / "own.jsonl")) == 40
    written = (exported / "manifest.json").stat().st_mtime_ns
    result = invoke(*command)
    assert result.exit_code == 0, result.stderr
    assert (exported / "manifest.json").stat().st_mtime_ns == written
    for folder in run.glob("bundle-*"):
        shutil.rmtree(folder)
    assert invoke(*command).exit_code == 0
    assert not list(run.glob("bundle-*")), "nothing was left to answer"
    assert "dtype has no effect with bundle = true" in invoke(*command, "--set", "own.dtype=float32").stderr
    assert "must be at most 256 together" in invoke(*command, "--no-resume", "--set", "own.max_new_tokens=200").stderr
    assert "bundle must be true or false, not 'yes'" in invoke(*command, "--set", "own.bundle=yes").stderr
