"""Prompts for distillation: rows of any format, rendered with the model's chat template and tokenized."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

from streamfuse.model.checkpoint import ending_as, own_template, read_adapter
from streamfuse.model.config import CheckpointError, ModelConfig
from streamfuse.runtime.text import Tokenizer

from .distill import Item
from .formats import Sample
from .readers import encode_prompt, merged


def open_text(
    folder: Path, adapter: Path | None = None, *, chat_template: str | None = None, raw: bool = False
) -> Tokenizer:
    """Tokenizer and chat template of a checkpoint folder, as `streamfuse export --adapter` gives them to a bundle.

    Args:
        adapter: a file whose chat template and end token, if it has any, replace the folder's.
        chat_template: replaces both templates.
        raw: there may be no template; then prompts are text that the model continues.

    Raises:
        CheckpointError: there is no chat template, or a file is missing or damaged.
        TextError: the tokenizer or the template cannot be used.
    """
    config = ending_as(ModelConfig.load(folder), adapter)
    of_adapter = read_adapter(adapter)[2].get("chat_template") if adapter else None
    chat = chat_template or of_adapter or own_template(folder)
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
