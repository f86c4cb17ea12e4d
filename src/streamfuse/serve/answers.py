"""Answers in the form of OpenAI's API: one object, or the chunks of a stream."""

from __future__ import annotations

import json
import secrets
import string
import time
import uuid
from typing import Any

from streamfuse.api import Piece, Result, Statistics, ToolCall
from streamfuse.serve.errors import RequestError


def usage(found: Statistics) -> dict[str, Any]:
    """Counts of tokens. What the decoder drafts is a prediction in this API."""
    # The last token of the prompt is read with the first of the answer.
    cached = max(found.prompt_tokens - found.prefilled_tokens - 1, 0)
    return {
        "prompt_tokens": found.prompt_tokens,
        "completion_tokens": found.generated_tokens,
        "total_tokens": found.prompt_tokens + found.generated_tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {
            "accepted_prediction_tokens": found.draft_tokens_accepted,
            "rejected_prediction_tokens": found.draft_tokens_proposed - found.draft_tokens_accepted,
        },
    }


def finish_reason(result: Result) -> str:
    """stop, length or tool_calls. RequestError for an answer that the server has ended."""
    if result.finish_reason == "stopped":
        raise RequestError(503, "the server shuts down and has ended this answer", code="shutting_down")
    if result.tool_calls:
        return "tool_calls"
    return "stop" if result.finish_reason == "stop" else "length"


class ChatAnswer:
    """An answer to messages. Calls of tools are parsed at the end, so a stream has them in one chunk."""

    def __init__(self, model: str, fingerprint: str, include_usage: bool) -> None:
        self._head = _head("chatcmpl", "chat.completion", model, fingerprint)
        self._include_usage = include_usage

    def whole(self, result: Result) -> dict[str, Any]:
        """The answer as one object."""
        calls = [_call(call) for call in result.tool_calls]
        content = result.text or (None if calls else "")
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if result.thinking:
            message["reasoning_content"] = result.thinking
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason(result)}
        return {**self._head, "choices": [choice], "usage": usage(result.statistics)}

    def opening(self) -> list[dict[str, Any]]:
        """Chunks before the first piece."""
        return [self._chunk({"role": "assistant", "content": "", "refusal": None})]

    def pieces(self, piece: Piece) -> list[dict[str, Any]]:
        """Chunks of a piece."""
        names = {"answer": "content", "thinking": "reasoning_content"}
        return [self._chunk({names[piece.channel]: piece.text})] if piece.text and piece.channel in names else []

    def closing(self, result: Result) -> list[dict[str, Any]]:
        """Chunks after the last piece."""
        reason = finish_reason(result)
        calls = [{"index": place, **_call(call)} for place, call in enumerate(result.tool_calls)]
        chunks = [self._chunk({"tool_calls": calls})] if calls else []
        chunks.append(self._chunk({}, reason))
        if self._include_usage:
            chunks.append({**self._chunk({}), "choices": [], "usage": usage(result.statistics)})
        return chunks

    def _chunk(self, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": [choice]}
        return {**chunk, "usage": None} if self._include_usage else chunk


class TextAnswer:
    """What continues a prompt."""

    def __init__(self, model: str, fingerprint: str, include_usage: bool) -> None:
        self._head = _head("cmpl", "text_completion", model, fingerprint)
        self._include_usage = include_usage

    def whole(self, result: Result) -> dict[str, Any]:
        """The answer as one object."""
        return {**self._head, "choices": [_text(result.text, finish_reason(result))], "usage": usage(result.statistics)}

    def opening(self) -> list[dict[str, Any]]:
        """Chunks before the first piece."""
        return []

    def pieces(self, piece: Piece) -> list[dict[str, Any]]:
        """Chunks of a piece."""
        return [self._chunk([_text(piece.text)])] if piece.text else []

    def closing(self, result: Result) -> list[dict[str, Any]]:
        """Chunks after the last piece."""
        chunks = [self._chunk([_text("", finish_reason(result))])]
        return [*chunks, {**self._chunk([]), "usage": usage(result.statistics)}] if self._include_usage else chunks

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**self._head, "choices": choices, **({"usage": None} if self._include_usage else {})}


def _head(prefix: str, kind: str, model: str, fingerprint: str) -> dict[str, Any]:
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": fingerprint,
    }


def _text(text: str, reason: str | None = None) -> dict[str, Any]:
    return {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}


def _call(call: ToolCall) -> dict[str, Any]:
    """With an id that no other answer has: clients store calls by their ids alone. Mistral's templates require nine
    letters or digits."""
    id_ = "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return {"id": id_, "type": "function", "function": {"name": call.name, "arguments": arguments}}
