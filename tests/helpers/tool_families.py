"""Chat templates of families that call tools in different forms, over a tokenizer that has their marks."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from text_samples import TEMPLATES
from tokenizer_samples import llama_like, opened
from tokenizers import AddedToken
from tokenizers import Tokenizer as Library

from streamfuse.runtime.text import Tokenizer

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{{ '<|im_start|>assistant\n' }}"
)
HERMES, LLAMA, GEMMA = (TEMPLATES[f"tools_{name}"] for name in ("hermes", "llama", "gemma"))
QWEN_XML = HERMES + "{# <function=name> #}"
WITH_TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}" + CHATML
GEMMA_4 = "{# <|channel>thought <channel|> <|tool_call>call:<tool_call|> #}" + WITH_TOOLS
LFM2 = "{# <|tool_list_start|> <|tool_list_end|> #}" + WITH_TOOLS  # as the published one, which spells no mark of calls
MISTRAL = "{# [TOOL_CALLS] [THINK] [/THINK] #}" + WITH_TOOLS
MINISTRAL = "{# [TOOL_CALLS] [ARGS] #}" + WITH_TOOLS
PHI_4 = "{# <|tool_call|> <|/tool_call|> #}" + WITH_TOOLS
GRANITE = "{# <|tool_call|> #}" + WITH_TOOLS
GEMMA_3 = "{# ```tool_code #}" + WITH_TOOLS
JAMBA = "{# <tool_calls> #}" + WITH_TOOLS
MINIMAX = r"{# <tool_calls>\n{ #}" + WITH_TOOLS
SEED = "{# <seed:tool_call> <function=name> #}" + WITH_TOOLS
NEMOTRON = "{# <TOOLCALL> #}" + WITH_TOOLS
COMMAND = "{# <|START_ACTION|> <|END_ACTION|> #}" + WITH_TOOLS
MINICPM = "{# <|tool_call_start|> ```python #}" + WITH_TOOLS
LLAMA_4 = '{# ipython "parameters" <|header_start|> #}' + WITH_TOOLS
PYTHONIC = "{# ipython [func_name1(name=value)] #}" + WITH_TOOLS
# Templates that write tools, and calls in a form of their own, which may have the marks of another family.
OWN_FORMS = {
    "names and values between tags": "{# <tool_call> <arg_key> #}" + WITH_TOOLS,
    "functions between tags": "{# ipython <function=name>{} #}" + WITH_TOOLS,
    "marks of its own": "{# <|tool_call:begin|> #}" + WITH_TOOLS,
    "a list without marks": "{# ipython [{}] #}" + WITH_TOOLS,
}
# As published for Gemma 3, which has no tools, and for Phi-4-mini, which has those of a field of the system message.
NO_TOOLS = CHATML.replace("<|im_start|>", "<start_of_turn>")
MESSAGE_TOOLS = (
    "{% for m in messages %}{% if m.role == 'system' and 'tools' in m %}<|tool|>{{ m.tools }}<|/tool|>{% endif %}"
    "{{ m.content }}{% endfor %}"
)
SPECIAL = ["<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "<|tool_call_start|>", "<|tool_call_end|>"]
THOUGHTS = ["[THINK]", "[/THINK]"]  # special tokens too


@lru_cache
def made(template: str, *merged: str) -> Tokenizer:
    """Bytes, a token each but for special ones; `<tool_call>` is a token that is not special, as in Qwen. `merged` are
    two letters each that are one token."""
    fields = json.loads(llama_like().to_str())
    for two in merged:
        fields["model"]["vocab"][two] = len(fields["model"]["vocab"])
        fields["model"]["merges"].append(list(two))
    file = Library.from_str(json.dumps(fields))
    file.add_special_tokens([*SPECIAL, *THOUGHTS])
    file.add_tokens([AddedToken(word, normalized=False) for word in ("<tool_call>", "</tool_call>", "<think>")])
    return opened(file, template, 0, [2])


def pairs(calls: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    return [(call["name"], call["arguments"]) for call in calls]
