"""Self-distillation: a batch says what each prompt alone would get, and a stopped run goes on where it was.

Run: python -m pytest tests/train/test_train_distill.py
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from streamfuse.model.transformer import Transformer
from streamfuse.train import dtype, generate
from streamfuse.train.config import DistillConfig
from streamfuse.train.distill import Item, distill, generate_batch, in_batches, pending, provenance_of
from streamfuse.train.formats import DataError
from streamfuse.train.generate import choose

PROVENANCE = {"model": "a", "adapter": "c", "temperature": 0.0, "dtype": "float32"}
PROMPTS = [[3, 1, 4, 1, 5, 9, 2], [6], [5, 3, 5], [8, 9, 7, 9, 3, 2, 3, 8, 4, 6], [2, 6, 4], [3, 3]]

DEVICES = ["cpu", *(["mps"] if torch.backends.mps.is_available() else [])]  # without float64: a Mac's GPU
WINDOWS = {
    "architectures": ["Gemma3ForCausalLM"],
    "head_dim": 8,
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}

CONVOLUTIONS = {
    "architectures": ["Lfm2ForCausalLM"],
    "layer_types": ["conv", "conv", "full_attention", "conv"],
    "block_auto_adjust_ff_dim": False,
}
GATES = {
    "architectures": ["Lfm3ForCausalLM"],
    "head_dim": 8,
    "sliding_window": 5,
    "layer_types": ["conv", "sliding_attention", "full_attention", "conv"],
}


RECURRENCE = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 5,
    "layer_types": ["linear_attention", "linear_attention", "full_attention", "linear_attention"],
}
KINDS = {"plain": {}, "windows": WINDOWS, "convolutions": CONVOLUTIONS, "gates": GATES, "recurrence": RECURRENCE}


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def model(request: pytest.FixtureRequest) -> Transformer:
    return tiny.base(std=0.4, **request.param)


def one_by_one(model: Transformer, prompt: list[int], max_new_tokens: int) -> list[int]:
    """Greedy decoding without batch, padding or cache."""
    ids = list(prompt)
    for _ in range(max_new_tokens):
        ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
        if ids[-1] in model.config.eos_token_ids:
            break
    return ids[len(prompt) :]


def items_of(prompts: list[list[int]]) -> list[Item]:
    return [{"id": i, "source": "test", "prompt": str(ids), "input_ids": ids} for i, ids in enumerate(prompts)]


def rows_of(path: Path) -> dict[int, Item]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row for row in rows}


def test_a_left_padded_batch_says_what_each_prompt_alone_gets(model: Transformer) -> None:
    eos = one_by_one(model, PROMPTS[0], 6)[-1]  # some texts end early, so that sequences leave the batch
    model.config = type(model.config)(
        **{f: getattr(model.config, f) for f in model.config.__slots__} | {"eos_token_ids": (eos,)}
    )
    expected = [one_by_one(model, prompt, 20) for prompt in PROMPTS]
    assert len({len(text) for text in expected}) > 1
    assert generate_batch(model, PROMPTS, DistillConfig(max_new_tokens=20)) == expected


def test_prompts_with_a_common_beginning_read_in_parts_with_growing_caches_say_the_same(
    model: Transformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "CHUNK_ROWS", 7)
    monkeypatch.setattr(generate, "MORE_COLUMNS", 3)
    prompts = [[7, 7, 3, *prompt] for prompt in PROMPTS]
    eos = one_by_one(model, prompts[1], 8)[-1]
    model.config = type(model.config)(
        **{f: getattr(model.config, f) for f in model.config.__slots__} | {"eos_token_ids": (eos,)}
    )
    expected = [one_by_one(model, prompt, 20) for prompt in prompts]
    assert len({len(text) for text in expected}) > 1
    assert generate_batch(model, prompts, DistillConfig(max_new_tokens=20)) == expected
    assert generate_batch(model, [prompts[0]] * 3, DistillConfig(max_new_tokens=20)) == [expected[0]] * 3


def test_sampled_text_does_not_depend_on_the_batch(model: Transformer) -> None:
    config = DistillConfig(max_new_tokens=12, temperature=1.0)
    seeds = [10 + i for i in range(len(PROMPTS))]
    together = generate_batch(model, PROMPTS, config, seeds)
    alone = [generate_batch(model, [prompt], config, [seed])[0] for prompt, seed in zip(PROMPTS, seeds, strict=True)]
    assert together == alone
    assert together != generate_batch(model, PROMPTS, config, [seed + 1 for seed in seeds])


@pytest.mark.parametrize("device", DEVICES)
def test_sampling_follows_the_distribution(device: str) -> None:
    logits = torch.tensor([[0.0, 1.0, -1.0, 2.0]], device=device)
    n = 4000
    uniforms = [(i + 0.5) / n for i in range(n)]
    tokens = choose(logits.expand(n, -1), 0.7, 1.0, uniforms)
    assert tokens.device == logits.device
    shares = torch.bincount(tokens.cpu(), minlength=4) / n
    torch.testing.assert_close(shares, torch.softmax(logits[0].cpu() / 0.7, -1), atol=1e-3, rtol=0)
    assert choose(logits, 0.7, 1.0, [0.0]).tolist() == [0]
    assert choose(logits, 0.7, 1.0, [1.0]).tolist() == [3]
    assert choose(logits, 0.0, 1.0, []).tolist() == [3]


@pytest.mark.parametrize("device", DEVICES)
def test_top_p_samples_among_the_fewest_likeliest_tokens(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    probabilities = torch.tensor([[0.1, 0.4, 0.05, 0.3, 0.15]], device=device)
    uniforms = [(i + 0.5) / 1000 for i in range(1000)]
    for candidates, block in (((5,), 64), ((2,), 64), ((1, 2), 2), ((2, 3), 1)):  # some less wide than the nucleus
        monkeypatch.setattr(generate, "NUCLEI", candidates)
        monkeypatch.setattr(generate, "BLOCK", block)
        tokens = choose(probabilities.log().expand(1000, -1), 1.0, 0.8, uniforms)
        shares = torch.bincount(tokens.cpu(), minlength=5) / 1000
        torch.testing.assert_close(shares, torch.tensor([0, 0.4, 0, 0.3, 0.15]) / 0.85, atol=2e-3, rtol=0)


def test_a_stopped_run_goes_on_and_skips_what_is_there(model: Transformer, tmp_path: Path) -> None:
    config = DistillConfig(batch_size=2, max_new_tokens=6)
    whole, parts = tmp_path / "whole.jsonl", tmp_path / "deep" / "parts.jsonl"
    done = list(distill(in_batches(model), items_of(PROMPTS), whole, config, PROVENANCE))
    assert (sum(one.answers for one in done), len(done)) == (6, 3)
    next(distill(in_batches(model), items_of(PROMPTS), parts, config, PROVENANCE))  # stopped after a batch
    assert len(rows_of(parts)) == 2
    assert sum(one.answers for one in distill(in_batches(model), items_of(PROMPTS), parts, config, PROVENANCE)) == 4
    assert rows_of(parts) == rows_of(whole)
    assert list(distill(in_batches(model), items_of(PROMPTS), parts, config, PROVENANCE)) == []
    row = rows_of(whole)[0]
    assert row["completion_ids"] == one_by_one(model, PROMPTS[0], 6)
    assert row["finished"] is (row["completion_ids"][-1] == tiny.EOS)


def test_a_torn_last_line_is_written_anew(model: Transformer, tmp_path: Path) -> None:
    config, path = DistillConfig(batch_size=2, max_new_tokens=6), tmp_path / "out.jsonl"
    list(distill(in_batches(model), items_of(PROMPTS), path, config, PROVENANCE))
    expected = rows_of(path)
    path.write_bytes(path.read_bytes()[:-25])
    assert len(pending(items_of(PROMPTS), path, config, PROVENANCE)) == 1
    list(distill(in_batches(model), items_of(PROMPTS), path, config, PROVENANCE))
    assert rows_of(path) == expected


def test_one_process_writes_a_file(model: Transformer, tmp_path: Path) -> None:
    config, path = DistillConfig(batch_size=2, max_new_tokens=6), tmp_path / "out.jsonl"
    running = distill(in_batches(model), items_of(PROMPTS), path, config, PROVENANCE)
    next(running)
    with pytest.raises(DataError, match=r"out.jsonl: another process is writing it; wait for it"):
        next(distill(in_batches(model), items_of(PROMPTS), path, config, PROVENANCE))
    list(running)
    assert len(rows_of(path)) == len(PROMPTS)
    path.write_text("notes")
    with pytest.raises(DataError, match="its last line is not a row"):
        next(distill(in_batches(model), items_of(PROMPTS), path, config, PROVENANCE))
    assert path.read_text() == "notes"


def test_long_prompts_are_left_out(model: Transformer, tmp_path: Path) -> None:
    config = DistillConfig(max_prompt_tokens=3, max_new_tokens=2)
    list(distill(in_batches(model), items_of(PROMPTS), tmp_path / "out.jsonl", config, PROVENANCE))
    assert sorted(rows_of(tmp_path / "out.jsonl")) == [1, 2, 4, 5]


def test_answers_to_other_prompts_are_not_continued(model: Transformer, tmp_path: Path) -> None:
    path, config = tmp_path / "out.jsonl", DistillConfig(max_new_tokens=2)
    list(distill(in_batches(model), items_of(PROMPTS), path, config, PROVENANCE))
    shuffled = random.Random(1).sample(PROMPTS, len(PROMPTS))
    with pytest.raises(DataError, match="is for another prompt"):
        pending(items_of(shuffled), path, config, PROVENANCE)
    path.write_text("something else\n")
    with pytest.raises(DataError, match=r"out.jsonl, line 1: not an answer"):
        pending(items_of(PROMPTS), path, config, PROVENANCE)


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ({**PROVENANCE, "model": "b"}, "written with another --model, so it cannot be continued; delete it, or give"),
        (
            {**PROVENANCE, "model": None},
            "its first row does not record its model, so it cannot be continued; delete it",
        ),
        ({**PROVENANCE, "adapter": None}, "written without --adapter, so it cannot be continued"),
        ({**PROVENANCE, "temperature": 0.8}, "written with --temperature 0.8, not 0.0, so it cannot be continued"),
        ({**PROVENANCE, "dtype": "bfloat16"}, "written with --dtype bfloat16, not float32, so it cannot be continued"),
        (None, "its first row does not record the model and settings"),
    ],
)
def test_answers_with_another_provenance_are_not_continued(
    model: Transformer, tmp_path: Path, before: dict[str, Any] | None, words: str
) -> None:
    path, config = tmp_path / "out.jsonl", DistillConfig(max_new_tokens=2)
    list(distill(in_batches(model), items_of(PROMPTS[:-1]), path, config, PROVENANCE))
    lines = path.read_text().splitlines()
    assert ["provenance" in json.loads(line) for line in lines] == [True] + [False] * 4
    lines[0] = json.dumps({**json.loads(lines[0]), "provenance": before})
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=words):
        pending(items_of(PROMPTS), path, config, PROVENANCE)


def test_another_provenance_is_refused(model: Transformer, tmp_path: Path) -> None:
    path, config, other = tmp_path / "out.jsonl", DistillConfig(max_new_tokens=2), {**PROVENANCE, "dtype": "bfloat16"}
    list(distill(in_batches(model), items_of(PROMPTS[:-1]), path, config, PROVENANCE))
    with pytest.raises(DataError, match=r"add --set own\.dtype=float32 to continue it, or --no-resume"):
        pending(items_of(PROMPTS), path, config, other, "own")
    with pytest.raises(DataError, match="written with another --model"):
        pending(items_of(PROMPTS[:-1]), path, config, {**PROVENANCE, "model": "b"})
    with pytest.raises(DataError, match="written with --adapter, so"):
        pending(items_of(PROMPTS[:-1]), path, config, {**PROVENANCE, "adapter": None})


@pytest.mark.parametrize("gain", [0.5, 2.0])
def test_a_file_of_dtype_auto_is_continued_whatever_is_faster_now(gain: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dtype, "bfloat16_gain", lambda: gain)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True})
    assert provenance_of(DistillConfig(), None)["dtype"] == "auto"


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"batch_size": 0}, "batch_size"), ({"temperature": -1.0}, "temperature"), ({"seed": -1}, "seed must be from 0")],
)
def test_settings_out_of_range_are_refused(settings: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        DistillConfig(**settings)  # type: ignore[arg-type]
