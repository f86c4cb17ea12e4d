"""Chat templates of families that call tools in different forms, over a tokenizer that has their marks."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from text_samples import TEMPLATES
from tokenizer_samples import llama_like, opened
from tokenizers import AddedToken

from streamfuse.runtime.text import Tokenizer

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{{ '<|im_start|>assistant\n' }}"
)
HERMES, LLAMA, GEMMA = (TEMPLATES[f"tools_{name}"] for name in ("hermes", "llama", "gemma"))
QWEN_XML = HERMES + "{# <function=name> #}"
GEMMA_4 = "{# tools <|channel>thought <channel|> <|tool_call>call:<tool_call|> #}" + CHATML
LFM2 = "{# tools <|tool_call_start|> #}" + CHATML
MISTRAL = "{# tools [TOOL_CALLS] [THINK] [/THINK] #}" + CHATML
PHI_4 = "{# tools <|tool_call|> <|/tool_call|> #}" + CHATML
GEMMA_3 = "{# <start_of_turn> tools #}" + CHATML
SPECIAL = ["<|python_tag|>", "[TOOL_CALLS]", "<|tool_call_start|>", "<|tool_call_end|>"]


@lru_cache
def made(template: str) -> Tokenizer:
    """Bytes, a token each but for special ones; `<tool_call>` is a token that is not special, as in Qwen."""
    file = llama_like()
    file.add_special_tokens(SPECIAL)
    file.add_tokens([AddedToken(word, normalized=False) for word in ("<tool_call>", "</tool_call>", "<think>")])
    return opened(file, template, 0, [2])


def pairs(calls: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    return [(call["name"], call["arguments"]) for call in calls]
