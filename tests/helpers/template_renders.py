"""A chat template rendered by transformers and by streamfuse."""

from __future__ import annotations

import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from bundle_samples import IM_END, IM_START, byte_tokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from streamfuse.runtime.text import Message, TextError, Tokenizer

MARKS = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
CHAT: list[Message] = [
    {"role": "system", "content": "Be é 'q' \"d\" brief.\n"},
    {"role": "user", "content": " Hello <b>World</b>\n\nline two  "},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nFine."},
    {"role": "user", "content": "x"},
]
Rendered = tuple[bool, str]  # whether the template was rendered, and the text or the error


def by_transformers(source: str, messages: list[Message], tools: Any = None, **variables: Any) -> Rendered:
    given = {**MARKS, "tools": tools, "add_generation_prompt": True, **variables}
    try:
        texts, _ = render_jinja_template([messages], chat_template=source, **given)
        return True, texts[0]
    except Exception as error:
        return False, str(error)


def by_streamfuse(source: str, messages: list[Message], tools: Any = None, **variables: Any) -> Rendered:
    try:
        tokenizer = Tokenizer(_tokenizer_file(), source, IM_START, [IM_END])
        return True, tokenizer.render(messages, tools=tools, variables=variables or None)
    except TextError as error:
        return False, str(error)


@lru_cache
def _tokenizer_file() -> Path:
    folder = tempfile.mkdtemp()
    byte_tokenizer().save(f"{folder}/tokenizer.json")
    return Path(folder, "tokenizer.json")
