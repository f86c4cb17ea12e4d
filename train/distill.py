"""The base model writes the targets for a prompt file: batched, resumable, at the temperature asked for.

Answers are appended to a JSON-lines file as they are done, `{"id", "source", "prompt", "completion", "input_ids", "completion_ids",
"finished"}`; a second run skips the ids that are there. The token ids are kept because they, not a re-tokenized text, are what
the model wrote.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from streamfuse.model.transformer import Cache, Transformer, attend


@dataclass(frozen=True)
class DistillConfig:
    """batch_size in sequences, lengths in tokens; temperature 0 is greedy."""

    batch_size: int = 64
    max_prompt_tokens: int = 192
    max_new_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0


@torch.inference_mode()
def generate_batch(model: Transformer, prompts: list[list[int]], config: DistillConfig) -> list[list[int]]:
    """Completions (token ids, end-of-sequence included when reached) of the prompts, decoded as one left-padded batch."""
    device = model.embed_tokens.weight.device
    eos = set(model.config.eos_token_ids)
    width = max(len(p) for p in prompts)
    padding = torch.tensor([width - len(p) for p in prompts], device=device)
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts], device=device)
    capacity = width + config.max_new_tokens
    cache = _empty_cache(model, len(prompts), capacity)
    generator = torch.Generator(device).manual_seed(config.seed)
    columns = torch.arange(capacity, device=device)
    rows = torch.arange(len(prompts))  # which prompt each sequence of the shrinking batch is
    out: list[list[int]] = [[] for _ in prompts]
    for _ in range(config.max_new_tokens):
        start, stop = cache.length, cache.length + ids.shape[1]
        positions = (columns[start:stop] - padding[:, None]).clamp(min=0)
        visible = (columns[None, None, :stop] <= columns[start:stop, None]) & (columns[:stop] >= padding[:, None, None])
        visible = visible | (columns[None, None, :stop] == columns[start:stop, None])  # padding rows see themselves: no NaN
        ids = _sample(_step(model, ids, positions, visible[:, None], cache), config.temperature, generator)[:, None]
        done = []
        for i, token in enumerate(ids[:, 0].tolist()):
            out[int(rows[i])].append(token)
            done.append(token in eos)
        if all(done):
            break
        if sum(done) * 4 >= len(done):  # drop finished sequences once they are a quarter of the batch's work
            keep = torch.tensor([not d for d in done], device=device)
            ids, padding, rows = ids[keep], padding[keep], rows[keep.cpu()]
            cache.keys = [k[keep] for k in cache.keys]
            cache.values = [v[keep] for v in cache.values]
    return [_cut(tokens, eos) for tokens in out]


def _cut(tokens: list[int], eos: set[int]) -> list[int]:
    for i, token in enumerate(tokens):
        if token in eos:
            return tokens[: i + 1]
    return tokens


def _empty_cache(model: Transformer, batch: int, capacity: int) -> Cache:
    c, weight = model.config, model.embed_tokens.weight
    shape = (batch, capacity, c.num_kv_heads, c.head_dim)
    return Cache(*([torch.zeros(shape, dtype=weight.dtype, device=weight.device) for _ in range(c.num_layers)] for _ in range(2)))


def _step(model: Transformer, ids: Tensor, positions: Tensor, mask: Tensor, cache: Cache) -> Tensor:
    """Logits [B, vocab_size] of the last column of ids [B, T]; writes T columns of the cache."""
    x = model.embed_tokens(ids)
    cos, sin = model.rotary(positions)
    stop = cache.length + ids.shape[1]
    for layer, keys, values in zip(model.layers, cache.keys, cache.values, strict=True):
        q, k, v = layer.qkv(x, cos, sin)
        keys[:, cache.length : stop], values[:, cache.length : stop] = k, v
        x = layer.finish(x, attend(q, keys[:, :stop], values[:, :stop], mask))
    cache.length = stop
    return model.lm_head(model.norm(x[:, -1]))


def _sample(logits: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    if temperature == 0:
        return logits.argmax(-1)
    return torch.multinomial(torch.softmax(logits.float() / temperature, -1), 1, generator=generator)[:, 0]


def distill(model: Transformer, items: list[dict], out_path: Path, config: DistillConfig) -> Iterator[int]:
    """Write completions for `items` (`{"id", "source", "prompt", "input_ids"}`); yields the number of tokens of each batch.

    Items are taken in the given order in chunks and sorted by length inside a chunk, so that an early stop leaves an unbiased part.
    """
    done = set()
    if out_path.exists():
        with out_path.open() as file:
            done = {json.loads(line)["id"] for line in file if line.endswith("\n")}
    todo = [item for item in items if item["id"] not in done and len(item["input_ids"]) <= config.max_prompt_tokens]
    eos = set(model.config.eos_token_ids)
    chunk = 4 * config.batch_size
    out_path.parent.mkdir(parents=True, exist_ok=True)
    with out_path.open("a") as file:
        for start in range(0, len(todo), chunk):
            part = sorted(todo[start : start + chunk], key=lambda item: len(item["input_ids"]))
            for at in range(0, len(part), config.batch_size):
                batch = part[at : at + config.batch_size]
                completions = generate_batch(model, [item["input_ids"] for item in batch], config)
                for item, tokens in zip(batch, completions, strict=True):
                    row = {**item, "completion_ids": tokens, "finished": tokens[-1] in eos}
                    file.write(json.dumps(row) + "\n")
                file.flush()
                yield sum(map(len, completions))
