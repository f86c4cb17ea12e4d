"""Synthesized prompts: users' turns that the model itself writes, the same after a stop.

Run: python -m pytest tests/train/test_train_synthesize.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import tokenizers
import torch
from bundle_samples import byte_tokenizer
from tokenizer_samples import metaspace_like, opened
from tokenizers import models, pre_tokenizers

from streamfuse.model.transformer import Transformer
from streamfuse.options import OptionError
from streamfuse.runtime.text import Tokenizer
from streamfuse.train import distill
from streamfuse.train.config import DistillConfig
from streamfuse.train.distill import in_batches
from streamfuse.train.formats import DataError
from streamfuse.train.generate import generate_batch
from streamfuse.train.prompts import prompt_items
from streamfuse.train.readers import encode_prompt, read_samples
from streamfuse.train.synthesize import Opening, openings, synthesize, user_turn
from streamfuse.train.templates import CHATML

END = 1
WORDS = [f"word{i}" for i in range(4, tiny.VOCAB_SIZE)]
CONFIG = DistillConfig(batch_size=16, max_new_tokens=60, temperature=1.0, dtype="float32")


def text_io(folder: Path, template: str = CHATML) -> Tokenizer:
    """Words for tokens: 1 ends a turn, w2, w3, ... are the words."""
    vocab = {"<|im_start|>": 0, "<|im_end|>": END, "user": 2, "assistant": 3}
    vocab |= {word: i for i, word in enumerate(WORDS, 4)}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token="user"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return Tokenizer(folder / "tokenizer.json", template)


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(3)  # of a model whose turns are not all empty
    base = tiny.base(std=0.4)
    base.config = type(base.config)(
        **{f: getattr(base.config, f) for f in base.config.__slots__} | {"eos_token_ids": (END,)}
    )
    with torch.no_grad():  # turns should end
        base.lm_head.weight[END] *= 3
    return base


def second_turns(model: Transformer, text: Tokenizer, out: Path, count: int, after: Path) -> list[int]:
    return list(synthesize(in_batches(model), text, out, count, CONFIG, *openings(text, after=after), {}))


def run(
    model: Transformer,
    text: Tokenizer,
    out: Path,
    count: int,
    config: DistillConfig = CONFIG,
    begin: tuple[str, ...] = (),
) -> Iterator[int]:
    context = model.config.max_position_embeddings
    return synthesize(
        in_batches(model), text, out, count, config, *openings(text, begin), {"begin": list(begin)}, context
    )


def prompts(path: Path) -> list[str]:
    return [json.loads(line)["prompt"] for line in path.read_text().splitlines()]


def test_turns_are_the_models_own_each_once(model: Transformer, tmp_path: Path) -> None:
    text, out = text_io(tmp_path), tmp_path / "out.jsonl"
    assert sum(run(model, text, out, 30)) == 30
    found = prompts(out)
    assert len(set(found)) == 30
    assert all(set(prompt.split()) <= {*WORDS, "user", "assistant"} for prompt in found)
    assert {json.loads(line)["source"] for line in out.read_text().splitlines()} == {"synthesized"}


def test_no_more_is_sampled_than_is_needed(model: Transformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = list[int]()

    def counted(model: Transformer, places: list[list[int]], *rest: Any) -> list[list[int]]:
        sizes.append(len(places))
        return generate_batch(model, places, *rest)

    monkeypatch.setattr(distill, "generate_batch", counted)
    text, large = text_io(tmp_path), replace(CONFIG, batch_size=64)
    list(run(model, text, tmp_path / "few.jsonl", 5, large))
    assert max(sizes) == 10
    list(run(model, text, tmp_path / "many.jsonl", 30, large))
    assert prompts(tmp_path / "many.jsonl")[:5] == prompts(tmp_path / "few.jsonl")


def test_a_beginning_is_kept(model: Transformer, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    list(run(model, text_io(tmp_path), out, 5, begin=("word9 word10 ",)))
    assert all(prompt.startswith("word9 word10") and prompt != "word9 word10" for prompt in prompts(out))


def test_prompts_with_another_beginning_are_not_continued(model: Transformer, tmp_path: Path) -> None:
    text, out = text_io(tmp_path), tmp_path / "out.jsonl"
    list(run(model, text, out, 3, begin=("word9",)))
    with pytest.raises(
        DataError, match=r"out.jsonl: written with --begin \['word9'\], not \['word8'\], so it cannot be continued"
    ):
        list(run(model, text, out, 6, begin=("word8",)))


def test_a_stopped_run_goes_on_with_the_same_prompts(model: Transformer, tmp_path: Path) -> None:
    text, whole, parts = text_io(tmp_path), tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    list(run(model, text, whole, 30))
    stopped = run(model, text, parts, 30)
    assert next(stopped) == 0
    first = next(stopped)
    assert 0 < first < 30
    with pytest.raises(DataError, match=r"parts.jsonl: another process is writing it"):
        list(run(model, text, parts, 30))
    del stopped
    with parts.open("a") as file:
        file.write('{"id": 7, "sou')  # killed while writing
    rest = list(run(model, text, parts, 30))
    assert (rest[0], sum(rest)) == (first, 30)
    assert set(prompts(parts)) == set(prompts(whole))


def test_what_cannot_be_used_is_refused(model: Transformer, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not mark where a user's turn begins"):
        user_turn(text_io(tmp_path, "<|im_start|>{{ messages | length }}"))
    (tmp_path / "other.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(DataError, match="line 1: not a prompt of `streamfuse data synthesize`"):
        list(run(model, text_io(tmp_path), tmp_path / "other.jsonl", 3))


def test_a_turn_ends_with_the_token_that_it_has_behind_a_message() -> None:
    """SentencePiece would write one more space in front of a text."""
    tokenizer = metaspace_like()
    _, end = user_turn(opened(tokenizer, "{% for m in messages %}Q {{ m.content }} wise{% endfor %}"))
    assert tokenizer.id_to_token(end) == "▁w"


def test_control_tokens_in_a_given_beginning_are_text() -> None:
    tokenizer = byte_tokenizer()
    text = opened(tokenizer, CHATML)
    ids, _ = user_turn(text, begin="a<|im_end|>")
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>user\na<|im_end|>"
    assert tokenizer.token_to_id("<|im_end|>") not in ids


def test_messages_and_beginnings_may_have_any_character() -> None:
    tokenizer = byte_tokenizer()
    before = ({"role": "user", "content": "an \ufffc object"}, {"role": "assistant", "content": "\ufffc"})
    ids, _ = user_turn(opened(tokenizer, CHATML), before, "a \ufffc")
    assert tokenizer.decode(ids, skip_special_tokens=False).count("\ufffc") == 3


def test_a_model_that_writes_no_prompt_is_left(model: Transformer, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="0 prompts; the last 128 samples were all too short, too long"):
        list(run(model, text_io(tmp_path), tmp_path / "out.jsonl", 3, replace(CONFIG, max_new_tokens=1)))


def test_beginnings_take_turns(model: Transformer, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    list(run(model, text_io(tmp_path), out, 12, begin=("word9 word10", "word11")))
    beginnings = [prompt.startswith("word9 word10") or 2 * prompt.startswith("word11") for prompt in prompts(out)]
    assert set(beginnings) == {1, 2}


def answers(path: Path, text: Tokenizer, finished: bool = True) -> Path:
    rows = [
        {"id": i, "prompt": f"word{i + 4}", "input_ids": [0], "completion_ids": text.encode(f"word{i + 9}"),
         "finished": finished}
        for i in range(3)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_second_turns_follow_the_answers_and_are_read_with_them(model: Transformer, tmp_path: Path) -> None:
    text, out = text_io(tmp_path), tmp_path / "out.jsonl"
    second_turns(model, text, out, 9, answers(tmp_path / "answers.jsonl", text))
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert {row["messages"][0]["content"] for row in rows} == {"word4", "word5", "word6"}
    for row, sample in zip(rows, read_samples(out), strict=True):
        before, reply = row["messages"][:2], row["messages"][2]
        assert [one["role"] for one in row["messages"]] == ["user", "assistant", "user"]
        assert int(before[1]["content"].removeprefix("word")) == int(before[0]["content"].removeprefix("word")) + 5
        assert sample.turns == (reply["content"],)
        assert encode_prompt(sample, text) == text.encode_chat(row["messages"])


def test_third_turns_follow_second_ones(model: Transformer, tmp_path: Path) -> None:
    text, second, third = text_io(tmp_path), tmp_path / "second.jsonl", tmp_path / "third.jsonl"
    second_turns(model, text, second, 4, answers(tmp_path / "answers.jsonl", text))
    items = prompt_items(read_samples(second), text, None, 0)
    done = [{**item, "completion_ids": text.encode("word7"), "finished": True} for item in items]
    (tmp_path / "more.jsonl").write_text("".join(json.dumps(row) + "\n" for row in done))
    second_turns(model, text, third, 4, tmp_path / "more.jsonl")
    before = {json.dumps(json.loads(line)["messages"]) for line in second.read_text().splitlines()}
    for line in third.read_text().splitlines():
        messages = json.loads(line)["messages"]
        assert len(messages) == 5
        assert json.dumps(messages[:3]) in before
        assert messages[3] == {"role": "assistant", "content": "word7"}


def test_a_chat_keeps_its_own_system_message_and_one_with_tools_is_not_followed(tmp_path: Path) -> None:
    text, path = text_io(tmp_path), answers(tmp_path / "answers.jsonl", text_io(tmp_path))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    own = {"role": "system", "content": "word20"}
    changes: list[dict[str, object]] = [{"before": [own]}, {}, {"tools": [{"type": "function"}]}]
    path.write_text("".join(json.dumps(row | more) + "\n" for row, more in zip(rows, changes, strict=True)))
    places, _ = openings(text, system="word21", after=path)
    assert [place.before[0] for place in places] == [own, {"role": "system", "content": "word21"}]
    assert [[message["role"] for message in place.before] for place in places] == [["system", "user", "assistant"]] * 2


def test_prompts_beyond_the_models_context_are_refused(model: Transformer, tmp_path: Path) -> None:
    with pytest.raises(
        OptionError, match=r"the longest prompt \(2 tokens\) and max_new_tokens 127 exceed the model's context of 128"
    ):
        list(run(model, text_io(tmp_path), tmp_path / "out.jsonl", 3, replace(CONFIG, max_new_tokens=127)))
    assert not (tmp_path / "out.jsonl").exists()


def test_answers_that_cannot_be_followed_are_refused(model: Transformer, tmp_path: Path) -> None:
    text = text_io(tmp_path)
    with pytest.raises(DataError, match="it has no finished answers"):
        openings(text, after=answers(tmp_path / "answers.jsonl", text, finished=False))
    (tmp_path / "prompts.jsonl").write_text('{"id": 1, "prompt": "word4"}\n')
    with pytest.raises(DataError, match="not answers of `streamfuse data distill`"):
        openings(text, after=tmp_path / "prompts.jsonl")
    short = replace(CONFIG, max_prompt_tokens=3)
    with pytest.raises(DataError, match="longer than 3 tokens"):
        list(synthesize(in_batches(model), text, tmp_path / "out.jsonl", 3, short, [Opening([1] * 4)], END, {}))
