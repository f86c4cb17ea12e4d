"""Answers in the form of OpenAI's API: one object, or the chunks of a stream."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from streamfuse.api import Piece, Result, Statistics
from streamfuse.serve.content import Call, Content, finish_reason, new_call_id, tokens_of
from streamfuse.serve.errors import RequestError

Part = Piece | Result  # a step of an answer, and its end; a request with several prompts has several ends


def usage(found: Sequence[Statistics], reasoning_tokens: int = 0) -> dict[str, Any]:
    """Counts of tokens, of all prompts together. What the decoder drafts is a prediction in this API."""
    prompt, generated = sum(one.prompt_tokens for one in found), sum(one.generated_tokens for one in found)
    accepted = sum(one.draft_tokens_accepted for one in found)
    proposed = sum(one.draft_tokens_proposed for one in found)
    # The last token of a prompt is read with the first of its answer.
    cached = sum(max(one.prompt_tokens - one.prefilled_tokens - 1, 0) for one in found)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        # MacPaw's client for Swift drops a usage without audio_tokens.
        "prompt_tokens_details": {"cached_tokens": cached, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": reasoning_tokens,
            "audio_tokens": 0,
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": proposed - accepted,
        },
    }


class Answer(ABC):
    """What is sent for a request, from the parts of the answers to its prompts: as one object, or as the chunks of a
    stream."""

    end: ClassVar[str | None] = "[DONE]"  # what a stream ends with

    @property
    @abstractmethod
    def statistics(self) -> Sequence[Statistics]:
        """Those of the answers that have ended."""

    @abstractmethod
    def take(self, part: Part) -> None:
        """Note a part of an answer that is sent as one object."""

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """The answer as one object, after its last part."""

    @abstractmethod
    def chunks(self, part: Part) -> list[dict[str, Any]]:
        """Chunks of a part, in a stream."""

    @abstractmethod
    def last(self) -> list[dict[str, Any]]:
        """Chunks after the last part."""

    def failed(self, error: RequestError) -> list[dict[str, Any]]:
        """Chunks of an error in a stream that has begun."""
        return [error.body]


class ChatAnswer(Answer):
    """An answer to messages. Calls of tools are parsed at the end, so a stream has them in one chunk."""

    def __init__(
        self, model: str, fingerprint: str, include_usage: bool, log_probs: bool, one_call: bool = False
    ) -> None:
        self._head = _head("chatcmpl", "chat.completion", model, fingerprint)
        self._include_usage, self._log_probs = include_usage, log_probs
        self._content = Content(one_call)
        self._tokens: list[dict[str, Any]] = []  # with log-probabilities, if they are asked for
        self._has_begun = False  # the stream
        self._result: Result | None = None

    @property
    def statistics(self) -> list[Statistics]:
        """Those of the answer, once it has ended."""
        return [] if self._result is None else [self._result.statistics]

    def take(self, part: Part) -> None:
        """Note a part of an answer that is sent as one object."""
        if isinstance(part, Result):
            self._result = part
        else:
            self._tokens += self._content.tokens_of(part)

    def whole(self) -> dict[str, Any]:
        """The answer as one object."""
        result = self._result
        assert result is not None, "the answer has ended"
        found_calls, rest = self._content.ending(result)
        calls = [_call(call) for call in found_calls]
        content = result.text.removesuffix(self._content.cut) + rest or (None if calls else "")
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if result.thinking:
            message["reasoning_content"] = result.thinking
        if calls:
            message["tool_calls"] = calls
        found = self._log_probs_of([*self._tokens, *self._content.last_tokens()])
        choice = {"index": 0, "message": message, "logprobs": found, "finish_reason": finish_reason(result)}
        return {**self._head, "choices": [choice], "usage": usage(self.statistics, self._content.reasoning_tokens)}

    def chunks(self, part: Part) -> list[dict[str, Any]]:
        """Chunks of a part, in a stream."""
        return self._closing(part) if isinstance(part, Result) else self._pieces(part)

    def last(self) -> list[dict[str, Any]]:
        """Chunks after the last part."""
        found = usage(self.statistics, self._content.reasoning_tokens)
        return [{**self._chunk({}), "choices": [], "usage": found}] if self._include_usage else []

    def _opening(self, content: str | None) -> list[dict[str, Any]]:
        """The chunk before all others. The content is null where the answer begins with a call or thoughts: clients
        take an empty text for a part of its own."""
        if self._has_begun:
            return []
        self._has_begun = True
        return [self._chunk({"role": "assistant", "content": content, "refusal": None})]

    def _pieces(self, piece: Piece) -> list[dict[str, Any]]:
        names, tokens = {"answer": "content", "thinking": "reasoning_content"}, self._content.tokens_of(piece)
        if piece.channel == "answer" and not piece.text:  # perhaps part of a tag
            return []
        if self._content.cut:
            return []
        chunks = self._opening("" if piece.channel == "answer" else None)
        if piece.channel in names and piece.text:
            chunks.append(self._chunk({names[piece.channel]: piece.text}, tokens=tokens))
        return chunks

    def _closing(self, result: Result) -> list[dict[str, Any]]:
        self._result = result
        reason = finish_reason(result)
        calls, rest = self._content.ending(result)
        last = self._content.last_tokens()
        chunks = self._opening(None if calls else "")
        if rest:
            chunks.append(self._chunk({"content": rest}))
        if last:
            chunks.append(self._chunk({"content": ""}, tokens=last))
        if calls:
            chunks.append(self._chunk({"tool_calls": [{"index": n, **_call(call)} for n, call in enumerate(calls)]}))
        return [*chunks, self._chunk({}, reason)]

    def _log_probs_of(self, tokens: list[dict[str, Any]]) -> dict[str, Any] | None:
        return {"content": tokens, "refusal": None} if self._log_probs else None

    def _chunk(
        self, delta: dict[str, Any], reason: str | None = None, tokens: list[dict[str, Any]] | None = None
    ) -> dict[str, Any]:
        found = self._log_probs_of(tokens) if tokens else None
        choice = {"index": 0, "delta": delta, "logprobs": found, "finish_reason": reason}
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": [choice]}
        return {**chunk, "usage": None} if self._include_usage else chunk


class TextAnswer(Answer):
    """What continues each prompt of a request: a choice for each, one after the other."""

    def __init__(self, model: str, fingerprint: str, include_usage: bool, log_probs: bool) -> None:
        self._head = _head("cmpl", "text_completion", model, fingerprint)
        self._include_usage, self._log_probs = include_usage, log_probs
        self._statistics: list[Statistics] = []  # of the choices that have ended
        self._choices: list[dict[str, Any]] = []  # those, where they are sent as one object
        self._tokens: list[dict[str, Any]] = []  # of this choice, with log-probabilities, if they are asked for
        self._written = ""  # its text so far

    @property
    def statistics(self) -> list[Statistics]:
        return self._statistics

    def take(self, part: Part) -> None:
        """Note a part of an answer that is sent as one object."""
        if isinstance(part, Piece):
            self._tokens += self._note(part)
            return
        text, tokens, index = self._written, self._tokens, self._end(part)
        self._choices.append(_text(index, text, finish_reason(part), self._log_probs_of(tokens)))

    def _note(self, piece: Piece) -> list[dict[str, Any]]:
        """The token that a piece may have, with its log-probability and its place in the text."""
        found = [{**token, "offset": len(self._written)} for token in tokens_of(piece)]
        self._written += piece.text
        return found

    def _end(self, result: Result) -> int:
        """The index of the choice that ends here."""
        self._statistics.append(result.statistics)
        self._tokens, self._written = [], ""
        return len(self._statistics) - 1

    def whole(self) -> dict[str, Any]:
        """The answer as one object."""
        return {**self._head, "choices": self._choices, "usage": usage(self._statistics)}

    def chunks(self, part: Part) -> list[dict[str, Any]]:
        """Chunks of a part, in a stream."""
        if isinstance(part, Result):
            return [self._chunk([_text(self._end(part), "", finish_reason(part))])]
        tokens = self._note(part)
        if not part.text and not tokens:
            return []
        found = self._log_probs_of(tokens) if tokens else None
        return [self._chunk([_text(len(self._statistics), part.text, log_probs=found)])]

    def last(self) -> list[dict[str, Any]]:
        """Chunks after the last part."""
        return [{**self._chunk([]), "usage": usage(self._statistics)}] if self._include_usage else []

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


def _text(index: int, text: str, reason: str | None = None, log_probs: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": log_probs, "finish_reason": reason}


def _by_text(token: dict[str, Any]) -> dict[str, float] | None:
    """The most probable tokens at a token's position and, as in OpenAI's API, the token itself; of tokens with the same
    text the more probable one. None if there are none."""
    if not token["top_logprobs"]:
        return None
    found = {one["token"]: one["logprob"] for one in reversed(token["top_logprobs"])}
    return {token["token"]: token["logprob"], **found}


def _call(call: Call) -> dict[str, Any]:
    return {"id": new_call_id(), "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
