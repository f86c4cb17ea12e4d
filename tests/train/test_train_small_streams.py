"""tools/train_small_streams.py and its writer, on a tiny model: texts are the base's own, streams learn to draft them.

Run: python -m pytest tests/train/test_train_small_streams.py
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import tiny
import torch
from tokenizer_samples import metaspace_like, opened, words_of
from tokenizers import pre_tokenizers

import slot_writer
import train_small_streams as tool
from slot_writer import Bridges, Limits, Start, Texts, Writer
from streamfuse.model.checkpoint import load_base, load_stream_fused, read_adapter, save_adapter
from streamfuse.model.config import StreamConfig
from streamfuse.model.streams import StreamFused
from streamfuse.model.transformer import Transformer
from streamfuse.runtime.text import Tokenizer
from streamfuse.train.config import DistillConfig
from streamfuse.train.generate import generate_batch
from streamfuse.train.templates import CHATML

END = 1
WORDS = ["<|im_start|>", "<|im_end|>", "user", "assistant", *(f"word{i}" for i in range(4, tiny.VOCAB_SIZE))]
LIMITS = Limits(length=64, prompt=12, answer=14, turn=30, least=1)
BRIDGES = Bridges(to_answer=[END, 0, 3], to_prompt=[END, 0, 2])
SETTINGS = StreamConfig(
    num_streams=2, num_msa_layers=2, adapter_rank=4, parent_rank=4, pruner_rank=0, eta_rank=4, next_token_rank=4
)


def tokenizer(template: str = CHATML, save_to: Path | None = None) -> Tokenizer:
    made = words_of(WORDS, WORDS[:2])
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if save_to:
        made.save(str(save_to))
    return opened(made, template)


@pytest.fixture
def base() -> Transformer:
    """A model whose turns end, some soon and some late."""
    torch.manual_seed(3)
    model = tiny.base(std=0.4)
    model.config = replace(model.config, eos_token_ids=(END,))
    with torch.no_grad():
        model.lm_head.weight[END] *= 3
    return model


def prompts(count: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(5)
    words = [torch.randint(4, tiny.VOCAB_SIZE, (1 + i % 7,), generator=generator).tolist() for i in range(count)]
    return [[0, 2, *some, *BRIDGES.to_answer] for some in words]


def write(base: Transformer, starts: Sequence[Start]) -> Texts:
    """What three slots write."""
    torch.manual_seed(7)
    texts, counts = Writer(base, BRIDGES, iter(starts), 3, LIMITS, min_p=0.05).run()
    assert counts["texts"] + counts["dropped"] == len(starts)
    assert counts["answer_tokens"] == int(texts.answers.sum())
    return texts


def spans_of(marks: torch.Tensor) -> list[tuple[int, int]]:
    """First index, and that after the last, of each run of True."""
    edges = torch.cat([torch.zeros(1), marks.int(), torch.zeros(1)]).diff()
    return list(zip((edges == 1).nonzero()[:, 0].tolist(), (edges == -1).nonzero()[:, 0].tolist(), strict=True))


def test_greedy_answers_are_those_of_plain_decoding_and_marked_with_their_end(base: Transformer) -> None:
    asked = prompts(10)
    plain = generate_batch(base, asked, DistillConfig(max_new_tokens=LIMITS.answer))
    assert {answer[-1] == END for answer in plain} == {True, False}  # some reach the limit
    texts = write(base, [Start(ids) for ids in asked])
    found = []
    for ids, marks in zip(texts.ids.tolist(), texts.answers, strict=True):
        ((first, last),) = spans_of(marks)
        found.append((ids[:first], ids[first:last]))
        assert not any(ids[last:])
    assert sorted(found) == sorted(zip(asked, plain, strict=True))


def test_sampled_answers_differ_from_greedy_ones(base: Transformer) -> None:
    greedy, sampled = (write(base, [Start(ids, temperature=t) for ids in prompts(6)]).ids.tolist() for t in (0.0, 1.0))
    assert sorted(sampled) != sorted(greedy)


def test_the_turns_of_a_text_are_joined_as_the_chat_template_joins_them(base: Transformer) -> None:
    assert Bridges.of(tokenizer()) == BRIDGES
    assert Bridges.of(tokenizer("\ufffc " + CHATML)) == BRIDGES, "a template may have any character"
    texts = write(base, [Start([0, 2, 4 + i], opens=True, temperature=1.0, turns=2) for i in range(30)])
    turns = []
    for ids, marks in zip(texts.ids.tolist(), texts.answers, strict=True):
        spans = spans_of(marks)
        turns.append(len(spans))
        assert all(ids[first - 3 : first] == BRIDGES.to_answer for first, _ in spans)
        assert all(ids[last - 1 : last + 2] == BRIDGES.to_prompt for _, last in spans[:-1])
    assert {1, 2} <= set(turns) <= {1, 2}


def test_what_joins_turns_has_the_tokens_that_it_has_behind_them() -> None:
    """SentencePiece would write one more space in front of a text."""
    pieces = metaspace_like()
    bridges = Bridges.of(opened(pieces, "{% for m in messages %}Q {{ m.content }} wo{% endfor %}"))
    assert [pieces.id_to_token(ids[0]) for ids in (bridges.to_answer, bridges.to_prompt)] == ["▁w", "▁w"]


def test_a_template_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="does not mark where turns begin and end"):
        Bridges.of(tokenizer("<|im_start|>{{ messages | length }}"))


def test_texts_begin_with_given_and_invented_prompts() -> None:
    starts = list(islice(tool.with_invented([[0, 2, 9, END, 0, 3]], tokenizer(), ("word5 word6",), [0.0], 1), 400))
    given = [start for start in starts if not start.opens]
    assert [start.temperature for start in given] == [0.0] + [0.8] * (len(given) - 1)  # one greedy answer is enough
    assert {tuple(start.ids) for start in starts if start.opens} == {(0, 2), (0, 2, 5, 6)}
    assert 60 < len(given) < 140
    assert 60 < sum(start.turns == 2 for start in starts) < 140


KERNEL = """
import torch
from slot_writer import attend_plain, attend_triton
q, keys, values = torch.randn(3, 2, 3, 16), torch.randn(3, 2, 150, 16), torch.randn(3, 2, 150, 16)
position = torch.tensor([0, 63, 149])
torch.testing.assert_close(attend_triton(q, keys, values, position), attend_plain(q, keys, values, position))
"""


def test_the_kernel_computes_the_same_attention() -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    path = os.pathsep.join([str(Path(slot_writer.__file__).parent), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": "1"}  # is read when triton is imported
    done = subprocess.run([sys.executable, "-c", KERNEL], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_training_lowers_the_loss_and_leaves_the_base_alone(base: Transformer) -> None:
    before = {name: value.clone() for name, value in base.state_dict().items()}
    texts = write(base, [Start(ids) for ids in prompts(60)])
    batches = tool.Batches(texts, held_out=20, seed=0)
    torch.manual_seed(0)
    objective = tool.Objective(StreamFused(base, SETTINGS, torch.arange(1, tiny.VOCAB_SIZE)), decay=0.7)
    untrained = objective.evaluate(batches)
    done = tool.train(objective, batches, size=8, positions=8, steps=30)
    trained = objective.evaluate(batches)
    assert (done["steps"], done["positions"]) == (30, 30 * 8 * 8)
    assert done["last_loss"] < done["first_loss"]
    assert trained["loss"] < untrained["loss"]
    assert trained["hits"][0] == trained["chains"][0] > untrained["hits"][0]
    assert trained["chains"][1] <= trained["hits"][1]
    assert all(torch.equal(value, before[name]) for name, value in base.state_dict().items())


def test_a_run_writes_an_adapter_with_what_it_shares_with_another(
    base: Transformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, like, out = tmp_path / "base", tmp_path / "like.safetensors", tmp_path / "out.safetensors"
    tiny.write_base(folder, base, eos_token_id=END)
    tokenizer(save_to=folder / "tokenizer.json")
    tuned = tiny.fused(base, torch.arange(4, 30), base_rank=2, base_layers=3, adapter_rank=0, stream_vocab_size=26)
    held_out = json.dumps(prompts(40)[1:3])
    tuned.ngrams = {"keys": torch.arange(5)}
    save_adapter(tuned, like, {"chat_template": CHATML, "prompts": held_out, "mode": "shared"})
    words = [" ".join(WORDS[token] for token in ids[2:-3]) for ids in prompts(40)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({"prompt": one}) + "\n" for one in words))
    (tmp_path / "test.jsonl").write_text(json.dumps({"prompt": words[0]}) + "\n")
    command = f"tool {out} --like {like} --data {tmp_path}/data.jsonl --exclude {tmp_path}/test.jsonl --model {folder} "
    command += (
        "--temperatures 0 1 --max-tokens 64 --max-prompt-tokens 20 --max-new-tokens 14 --slots 8 --dtype float32 "
    )
    command += "--layers 1 --streams 2 --rank 4 --batch-size 4 --positions 4 --train-steps 3 --held-out 4"
    monkeypatch.setattr("sys.argv", command.split())
    tool.main()
    written, trained, evaluated = map(json.loads, capsys.readouterr().out.splitlines())
    assert written["prompts"] == len(set(words)) - 3  # without the excluded prompt and the held-out ones of `like`
    assert written["texts"] + written["dropped"] == 2 * written["prompts"]
    assert trained["steps"] == 3
    assert (evaluated["held_out"], len(evaluated["chains"])) == (4, 2)
    config, state, metadata = read_adapter(out)
    assert (config.num_streams, config.num_msa_layers, config.base_rank, config.base_layers) == (2, 1, 2, 3)
    assert metadata["chat_template"] == CHATML
    assert (metadata["prompts"], metadata["mode"], metadata["steps"]) == (held_out, "lossless", "3")
    assert state["stream_vocab"].tolist() == list(range(4, 30))
    found, wanted = (load_stream_fused(load_base(folder), path) for path in (out, like))
    assert found.ngrams["keys"].tolist() == [0, 1, 2, 3, 4]
    ids = torch.tensor(prompts(1))
    assert torch.equal(found.base(ids), wanted.base(ids))
    assert not torch.equal(found.base(ids), load_base(folder)(ids))


@pytest.mark.parametrize("option", ["--train-seconds 0", "--train-seconds nan", "--train-steps 0", "--slots -1"])
def test_a_length_or_count_that_is_not_above_zero_is_refused(
    option: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    length = "" if "train" in option else "--train-steps 1"
    monkeypatch.setattr("sys.argv", f"tool out --like chat-lossless --data none {option} {length}".split())
    with pytest.raises(SystemExit):
        tool.parsed()
    assert f"{option.split()[0]} must be above 0, not {option.split()[1]}" in capsys.readouterr().err


def test_a_time_that_no_step_fits_into_is_said(base: Transformer) -> None:
    batches = tool.Batches(write(base, [Start(ids) for ids in prompts(30)]), held_out=2, seed=0)
    objective = tool.Objective(StreamFused(base, SETTINGS, torch.arange(1, tiny.VOCAB_SIZE)), decay=0.7)
    with pytest.raises(SystemExit, match="--train-seconds 1e-09 is too short for one step"):
        tool.train(objective, batches, size=4, positions=4, seconds=1e-9)
