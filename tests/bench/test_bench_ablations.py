"""The ablations' machinery on a tiny model: rows that are kept, and measures that agree with the loop and with replay.

Run: python -m pytest tests/bench/test_bench_ablations.py
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
import torch

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'streamfuse[train]'")
pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install 'streamfuse[bench]'")

from streamfuse.bench.ablations.measures import PrunedTree
from streamfuse.bench.ablations.report import plot, table, write_table
from streamfuse.bench.ablations.run import Ablations, read_rows
from streamfuse.bench.ablations.variants import MODELS, Plan, Row, Size, default_plan
from streamfuse.export.graphs import GraphShapes, Weights, build_methods
from streamfuse.model.checkpoint import load_base, load_stream_fused
from streamfuse.runtime.backend import ModelSpec
from streamfuse.runtime.backends.reference import ReferenceBackend
from streamfuse.runtime.config import GenerationConfig
from streamfuse.runtime.reference.draft import StreamDrafter
from streamfuse.runtime.reference.loop import Loop, Round
from streamfuse.train.config import DistillConfig, TrainConfig
from streamfuse.train.dtype import name_of
from streamfuse.train.evaluate import draft_tables, proposals, replay, replay_proposals
from streamfuse.train.formats import DataError, Example
from streamfuse.train.generate import generate_batch
from streamfuse.train.main import TrainResult, run

TINY = {"num_msa_layers": 2, "num_streams": 3, "adapter_rank": 2, "parent_rank": 4, "pruner_rank": 2}
PLAN = Plan(
    {"base": TINY, "rank-2": {**TINY, "parent_rank": 2}, "alone-4": {"alone": 4}},
    (
        Row("base setting", "tiny"),
        Row("k", "2", top_k=2),
        Row("gamma", "1", num_streams=1),
        Row("vocabulary", "20", vocab_size=20),
        Row("pruner", "4", keep=4),
        Row("parent term", "unused", parent=False),
        Row("parent term", "rank 2", "rank-2"),
        Row("alone", "rank 4", "alone-4"),
    ),
)


def ablations(folder: Path, train: Callable[[TrainConfig], TrainResult] = run) -> Ablations:
    torch.manual_seed(5)
    base = tiny.base(eos_token_id=None)
    model = tiny.write_base(folder / "base", base, eos_token_id=None)
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(1, 39, (5,), generator=generator).tolist() for _ in range(14)]
    answers = generate_batch(base, prompts, DistillConfig(max_new_tokens=24))
    rows = [{"input_ids": p, "completion_ids": a} for p, a in zip(prompts, answers, strict=True)]
    (folder / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    size = Size(steps=6, batch_size=2, examples=10, held_out=4, max_tokens=40)
    return Ablations(model, str(folder / "own.jsonl"), folder / "out", PLAN, size, train)


def test_every_row_is_measured_once_and_kept(tmp_path: Path) -> None:
    configs: list[TrainConfig] = []

    def train(config: TrainConfig) -> TrainResult:
        configs.append(config)
        return run(config)

    work = ablations(tmp_path, train)
    rows = list(work.run())
    assert {config.dtype for config in configs} == {name_of(next(work.base.parameters()).dtype)}, (
        "trained as it is measured"
    )
    assert [(row["group"], row["label"]) for row in rows] == [(row.group, row.label) for row in PLAN.rows]
    assert read_rows(work.folder) == rows
    assert list(ablations(tmp_path).run()) == []
    found = {row["group"] + " " + row["label"]: row for row in rows}
    model = load_stream_fused(
        load_base(work.model, next(work.base.parameters()).dtype), work.folder / "base/adapter.safetensors"
    )
    for kind, texts in work.texts.items():
        expected = replay(model, texts, (8, 16, 64))
        ratios = found["base setting tiny"][kind]["ratio"]
        assert ratios == {str(width): round(one.call_reduction_ratio, 4) for width, one in expected.items()}
        fewer = replay(model, texts, (16,), 2)
        assert found["k 2"][kind]["ratio"]["16"] == round(fewer[16].call_reduction_ratio, 4)
        model.keep_streams(1)
        assert found["gamma 1"][kind]["ratio"]["16"] == round(replay(model, texts)[16].call_reduction_ratio, 4)
        model = load_stream_fused(work.base, work.folder / "base/adapter.safetensors")
    greedy, sampled = ({tuple(e.input_ids[: e.start]): e for e in work.texts[kind]} for kind in ("greedy", "sampled"))
    assert 0 < len(sampled.keys() & greedy.keys()) == len(sampled)  # short answers are left out
    assert all(sampled[prompt] != greedy[prompt] for prompt in sampled)
    assert found["alone rank 4"]["greedy"]["ratio"]["16"] > 1
    assert found["pruner 4"]["greedy"]["ratio"].keys() == {"16"}

    whole = "".join(json.dumps(row) + "\n" for row in rows[:-2])
    (work.folder / "rows.jsonl").write_text(whole + json.dumps(rows[-2])[:50])  # as a killed run leaves it
    assert [row["label"] for row in ablations(tmp_path).run()] == ["rank 2", "rank 4"]
    assert [row["label"] for row in read_rows(work.folder)] == [row["label"] for row in rows]

    text = table(rows, list(dict.fromkeys(row.group for row in PLAN.rows)))
    document = tmp_path / "ablations.md"
    write_table(document, "old")
    document.write_text("before\n" + document.read_text() + "after\n")
    write_table(document, text)
    assert document.read_text().startswith("before\n")
    assert document.read_text().endswith("after\n")
    assert text in document.read_text()
    assert "old" not in document.read_text()
    (tmp_path / "other.md").write_text("no marks")
    with pytest.raises(ValueError, match=r"other\.md"):
        write_table(tmp_path / "other.md", text)
    plot(rows, ["base setting", "k"], tmp_path / "ablations.png")
    assert (tmp_path / "ablations.png").stat().st_size > 5_000


def test_a_folder_is_of_one_base_one_file_of_answers_and_one_size(tmp_path: Path) -> None:
    def stopping(config: TrainConfig) -> TrainResult:
        return TrainResult(0, config.max_steps, {})

    def rows(work: Ablations) -> None:
        with pytest.raises(KeyboardInterrupt):  # it came to the first training run
            list(work.run())

    work = ablations(tmp_path, stopping)
    rows(work)
    answers = (tmp_path / "own.jsonl").read_text()
    lines = answers.splitlines(keepends=True)
    (tmp_path / "own.jsonl").write_text(answers + lines[0])
    rows(work)  # answers were added
    for flag, size in (
        ("--steps", replace(work.size, steps=7)),
        ("--batch-size", replace(work.size, batch_size=1)),
        ("--examples", replace(work.size, examples=9)),
        ("--held-out", replace(work.size, held_out=3)),
    ):
        with pytest.raises(DataError, match=f"a different {flag}; choose another --output-dir"):
            list(replace(work, size=size).run())
    (tmp_path / "own.jsonl").write_text("".join(reversed(lines)))
    with pytest.raises(DataError, match="a different --data; choose"):
        list(work.run())
    (tmp_path / "own.jsonl").write_text(answers)
    other = tiny.write_base(tmp_path / "other", tiny.base(eos_token_id=None), eos_token_id=None)
    with pytest.raises(DataError, match="a different --model; choose"):
        list(replace(work, model=other).run())
    (work.folder / "run.json").unlink()
    with pytest.raises(DataError, match=r"has models but no run\.json"):
        list(work.run())


def test_a_pruned_replay_counts_what_the_loop_accepts_with_the_graphs_pruner() -> None:
    width, keep, top_k, new_tokens = 8, 4, 6, 60
    model = tiny.fused(tiny.base(eos_token_id=None), parent_rank=4, pruner_rank=2)
    methods = build_methods(Weights(model, GraphShapes(120, 8, ((width, keep),), top_k)))
    spec = ModelSpec(120, tiny.VOCAB_SIZE, 3, top_k, 8, {f"verify_{width}": (width, keep)})
    tokens = calls = 0
    examples = []
    for prompt in ([3, 1, 4, 1, 5], [9, 2, 6]):
        rounds: list[Round] = []
        backend = ReferenceBackend(methods, spec, [(2, 8)] * 4, num_lower=2)
        config = GenerationConfig(new_tokens + 16, width=width)
        loop = Loop(backend, list(prompt), config, StreamDrafter(draft_tables(model)), observe=rounds.append)
        list(loop.run())
        end, root = len(prompt) + new_tokens, len(prompt)
        examples.append(Example(loop.tokens[:end], len(prompt)))
        for one in rounds[1:]:
            if root + 1 < end:
                emitted = min(len(one.walk.tokens), end - 1 - root)
                tokens, calls, root = tokens + emitted, calls + 1, root + emitted
    proposed = list(proposals(model, examples, top_k))
    found = replay_proposals(proposed, draft_tables(model), (width,), PrunedTree(model, keep))[width]
    whole = replay_proposals(proposed, draft_tables(model), (width,))[width]
    assert (found.tokens, found.calls) == (tokens, calls)
    assert found.calls > whole.calls  # the pruner of random weights costs something


def test_the_default_plan_names_models_that_are_trained() -> None:
    plan = default_plan()
    assert {row.model for row in plan.rows} == MODELS.keys()
