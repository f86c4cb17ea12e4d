"""Special tokens as a checkpoint has them, in plain text and in chats, before and after an export.

Run: python -m pytest tests/model/test_model_tokenizer.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
import tokenizers
import torch
from export_samples import tiny_model, write_checkpoint
from tokenizers.processors import TemplateProcessing

import streamfuse
from streamfuse.model.config import CheckpointError, ModelConfig
from streamfuse.train.formats import Sample
from streamfuse.train.prompts import open_text
from streamfuse.train.readers import encode_prompt

START, END = 256, 257  # of the byte tokenizer: <|im_start|>, <|im_end|>
NAMED = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>", "lstrip": False}}
CHAT = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(1)
    return tiny_model()


@pytest.fixture
def folder(model: Any, tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "mine", model)[0]


def say(folder: Path, **config: Any) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def mark(folder: Path, *around: str) -> None:
    """Let tokenizer.json itself put tokens around a text."""
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    known = [(word, tokenizer.token_to_id(word)) for word in around if word != "$A"]
    tokenizer.post_processor = TemplateProcessing(single=list(around), special_tokens=known)
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.mark.parametrize("own", [False, True], ids=["the file adds none", "the file adds one"])
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"add_bos_token": True},
        {"add_bos_token": False},
        {"add_eos_token": True, "add_bos_token": True},
        {"tokenizer_class": "LlamaTokenizerFast"},
        {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True},
    ],
)
def test_plain_text_has_the_tokens_that_tokenizer_json_puts_around_it(
    config: dict[str, Any], own: bool, folder: Path
) -> None:
    """transformers 5 reads it so: the settings were for tokenizers that it no longer has."""
    if own:
        mark(folder, "<|im_start|>", "$A")
    say(folder, **{**NAMED, "chat_template": CHAT, **config})
    text = open_text(folder)
    assert text.encode("to be") == [*([START] if own else []), *text.encode_rendered("to be")]
    assert text.encode("") == ([START] if own else [])


@pytest.mark.parametrize(
    ("config", "bos", "eos"),
    [
        ({}, 1, (3, 257)),  # as config.json has them
        (NAMED, START, (END, 3)),
        ({"bos_token": None, "eos_token": None}, None, (3, 257)),
        ({"bos_token": "<nobody>", "eos_token": "<nobody>"}, 1, (3, 257)),
        ({"eos_token": "<|im_start|>"}, 1, (START, 3, 257)),
        ({"bos_token": "<s>", "added_tokens_decoder": {"7": {"content": "<s>"}}}, 7, (3, 257)),
        ({"bos_token": "<s>", "added_tokens_decoder": {"258": {"content": "<s>"}}}, 1, (3, 257)),  # no token
    ],
)
def test_the_tokens_of_templates_are_those_that_tokenizer_config_names(
    config: dict[str, Any], bos: int | None, eos: tuple[int, ...], folder: Path
) -> None:
    say(folder, **config)
    found = ModelConfig.load(folder)
    assert (found.bos_token_id, found.eos_token_ids) == (bos, eos)


def test_settings_beside_no_tokenizer_leave_the_configuration_as_it_is(tmp_path: Path) -> None:
    tiny.write_base(tmp_path, tiny.base())
    say(tmp_path, **NAMED)
    assert ModelConfig.load(tmp_path).eos_token_ids == (tiny.EOS,)


OTHERS = {"bos_token": {"content": "<|im_end|>"}, "eos_token": "<|im_start|>"}


@pytest.mark.parametrize(
    ("config", "special", "bos", "eos"),
    [
        ({}, OTHERS, END, (START, 3, 257)),
        (NAMED, OTHERS, END, (START, 3, 257)),
        ({"bos_token": None, "eos_token": None}, OTHERS, END, (START, 3, 257)),
        (NAMED, {"bos_token": None, "pad_token": "x"}, None, (END, 3)),
        ({**NAMED, "added_tokens_decoder": {}}, OTHERS, START, (END, 3)),
        (NAMED, {"eos_token": "<nobody>"}, START, (3, 257)),
    ],
)
def test_special_tokens_map_goes_before_tokenizer_config(
    config: dict[str, Any], special: dict[str, Any], bos: int | None, eos: tuple[int, ...], folder: Path
) -> None:
    """transformers 5.24 reads it wherever tokenizer_config.json has no `added_tokens_decoder`."""
    say(folder, **config)
    (folder / "special_tokens_map.json").write_text(json.dumps(special))
    found = ModelConfig.load(folder)
    assert (found.bos_token_id, found.eos_token_ids) == (bos, eos)


@pytest.mark.parametrize("damaged", ["[1]", "{", "5"])
def test_a_damaged_special_tokens_map_is_named(damaged: str, folder: Path) -> None:
    (folder / "special_tokens_map.json").write_text(damaged)
    with pytest.raises(CheckpointError, match=r"special_tokens_map\.json"):
        ModelConfig.load(folder)


def test_a_word_of_the_vocabulary_can_be_a_special_token(folder: Path) -> None:
    say(folder, bos_token="!", eos_token="A")
    letters = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    found = ModelConfig.load(folder)
    assert (found.bos_token_id, found.eos_token_ids[0]) == (letters.token_to_id("!"), letters.token_to_id("A"))


@pytest.mark.parametrize(("adds", "chats"), [(False, False), (True, True)])
def test_bundle_training_and_library_speak_the_same_ids(adds: bool, chats: bool, folder: Path, tmp_path: Path) -> None:
    if adds:
        mark(folder, "<|im_start|>", "$A")
    say(folder, **({"chat_template": CHAT} if chats else {}))
    (folder / "special_tokens_map.json").write_text(json.dumps(NAMED))
    out = tmp_path / "bundle"
    streamfuse.export_bundle(
        out, model=folder, adapter="none", max_context_len=128, prefill_len=8, widths=[4], default_width=4
    )
    letters = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))

    def spelt(text: str) -> list[int]:
        return list(letters.encode(text, add_special_tokens=False).ids)

    plain = [*([START] if adds else []), *spelt("hello")]
    chat = [START, *spelt("user: hello"), END]
    with streamfuse.load(out) as model:
        assert model.encode("hello", raw=True) == plain
        assert model.encode("hello") == (chat if chats else plain)
        assert model.manifest.model.eos_token_ids[0] == END
    if chats:
        text = open_text(folder)
        assert encode_prompt(Sample(("hello",), ()), text) == chat
        assert text.encode("hello") == plain
