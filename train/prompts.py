"""Prompt files for distillation: JSON lines `{"prompt": ...}`, rendered as the model's chat and tokenized."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from streamfuse.model.config import CheckpointError, ModelConfig
from streamfuse.text_io import Message, TextIO

from .data import DataError
from .distill import Item


def open_text(folder: Path) -> TextIO:
    """Tokenizer and chat template of a checkpoint folder.

    Raises:
        CheckpointError: there is no chat template, or a file is missing or damaged.
        TextError: the tokenizer or the template cannot be used.
    """
    config = ModelConfig.load(folder)
    path, template = folder / "tokenizer_config.json", folder / "chat_template.jinja"
    try:
        own: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise CheckpointError(f"{path}: not valid JSON ({error})") from None
    chat = template.read_text(encoding="utf-8") if template.is_file() else own.get("chat_template")
    if not isinstance(chat, str):
        raise CheckpointError(f"{folder}: no chat template; distillation needs a model that was trained to chat")
    return TextIO(folder / "tokenizer.json", chat, config.bos_token_id, config.eos_token_ids)


def read_prompts(path: Path, text: TextIO, system: str | None, seed: int, limit: int | None = None) -> list[Item]:
    """The prompts of a file in an order that `seed` chooses; an item's id is its place in that order.

    `system` is the system message; None leaves it to the template (SmolLM2's adds its own).

    Raises:
        DataError: the file is missing, or a line has no text `prompt`.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    rows = [_row(line, f"{path}, line {number}") for number, line in enumerate(path.open("rb"), 1) if line.strip()]
    if not rows:
        raise DataError(f"{path}: holds no prompt")
    random.Random(seed).shuffle(rows)
    first: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    return [
        {
            "id": i,
            "source": row.get("source", path.stem),
            "prompt": row["prompt"],
            "input_ids": text.encode_chat([*first, {"role": "user", "content": row["prompt"]}]),
        }
        for i, row in enumerate(rows[:limit])
    ]


def _row(line: bytes, place: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise DataError(f"{place}: not valid JSON ({error})") from None
    if not isinstance(row, dict) or not isinstance(row.get("prompt"), str):
        raise DataError(f'{place}: expected an object with a text "prompt"')
    return row
