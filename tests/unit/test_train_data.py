"""Reading distilled files, the stream vocabulary, and the cached states below the streams.

Run: python -m pytest tests/unit/test_train_data.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import tiny
from streamfuse.train import data
from streamfuse.train.data import (
    DataError,
    Example,
    LowerStates,
    StreamDataset,
    choose_stream_vocab,
    collate,
    digest_of,
    read_examples,
)


def write(path: Path, *rows: object, tail: str = "") -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows) + tail)
    return path


def row(prompt: list[int], completion: list[int]) -> dict[str, list[int]]:
    return {"input_ids": prompt, "completion_ids": completion}


def test_examples_are_cut_and_short_completions_left_out(tmp_path: Path) -> None:
    path = write(
        tmp_path / "d.jsonl", row([1, 2], [3, 4, 5, 6, 7, 8]), row([1], [2, 3, 4]), row([1, 2, 3, 4], [5, 6, 7, 8])
    )
    assert read_examples(path, max_tokens=7) == [Example([1, 2, 3, 4, 5, 6, 7], 2)]


def test_a_last_line_that_is_not_finished_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", row([1], [2, 3, 4, 5]), tail='{"input_ids": [1], "compl')
    assert len(read_examples(path, 100)) == 1


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("{", "line 2: expected an object with input_ids and completion_ids"),
        ([1, 2], "line 2: expected an object"),
        ({"input_ids": [1]}, "line 2: expected an object"),
        (row([1], ["a"]), "line 2: completion_ids is not a list of token ids"),  # type: ignore[list-item]
        (row([1], [-1]), "line 2: completion_ids is not a list of token ids"),
        (row([1], [40]), "line 2: completion_ids holds token 40, the model's vocabulary has 40"),
        (row([], [1, 2, 3, 4]), "line 2: input_ids is empty"),
    ],
)
def test_a_wrong_line_is_named(bad: object, words: str, tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", row([1], [2, 3, 4, 5]), bad)
    with pytest.raises(DataError, match=words):
        read_examples(path, 100, tiny.VOCAB_SIZE)


def test_a_missing_or_useless_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"d.jsonl: no such file"):
        read_examples(tmp_path / "d.jsonl", 100)
    with pytest.raises(DataError, match="no example has 4 completion tokens"):
        read_examples(write(tmp_path / "d.jsonl", row([1], [2])), 100)


def test_the_stream_vocabulary_is_what_the_model_writes_most() -> None:
    examples = [Example([9, 9, 9, 5, 5, 7], 3), Example([8, 8, 5, 7, 3], 2)]
    assert choose_stream_vocab(examples, 3, 12).tolist() == [3, 5, 7]
    assert choose_stream_vocab(examples, 5, 12).tolist() == [3, 5, 7, 8, 9]  # then by prompt frequency
    assert choose_stream_vocab(examples, 6, 12).tolist() == [0, 3, 5, 7, 8, 9]  # then by id
    assert choose_stream_vocab(examples, 99, 12).tolist() == list(range(12))


def examples_of(count: int) -> list[Example]:
    return [Example(torch.randint(1, tiny.VOCAB_SIZE, (5 + i,)).tolist(), 2) for i in range(count)]


def test_lower_states_are_those_of_the_base_and_are_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, examples = tiny.fused(tiny.base()), examples_of(4)
    seen: list[int] = []
    states = LowerStates(model, examples, tmp_path / "lower", seen.append)
    assert sum(seen) == sum(len(example.input_ids) for example in examples)
    for i, example in enumerate(examples):
        expected = model.base.lower(torch.tensor([example.input_ids]), 2)[0]
        assert torch.equal(states[i], expected.to(torch.float16).float())
    monkeypatch.setattr(data, "_lower", None)  # computing again would fail
    assert LowerStates(model, examples, tmp_path / "lower").path == states.path


def test_lower_states_of_other_data_layers_or_weights_have_another_file(tmp_path: Path) -> None:
    base, examples = tiny.base(), examples_of(3)
    paths = {LowerStates(tiny.fused(base), examples, tmp_path / "lower").path}
    paths.add(LowerStates(tiny.fused(base), examples[:2], tmp_path / "lower").path)
    paths.add(LowerStates(tiny.fused(base, num_msa_layers=1), examples, tmp_path / "lower").path)
    paths.add(LowerStates(tiny.fused(tiny.base()), examples, tmp_path / "lower").path)
    assert len(paths) == 4


def test_a_stopped_computation_continues(tmp_path: Path) -> None:
    model, examples = tiny.fused(tiny.base()), examples_of(4)
    whole = LowerStates(model, examples, tmp_path / "a" / "lower")
    stop_after = iter([None, None])

    def progress(tokens: int) -> None:
        try:
            next(stop_after)
        except StopIteration:
            raise KeyboardInterrupt from None

    with pytest.raises(KeyboardInterrupt):
        LowerStates(model, examples, tmp_path / "b" / "lower", progress)
    assert [file.suffixes for file in (tmp_path / "b").iterdir()] == [[".tmp", ".npy"]]
    again = LowerStates(model, examples, tmp_path / "b" / "lower")
    assert np.array_equal(again.states, whole.states)


def test_states_beyond_float16_are_stored_in_float32(tmp_path: Path) -> None:
    base = tiny.base()
    with torch.no_grad():
        base.embed_tokens.weight[:, 0] = 1e5  # a massive activation, as Qwen2 has them
    model, examples = tiny.fused(base), examples_of(2)
    states = LowerStates(model, examples, tmp_path / "lower")
    assert states.states.dtype == np.float32
    assert torch.equal(states[1], model.base.lower(torch.tensor([examples[1].input_ids]), 2)[0])


def test_digests_are_the_same_in_every_process() -> None:
    code = "from streamfuse.train.data import *; print(digest_of([Example([1, 2, 3], 1), Example([4], 1)]))"
    command, environment = [sys.executable, "-W", "ignore", "-c", code], {**os.environ, "PYTHONHASHSEED": "123"}
    found = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert found.stdout.strip() == digest_of([Example([1, 2, 3], 1), Example([4], 1)])
    assert digest_of([Example([1, 2], 1), Example([3, 4], 1)]) != digest_of([Example([1, 2, 3], 1), Example([4], 1)])


def test_a_batch_carries_streams_from_the_last_prompt_token_on(tmp_path: Path) -> None:
    model, examples = tiny.fused(tiny.base()), [Example([1, 2, 3, 4, 5], 2), Example([6, 7, 8, 9], 3)]
    dataset = StreamDataset(examples, LowerStates(model, examples, tmp_path / "lower"), 0, 2)
    batch = collate([dataset[0], dataset[1]])
    assert batch["ids"].tolist() == [[1, 2, 3, 4, 5], [6, 7, 8, 9, -1]]
    assert batch["at"].tolist() == [[1, 2, 3], [2, 0, 0]]
    assert batch["carried"].tolist() == [[True, True, True], [True, False, False]]
    assert batch["lower"].shape == (2, 5, 32)
    assert not batch["lower"][1, 4].any()
