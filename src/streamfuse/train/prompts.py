"""Prompts for distillation: rows of any format, rendered with the model's chat template and tokenized."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

from streamfuse.model.checkpoint import own_template
from streamfuse.model.config import CheckpointError, ModelConfig
from streamfuse.runtime.text import Tokenizer

from .distill import Item
from .formats import Sample
from .readers import encode_prompt, merged


def open_text(folder: Path, chat_template: str | None = None, raw: bool = False) -> Tokenizer:
    """Tokenizer and chat template of a checkpoint folder; `chat_template` (for example an adapter's) replaces its own.
    With `raw` there may be none: then prompts are text that the model continues.

    Raises:
        CheckpointError: there is no chat template, or a file is missing or damaged.
        TextError: the tokenizer or the template cannot be used.
    """
    config = ModelConfig.load(folder)
    chat = chat_template or own_template(folder)
    if chat is None and not raw:
        raise CheckpointError(f"{folder}: no chat template; this needs a model that was trained to chat")
    return Tokenizer(folder / "tokenizer.json", chat, config.bos_token_id, config.eos_token_ids)


def prompt_items(
    samples: Iterable[Sample], text: Tokenizer, system: str | None, seed: int, limit: int | None = None
) -> list[Item]:
    """The prompts of the samples, each once, in an order determined by `seed`; an item's id is its index in that order.

    `system` is the system message of chats that have none; with None the template decides (SmolLM2's adds its own).
    """
    once = merged(samples)
    random.Random(seed).shuffle(once)
    return [
        {
            "id": i,
            "source": sample.source,
            "prompt": sample.turns[0] if sample.turns else "",
            **({"before": list(sample.before)} if sample.before else {}),
            **({"tools": list(sample.tools)} if sample.tools else {}),
            "input_ids": encode_prompt(sample, text, system),
        }
        for i, sample in enumerate(once[:limit])
    ]
