"""Held-out splits, the stream vocabulary, and the cached states of the frozen layers.

Run: python -m pytest tests/train/test_train_data.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch

from streamfuse.train.data import (
    Example,
    FrozenStates,
    Share,
    Stopped,
    StreamDataset,
    choose_stream_vocab,
    collate,
    digest_of,
    draw_anchors,
    split_held_out,
)
from streamfuse.train.formats import DataError


def test_the_stream_vocabulary_is_what_the_model_writes_most() -> None:
    examples = [Example([9, 9, 9, 5, 5, 7], 3), Example([8, 8, 5, 7, 3], 2)]
    assert choose_stream_vocab(examples, 3, 12).tolist() == [3, 5, 7]
    assert choose_stream_vocab(examples, 5, 12).tolist() == [3, 5, 7, 8, 9]  # then by prompt frequency
    assert choose_stream_vocab(examples, 6, 12).tolist() == [0, 3, 5, 7, 8, 9]  # then by id
    assert choose_stream_vocab(examples, 99, 12).tolist() == list(range(12))


def examples_of(count: int) -> list[Example]:
    return [Example(torch.randint(1, tiny.VOCAB_SIZE, (5 + i,)).tolist(), 2) for i in range(count)]


def test_frozen_states_are_those_of_the_base_and_are_reused(tmp_path: Path) -> None:
    model, examples = tiny.fused(tiny.base()), examples_of(4)
    seen: list[int] = []
    states = FrozenStates(model, examples, tmp_path / "frozen", seen.append)
    assert sum(seen) == sum(len(example.input_ids) for example in examples)
    for i, example in enumerate(examples):
        expected = model.base.lower(torch.tensor([example.input_ids]), 2)[0]
        torch.testing.assert_close(states[i], expected, atol=2e-3, rtol=2e-3)  # float16
    seen.clear()
    assert FrozenStates(model, examples, tmp_path / "frozen", seen.append).path == states.path
    assert seen == [], "nothing is computed again"
    states.path.write_bytes(states.path.read_bytes()[:200])
    with pytest.raises(
        ValueError, match=r"frozen-.*\.npy: damaged .* delete it, and the same command computes it again"
    ):
        FrozenStates(model, examples, tmp_path / "frozen")


def test_frozen_states_of_other_data_layers_weights_dtypes_or_configurations_have_another_file(tmp_path: Path) -> None:
    base, examples = tiny.base(), examples_of(3)
    paths = {FrozenStates(tiny.fused(base), examples, tmp_path / "frozen").path}
    paths.add(FrozenStates(tiny.fused(base), examples[:2], tmp_path / "frozen").path)
    paths.add(FrozenStates(tiny.fused(base, num_msa_layers=1), examples, tmp_path / "frozen").path)
    paths.add(FrozenStates(tiny.fused(tiny.base()), examples, tmp_path / "frozen").path)
    base.bfloat16()
    paths.add(FrozenStates(tiny.fused(base), examples, tmp_path / "frozen").path)
    base.float()  # the same values as in bfloat16
    paths.add(FrozenStates(tiny.fused(base), examples, tmp_path / "frozen").path)
    paths.add(FrozenStates(tiny.fused(base, base_rank=2, base_layers=3), examples, tmp_path / "frozen").path)
    tuned_before = tiny.fused(base, base_rank=2, base_layers=3)
    tuned_before.base_adapters.requires_grad_(False)
    paths.add(FrozenStates(tuned_before, examples, tmp_path / "frozen").path)
    other = tiny.base(rms_norm_eps=1e-3)
    other.load_state_dict(base.state_dict())
    paths.add(FrozenStates(tiny.fused(other), examples, tmp_path / "frozen").path)
    assert len(paths) == 9


def test_states_of_a_base_that_was_tuned_before_are_the_tuned_ones(tmp_path: Path) -> None:
    model, examples = tiny.fused(tiny.base(), base_rank=2, base_layers=3), examples_of(2)
    model.base_adapters.requires_grad_(False)
    states = FrozenStates(model, examples, tmp_path / "frozen")
    expected = model.merged().base.lower(torch.tensor([examples[1].input_ids]), 2)[0]
    torch.testing.assert_close(states[1], expected, atol=4e-3, rtol=4e-3)


def test_held_out_examples_are_spread_over_the_file() -> None:
    examples = [Example([i, 1], 1) for i in range(10)]
    train, held_out = split_held_out(examples, 3)
    assert [example.input_ids[0] for example in held_out] == [1, 4, 8]
    assert sorted(e.input_ids[0] for e in train + held_out) == list(range(10))


def test_no_prompt_is_trained_on_and_held_out() -> None:
    """A prompt may have several answers."""
    examples = [Example([prompt, 50 + answer], 1) for answer in range(3) for prompt in range(6)]
    train, held_out = split_held_out(examples, 2)
    assert [example.input_ids for example in held_out] == [[1, 50], [4, 50]]
    assert {example.input_ids[0] for example in train} == {0, 2, 3, 5}
    assert len(train) == 3 * 4
    train, held_out = split_held_out(examples, 6)  # of so few prompts by example
    assert (len(train), len(held_out)) == (12, 6)


def test_a_stopped_computation_continues(tmp_path: Path) -> None:
    model, examples = tiny.fused(tiny.base()), examples_of(24)  # three batches
    whole = FrozenStates(model, examples, tmp_path / "a" / "frozen")
    stop_after = iter([None])

    def progress(tokens: int) -> None:
        try:
            next(stop_after)
        except StopIteration:
            raise KeyboardInterrupt from None

    with pytest.raises(KeyboardInterrupt):
        FrozenStates(model, examples, tmp_path / "b" / "frozen", progress)
    assert [file.suffixes for file in (tmp_path / "b").iterdir()] == [[".tmp", ".npy"]]
    again = FrozenStates(model, examples, tmp_path / "b" / "frozen")
    assert np.array_equal(again.states, whole.states)


def test_processes_divide_the_work(tmp_path: Path) -> None:
    model, examples = tiny.fused(tiny.base()), examples_of(36)  # five batches
    whole = FrozenStates(model, examples, tmp_path / "a" / "frozen")
    barrier = threading.Barrier(2, timeout=60)

    def wait() -> None:
        barrier.wait()

    def states(index: int) -> FrozenStates:
        share = Share(index, 2, wait)
        return FrozenStates(model, examples, tmp_path / "b" / "frozen", share=share)

    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(states, range(2)):
            assert np.array_equal(found.states, whole.states)
    assert [file.suffixes for file in (tmp_path / "b").iterdir()] == [[".npy"]]


def test_processes_stop_together(tmp_path: Path) -> None:
    model, examples = tiny.fused(tiny.base()), examples_of(36)  # five batches
    barrier, asked = threading.Barrier(2, timeout=60), [False, True]
    votes: list[bool] = []

    def wait() -> None:
        barrier.wait()

    def any_of(value: bool) -> bool:
        votes.append(value)
        barrier.wait()
        return any(votes)

    def states(index: int) -> None:
        with pytest.raises(Stopped):
            FrozenStates(
                model, examples, tmp_path / "frozen", share=Share(index, 2, wait, any_of), stop=lambda: asked[index]
            )

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(states, range(2)))
    assert [file.suffixes for file in tmp_path.iterdir()] == [[".tmp", ".npy"]]


def test_states_beyond_float16_are_stored_in_float32(tmp_path: Path) -> None:
    base = tiny.base()
    with torch.no_grad():
        base.embed_tokens.weight[:, 0] = 1e5  # a massive activation, as Qwen2 has them
    model, examples = tiny.fused(base), examples_of(2)
    states = FrozenStates(model, examples, tmp_path / "frozen")
    assert states.states.dtype == np.float32
    torch.testing.assert_close(states[1], model.base.lower(torch.tensor([examples[1].input_ids]), 2)[0])


def test_states_that_do_not_fit_are_refused_in_every_run(tmp_path: Path) -> None:
    base = tiny.base()
    with torch.no_grad():
        base.embed_tokens.weight[5, 0] = 1e5
    model, examples = tiny.fused(base), [Example([1, 2, 3, 4], 2), Example([1, 5, 3, 4], 2)]
    for _ in range(2):
        with pytest.raises(DataError, match=r"training example 2 exceed the range of float16; .* begin 1, 5, 3, 4"):
            FrozenStates(model, examples, tmp_path / "frozen")


def test_digests_are_the_same_in_every_process() -> None:
    code = "from streamfuse.train.data import *; print(digest_of([Example([1, 2, 3], 1), Example([4], 1)]))"
    command, environment = [sys.executable, "-W", "ignore", "-c", code], {**os.environ, "PYTHONHASHSEED": "123"}
    found = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert found.stdout.strip() == digest_of([Example([1, 2, 3], 1), Example([4], 1)])
    assert digest_of([Example([1, 2], 1), Example([3, 4], 1)]) != digest_of([Example([1, 2, 3], 1), Example([4], 1)])


def test_a_batch_carries_streams_from_the_last_prompt_token_on(tmp_path: Path) -> None:
    model, examples = tiny.fused(tiny.base()), [Example([1, 2, 3, 4, 5], 2), Example([6, 7, 8, 9], 3)]
    dataset = StreamDataset(examples, FrozenStates(model, examples, tmp_path / "frozen"))
    batch = collate([dataset[0], dataset[1]])
    assert batch["ids"].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert batch["at"].tolist() == [1, 2, 3, 7]
    assert batch["left"].tolist() == [3, 2, 1, 1]
    assert batch["segments"] == [(5, 3), (4, 1)]
    assert torch.equal(batch["frozen"], torch.cat([dataset.states[0], dataset.states[1]]))


def test_anchors_are_drawn_anew_and_stand_on_completion_tokens(tmp_path: Path) -> None:
    model, examples = tiny.fused(tiny.base()), [Example(list(range(1, 25)), 4), Example([6, 7, 8, 9], 3)]
    dataset = StreamDataset(examples, FrozenStates(model, examples, tmp_path / "frozen"))
    all_of_them = collate([dataset[0], dataset[1]])
    torch.manual_seed(0)
    drawn = [draw_anchors(all_of_them, 0.3) for _ in range(20)]
    left_of = dict(zip(all_of_them["at"].tolist(), all_of_them["left"].tolist(), strict=True))
    for batch in drawn:
        at = batch["at"].tolist()
        assert batch["segments"] == [(24, 6), (4, 1)]
        assert at == sorted(set(at))
        assert len(at) == 7
        assert batch["left"].tolist() == [left_of[place] for place in at]
        assert torch.equal(batch["frozen"], all_of_them["frozen"])
        assert torch.equal(batch["ids"], all_of_them["ids"])
    assert {place for batch in drawn for place in batch["at"].tolist()} == set(left_of)
