"""Answers in the form of OpenAI's API: one object, or the chunks of a stream."""

from __future__ import annotations

import json
import math
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
    if result.finish_reason != "stop":
        return "length"
    return "tool_calls" if result.tool_calls else "stop"


class ChatAnswer:
    """An answer to messages. Calls of tools are parsed at the end, so a stream has them in one chunk."""

    def __init__(self, model: str, fingerprint: str, include_usage: bool, log_probs: bool) -> None:
        self._head = _head("chatcmpl", "chat.completion", model, fingerprint)
        self._include_usage, self._log_probs = include_usage, log_probs
        self._tokens: list[dict[str, Any]] = []  # with log-probabilities, if they are asked for
        self._channel = "answer"  # of the last piece with text
        self._pending: list[dict[str, Any]] = []  # tokens since then, which have no text of their own

    def take(self, piece: Piece) -> None:
        """Note a piece of an answer that is sent as one object."""
        self._tokens += self._content_of(piece)

    def _content_of(self, piece: Piece) -> list[dict[str, Any]]:
        """The tokens of the content that are known with this piece. One without text, such as part of a character or
        of the tag that opens thoughts, belongs to the content if the texts before and after it do and no thoughts are
        between these. So the first bytes of a character after thoughts do not count."""
        found = _tokens(piece)
        if not piece.text and piece.channel == "answer":
            self._pending += found
            return []
        before, self._channel = self._channel, piece.channel
        pending, self._pending = self._pending, []
        if piece.channel != "answer":
            return []
        return [*pending, *found] if before == "answer" else found

    def _last_tokens(self) -> list[dict[str, Any]]:
        """Those of the content after its last text."""
        return self._pending if self._channel == "answer" else []

    def whole(self, result: Result) -> dict[str, Any]:
        """The answer as one object."""
        calls = [_call(call) for call in result.tool_calls]
        content = result.text or (None if calls else "")
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if result.thinking:
            message["reasoning_content"] = result.thinking
        if calls:
            message["tool_calls"] = calls
        found = self._log_probs_of([*self._tokens, *self._last_tokens()])
        choice = {"index": 0, "message": message, "logprobs": found, "finish_reason": finish_reason(result)}
        return {**self._head, "choices": [choice], "usage": usage(result.statistics)}

    def opening(self) -> list[dict[str, Any]]:
        """Chunks before the first piece."""
        return [self._chunk({"role": "assistant", "content": "", "refusal": None})]

    def pieces(self, piece: Piece) -> list[dict[str, Any]]:
        """Chunks of a piece."""
        names, tokens = {"answer": "content", "thinking": "reasoning_content"}, self._content_of(piece)
        if piece.channel not in names or not piece.text:
            return []
        return [self._chunk({names[piece.channel]: piece.text}, tokens=tokens)]

    def closing(self, result: Result) -> list[dict[str, Any]]:
        """Chunks after the last piece."""
        reason = finish_reason(result)
        calls = [{"index": place, **_call(call)} for place, call in enumerate(result.tool_calls)]
        last = self._last_tokens()
        chunks = [self._chunk({"content": ""}, tokens=last)] if last else []
        if calls:
            chunks.append(self._chunk({"tool_calls": calls}))
        chunks.append(self._chunk({}, reason))
        if self._include_usage:
            chunks.append({**self._chunk({}), "choices": [], "usage": usage(result.statistics)})
        return chunks

    def _log_probs_of(self, tokens: list[dict[str, Any]]) -> dict[str, Any] | None:
        return {"content": tokens, "refusal": None} if self._log_probs else None

    def _chunk(
        self, delta: dict[str, Any], reason: str | None = None, tokens: list[dict[str, Any]] | None = None
    ) -> dict[str, Any]:
        found = self._log_probs_of(tokens) if tokens else None
        choice = {"index": 0, "delta": delta, "logprobs": found, "finish_reason": reason}
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": [choice]}
        return {**chunk, "usage": None} if self._include_usage else chunk


class TextAnswer:
    """What continues a prompt."""

    def __init__(self, model: str, fingerprint: str, include_usage: bool, log_probs: bool) -> None:
        self._head = _head("cmpl", "text_completion", model, fingerprint)
        self._include_usage, self._log_probs = include_usage, log_probs
        self._tokens: list[dict[str, Any]] = []  # with log-probabilities, if they are asked for
        self._written = ""  # the text of the pieces so far

    def take(self, piece: Piece) -> list[dict[str, Any]]:
        """Note a piece. The token that it may have, with its log-probability and its place in the text."""
        found = [{**token, "offset": len(self._written)} for token in _tokens(piece)]
        self._tokens += found
        self._written += piece.text
        return found

    def whole(self, result: Result) -> dict[str, Any]:
        """The answer as one object."""
        choice = _text(self._written, finish_reason(result), self._log_probs_of(self._tokens))
        return {**self._head, "choices": [choice], "usage": usage(result.statistics)}

    def opening(self) -> list[dict[str, Any]]:
        """Chunks before the first piece."""
        return []

    def pieces(self, piece: Piece) -> list[dict[str, Any]]:
        """Chunks of a piece."""
        tokens = self.take(piece)
        if not piece.text and not tokens:
            return []
        return [self._chunk([_text(piece.text, log_probs=self._log_probs_of(tokens) if tokens else None)])]

    def closing(self, result: Result) -> list[dict[str, Any]]:
        """Chunks after the last piece."""
        chunks = [self._chunk([_text("", finish_reason(result))])]
        return [*chunks, {**self._chunk([]), "usage": usage(result.statistics)}] if self._include_usage else chunks

    def _log_probs_of(self, tokens: list[dict[str, Any]]) -> dict[str, Any] | None:
        if not self._log_probs:
            return None
        names = {"tokens": "token", "token_logprobs": "logprob", "text_offset": "offset"}
        top = [_by_text(token) for token in tokens]
        lists = {name: [token[own] for token in tokens] for name, own in names.items()}
        return {"top_logprobs": top if any(top) else None, **lists}

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


def _text(text: str, reason: str | None = None, log_probs: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"index": 0, "text": text, "logprobs": log_probs, "finish_reason": reason}


def _tokens(piece: Piece) -> list[dict[str, Any]]:
    """The token of a piece of the answer, if log-probabilities are asked for. Its text is what it completes."""
    if piece.log_prob is None or piece.channel != "answer":
        return []
    top = [_token(one.text, one.log_prob, is_whole="\ufffd" not in one.text) for one in piece.top_log_probs]
    return [{**_token(piece.text, piece.log_prob), "top_logprobs": top}]


def _token(text: str, log_prob: float, is_whole: bool = True) -> dict[str, Any]:
    """JSON has no minus infinity; -9999 stands for it, as in OpenAI's API. NaN, of a prompt's first token, is null.
    `bytes` is null for part of a character, whose text is only U+FFFD."""
    value = None if math.isnan(log_prob) else max(log_prob, -9999.0)
    return {"token": text, "logprob": value, "bytes": list(text.encode()) if is_whole else None}


def _by_text(token: dict[str, Any]) -> dict[str, float] | None:
    """The most probable tokens at a token's position and, as in OpenAI's API, the token itself; of tokens with the same
    text the more probable one. None if there are none."""
    if not token["top_logprobs"]:
        return None
    found = {one["token"]: one["logprob"] for one in reversed(token["top_logprobs"])}
    return {token["token"]: token["logprob"], **found}


def _call(call: ToolCall) -> dict[str, Any]:
    """With an id that no other answer has: clients store calls by their ids alone. Mistral's templates require nine
    letters or digits."""
    id_ = "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))
    arguments = json.dumps(call.arguments, ensure_ascii=False)
    return {"id": id_, "type": "function", "function": {"name": call.name, "arguments": arguments}}
