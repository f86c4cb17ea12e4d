"""Ablations: small models that differ in one setting, trained on the same steps and measured on the same texts.

All in lossless mode on the base's own answers. One row of JSON is written as it is found; existing rows are reused, and
a training run that was stopped continues. A folder belongs to one base, one file of answers and one size. Measures are
exact replays, of greedy texts and of texts that the base sampled at temperature 1: sample-and-match accepts a drafted
token where it is the one that the sampling says. The trees here do not depend on the temperature; the runtime also
ranks drafts of sampled text with the noise of sampling.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import torch

from streamfuse.durable import write_text
from streamfuse.model.checkpoint import load_base, load_stream_fused
from streamfuse.model.config import ModelConfig, StreamConfig, read_object
from streamfuse.model.shards import checkpoint_digest
from streamfuse.model.streams import StreamFused
from streamfuse.model.transformer import Transformer
from streamfuse.runtime.backend import IntArray
from streamfuse.runtime.reference.draft import DraftTables, grow
from streamfuse.train.config import DistillConfig, TrainConfig, default_streams
from streamfuse.train.data import FrozenStates, choose_stream_vocab, digest_of, split_held_out
from streamfuse.train.distill import appending
from streamfuse.train.dtype import fastest_dtype, name_of
from streamfuse.train.evaluate import Proposals, Replay, draft_tables, proposals, replay_proposals
from streamfuse.train.formats import DataError, Example
from streamfuse.train.generate import generate_batch
from streamfuse.train.main import TrainResult
from streamfuse.train.readers import read_samples, spread, to_examples

from .measures import ParentAlone, PrunedTree
from .variants import Plan, Row, Size

WIDTHS = (8, 16, 64)
_MOST_CANDIDATES = 32  # per stream
_DEPTH = 4  # of trees without streams
_WIDEST_ALONE = 16  # their candidates are the whole vocabulary
_TIMED = 200  # trees that are grown for the host's time

Trainer = Callable[[TrainConfig], TrainResult]


@dataclass(frozen=True)
class Ablations:
    """A folder of models and rows (`rows.jsonl`), with a record of their inputs (`run.json`).

    Args:
        model: checkpoint folder of the base.
        data: answers that `streamfuse data distill` wrote with the base, greedily.
        train: runs a training configuration to its end, or until it is stopped.
    """

    model: Path
    data: str
    folder: Path
    plan: Plan
    size: Size
    train: Trainer

    def run(self) -> Iterator[dict[str, Any]]:
        """Train and measure what is missing; yields each new row after it is written.

        Raises:
            OptionError: a layer is a convolution, which the replay of pruned trees lacks.
            DataError: the data are no answers of the base, or too few, or the folder belongs to another run.
            KeyboardInterrupt: a training run was stopped.
        """
        ModelConfig.load(self.model).require_attention("bench ablations")
        self._prepare()
        done = {_key(row) for row in read_rows(self.folder)}
        for name, settings in self.plan.models.items():
            todo = [row for row in self.plan.rows if row.model == name and _key(asdict(row)) not in done]
            if not todo:
                continue
            found = (
                self._alone(name, settings["alone"], todo) if "alone" in settings else self._of(name, settings, todo)
            )
            for row in found:
                with appending(self.folder / "rows.jsonl") as file:
                    file.write(json.dumps(row) + "\n")
                yield row

    @cached_property
    def base(self) -> Transformer:
        return load_base(self.model, self.dtype)

    @cached_property
    def dtype(self) -> torch.dtype:
        """In which models are trained, on any device, and measured, on the CPU."""
        return fastest_dtype("cpu")

    @cached_property
    def texts(self) -> dict[str, list[Example]]:
        """Held-out texts, by how they were written."""
        return {kind: self._read(f"{kind}.jsonl") for kind in ("greedy", "sampled")}

    def _read(self, name: str) -> list[Example]:
        config = self.base.config
        samples = read_samples(self.folder / name)
        return to_examples(samples, None, config.eos_token_id, self.size.max_tokens, config.vocab_size, name)

    def _prepare(self) -> None:
        """Choose the examples once, so that data which grow meanwhile change nothing; let the base sample."""
        samples, wanted = read_samples(self.data), self.size.examples + self.size.held_out
        if any(sample.ids is None for sample in samples) or len(samples) < wanted:
            raise DataError(f"{self.data}: {wanted} answers of `streamfuse data distill` are needed")
        self._claim([sample.ids for sample in samples if sample.ids])
        if not (self.folder / "train.jsonl").is_file():
            model = self.base.config
            usable = [sample for sample in samples if sample.ids and len(sample.ids.input_ids) - sample.ids.start >= 16]
            examples = to_examples(
                spread(usable, wanted), None, model.eos_token_id, self.size.max_tokens, model.vocab_size, self.data
            )
            train, held_out = split_held_out(examples, self.size.held_out)
            _write(self.folder / "greedy.jsonl", held_out)
            _write(self.folder / "train.jsonl", train)
        if not (self.folder / "sampled.jsonl").is_file():
            greedy = self._read("greedy.jsonl")
            longest = max(len(example.input_ids) - example.start for example in greedy)
            prompts = [example.input_ids[: example.start] for example in greedy]
            config = DistillConfig(max_new_tokens=longest, temperature=1.0)
            answers = generate_batch(self.base, prompts, config, range(len(prompts)))
            sampled = [Example([*p, *a], len(p)) for p, a in zip(prompts, answers, strict=True)]
            _write(self.folder / "sampled.jsonl", sampled)

    def _claim(self, answers: list[Example]) -> None:
        """Record what the folder is made of, or compare it with what was recorded. Answers may have been added."""
        path = self.folder / "run.json"
        before = read_object(path)
        if not before and any((self.folder / name).exists() for name in ("train.jsonl", "rows.jsonl")):
            raise DataError(f"{self.folder}: has models but no {path.name}; choose another --output-dir")
        count = before.get("answers", len(answers))
        made_of = {
            "model": checkpoint_digest(self.model),
            **asdict(self.size),
            "answers": count,
            "data": digest_of(answers[:count]),
        }
        if changed := [
            f"--{name.replace('_', '-')}" for name, value in made_of.items() if before and before.get(name) != value
        ]:
            raise DataError(
                f"{self.folder}: was made with a different {', '.join(changed)}; choose another --output-dir"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(made_of, indent=1) + "\n")

    def _of(self, name: str, settings: dict[str, Any], todo: list[Row]) -> Iterator[dict[str, Any]]:
        """A model with streams, trained and measured."""
        config = self._config(name, settings)
        for states in self.folder.glob("*/frozen-*[0-9a-f].npy"):  # models with the same frozen layers share their file
            if not (config.out_dir / states.name).exists():
                config.out_dir.mkdir(parents=True, exist_ok=True)
                os.link(states, config.out_dir / states.name)
        if not self.train(config).finished:
            raise KeyboardInterrupt
        model = load_stream_fused(self.base, config.adapter)
        facts = {
            "parameters": sum(p.numel() for n, p in model.named_parameters() if not n.startswith("base.")),
            "steps": config.max_steps,
        }
        measures = _Measures(model, self.texts, self._read("train.jsonl"), self.folder)
        for row in todo:
            yield {**asdict(row), **facts, **measures(row)}

    def _config(self, name: str, settings: dict[str, Any]) -> TrainConfig:
        names = {field.name for field in fields(StreamConfig)}
        streams = {key: value for key, value in settings.items() if key in names}
        own = {key: value for key, value in settings.items() if key not in names}
        out = self.folder / name
        return TrainConfig(
            model=self.model,
            data=(str(self.folder / "train.jsonl"),),
            valid=str(self.folder / "greedy.jsonl"),
            held_out=2,  # measured below, on all of them
            out_dir=out,
            adapter=out / "adapter.safetensors",
            dtype=name_of(self.dtype),
            streams=replace(default_streams("lossless"), **streams),
            max_steps=self.size.steps,
            batch_size=self.size.batch_size,
            max_tokens=self.size.max_tokens,
            log_every=max(1, self.size.steps // 10),
            evaluate_every=max(1, self.size.steps // 4),
            **own,
        )

    def _alone(self, name: str, rank: int, todo: list[Row]) -> Iterator[dict[str, Any]]:
        """The parent term without streams, trained and measured."""
        torch.manual_seed(0)
        examples = self._read("train.jsonl")
        vocab = choose_stream_vocab(
            examples, default_streams("lossless").stream_vocab_size, self.base.config.vocab_size
        )
        alone = ParentAlone(self.base, vocab, examples, rank)
        tables, widths = alone.tables(_DEPTH), [width for width in WIDTHS if width <= _WIDEST_ALONE]
        found = {
            kind: figures(replay_proposals(alone.proposals(texts, _DEPTH), tables, widths))
            for kind, texts in self.texts.items()
        }
        for row in todo:
            yield {**asdict(row), "parameters": sum(p.numel() for p in alone.term.parameters()), **found}


class _Measures:
    """Of one model: what its streams propose is computed once, states of frozen layers once for all models."""

    def __init__(
        self, model: StreamFused, texts: dict[str, list[Example]], trained: list[Example], folder: Path
    ) -> None:
        self.model, self.texts, self.trained, self.tables = model, texts, trained, draft_tables(model)
        self.states = {kind: FrozenStates(model, some, folder / kind) for kind, some in texts.items()}
        self.proposed = {kind: self._proposed(kind, _MOST_CANDIDATES) for kind in texts}

    def _proposed(self, kind: str, top_k: int, vocab: IntArray | None = None) -> list[Proposals]:
        return list(proposals(self.model, self.texts[kind], top_k, vocab, self.states[kind]))

    def __call__(self, row: Row) -> dict[str, Any]:
        found: dict[str, Any] = {kind: self._replay(row, kind) for kind in self.texts}
        return {**found, "grow_us": round(1e6 * _grow_seconds(self.proposed["greedy"], self.tables), 1)}

    def _replay(self, row: Row, kind: str) -> dict[str, Any]:
        proposed, tables = self.proposed[kind], self.tables if row.parent else None
        if row.vocab_size:
            vocab = choose_stream_vocab(self.trained, row.vocab_size, self.model.base.config.vocab_size).numpy()
            proposed = self._proposed(kind, row.top_k, vocab)
        streams = row.num_streams or self.model.streams_config.num_streams
        cut = [
            Proposals(p.example, p.stream_ids[:, :streams, : row.top_k], p.stream_log_probs[:, :streams, : row.top_k])
            for p in proposed
        ]
        if row.keep:
            return figures(replay_proposals(cut, tables, (16,), PrunedTree(self.model, row.keep)))
        return figures(replay_proposals(cut, tables, WIDTHS))


def figures(found: dict[int, Replay]) -> dict[str, Any]:
    """Call-reduction ratio per width, and acceptance per depth at 16 nodes."""
    ratios = {str(width): round(replay.call_reduction_ratio, 4) for width, replay in found.items()}
    return {"ratio": ratios, "acceptance": [round(share, 4) for share in found[16].acceptance_per_depth]}


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows that were found so far; a last line that was not finished is left out."""
    path = folder / "rows.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.is_file() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    """What is measured, whatever it is called; all rows of a folder are of the same base, data and size."""
    return tuple(row[name] for name in ("model", "top_k", "num_streams", "vocab_size", "parent", "keep"))


def _write(path: Path, examples: list[Example]) -> None:
    """As `streamfuse data distill` writes; whole or not at all."""
    rows = ({"input_ids": e.input_ids[: e.start], "completion_ids": e.input_ids[e.start :]} for e in examples)
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def _grow_seconds(proposed: list[Proposals], tables: DraftTables | None) -> float:
    """Processor seconds of growing a tree of 16 nodes in Python, as the median over places in the texts."""
    places = [(p, row) for p in proposed for row in range(len(p.stream_ids))][:_TIMED]
    seconds = []
    for one, row in places:
        root = one.example.input_ids[one.example.start + row]
        started = time.process_time()
        grow(root, one.stream_ids[row], one.stream_log_probs[row], 16, one.stream_ids.shape[1], tables)
        seconds.append(time.process_time() - started)
    return median(seconds)
