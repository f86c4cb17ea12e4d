"""Invented prompts: users' turns that the model itself writes, the same after a stop.

Run: python -m pytest tests/unit/test_train_invent.py
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

import tiny
from streamfuse.model.transformer import Transformer
from streamfuse.text_io import TextIO
from streamfuse.train.formats import DataError
from streamfuse.train.generate import DistillConfig
from streamfuse.train.invent import invent, user_turn
from streamfuse.train.templates import CHATML

END = 1
WORDS = [f"word{i}" for i in range(4, tiny.VOCAB_SIZE)]
CONFIG = DistillConfig(batch_size=16, max_new_tokens=60, temperature=1.0, dtype="float32")


def text_io(folder: Path, template: str = CHATML) -> TextIO:
    """Words for tokens: 1 ends a turn, w2, w3, ... are what is said."""
    vocab = {"<|im_start|>": 0, "<|im_end|>": END, "user": 2, "assistant": 3}
    vocab |= {word: i for i, word in enumerate(WORDS, 4)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="user"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return TextIO(folder / "tokenizer.json", template)


@pytest.fixture
def model() -> Transformer:
    base = tiny.base(std=0.4)
    base.config = type(base.config)(
        **{f: getattr(base.config, f) for f in base.config.__slots__} | {"eos_token_ids": (END,)}
    )
    with torch.no_grad():  # turns should end
        base.lm_head.weight[END] *= 3
    return base


def prompts(path: Path) -> list[str]:
    return [json.loads(line)["prompt"] for line in path.read_text().splitlines()]


def test_turns_are_the_models_own_each_once(model: Transformer, tmp_path: Path) -> None:
    text, out = text_io(tmp_path), tmp_path / "out.jsonl"
    assert sum(invent(model, text, out, 30, CONFIG, "", None)) == 30
    found = prompts(out)
    assert len(set(found)) == 30
    assert all(set(prompt.split()) <= {*WORDS, "user", "assistant"} for prompt in found)
    assert {json.loads(line)["source"] for line in out.read_text().splitlines()} == {"invented"}


def test_a_beginning_is_kept(model: Transformer, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    list(invent(model, text_io(tmp_path), out, 5, CONFIG, "word9 word10", None))
    assert all(prompt.startswith("word9 word10") and prompt != "word9 word10" for prompt in prompts(out))


def test_a_stopped_run_goes_on_with_the_same_prompts(model: Transformer, tmp_path: Path) -> None:
    text, whole, parts = text_io(tmp_path), tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    list(invent(model, text, whole, 30, CONFIG, "", None))
    stopped = invent(model, text, parts, 30, CONFIG, "", None)
    assert next(stopped) == 0
    first = next(stopped)
    assert 0 < first < 30
    with parts.open("a") as file:
        file.write('{"id": 7, "sou')  # killed while writing
    rest = list(invent(model, text, parts, 30, CONFIG, "", None))
    assert (rest[0], sum(rest)) == (first, 30)
    assert set(prompts(parts)) == set(prompts(whole))


def test_what_cannot_be_used_is_refused(model: Transformer, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not say where a user's turn begins"):
        user_turn(text_io(tmp_path, "<|im_start|>{{ messages | length }}"))
    (tmp_path / "other.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(DataError, match="line 1: not a prompt of `streamfuse invent`"):
        list(invent(model, text_io(tmp_path), tmp_path / "other.jsonl", 3, CONFIG, "", None))


def test_a_model_that_writes_no_prompt_is_left(model: Transformer, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="0 prompts; the last 128 samples were all too short, too long"):
        list(invent(model, text_io(tmp_path), tmp_path / "out.jsonl", 3, replace(CONFIG, max_new_tokens=1), "", None))
