"""`streamfuse data distill` and `streamfuse train` on a tiny model: what they write, and one line for what they refuse.

Run: python -m pytest tests/train/test_train_cli.py
"""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny
from bundle_samples import IM_END, byte_tokenizer
from export_samples import config_for
from typer.testing import CliRunner, Result

from streamfuse.adapters import find
from streamfuse.cli import app
from streamfuse.export.preview import check_text
from streamfuse.model.checkpoint import load_base, load_config, load_stream_fused, read_adapter, save_adapter
from streamfuse.train import distill as distillation
from streamfuse.train.config import DistillConfig
from streamfuse.train.distill import generate_batch

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'streamfuse[train]'")

from streamfuse.train import report
from streamfuse.train.config import TrainConfig
from streamfuse.train.recipe import DistillStage, change, load, names, stages
from streamfuse.train.recipe_stages import Answers
from streamfuse.train.report import MetricsFile

TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}<assistant>"
SMALL = ["--num-msa-layers", "2", "--num-streams", "2", "--held-out", "4", "--evaluate-every", "5", "--epochs", "1"]


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the time of such a run; tests/train/test_train_run.py plots."""
    monkeypatch.setattr(report, "plot_metrics", lambda *_: None)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    tokenizer = byte_tokenizer()
    size = tokenizer.get_vocab_size()
    sizes = {"vocab_size": size, "max_position_embeddings": 2048}
    folder = tiny.write_base(tmp_path / "model", tiny.base(**sizes), **sizes)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"Say {i}.", "source": "count"}) + "\n" for i in range(24)))
    return path


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def refused(*arguments: object) -> str:
    """The one line of an error."""
    result = invoke(*arguments)
    assert result.exit_code in (1, 2)
    assert result.stderr.count("\n") == 1, result.stderr
    assert "Traceback" not in result.stderr
    return result.stderr


def answers(model: Path, prompts: Path, out: Path, *flags: object) -> list[dict[str, Any]]:
    result = invoke("data", "distill", prompts, out, "--model", model, "--max-new-tokens", 12, *flags)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.strip() == str(out)
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_distill_then_train_gives_an_adapter(model: Path, prompts: Path, tmp_path: Path) -> None:
    rows = answers(model, prompts, tmp_path / "out.jsonl", "--batch-size", 8)
    assert sorted(row["id"] for row in rows) == list(range(24))
    assert {row["source"] for row in rows} == {"count"}
    assert rows[0]["prompt"].startswith("Say ")
    result = invoke("train", "--data", tmp_path / "out.jsonl", "-o", tmp_path / "run", "--model", model, *SMALL)
    assert result.exit_code == 0, result.stderr
    adapter = tmp_path / "run" / "adapter.safetensors"
    assert result.stdout.strip() == str(adapter)
    assert "call-reduction ratio" in result.stderr
    assert read_adapter(adapter)[0].num_streams == 2
    assert (tmp_path / "run" / "metrics.jsonl").is_file()


def test_a_table_is_counted_anew_in_answers(model: Path, prompts: Path, tmp_path: Path) -> None:
    base, adapter, out = load_base(model), tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    save_adapter(tiny.fused(base), adapter, {"steps": "7"})
    answers(model, prompts, tmp_path / "out.jsonl")
    result = invoke("adapter", "ngrams", adapter, out, "--data", tmp_path / "out.jsonl", "--json")
    assert result.exit_code == 0, result.stderr
    facts = json.loads(result.stdout)
    before, after = read_adapter(adapter), read_adapter(out)
    added = {name: value for name, value in after[1].items() if name not in before[1]}
    assert facts["contexts"] == len(added["ngrams.keys"]) > 0
    assert facts["bytes"] == sum(value.nbytes for name, value in added.items() if name != "ngrams.gains")
    assert (before[0], before[2]) == (after[0], after[2])
    assert all(value.equal(after[1][name]) for name, value in before[1].items())
    assert load_stream_fused(base, out).ngrams["ids"].equal(added["ngrams.ids"])
    small = invoke("adapter", "ngrams", out, out, "--data", tmp_path / "out.jsonl", "--max-mb", 0.0002, "--json")
    assert json.loads(small.stdout)["bytes"] <= 200
    rows = (tmp_path / "out.jsonl").read_text()
    line = refused("adapter", "ngrams", adapter, tmp_path / "out.jsonl", "--data", tmp_path / "out.jsonl")
    assert "out.jsonl would overwrite an input of --data; name another file" in line
    assert (tmp_path / "out.jsonl").read_text() == rows
    assert "at most 24" in refused("adapter", "ngrams", adapter, out, "--data", tmp_path / "out.jsonl", "--max-mb", 25)
    assert "tokens that `streamfuse data distill` writes" in refused(
        "adapter", "ngrams", adapter, out, "--data", prompts
    )
    assert "there is no folder" in refused(
        "adapter", "ngrams", adapter, tmp_path / "no" / "b.safetensors", "--data", prompts
    )


def test_adapters_are_averaged(model: Path, tmp_path: Path) -> None:
    base, files = load_base(model), [tmp_path / name for name in ("a.safetensors", "b.safetensors", "c.safetensors")]
    for file in files[:2]:
        save_adapter(tiny.fused(base), file, {"steps": file.stem})  # weights are random, each time others
    result = invoke("adapter", "average", *files[:2], "-o", files[2])
    assert result.exit_code == 0, result.stderr
    assert result.stdout.strip() == str(files[2])
    assert "a.safetensors would overwrite an input of ADAPTER; name another file" in refused(
        "adapter", "average", *files[:2], "-o", files[0]
    )
    a, b, mean = map(read_adapter, files)
    assert (mean[0], mean[2], mean[1].keys()) == (b[0], b[2], b[1].keys())
    for name, value in mean[1].items():
        assert value.allclose(b[1][name] if name == "stream_vocab" else (a[1][name] + b[1][name]) / 2)
    assert not mean[1]["stream_embeddings"].allclose(b[1]["stream_embeddings"])
    save_adapter(tiny.fused(base, num_streams=4), files[0])
    assert "a.safetensors: its base or its streams' settings" in refused(
        "adapter", "average", *files[:2], "-o", files[2]
    )
    assert "two or more" in refused("adapter", "average", files[1], "-o", files[2])


def test_prompts_are_shuffled_by_seed_and_limited(model: Path, prompts: Path, tmp_path: Path) -> None:
    first = answers(model, prompts, tmp_path / "a.jsonl", "--limit", 4)
    again = answers(model, prompts, tmp_path / "b.jsonl", "--limit", 6)
    other = answers(model, prompts, tmp_path / "c.jsonl", "--limit", 4, "--seed", 1)
    assert {row["id"]: row["prompt"] for row in first}.items() <= {row["id"]: row["prompt"] for row in again}.items()
    assert {row["prompt"] for row in other} != {row["prompt"] for row in first}


def test_answers_may_be_written_in_bfloat16_by_the_base_that_an_adapter_tunes(
    model: Path, prompts: Path, tmp_path: Path
) -> None:
    base = load_base(model)
    tuned = tiny.fused(base, base_rank=2, base_layers=2)
    save_adapter(tuned, tmp_path / "tuned.safetensors", {"chat_template": "{{ messages[0].content }}!"})
    flags = ("--adapter", tmp_path / "tuned.safetensors", "--limit", 4)
    rows = answers(model, prompts, tmp_path / "a.jsonl", *flags, "--dtype", "float32")
    merged = load_stream_fused(base, tmp_path / "tuned.safetensors").base
    for row in rows:
        assert byte_tokenizer().decode(row["input_ids"]) == f"{row['prompt']}!"
        assert generate_batch(merged, [row["input_ids"]], DistillConfig(max_new_tokens=12)) == [row["completion_ids"]]
    assert len(answers(model, prompts, tmp_path / "b.jsonl", *flags, "--dtype", "bfloat16")) == 4


def test_prompts_with_the_end_token_of_an_adapter_are_those_of_its_bundle(model: Path, tmp_path: Path) -> None:
    """A converted LoRA has its own; `export --adapter` gives it to the template."""
    lora, data, out = (tmp_path / name for name in ("lora.safetensors", "data.jsonl", "own.safetensors"))
    template = TEMPLATE.replace("{% endfor %}", "{{ eos_token }}{% endfor %}")
    tuned = tiny.fused(load_base(model), base_rank=2, base_layers=2)
    save_adapter(tuned, lora, {"chat_template": template, "eos_token_id": str(IM_END)})
    asked = [f"Say {i}." for i in range(8)]
    data.write_text("".join(json.dumps({"prompt": one, "completion": f"{one} Yes."}) + "\n" for one in asked))
    bundle = check_text(config_for((model, lora), tmp_path / "bundle"), load_config(model))
    expected = {tuple(bundle.encode_chat([{"role": "user", "content": one}])) for one in asked}
    assert all(IM_END in ids for ids in expected)
    written = answers(model, data, tmp_path / "a.jsonl", "--adapter", lora)
    stage = DistillStage(str(data), tmp_path / "own.jsonl", DistillConfig(dtype="float32"), adapter=lora)
    for rows in (written, Answers(stage, model).todo):
        assert {tuple(row["input_ids"]) for row in rows} == expected
    command = ("train", "--model", model, "--data", data, "-o", tmp_path / "run", "--adapter", out, "--max-steps", 1)
    for flags in (("--base-adapter", lora), ("--init-adapter", lora, "--no-resume")):
        size = SMALL if "--base-adapter" in flags else SMALL[4:]
        assert (result := invoke(*command, *size, *flags)).exit_code == 0, result.stderr
        held_out = {tuple(ids) for ids in json.loads(read_adapter(out)[2]["prompts"])}
        assert held_out
        assert held_out <= expected


def test_a_system_message_goes_through_the_template(model: Path, prompts: Path, tmp_path: Path) -> None:
    (row,) = answers(model, prompts, tmp_path / "a.jsonl", "--limit", 1, "--system", "Be brief.")
    text = byte_tokenizer().decode(row["input_ids"], skip_special_tokens=False)
    assert text == f"<system>Be brief.<user>{row['prompt']}<assistant>"


def test_a_system_message_of_a_row_is_kept(model: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "chats.jsonl"
    chats = [
        [{"role": "system", "content": "Own."}, {"role": "user", "content": "a"}],
        [{"role": "user", "content": "b"}],
    ]
    prompts.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    rows = answers(model, prompts, tmp_path / "a.jsonl", "--system", "Be brief.")
    found = {byte_tokenizer().decode(row["input_ids"], skip_special_tokens=False) for row in rows}
    assert found == {"<system>Own.<user>a<assistant>", "<system>Be brief.<user>b<assistant>"}


def test_distill_asks_with_the_tools_of_a_row(model: Path, tmp_path: Path) -> None:
    template = "{# <tool_call> #}{% for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}" + TEMPLATE
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    prompts, chat = tmp_path / "chats.jsonl", [{"role": "user", "content": "a"}]
    tool = {"type": "function", "function": {"name": "clock", "parameters": {}}}
    prompts.write_text(
        "".join(json.dumps(row) + "\n" for row in ({"messages": chat, "tools": [tool]}, {"messages": chat}))
    )
    rows = answers(model, prompts, tmp_path / "a.jsonl")
    found = {byte_tokenizer().decode(row["input_ids"], skip_special_tokens=False): row.get("tools") for row in rows}
    assert found == {"[clock]<user>a<assistant>": [tool], "<user>a<assistant>": None}


def test_prompts_and_answers_beyond_the_models_context_are_refused(
    model: Path, prompts: Path, recipe: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    command = ("data", "distill", prompts, out, "--model", model, "--max-new-tokens")
    line = refused(*command, 2030)
    assert "the longest prompt (24 tokens) and --max-new-tokens 2030 exceed the model's context of 2048" in line
    assert not out.exists()
    recipe.write_text(RECIPE.replace('\nadapter = "@base"', ""))
    train = ("train", "--recipe", recipe, "--data-root", tmp_path, "-o", tmp_path / "run", "--model", model)
    result = invoke(*train, "--set", "own.max_new_tokens=2040")
    assert (result.exit_code, "stage 'own': the longest prompt (" in result.stderr) == (2, True)
    recipe.write_text(SYNTHESIZING)
    result = invoke(*train, "--set", "prompts.max_new_tokens=2040")
    assert (result.exit_code, "stage 'prompts': the longest prompt (" in result.stderr) == (2, True)


def test_train_says_how_many_answers_it_drops_and_cuts(model: Path, tmp_path: Path) -> None:
    rows, answers = tmp_path / "rows.jsonl", ("ab", "an answer of many words", "an answer")
    rows.write_text(
        "".join(json.dumps({"prompt": f"Say {i}.", "completion": answers[i % 3]}) + "\n" for i in range(24))
    )
    command = ("train", "--data", rows, "-o", tmp_path / "run", "--model", model, *SMALL, "--max-steps", 1)
    result = invoke(*command, "--max-tokens", 40)
    assert result.exit_code == 0, result.stderr
    told = f"{rows}: of 24 answers, 8 are cut at --max-tokens 40, and 8 are left out because fewer than 4 tokens of"
    assert result.stderr.count(told) == 1
    rows.write_text("".join(json.dumps({"prompt": f"Say {i}.", "completion": answers[2]}) + "\n" for i in range(24)))
    result = invoke(*command, "--no-resume")
    assert result.exit_code == 0, result.stderr
    assert "are cut at" not in result.stderr


def test_a_model_without_a_chat_template_continues_the_prompts(model: Path, prompts: Path, tmp_path: Path) -> None:
    (model / "tokenizer_config.json").unlink()
    (row,) = answers(model, prompts, tmp_path / "a.jsonl", "--limit", 1)
    assert byte_tokenizer().decode(row["input_ids"], skip_special_tokens=False) == row["prompt"]


def test_distill_refuses_in_one_line(model: Path, prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    assert "nope.jsonl: no such file" in refused("data", "distill", tmp_path / "nope.jsonl", out, "--model", model)
    assert "--batch-size must be at least 1" in refused(
        "data", "distill", prompts, out, "--model", model, "--batch-size", 0
    )
    assert "not a model name" in refused("data", "distill", prompts, out, "--model", tmp_path / "missing")
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": "x"}\n{"text": "y"}\n')
    assert "bad.jsonl, line 2: no field 'prompt'; the row has text" in refused(
        "data", "distill", bad, out, "--model", model
    )
    assert "format 'x' does not exist; the formats are e2e," in refused(
        "data", "distill", prompts, out, "--format", "x"
    )
    assert "--top-p must be above 0" in refused("data", "distill", prompts, out, "--model", model, "--top-p", 0)
    assert "--device nope cannot be used" in refused(
        "data", "distill", prompts, out, "--model", model, "--device", "nope"
    )
    (model / "tokenizer_config.json").unlink()
    assert "--system needs a chat template" in refused(
        "data", "distill", prompts, out, "--model", model, "--system", "x"
    )
    assert not out.exists()


def test_train_refuses_in_one_line(model: Path, prompts: Path, tmp_path: Path) -> None:
    out = ("-o", tmp_path / "run", "--model", model)
    assert "nope.jsonl: no such file" in refused("train", "--data", tmp_path / "nope.jsonl", *out)
    answers(model, prompts, tmp_path / "d.jsonl")
    data = ("--data", tmp_path / "d.jsonl")
    assert f"{prompts}: its rows have prompts but no answers. Put" in refused("train", "--data", prompts, *out)
    before = (model / "config.json").read_bytes()
    assert "config.json: not written by a training run, and" in refused("train", *data, "--model", model, "-o", model)
    assert (model / "config.json").read_bytes() == before
    assert "there are 24, and --held-out takes 40 of them" in refused("train", *data, *out)
    assert "--num-streams must be from 1 to 8" in refused("train", *data, *out, "--num-streams", 9)
    assert "--num-msa-layers is 5, the base model has 4" in refused("train", *data, *out, *SMALL, "--num-msa-layers", 5)
    assert "--epochs must be above 0, not 0" in refused("train", *data, *out, "--epochs", 0)
    (tmp_path / "a").touch()
    assert "--init-adapter brings its own stream settings, so --base-layers does not go with it" in refused(
        "train", *data, *out, "--init-adapter", tmp_path / "a", "--base-layers", 2
    )
    assert "--base-adapter brings its own tuned base, so --base-layers does not go with it" in refused(
        "train", *data, *out, "--base-adapter", tmp_path / "a", "--base-layers", 2
    )
    assert "--mode lossless does not tune the base, so --base-rank does not go with it" in refused(
        "train", *data, *out, "--base-rank", 2, "--base-layers", 2
    )
    for flag in ("--init-adapter", "--base-adapter"):
        assert f"{flag} nobody: no such file, and not an adapter that ships" in refused(
            "train", *data, *out, flag, "nobody"
        )


@pytest.mark.parametrize("flag", ["--init-adapter", "--base-adapter"])
def test_an_adapter_to_begin_with_is_not_overwritten(
    flag: str, model: Path, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = tmp_path / "run" / "adapter.safetensors"
    begin.parent.mkdir()
    save_adapter(tiny.fused(load_base(model), base_rank=2, base_layers=2), begin)
    (tmp_path / "link.safetensors").symlink_to(begin)
    before = begin.read_bytes()
    monkeypatch.chdir(tmp_path)
    train = ("train", "--model", model, "--data", tmp_path / "d.jsonl")
    places: list[tuple[object, ...]] = [
        ("-o", tmp_path / "run"),
        ("-o", "other", "--adapter", "run/../run/adapter.safetensors"),
        ("-o", "other", "--adapter", "link.safetensors"),
    ]
    for place in places:
        result = invoke(*train, *place, flag, begin)
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"{flag} {begin} would be overwritten by the trained adapter; give another --adapter" in result.stderr
    recipe.write_text(RECIPE.replace('base_adapter = "@base"\n', ""))
    own = ("--set", f"{flag[2:].replace('-', '_')}={begin}", "-o", tmp_path / "run")
    result = invoke("train", "--model", model, "--recipe", recipe, "--data-root", tmp_path, *own)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "would be overwritten" in result.stderr
    assert begin.read_bytes() == before


@pytest.mark.parametrize("flag", ["--data", "--valid"])
def test_data_is_not_overwritten_by_the_adapter(
    flag: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a", "completion": "b"}\n')
    (tmp_path / "link.jsonl").symlink_to(rows)
    before = rows.read_bytes()
    monkeypatch.chdir(tmp_path)
    for adapter in (rows, "rows.jsonl", "link.jsonl"):
        other = ("--data", "others.jsonl") if flag == "--valid" else ()
        line = refused("train", "--model", model, "-o", "run", *other, flag, rows, "--adapter", adapter)
        assert f"{flag} {rows} would be overwritten by the trained adapter; give another --adapter" in line
    assert rows.read_bytes() == before


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--set", "max_steps=5"), "--set goes with --recipe; without one, use the setting's own flag"),
        (("--sweep", "max_steps=5,9"), "--sweep goes with --recipe; without one, run this command once per value"),
        (("--data-root", "data"), "--data-root goes with --recipe; without one, --data takes whole paths"),
    ],
)
def test_flags_of_recipes_are_refused_without_one(flags: tuple[str, ...], words: str, tmp_path: Path) -> None:
    assert words in refused("train", "--data", "answers.jsonl", "-o", tmp_path / "run", *flags)
    assert list(tmp_path.iterdir()) == []


def test_distill_takes_a_shipped_adapter_by_name(prompts: Path, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    assert "--adapter nobody: no such file, and not an adapter that ships" in refused(
        "data", "distill", prompts, out, "--model", model, "--adapter", "nobody"
    )
    problem = refused("data", "distill", prompts, out, "--model", model, "--adapter", "e2e-lossless")
    assert "e2e-lossless.safetensors" in problem  # it was found, and is another base's


RECIPE = """
about = "Two stages and what is between them."
task = "e2e"
[[stage]]
name = "base"
kind = "train"
mode = "base"
data = ["rows.jsonl"]
held_out = 2
max_steps = 3
base_rank = 2
base_layers = 3
[[stage]]
name = "own"
kind = "distill"
data = "rows.jsonl"
adapter = "@base"
variations = 9
max_new_tokens = 8
max_prompt_tokens = 999
[[stage]]
name = "streams"
kind = "train"
mode = "shared"
base_adapter = "@base"
data = ["@own", "rows.jsonl"]
held_out = 2
max_steps = 3
num_msa_layers = 2
stream_vocab_size = 0
"""


SYNTHESIZING = """
about = "Prompts that nobody wrote."
[[stage]]
name = "prompts"
kind = "synthesize"
count = 6
begin = ["Say ", "Why"]
batch_size = 16
max_new_tokens = 90
[[stage]]
name = "own"
kind = "distill"
data = "@prompts"
max_new_tokens = 8
max_prompt_tokens = 999
[[stage]]
name = "streams"
kind = "train"
data = ["@own"]
held_out = 2
max_steps = 2
max_tokens = 999
num_msa_layers = 2
stream_vocab_size = 0
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    rows = [{"prompt": f"name[{n}], area[{a}]", "completion": f"{n} is {a}."} for n in "ABC" for a in ("near", "far")]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "two.toml").write_text(RECIPE)
    return tmp_path / "two.toml"


def test_a_recipe_runs_its_stages_and_only_those_that_are_not_done(model: Path, recipe: Path, tmp_path: Path) -> None:
    command = ["train", "--recipe", recipe, "--data-root", tmp_path, "-o", tmp_path / "run", "--model", model]
    command += ["--set", "num_streams=2", "--set", "own.variations=7"]
    result = invoke(*command)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.strip() == str(tmp_path / "run" / "adapter.safetensors")
    streams, _, facts = read_adapter(tmp_path / "run" / "adapter.safetensors")
    assert (streams.num_streams, streams.base_rank, facts["mode"]) == (2, 2, "shared")
    assert "<|im_start|>" in facts["chat_template"]
    own = (tmp_path / "run" / "own.jsonl").read_text()
    assert own.count("\n") == 13
    again = invoke(*command)
    assert again.exit_code == 0, again.stderr
    assert (tmp_path / "run" / "own.jsonl").read_text() == own


def test_the_texts_of_a_recipe_are_written_by_one_process(
    model: Path, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    command = ["train", "--recipe", recipe, "--data-root", tmp_path, "-o", tmp_path / "run", "--model", model]
    result = invoke(*command)
    assert result.exit_code == 2
    assert "own.jsonl: start the recipe without a launcher such as `accelerate launch`" in result.stderr


def test_answers_of_an_earlier_stage_are_not_kept_when_it_is_changed(model: Path, recipe: Path, tmp_path: Path) -> None:
    command = ["train", "--recipe", recipe, "--data-root", tmp_path, "-o", tmp_path / "run", "--model", model]
    assert invoke(*command).exit_code == 0
    command += ["--set", "base.max_steps=4"]
    result = invoke(*command)
    assert result.exit_code == 1
    assert "own.jsonl: written with another --adapter, so it cannot be continued; add --no-resume to" in result.stderr
    own = tmp_path / "run" / "own.jsonl"
    before = json.loads(own.read_text().splitlines()[0])["provenance"]
    result = invoke(*command, "--no-resume")
    assert result.exit_code == 0, result.stderr
    assert json.loads(own.read_text().splitlines()[0])["provenance"]["adapter"] != before["adapter"]


def test_no_resume_keeps_answers_that_stay_valid_and_deletes_none_before_the_inputs_are_read(
    model: Path, recipe: Path, tmp_path: Path
) -> None:
    recipe.write_text(RECIPE.replace('\nadapter = "@base"', ""))
    command = ["train", "--recipe", recipe, "--data-root", tmp_path, "-o", tmp_path / "run", "--model", model]
    assert invoke(*command).exit_code == 0
    own = tmp_path / "run" / "own.jsonl"
    written, lines = own.stat().st_mtime_ns, own.read_text().splitlines()
    command += ["--set", "num_streams=1"]
    assert "add --no-resume to start over" in invoke(*command).stderr
    assert "no such file" in invoke(*command, "--no-resume", "--set", "own.data=missing.jsonl").stderr
    result = invoke(*command, "--no-resume")
    assert result.exit_code == 0, result.stderr
    assert (own.stat().st_mtime_ns, own.read_text().splitlines()) == (written, lines)
    result = invoke(*command, "--set", "own.max_new_tokens=4")
    assert "add --set own.max_new_tokens=8 to continue it, or --no-resume to write it again" in result.stderr
    own.write_text("\n".join([json.dumps({**json.loads(lines[0]), "input_ids": [1]}), *lines[1:]]) + "\n")
    assert "is for another prompt; " in invoke(*command).stderr
    assert invoke(*command, "--no-resume").exit_code == 0
    assert own.read_text().splitlines() == lines


@pytest.mark.parametrize(
    "row", ["notes", '{"prompt": "Why?"}', '{"id": 0, "input_ids": [1], "completion_ids": [2], "finished": true}']
)
def test_no_resume_deletes_no_file_that_another_program_wrote(
    row: str, model: Path, recipe: Path, tmp_path: Path
) -> None:
    recipe.write_text(RECIPE.replace('\nadapter = "@base"', ""))
    own = tmp_path / "run" / "own.jsonl"
    own.parent.mkdir()
    own.write_text(row + "\n")
    command = ["train", "--recipe", recipe, "--data-root", tmp_path, "-o", tmp_path / "run", "--model", model]
    result = invoke(*command, "--no-resume")
    assert result.exit_code == 1
    assert f"{own}: not written by a stage of a recipe, so --no-resume does not delete it; move it" in result.stderr
    assert own.read_text() == row + "\n"


def test_prompts_of_a_recipe_that_are_too_long_are_told(model: Path, recipe: Path, tmp_path: Path) -> None:
    recipe.write_text(RECIPE.replace('\nadapter = "@base"', "").replace("variations = 9\n", ""))
    rows = (tmp_path / "rows.jsonl").read_text()
    (tmp_path / "rows.jsonl").write_text(rows + '{"prompt": "name[D], area[behind the station]", "completion": "x"}\n')
    command = ["train", "--recipe", recipe, "--data-root", tmp_path, "-o", tmp_path / "run", "--model", model]
    result = invoke(*command, "--set", "own.max_prompt_tokens=1")
    assert result.exit_code == 1
    found = re.search(r"stage 'own': all 7 prompts are longer than max_prompt_tokens 1, .* own\.(\S+)", result.stderr)
    assert found, result.stderr
    assert not (tmp_path / "run" / "own.jsonl").exists()
    result = invoke(*command, "--set", f"own.{found[1]}")
    assert result.exit_code in (0, 1)
    longer = int(found[1].rpartition("=")[2]) + 1
    result = invoke(*command, "--set", f"own.max_prompt_tokens={longer}", "--no-resume")
    assert "7 prompts: 1 are too long, 3 are answered, 3 to go." in result.stderr


def test_prompts_with_another_provenance_are_refused_before_the_model_is_loaded(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("data", "synthesize", tmp_path / "p.jsonl", "--count", 1, "--model", model, "--max-new-tokens", 90)
    assert invoke(*command).exit_code == 0
    monkeypatch.setattr(distillation, "load_writer", lambda *arguments: pytest.fail("the model is loaded"))
    assert "written without --system, so it cannot be continued" in refused(*command, "--system", "Be brief.")


def test_ctrl_c_in_the_last_step_of_a_stage_begins_no_other_stage(
    model: Path, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["train", "--recipe", recipe, "--data-root", tmp_path, "-o", tmp_path / "run", "--model", model]
    log, interrupted = MetricsFile.on_log, []

    def log_and_interrupt(self: MetricsFile, args: Any, state: Any, *more: Any, **kwargs: Any) -> None:
        log(self, args, state, *more, **kwargs)
        if state.global_step == state.max_steps and not interrupted:
            interrupted.append(state.global_step)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(MetricsFile, "on_log", log_and_interrupt)
    result = invoke(*command)
    assert result.exit_code == 130, result.stderr
    assert "which is finished; the same command continues with what follows" in result.stderr
    assert not (tmp_path / "run" / "own.jsonl").exists()
    again = invoke(*command)
    assert again.exit_code == 0, again.stderr


def test_a_sweep_trains_the_last_stage_once_per_value(model: Path, recipe: Path, tmp_path: Path) -> None:
    command = ["train", "--recipe", recipe, "--data-root", tmp_path, "-o", tmp_path / "run", "--model", model]
    result = invoke(*command, "--sweep", "num_streams=1,3")
    assert result.exit_code == 0, result.stderr
    rows = json.loads(Path(result.stdout.strip()).read_text())
    assert [(row["num_streams"], row["steps"]) for row in rows] == [("1", 3), ("3", 3)]
    assert all(row["eval_call_reduction_ratio"] >= 1 for row in rows)
    assert read_adapter(tmp_path / "run" / "num_streams=3" / "adapter.safetensors")[0].num_streams == 3
    assert "only a setting of the last stage" in refused(*command, "--sweep", "base.epochs=1,2")
    sentence = refused(*command, "--sweep", "num_streams=1,3", "--adapter", tmp_path / "best.safetensors")
    assert "--adapter has no effect with --sweep, which writes OUTPUT_DIR/KEY=VALUE/adapter.safetensors" in sentence
    assert "num_streams must be from 1 to 8" in refused(*command, "--sweep", "num_streams=4,9")


def test_a_recipe_may_synthesize_its_prompts(model: Path, tmp_path: Path) -> None:
    (tmp_path / "three.toml").write_text(SYNTHESIZING)
    command = ["train", "--recipe", tmp_path / "three.toml", "-o", tmp_path / "run", "--model", model]
    for _ in range(2):
        result = invoke(*command)
        assert result.exit_code == 0, result.stderr
        rows = [json.loads(line) for line in (tmp_path / "run" / "prompts.jsonl").read_text().splitlines()]
        assert len(rows) == 6
        assert {row["prompt"][:3] for row in rows} == {"Say", "Why"}
        assert (tmp_path / "run" / "own.jsonl").read_text().count("\n") == 6
    assert "needs the key 'count'" in refused(*command[:2], write_without_count(tmp_path), *command[3:])


def write_without_count(folder: Path) -> Path:
    path = folder / "no-count.toml"
    path.write_text(SYNTHESIZING.replace("count = 6\n", ""))
    return path


def test_synthesize_writes_as_many_as_asked(model: Path, tmp_path: Path) -> None:
    result = invoke("data", "synthesize", tmp_path / "p.jsonl", "--count", 3, "--model", model, "--max-new-tokens", 90)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.strip() == str(tmp_path / "p.jsonl")
    assert (tmp_path / "p.jsonl").read_text().count("\n") == 3
    assert "--temperature must be above 0" in refused(
        "data", "synthesize", tmp_path / "q.jsonl", "--temperature", 0, "--model", model
    )


def test_recipes_refuse_in_one_line(model: Path, recipe: Path, tmp_path: Path) -> None:
    train = ("train", "-o", tmp_path / "run", "--model", model)
    assert "no such file, and not one of chat-lossless, chat-small, dialogsum-base" in refused(
        *train, "--recipe", "e3e"
    )
    assert "change one with --set epochs=" in refused(*train, "--recipe", recipe, "--epochs", 2)
    assert "has no setting 'epoch'" in refused(*train, "--recipe", recipe, "--set", "epoch=2")
    assert "the stages are base, own, streams" in refused(*train, "--recipe", recipe, "--set", "more.epochs=2")
    assert "expected KEY=VALUE" in refused(*train, "--recipe", recipe, "--set", "epochs")
    assert "num_streams must be from 1 to 8" in refused(*train, "--recipe", recipe, "--set", "num_streams=9")
    assert "give --data or --recipe" in refused(*train)
    assert "base_adapter brings its own tuned base, so base_rank does not go with it" in refused(
        *train, "--recipe", recipe, "--set", "streams.base_rank=4"
    )
    assert "mode base trains no streams, so num_streams does not go with it" in refused(
        *train, "--recipe", recipe, "--set", "base.num_streams=4"
    )
    assert "--mode base trains no streams, so --num-msa-layers does not go with it" in refused(
        *train, "--data", "rows.jsonl", "--mode", "base", "--num-msa-layers", 2
    )
    recipe.write_text(RECIPE.replace('kind = "distill"', 'kind = "distil"'))
    assert "a kind out of train, distill" in refused(*train, "--recipe", recipe)
    recipe.write_text(RECIPE.replace('name = "streams"', 'name = "own"'))
    assert "two.toml: 2 stages have the name 'own'; give each its own" in refused(*train, "--recipe", recipe)
    recipe.write_text(RECIPE.replace('adapter = "@base"', 'adapter = "@bose"'))
    assert "refers to @bose, which is not an earlier stage" in refused(*train, "--recipe", recipe)


@pytest.mark.parametrize(
    ("was", "now", "words"),
    [
        ('about = "Two stages and what is between them."\n', "", "two.toml: needs the key 'about', a sentence that"),
        ('kind = "distill"\ndata = "rows.jsonl"', 'kind = "distill"', "stage 'own': a stage of kind distill needs the"),
        ('data = ["rows.jsonl"]\n', "", "stage 'base': a stage of kind train needs the key 'data'"),
        ('data = "rows.jsonl"', "data = 3", "stage 'own': data must be a string, not 3"),
        ('data = "rows.jsonl"', 'data = ["rows.jsonl"]', "stage 'own': data must be a string, not ['rows.jsonl']"),
        ('data = ["rows.jsonl"]', "data = 3", "stage 'base': data must be a string, or a list of strings, not 3"),
        ('data = ["rows.jsonl"]', "data = []", "stage 'base': data must be a string, or a list of strings, not []"),
        ('adapter = "@base"', "adapter = 3", "stage 'own': adapter must be a string, not 3"),
        ("variations = 9", 'variations = "nine"', "stage 'own': variations must be an integer, not 'nine'"),
        ('name = "own"', "name = 3", "a stage needs a name, and a kind out of train"),
        ('name = "base"\nkind = "train"', 'name = "base"\nkind = ["train"]', "a stage needs a name, and a kind out of"),
        ('base_adapter = "@base"', 'base_adapter = "nobody"', "stage 'streams': base_adapter nobody: no such file"),
    ],
)
def test_a_recipe_with_a_wrong_key_is_refused_before_a_download(
    was: str, now: str, words: str, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamfuse.model.pull.resolve_model", lambda *_, **__: pytest.fail("a model is pulled"))
    assert was in RECIPE
    recipe.write_text(RECIPE.replace(was, now, 1))
    result = invoke("train", "--recipe", recipe, "--data-root", tmp_path, "-o", tmp_path / "run")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert words in result.stderr
    assert not (tmp_path / "run").exists()


def test_a_recipe_takes_shipped_adapters_by_name_and_files_below_the_data_root(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.safetensors").touch()
    for name, file in (("e2e-lossless", find("e2e-lossless")), ("mine.safetensors", tmp_path / "mine.safetensors")):
        changed = load(str(recipe))
        change(changed, {"base_adapter": name, "own.adapter": name})
        found = stages(changed, tmp_path, tmp_path, tmp_path / "run", tmp_path / "a.safetensors")
        assert (getattr(found[1], "adapter", None), getattr(found[2], "base_adapter", None)) == (file, file)


@pytest.mark.parametrize("name", names())
def test_every_recipe_that_ships_is_well_formed(name: str, tmp_path: Path) -> None:
    found = stages(load(name), tmp_path, tmp_path, tmp_path, tmp_path / "a.safetensors")
    last = found[-1]
    assert isinstance(last, TrainConfig)
    assert last.adapter == tmp_path / "a.safetensors"
    task, kind = name.split("-")
    assert last.task == task
    assert {"published": "shared", "small": "lossless"}.get(kind, kind) == last.mode


def test_a_preset_is_a_group_of_defaults(model: Path, prompts: Path, recipe: Path, tmp_path: Path) -> None:
    answers(model, prompts, tmp_path / "d.jsonl")
    command = ("train", "--data", tmp_path / "d.jsonl", "--model", model, "-o", tmp_path / "run", "--preset", "small")
    result = invoke(*command, *SMALL, "--adapter-rank", 4, "--batch-size", 8, "--max-steps", 1)
    assert result.exit_code == 0, result.stderr
    settings = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (settings["optimizer"], settings["learning_rate"], settings["batch_size"]) == ("muon", 0.04, 8)
    streams = read_adapter(tmp_path / "run" / "adapter.safetensors")[0]
    assert (streams.adapter_rank, streams.next_token_rank, streams.pruner_rank, streams.num_streams) == (4, 256, 0, 2)
    assert "--preset must be small, not tiny" in refused(*command[:-1], "tiny")
    assert "--preset is for --mode lossless, not shared" in refused(*command, "--mode", "shared")
    train = ("train", "-o", tmp_path / "other", "--model", model, "--recipe", recipe)
    assert "preset must be small, not tiny" in refused(*train, "--set", "preset=tiny")
    changed = load(str(recipe))
    change(changed, {"preset": "small", "mode": "lossless", "parent_rank": "3"})
    found = stages(changed, tmp_path, tmp_path, tmp_path / "run", tmp_path / "a.safetensors")[-1]
    assert isinstance(found, TrainConfig)
    assert (found.optimizer, found.streams.eta_rank, found.streams.parent_rank) == ("muon", 64, 3)


@pytest.mark.parametrize("name", ["e2e-published", "sql-published"])
def test_the_published_settings_add_nothing_to_the_paper(name: str, tmp_path: Path) -> None:
    (found,) = stages(load(name), tmp_path, tmp_path, tmp_path, tmp_path / "a.safetensors")
    assert isinstance(found, TrainConfig)
    streams = found.streams
    assert (found.mode, found.alpha_main, found.alpha_streams, found.stream_decay) == ("shared", 1.0, 0.1, 1.0)
    assert (found.soft_targets, found.epochs, found.learning_rate) == (0.0, 5.0, 5e-4)
    assert (streams.num_streams, streams.pruner_rank, streams.pruner_score) == (3, 8, "softmax")
    extra = ("eta_rank", "next_token_rank", "parent_rank", "adapter_rank", "stream_vocab_size", "value_rotation")
    assert not any(getattr(streams, name) for name in extra)


def test_a_missing_extra_says_what_to_install(
    model: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(model, prompts, tmp_path / "d.jsonl")
    monkeypatch.setitem(sys.modules, "transformers", None)
    line = refused("train", "--data", tmp_path / "d.jsonl", "-o", tmp_path / "run", "--model", model)
    assert "training needs transformers: pip install 'streamfuse[train]'" in line


def test_a_run_that_cannot_be_resumed_names_the_file_and_what_to_do(model: Path, prompts: Path, tmp_path: Path) -> None:
    answers(model, prompts, tmp_path / "d.jsonl")
    arguments = ["train", "--data", tmp_path / "d.jsonl", "-o", tmp_path / "run", *SMALL]
    assert invoke(*arguments, "--model", model).exit_code == 0
    sizes = {"vocab_size": byte_tokenizer().get_vocab_size(), "hidden_size": 64}
    wider = tiny.write_base(tmp_path / "wider", tiny.base(**sizes), **sizes)
    (wider / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes())
    line = refused(*arguments, "--model", wider)
    assert "run in it has base {'hidden_size': 32}, not {'hidden_size': 64}, so it cannot be resumed; add" in line
    (checkpoint,) = (tmp_path / "run").glob("checkpoint-*")
    for path in [checkpoint / "model.safetensors", *checkpoint.glob("*.pt*")]:
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        line = refused(*arguments, "--model", model)
        assert f"{path}: missing or damaged; delete the folder {checkpoint.name}" in line
        path.unlink()
        assert f"{path}: missing or damaged" in refused(*arguments, "--model", model)
        path.write_bytes(whole)
    (tmp_path / "run" / "config.json").write_text("{")
    assert "config.json: not valid JSON" in refused(*arguments, "--model", model)


def test_ctrl_c_leaves_a_checkpoint_and_the_same_command_continues(
    model: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(model, prompts, tmp_path / "d.jsonl")
    metrics, log = tmp_path / "run" / "metrics.jsonl", MetricsFile.on_log

    def log_and_interrupt(self: MetricsFile, args: Any, state: Any, *more: Any, **kwargs: Any) -> None:
        log(self, args, state, *more, **kwargs)
        if state.global_step == 3:
            signal.raise_signal(signal.SIGINT)

    arguments = ["train", "--data", tmp_path / "d.jsonl", "-o", tmp_path / "run", "--model", model]
    arguments += [*SMALL, "--epochs", "400", "--log-every", "1", "--evaluate-every", "100000"]
    with monkeypatch.context() as patch:
        patch.setattr(MetricsFile, "on_log", log_and_interrupt)
        result = invoke(*arguments)
    assert result.exit_code == 130, result.stderr
    assert "the same command continues there" in result.stderr
    assert "Traceback" not in result.stderr
    (checkpoint,) = (tmp_path / "run").glob("checkpoint-*")
    step = int(checkpoint.name.split("-")[1])
    assert 3 <= step <= 4
    result = invoke(*arguments, "--epochs", (step + 3) // 3 + 1)
    assert result.exit_code == 0, result.stderr
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [row["step"] for row in rows if "loss" in row][: step + 2] == list(range(1, step + 3))
