"""The base model writes the targets for a prompt file: batched, resumable, at the temperature asked for.

Answers are appended to a JSON-lines file as they are done, `{"id", "source", "prompt", "input_ids", "completion_ids",
"finished"}`; a second run skips the ids that are there. The token ids are kept because they, not a re-tokenized text,
are what the model wrote.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from streamfuse.model.transformer import Transformer, attend
from streamfuse.runtime.random import uniform

from .data import DataError

Item = dict[str, Any]  # {"id": int, "source": str, "prompt": str, "input_ids": list[int]}, as `read_prompts` makes them
_BATCHES_PER_CHUNK = 4


@dataclass(frozen=True, slots=True)
class DistillConfig:
    """batch_size in sequences, lengths in tokens; temperature 0 is greedy. Defaults: those of the shipped adapter."""

    batch_size: int = 128
    max_prompt_tokens: int = 144
    max_new_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch_size", "max_prompt_tokens", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.temperature < 0:
            raise ValueError(f"temperature must not be negative, it is {self.temperature}")
        if not 0 <= self.seed < 1 << 32:
            raise ValueError(f"seed must be from 0 to 2**32 - 1, not {self.seed}")


@dataclass(frozen=True, slots=True)
class Written:
    """What a batch added to the file."""

    answers: int
    tokens: int


class _Batch:
    """Left-padded sequences and their caches; sequences leave when they are finished."""

    def __init__(self, model: Transformer, prompts: Sequence[list[int]], max_new_tokens: int) -> None:
        self.model = model
        config, weight = model.config, model.embed_tokens.weight
        width = max(map(len, prompts))
        self.padding = torch.tensor([width - len(prompt) for prompt in prompts], device=weight.device)
        self.ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts], device=weight.device)  # not yet read
        self.rows = list(range(len(prompts)))  # which prompt each sequence is
        capacity = width + max_new_tokens
        self.columns = torch.arange(capacity, device=weight.device)
        shape = (len(prompts), capacity, config.num_kv_heads, config.head_dim)
        self.keys = [weight.new_zeros(shape) for _ in range(config.num_layers)]
        self.values = [weight.new_zeros(shape) for _ in range(config.num_layers)]
        self.length = 0  # columns that the caches hold

    def read(self) -> Tensor:
        """Read `ids` [B, T] into the caches: logits [B, vocab_size] of their last column."""
        model, start, stop = self.model, self.length, self.length + self.ids.shape[1]
        x = model.embed_tokens(self.ids)
        cos, sin = model.rotary((self.columns[start:stop] - self.padding[:, None]).clamp(min=0))
        mask = self._mask(start, stop)
        for block, keys, values in zip(model.blocks, self.keys, self.values, strict=True):
            q, k, v = block.qkv(x, cos, sin)
            keys[:, start:stop], values[:, start:stop] = k, v
            x = block.finish(x, attend(q, keys[:, :stop], values[:, :stop], mask))
        self.length = stop
        logits: Tensor = model.lm_head(model.norm(x[:, -1]))
        return logits

    def _mask(self, start: int, stop: int) -> Tensor:
        """bool [B, 1, stop - start, stop]: causal, without the padding; a padding row sees itself, against NaN."""
        keys, queries = self.columns[:stop], self.columns[start:stop, None]
        mask = (keys <= queries) & (keys >= self.padding[:, None, None])
        return (mask | (keys == queries))[:, None]

    def keep(self, wanted: list[int]) -> None:
        """Go on with these sequences only."""
        index = torch.tensor(wanted, device=self.ids.device)
        self.ids, self.padding = self.ids[index], self.padding[index]
        self.rows = [self.rows[i] for i in wanted]
        self.keys = [keys[index] for keys in self.keys]
        self.values = [values[index] for values in self.values]


@torch.inference_mode()
def generate_batch(
    model: Transformer, prompts: Sequence[list[int]], config: DistillConfig, seeds: Sequence[int] | None = None
) -> list[list[int]]:
    """Completions (token ids, end-of-sequence included where it was reached), decoded as one left-padded batch.

    `seeds` (default: config.seed for each) choose the sampled text: a sequence's own numbers, not the batch's.
    """
    eos = set(model.config.eos_token_ids)
    seeds = seeds if seeds is not None else [config.seed] * len(prompts)
    out: list[list[int]] = [[] for _ in prompts]
    batch = _Batch(model, prompts, config.max_new_tokens)
    for step in range(config.max_new_tokens):
        tokens = _choose(batch.read(), config.temperature, [uniform(seeds[row], step) for row in batch.rows])
        batch.ids = tokens[:, None]
        going = []
        for i, (row, token) in enumerate(zip(batch.rows, tokens.tolist(), strict=True)):
            if not (out[row] and out[row][-1] in eos):
                out[row].append(token)
            if out[row][-1] not in eos:
                going.append(i)
        if not going:
            break
        if len(going) <= 0.75 * len(batch.rows):  # finished sequences are a quarter of the work: drop them
            batch.keep(going)
    return out


def _choose(logits: Tensor, temperature: float, uniforms: list[float]) -> Tensor:
    """Token ids [B] of logits [B, V]: the likeliest, or by the inverse of the cumulative distribution."""
    if temperature == 0:
        return logits.argmax(-1)
    cumulative = torch.softmax(logits.double() / temperature, -1).cumsum(-1)
    threshold = torch.tensor(uniforms, dtype=torch.float64, device=logits.device)[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, threshold, right=True)[:, 0].clamp(max=logits.shape[1] - 1)


def distill(model: Transformer, items: list[Item], out_path: Path, config: DistillConfig) -> Iterator[Written]:
    """Write completions for `items`; yields after each batch.

    Items are taken in the given order in chunks and sorted by length inside a chunk, so that an early stop leaves an
    unbiased part. Items that `out_path` holds already are skipped, and so are those with longer prompts than
    `config.max_prompt_tokens` (`pending` says which are left).
    """
    todo = pending(items, out_path, config)
    eos = set(model.config.eos_token_ids)
    out_path.parent.mkdir(parents=True, exist_ok=True)
    with out_path.open("a", encoding="utf-8") as file:
        for batch in _batches(todo, config.batch_size):
            # A seed of its own for each item: what it says does not depend on its neighbours, nor on a resume.
            seeds = [(config.seed << 32) + int(item["id"]) for item in batch]
            completions = generate_batch(model, [item["input_ids"] for item in batch], config, seeds)
            for item, tokens in zip(batch, completions, strict=True):
                row = {**item, "completion_ids": tokens, "finished": tokens[-1] in eos}
                file.write(json.dumps(row) + "\n")
            file.flush()
            yield Written(len(batch), sum(map(len, completions)))


def pending(items: list[Item], out_path: Path, config: DistillConfig) -> list[Item]:
    """The items that `distill` would write now. A last line that a stopped run did not finish is removed.

    Raises:
        DataError: `out_path` holds something else, or answers to other prompts.
    """
    done = _written(out_path)
    for item in items:
        if done.get(item["id"], item["input_ids"]) != item["input_ids"]:
            raise DataError(
                f"{out_path}: its answer {item['id']} is to another prompt; it was written from another file, "
                "--seed or --system. Give another output file"
            )
    return [item for item in items if item["id"] not in done and len(item["input_ids"]) <= config.max_prompt_tokens]


def _written(path: Path) -> dict[int, list[int]]:
    """Prompt tokens of the answers in the file, by id."""
    if not path.exists():
        return {}
    done = {}
    end = 0
    with path.open("r+b") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                file.truncate(end)
                break
            end += len(line)
            try:
                row = json.loads(line)
                done[row["id"]] = row["input_ids"]
            except (ValueError, KeyError, TypeError):
                raise DataError(f"{path}, line {number}: not an answer of `streamfuse distill`") from None
    return done


def _batches(items: list[Item], size: int) -> Iterator[list[Item]]:
    chunk = _BATCHES_PER_CHUNK * size
    for start in range(0, len(items), chunk):
        part = sorted(items[start : start + chunk], key=lambda item: len(item["input_ids"]))
        for at in range(0, len(part), size):
            yield part[at : at + size]
