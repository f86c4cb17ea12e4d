"""An answer in the JSON that commands print."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from streamfuse.api import ParsedError, Result


def answer(result: Result, log_probs: bool = False, top_log_probs: int = 0) -> dict[str, Any]:
    """The text; what the model thought; the object that the text spells if there is a schema, null if it is incomplete;
    the tool calls; with `log_probs` the ids of the tokens and their log-probabilities, with `top_log_probs` also the
    most probable tokens at each position."""
    found: dict[str, Any] = {"text": result.text}
    if result.thinking:
        found["thinking"] = result.thinking
    if result.schema is not None:
        found["parsed"] = None
        with suppress(ParsedError):
            found["parsed"] = result.parsed
    if result.tool_calls:
        found["tool_calls"] = [asdict(call) for call in result.tool_calls]
    if log_probs or top_log_probs:
        found |= {"tokens": result.tokens, "log_probs": result.log_probs}
    if top_log_probs:
        found["top_log_probs"] = [[one._asdict() for one in top] for top in result.top_log_probs]
    return found


def calls(result: Result) -> str:
    """The tool calls for people and pipes: a line of JSON each."""
    return "".join(json.dumps(asdict(call), ensure_ascii=False) + "\n" for call in result.tool_calls)
