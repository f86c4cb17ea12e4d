"""What ways to store weights cost: rounding against explicit arithmetic, and a model that comes back as it was.

Run: python -m pytest tests/bench/test_bench_quantization.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from bundle_samples import IM_END, byte_tokenizer
from export_samples import TEXT, tiny_model, write_checkpoint
from typer.testing import CliRunner

from streamfuse.bench import quantization
from streamfuse.bench.quantization import OWN_GRID, Bench, Texts, parse_choice, rounded
from streamfuse.cli import app
from streamfuse.model.checkpoint import save_adapter
from streamfuse.model.config import StreamConfig
from streamfuse.model.streams import StreamFused
from streamfuse.options import OptionError
from streamfuse.train.formats import Example


def test_symmetric_weights_lie_on_steps_of_the_greatest() -> None:
    weight = torch.tensor([[7.0, -3.4, 0.6, 0.0] * 8])
    values, bits = rounded(weight, "int4:32:symmetric")
    assert values[0, :4].tolist() == [7.0, -3.0, 1.0, 0.0]
    assert bits == 4 + 16 / 32


def test_affine_weights_lie_between_the_extremes_and_keep_zero() -> None:
    weight = torch.tensor([[-1.0, 14.0, 0.0, 3.4] * 8])
    values, bits = rounded(weight, "int4:32:affine")
    assert values[0, :4].tolist() == [-1.0, 14.0, 0.0, 3.0]
    assert bits == 4 + (16 + 4) / 32
    positive, _ = rounded(torch.full((1, 32), 0.75), "int4")
    torch.testing.assert_close(positive, torch.full((1, 32), 0.75), rtol=1e-3, atol=0)


def test_more_bits_and_smaller_groups_come_closer() -> None:
    weight = torch.randn(48, 256)
    errors = [
        float((rounded(weight, scheme)[0] - weight).pow(2).sum())
        for scheme in ("int4:channel:symmetric", "int4:64:symmetric", "int4:32:symmetric", "int4:32", "int8", "q8_0")
    ]
    assert errors == sorted(errors, reverse=True)
    assert torch.equal(rounded(weight, "float")[0], weight)


def test_a_group_that_does_not_divide_is_named() -> None:
    with pytest.raises(ValueError, match="int4:64: 64 does not divide the 96 inputs of a weight"):
        rounded(torch.zeros(4, 96), "int4:64")


def test_a_choice_names_its_parts_and_keeps_the_others() -> None:
    assert parse_choice("") == OWN_GRID
    assert parse_choice("mlp=int4:64,head=q4_1") == {**OWN_GRID, "mlp": "int4:64", "head": "q4_1"}
    assert set(parse_choice("float").values()) == {"float"}
    with pytest.raises(OptionError, match="not norm=int4"):
        parse_choice("norm=int4")


def texts() -> Texts:
    return Texts([Example(TEXT, 8)], [Example(TEXT[20:], 1)])


def test_weights_on_their_grid_cost_nothing_and_coarse_ones_do() -> None:
    torch.manual_seed(1)
    model = tiny_model()
    bench = Bench(model, texts(), 4)
    before = {name: value.clone() for name, value in bench.model.state_dict().items()}
    choices = ("float", "streams=q8_0", "mlp=int4,attention=int4,streams=q8_0", "")
    exact, carried, coarse, default = (bench.measure(parse_choice(text)) for text in choices)
    assert [row["snr_db"] for row in carried["parts"].values()] == [None] * 5
    same = ("perplexity", "best_token", "call_reduction")
    assert {name: carried[name] for name in same} == {name: exact[name] for name in same}
    assert coarse["perplexity"] != exact["perplexity"]
    assert 10 < coarse["parts"]["mlp"]["snr_db"] < 30
    assert coarse["parts"]["head"]["snr_db"] is None
    assert [part for part, row in default["parts"].items() if row["snr_db"] is not None] == ["streams"]
    assert default["perplexity"] == exact["perplexity"]
    assert exact["bytes"] > carried["bytes"] > coarse["bytes"]
    assert carried["parts"]["head"]["bytes"] == 0  # the embedding is the head
    assert carried["parts"]["embedding"]["bytes"] == 258 * 64 * 34 // 32
    assert all(torch.equal(value, before[name]) for name, value in bench.model.state_dict().items())


def test_an_embedding_of_its_own_leaves_the_head_alone() -> None:
    torch.manual_seed(1)
    bench = Bench(tiny_model(), Texts([], [Example(TEXT, 1)]), 4)
    found = bench.measure(parse_choice("embedding=int4:channel"))
    assert found["parts"]["embedding"]["snr_db"] < 30
    assert found["parts"]["head"] == {"snr_db": None, "bytes": 258 * 64 * 34 // 32}
    assert "call_reduction" not in found


def test_gates_of_heads_are_rounded_with_the_attention() -> None:
    torch.manual_seed(1)
    kinds = ["conv", "sliding_attention", "full_attention"]
    settings = {"architectures": ["Lfm3ForCausalLM"], "layer_types": kinds, "num_hidden_layers": 3, "head_dim": 16}
    models = [tiny_model(**settings, use_attention_gate=gated) for gated in (True, False)]
    gated, plain = (Bench(model, texts(), 4).measure(parse_choice("attention=int8:32"))["parts"] for model in models)
    gates = [block.mixer.g_proj.weight for block in models[0].base.blocks if block.mixer.g_proj is not None]
    assert len(gates) == 2
    assert gated["attention"]["bytes"] - plain["attention"]["bytes"] == sum(w.numel() for w in gates) * 34 // 32


def test_without_streams_there_is_no_call_reduction() -> None:
    torch.manual_seed(1)
    base = tiny_model().base
    bench = Bench(StreamFused(base, StreamConfig.without(), torch.tensor([], dtype=torch.long)), texts(), 4)
    found = bench.measure(parse_choice("mlp=int8"))
    assert "call_reduction" not in found
    assert set(found["perplexity"]) == {"own", "other"}
    assert found["parts"]["streams"]["bytes"] == 0


def test_texts_of_several_files_are_spread_and_tokens_need_no_chat_template(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model, adapter = write_checkpoint(tmp_path / "checkpoint", tiny_model())
    files = [tmp_path / "short.jsonl", tmp_path / "long.jsonl"]
    for file, length in zip(files, (8, 16), strict=True):
        row = {"source": "test", "prompt": "x", "completion_ids": TEXT[8 : 8 + length]}
        rows = [{**row, "id": i, "input_ids": [length, i, *TEXT[:6]]} for i in range(6)]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["bench", "quantization", "--model", str(model), "--adapter", str(adapter), "--choice", "float"]
    data = [part for file in files for part in ("--data", str(file))]
    done = CliRunner().invoke(app, [*command, *data, "--tokens", "48", "--width", "4"])
    assert done.exit_code == 0, done.stderr
    assert "own: 48 tokens of 4 texts" in done.stdout, "two of each file"
    text = tmp_path / "text.jsonl"
    text.write_text(json.dumps({"prompt": "x", "completion": "some words"}) + "\n")
    refused = CliRunner().invoke(app, [*command, "--data", str(text)])
    assert refused.exit_code == 1
    assert "no chat template" in refused.stderr


def test_texts_have_the_chat_template_and_the_end_token_of_the_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    model, adapter = write_checkpoint(tmp_path / "checkpoint", made := tiny_model())
    own = {"chat_template": "{{ messages[0].content }}{{ eos_token }}", "eos_token_id": str(IM_END - 1)}
    save_adapter(made, adapter, own)
    data = tmp_path / "text.jsonl"
    data.write_text(json.dumps({"prompt": "x", "completion": "some words"}) + "\n")
    seen: list[tuple[int | None, str]] = []

    class Watched(Bench):
        def __init__(self, model: StreamFused, texts: Texts, width: int) -> None:
            (text,) = texts.other
            words = byte_tokenizer().decode(text.input_ids, skip_special_tokens=False)
            seen.append((model.base.config.eos_token_id, words))
            super().__init__(model, texts, width)

    monkeypatch.setattr(quantization, "Bench", Watched)
    command = ["bench", "quantization", "--model", str(model), "--adapter", str(adapter), "--choice", "float"]
    done = CliRunner().invoke(app, [*command, "--data", str(data), "--width", "4"])
    assert done.exit_code == 0, done.stderr
    assert seen == [(IM_END - 1, "x<|im_start|>some words<|im_start|>")]


def test_the_command_prints_a_table_or_json_and_appends_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    model, adapter = write_checkpoint(tmp_path / "checkpoint", tiny_model())
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages[0]['content'] }}"}))
    own = tmp_path / "own.jsonl"
    row: dict[str, Any] = {"id": 0, "source": "test", "prompt": "x", "input_ids": TEXT[:8], "completion_ids": TEXT[8:]}
    own.write_text(json.dumps(row) + "\n")
    lines = tmp_path / "lines.jsonl"
    command = ["bench", "quantization", "--data", str(own), "--model", str(model), "--adapter", str(adapter)]
    chosen = ["--choice", "float", "--choice", "mlp=int8", "--width", "4"]
    table = CliRunner().invoke(app, [*command, *chosen, "-o", str(lines)])
    assert table.exit_code == 0, table.stderr
    assert f"own: {len(TEXT) - 8} tokens of 1 texts" in table.stdout
    assert [json.loads(line)["choice"] for line in lines.read_text().splitlines()] == ["float", "mlp=int8"]
    found = json.loads(CliRunner().invoke(app, [*command, *chosen, "--json"]).stdout)
    assert found["float"]["perplexity"]["own"] != found["mlp=int8"]["perplexity"]["own"]
    wrong = CliRunner().invoke(app, [*command, "--choice", "mlp=int5"])
    assert (wrong.exit_code, wrong.stderr.count("\n")) == (2, 1)

    settings = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**settings, "eos_token_id": None}))
    without_end = CliRunner().invoke(app, [*command, "--choice", "float", "--width", "4", "--json"])
    assert without_end.exit_code == 0, without_end.stderr
    assert json.loads(without_end.stdout)["float"]["perplexity"] == found["float"]["perplexity"]
    results = iter([found["float"]])

    def interrupted(self: Bench, choice: Any) -> dict[str, Any]:
        try:
            return dict(next(results))
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(Bench, "measure", interrupted)
    stopped = CliRunner().invoke(app, [*command, *chosen, "--json"])
    assert stopped.exit_code == 130
    assert list(json.loads(stopped.stdout)) == ["float"], "what was complete is reported"
