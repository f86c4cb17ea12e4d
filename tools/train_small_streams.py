"""Train streams of few layers and large ranks on one GPU in minutes: the base writes its own text there, by the million
tokens, and the streams learn to draft it (lossless mode).

    python tools/train_small_streams.py chat-small.safetensors --like chat-lossless --data prompts/train.jsonl \\
        --invent --layers 2 --streams 3 --stream-vocab-size 8192 --write-seconds 140 --train-seconds 265

`--like` names an existing adapter. The new file copies its tuned base, n-gram table, chat template, held-out prompts
and, unless --stream-vocab-size is given, its stream vocabulary. The exporter estimates acceptance on the held-out
prompts, so they are excluded from the prompts of the data.

Without --invent, each prompt of the data is answered once at each of the temperatures. With --invent, writing goes on
until --write-seconds: three quarters of the prompts are the model's own, most of them with one of the given beginnings;
a quarter of the texts has a second turn; a text's temperature is drawn from --temperatures.

Differences from `streamfuse train --preset small`, which is for CPUs: nothing is stored between writing and training; a
batch is padded, not packed; a step trains a fixed number of positions of each text (--positions); the learning rate
reaches zero after the given time. On a CPU it is fast enough only for tests.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from slot_writer import Bridges, Limits, Start, Texts, Writer
from streamfuse.adapters import find
from streamfuse.export.calibrate import held_out_prompts
from streamfuse.model.checkpoint import load_base, load_stream_fused, read_adapter, save_adapter
from streamfuse.model.config import StreamConfig
from streamfuse.model.pull import DEFAULT_MODEL, resolve_model
from streamfuse.model.streams import StreamFused
from streamfuse.model.transformer import Transformer
from streamfuse.runtime.text import Tokenizer
from streamfuse.train.dtype import NAMES, choose_dtype
from streamfuse.train.formats import Sample
from streamfuse.train.prompts import open_text, prompt_items
from streamfuse.train.readers import read_samples
from streamfuse.train.synthesize import openings
from streamfuse.train.variations import vary_e2e

_MIN_P = 0.05
_GIVEN, _SECOND_TURN, _NO_BEGINNING = 0.25, 0.25, 0.3  # shares of texts, of texts, and of the prompts that are invented
_AGAIN = 0.8  # temperature of a given prompt's later answers in place of 0, which would repeat the first
_BEGINNINGS = (
    "Translate German to English:", "Translate from German: Die", "Translate German to English: Der",
    "Translate German to English: Wir", "Translate German to English: Es", "Write a Python function that",
    "Write a Python function", "Complete this Python function.\n\n", "Write a program", "Fix the bug in this code:",
    "A shop sells", "If a train", "How many", "How much", "Explain", "What is", "What are", "Who", "Which",
    "Write a short story about", "Write a poem about", "Compose an email", "Write a letter", "Write a blog post about",
    "Imagine you are", "Pretend to be", "Solve:", "Solve for x:", "Calculate", "Describe", "When did", "Where", "Why",
    "Compare", "Summarize:", "Summarize the following article:", "Summarize the text below.\n\n",
    "Answer the question with the passage. Passage:", "Read the passage and answer the question.\n\n",
    "Use the following pieces of context to answer the question.\n", "Extract the names and places from this text:",
    "Extract", "Rewrite this text in simple words:", "Rewrite", "Correct the grammar:", "Give me a list of", "List",
    "Suggest", "Can you", "I", "My", "There are", "John has", "Tom", "Mary", "In", "The", "Given", "Identify",
    "Classify", "Analyze", "Create", "Design", "Develop", "Discuss", "Provide", "Tell me", "What happens when",
    "How do", "How does", "How can I", "Is it", "Do", "Act as",
)  # fmt: skip
_MATRICES = ("adapters.", "eta.", "next_token.")  # trained by Muon
_LEARNING_RATE, _EMBEDDING_LEARNING_RATE, _WARM_UP = 0.04, 4e-3, 40
_GROUP = 64  # batches whose texts are sorted by length together
_ALIGNED = 16  # a batch's width is a multiple of it, as fast products want
_ABOVE_ZERO = (  # options
    "max_prompt_tokens", "max_new_tokens", "max_tokens", "slots", "write_seconds", "layers", "streams", "rank",
    "batch_size", "positions", "train_seconds", "train_steps",
)  # fmt: skip
_IGNORED = -100  # cross_entropy's mark of a target that does not count


def answered_once(prompts: Sequence[list[int]], temperatures: Sequence[float]) -> Iterator[Start]:
    """Every prompt at every temperature."""
    return (Start(ids, temperature=temperature) for temperature in temperatures for ids in prompts)


def with_invented(
    prompts: Sequence[list[int]], text: Tokenizer, begin: Sequence[str], temperatures: Sequence[float], seed: int
) -> Iterator[Start]:
    """Given and invented prompts, without end."""
    draw = random.Random(seed)
    named, unnamed = ([place.input_ids for place in openings(text, words)[0]] for words in (begin, ()))
    given = ((ids, turn) for turn in itertools.count() for ids in draw.sample(list(prompts), len(prompts)))
    while True:
        temperature, turns = draw.choice(temperatures), 2 if draw.random() < _SECOND_TURN else 1
        if draw.random() < _GIVEN:
            ids, turn = next(given)
            yield Start(ids, False, _AGAIN if turn and not temperature else temperature, turns)
        else:
            places = unnamed if draw.random() < _NO_BEGINNING else named
            yield Start(draw.choice(places), True, temperature, turns)


def frequent_tokens(texts: Texts, size: int, vocab_size: int) -> Tensor:
    """The `size` tokens that answers have most often, ascending; of equally frequent ones the smaller ids."""
    counts = torch.bincount(texts.ids[texts.answers].long(), minlength=vocab_size)
    return counts.sort(descending=True, stable=True).indices[:size].sort().values


class Batches:
    """Texts to train on and held-out ones, and positions of them to put streams at."""

    def __init__(self, texts: Texts, held_out: int, seed: int) -> None:
        self.texts = texts
        width = texts.ids.shape[1]
        self.lengths = width - texts.answers.flip(1).int().argmax(1)  # up to the end of the last answer
        self.generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(texts.ids), generator=self.generator).to(texts.ids.device)
        self.held_out, self.trained = order[:held_out], order[held_out:]

    def order(self, size: int) -> Iterator[Tensor]:
        """Indices of texts of like length, without end."""
        if len(self.trained) < size:
            raise SystemExit(f"{len(self.trained)} texts are left to train on, fewer than --batch-size {size}")
        while True:
            order = self.trained[torch.randperm(len(self.trained), generator=self.generator).to(self.trained.device)]
            groups = (group[self.lengths[group].argsort()] for group in order.split(size * _GROUP))
            batches = [batch for group in groups for batch in group.split(size) if len(batch) == size]
            for i in torch.randperm(len(batches), generator=self.generator).tolist():
                yield batches[i]

    def batch(self, some: Tensor, positions: int) -> Batch:
        """These texts, with positions drawn from those that two tokens of an answer follow."""
        width = math.ceil(int(self.lengths[some].max()) / _ALIGNED) * _ALIGNED
        ids, answers = self.texts.ids[some, :width].long(), self.texts.answers[some, :width]
        weight = (answers[:, 1:-1] & answers[:, 2:]).float() + 1e-9  # of a text without such positions: any
        return Batch(ids, answers, torch.multinomial(weight, positions, replacement=True).sort(1).values)


@dataclass(frozen=True, slots=True)
class Batch:
    """ids int64 and answers bool [B, T] as in `Texts`; at int64 [B, P], the positions with streams."""

    ids: Tensor
    answers: Tensor
    at: Tensor


@dataclass(frozen=True, slots=True)
class Predictions:
    """Of n = B * P * G predictions: logits float32 [n, S] without and with the true parent's term (the same without a
    parent term), and columns of the true tokens int64 [B, P, G]. `real` bool [B, P, G]: there is such a token, in the
    stream vocabulary or not."""

    plain: Tensor
    scored: Tensor
    target: Tensor
    real: Tensor


class Objective:
    """The streams' loss: cross entropy, weighted by `decay` per stream, half of it with the parent term."""

    def __init__(self, model: StreamFused, decay: float) -> None:
        self.model = model
        config, vocab = model.streams_config, model.stream_vocab
        self.head = model.head_rows().detach()
        self.slots = torch.full((model.base.config.vocab_size,), _IGNORED, device=vocab.device)
        self.slots[vocab] = torch.arange(len(vocab), device=vocab.device)
        self.steps = torch.arange(1, config.num_streams + 1, device=vocab.device)
        self.weight = decay ** (self.steps - 1).float()

    def predictions(self, batch: Batch) -> Predictions:
        model, ids, at = self.model, batch.ids, batch.at
        rows = torch.arange(len(ids), device=ids.device)[:, None]
        places = at[..., None] + 1 + self.steps
        inside = places < ids.shape[1]
        places = places.clamp(max=ids.shape[1] - 1)
        tokens, parents = ids[rows[..., None], places], ids[rows[..., None], places - 1]
        real = (inside & batch.answers[rows[..., None], places]).cumprod(-1).bool()
        with torch.no_grad():
            frozen = model.frozen_states(ids)
        streams = model.stream_states(frozen, at, known=ids[rows, at + 1]).streams.flatten(0, 2)
        plain = scored = (streams @ self.head.T).float()
        if model.streams_config.parent_rank:
            left = model.parent.left_rows(model.base.embed_tokens.weight[parents]) * model.parent.gate
            scored = plain + left.flatten(0, 2) @ model.parent.right_rows(self.head).T
        return Predictions(plain, scored, self.slots[tokens].masked_fill(~real, _IGNORED), real)

    def loss(self, found: Predictions) -> Tensor:
        target = found.target.flatten()
        losses = sum(
            0.5 * F.cross_entropy(logits, target, reduction="none", ignore_index=_IGNORED)
            for logits in (found.plain, found.scored)
        )
        weight = self.weight.expand(found.target.shape).flatten()
        return (losses * weight).sum() / (weight * (target >= 0)).sum().clamp(min=1)

    @torch.no_grad()
    def evaluate(self, batches: Batches, positions: int = 64, size: int = 64) -> dict[str, Any]:
        """On the held-out texts: the loss, and per stream the shares of hits without the parent term and with it, and
        of chains, in which the streams before hit too."""
        counts, losses = torch.zeros(4, len(self.steps), device=self.steps.device), []
        for some in batches.held_out.split(size):
            found = self.predictions(batches.batch(some, positions))
            losses.append(self.loss(found).item())
            hits, scored = (
                (logits.argmax(-1).view(found.target.shape) == found.target) for logits in (found.plain, found.scored)
            )
            columns = (found.real, hits, scored, scored.cumprod(-1).bool())
            counts += torch.stack([(column & found.real).sum((0, 1)) for column in columns])
        shares = (counts[1:] / counts[0].clamp(min=1)).tolist()
        names = ("hits_without_parent", "hits", "chains")
        rounded = {name: [round(share, 3) for share in row] for name, row in zip(names, shares, strict=True)}
        return {"held_out": len(batches.held_out), "loss": round(sum(losses) / max(1, len(losses)), 4), **rounded}


def train(
    objective: Objective, batches: Batches, size: int, positions: int, seconds: float = math.inf, steps: int = 0
) -> dict[str, Any]:
    """Train for that time, or that number of steps if there is one, and return what was done. The learning rate rises
    for a few steps, then falls linearly, to zero at the end."""
    named = [(name, one) for name, one in objective.model.named_parameters() if not name.startswith("base.")]
    matrices = [one.requires_grad_() for name, one in named if name.startswith(_MATRICES)]
    others = [one.requires_grad_() for name, one in named if not name.startswith(_MATRICES)]
    muon = torch.optim.Muon(matrices, lr=_LEARNING_RATE, momentum=0.95, weight_decay=0.0)
    adam = torch.optim.AdamW(others, lr=_EMBEDDING_LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0)
    start, step, losses = time.monotonic(), 0, []
    for some in batches.order(size):
        done = step / steps if steps else (time.monotonic() - start) / seconds
        if done >= 1:
            break
        loss = objective.loss(objective.predictions(batches.batch(some, positions)))
        loss.backward()
        for optimizer, rate in ((muon, _LEARNING_RATE), (adam, _EMBEDDING_LEARNING_RATE)):
            optimizer.param_groups[0]["lr"] = rate * min(1.0, (step + 1) / _WARM_UP) * (1 - done)
            optimizer.step()
            optimizer.zero_grad()
        step += 1
        losses.append(loss.detach())
    if not losses:
        raise SystemExit(f"--train-seconds {seconds:g} is too short for one step")
    quarter = max(1, step // 4)
    first, last = (round(torch.stack(some).mean().item(), 4) for some in (losses[:quarter], losses[-quarter:]))
    trained, seconds = step * size * positions, round(time.monotonic() - start, 1)
    return {"steps": step, "positions": trained, "seconds": seconds, "first_loss": first, "last_loss": last}


def save(model: StreamFused, like: Path, out: Path, facts: dict[str, str]) -> None:
    """Write an adapter: the streams, and what it shares with the adapter `like`."""
    before, state, metadata = read_adapter(like)
    tuning = {name: getattr(before, name) for name in ("base_rank", "base_layers", "base_alpha")}
    tuned = {name: value for name, value in state.items() if name.startswith("base_adapters.")}
    whole = StreamFused(model.base, replace(model.streams_config, **tuning), model.stream_vocab)
    whole.load_state_dict({**model.extra_state(), **tuned}, strict=False)
    whole.ngrams = {name[7:]: value for name, value in state.items() if name.startswith("ngrams.")}
    shared: dict[str, str] = {name: metadata[name] for name in ("prompts", "chat_template") if name in metadata}
    save_adapter(whole, out, {**shared, "mode": "lossless", **facts})


def prompts_of(given: argparse.Namespace, text: Tokenizer, held_out: Iterable[list[int]]) -> list[list[int]]:
    """Token ids of the prompts of the data and of their variations, each once, without the `held_out` ones."""
    samples = [sample for source in given.data for sample in read_samples(source, given.format)]
    if given.variations:
        varied = vary_e2e([sample.turns[0] for sample in samples], given.variations, given.seed)
        samples += [Sample((prompt,)) for prompt in varied]
    others = [sample for source in given.exclude for sample in read_samples(source, given.format)]
    excluded = {tuple(item["input_ids"]) for item in prompt_items(others, text, None, given.seed)}
    excluded |= set(map(tuple, held_out))
    found = [item["input_ids"] for item in prompt_items(samples, text, None, given.seed)]
    prompts = [ids for ids in found if len(ids) <= given.max_prompt_tokens and tuple(ids) not in excluded]
    if not prompts:
        raise SystemExit(f"{', '.join(given.data)}: no prompts that are short enough and not excluded")
    return prompts


def written(given: argparse.Namespace, base: Transformer, text: Tokenizer, held_out: Iterable[list[int]]) -> Texts:
    """The base's texts, none of which begins with a given prompt that is held out."""
    prompts = prompts_of(given, text, held_out)
    if given.invent:
        starts = with_invented(prompts, text, given.begin or _BEGINNINGS, given.temperatures, given.seed)
    else:
        starts = answered_once(prompts, given.temperatures)
    limits = Limits(given.max_tokens, answer=given.max_new_tokens, least=12 if given.invent else 4)
    texts, counts = Writer(base, Bridges.of(text), starts, given.slots, limits, _MIN_P).run(given.write_seconds)
    print(json.dumps({"prompts": len(prompts), **counts}), flush=True)
    return texts


class _Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows the defaults, where there is one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        has_default = action.default not in (None, []) and action.default is not False
        return super()._get_help_string(action) if has_default else action.help


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=_Help)
    add = parser.add_argument
    add("output", type=Path, help="the adapter to write")
    add("--like", type=find, required=True, metavar="ADAPTER", help="an existing adapter: a file or a shipped name")
    add("--data", action="append", required=True, help="prompts, as `streamfuse data distill` reads")
    add("--model", default=DEFAULT_MODEL, help="the base: a name on the Hugging Face Hub, or a local path")
    add("--format", help="of the data; without it, detected from the fields")
    add("--exclude", action="append", default=[], metavar="DATA", help="prompts not to be used")
    add("--variations", type=int, default=0, help="recombined E2E prompts to add")
    add("--invent", action="store_true", help="let the model write prompts too, and second turns")
    add(
        "--begin",
        action="append",
        metavar="TEXT",
        help="a beginning of invented prompts, in place of the built-in ones",
    )
    add("--temperatures", type=float, nargs="+", help="of the answers; without it, 0, and 0 0 0 0.7 1 with --invent")
    add("--max-prompt-tokens", type=int, default=260, help="longer prompts are not used")
    add("--max-new-tokens", type=int, default=224, help="tokens per answer")
    add("--max-tokens", type=int, default=448, help="tokens per text")
    add("--slots", type=int, default=2048, help="texts that are written together")
    add("--write-seconds", type=float, default=math.inf, help="stop writing after this time")
    add("--layers", type=int, default=2, help="top layers of the base that compute the streams")
    add("--streams", type=int, default=6, help="tokens drafted ahead, one by each stream")
    add("--rank", type=int, default=128, help="of the streams' low-rank adapters")
    add(
        "--stream-vocab-size", type=int, default=0,
        help="tokens that streams can draft: the most frequent ones of the answers; 0: that of --like",
    )  # fmt: skip
    add("--stream-decay", type=float, default=0.7, help="a stream's weight, relative to the one before")
    add("--batch-size", type=int, default=96, help="texts per step")
    add("--positions", type=int, default=96, help="positions trained per text and step")
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--train-seconds", type=float, default=math.inf, help="train for this time")
    length.add_argument("--train-steps", type=int, help="train for this number of steps")
    add("--held-out", type=int, default=512, help="texts for the evaluation")
    add("--seed", type=int, default=0, help="of the order of prompts and texts, the sampling and the initial weights")
    add("--dtype", choices=NAMES, default="auto", help="of the base; auto: the faster one on this device")
    given = parser.parse_args()
    for name in _ABOVE_ZERO:
        value = getattr(given, name)
        if value is not None and not value > 0:
            parser.error(f"--{name.replace('_', '-')} must be above 0, not {value:g}")
    if given.invent and given.write_seconds == math.inf:
        parser.error("--invent goes on without end, so it needs --write-seconds")
    if given.max_prompt_tokens >= given.max_tokens:
        parser.error("--max-prompt-tokens must be below --max-tokens")
    given.temperatures = given.temperatures or ([0.0, 0.0, 0.0, 0.7, 1.0] if given.invent else [0.0])
    return given


def main() -> None:
    given = parsed()
    torch.manual_seed(given.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    folder = resolve_model(given.model)
    _, state, metadata = read_adapter(given.like)
    text = open_text(folder, chat_template=metadata.get("chat_template"))
    dtype = choose_dtype(given.dtype, device)  # for load_base: a later conversion would round all norms
    base = load_stream_fused(load_base(folder, dtype), given.like).base.to(device)
    texts = written(given, base, text, held_out_prompts(metadata, base.config.vocab_size))
    vocab = state["stream_vocab"].to(device)
    if given.stream_vocab_size:
        vocab = frequent_tokens(texts, given.stream_vocab_size, base.config.vocab_size)
    config = StreamConfig(
        num_streams=given.streams, num_msa_layers=given.layers, adapter_rank=given.rank, adapter_alpha=given.rank,
        parent_rank=64, pruner_rank=0, eta_rank=64, next_token_rank=256, stream_vocab_size=len(vocab),
    )  # fmt: skip
    model = StreamFused(base, config, vocab).to(device)
    objective, batches = Objective(model, given.stream_decay), Batches(texts, given.held_out, given.seed)
    done = train(objective, batches, given.batch_size, given.positions, given.train_seconds, given.train_steps or 0)
    print(json.dumps(done), flush=True)
    print(json.dumps(objective.evaluate(batches)))
    names = ", ".join(Path(source).name for source in given.data)
    facts = {"data": names, "examples": str(len(batches.trained)), "steps": str(done["steps"])}
    save(model, given.like, given.output, facts)


if __name__ == "__main__":
    main()
