"""Answers in the form of OpenAI's API: one object, or the chunks of a stream."""

from __future__ import annotations

import json
import math
import re
import secrets
import string
import time
import uuid
from collections.abc import Sequence
from typing import Any

from streamfuse.api import Piece, Result, Statistics
from streamfuse.serve.errors import RequestError


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


def finish_reason(result: Result) -> str:
    """stop, length or tool_calls. RequestError for an answer that the server has ended."""
    if result.finish_reason == "stopped":
        raise RequestError(503, "the server is shutting down and has ended this answer", code="shutting_down")
    if result.finish_reason != "stop":
        return "length"
    return "tool_calls" if result.tool_calls else "stop"


class ChatAnswer:
    """An answer to messages. Calls of tools are parsed at the end, so a stream has them in one chunk."""

    def __init__(
        self, model: str, fingerprint: str, include_usage: bool, log_probs: bool, one_call: bool = False
    ) -> None:
        self._head = _head("chatcmpl", "chat.completion", model, fingerprint)
        self._include_usage, self._log_probs, self._one_call = include_usage, log_probs, one_call
        self._tokens: list[dict[str, Any]] = []  # with log-probabilities, if they are asked for
        self._channel = "answer"  # of the last piece with text
        self._pending: list[dict[str, Any]] = []  # tokens since then, which have no text of their own
        self._reasoning_tokens = 0
        self._cut = ""  # the text of a call in which the answer has ended
        self._has_begun = False  # the stream
        self._result: Result | None = None

    @property
    def statistics(self) -> list[Statistics]:
        """Those of the answer, once it has ended."""
        return [] if self._result is None else [self._result.statistics]

    def take(self, part: Piece | Result) -> None:
        """Note a part of an answer that is sent as one object."""
        if isinstance(part, Result):
            self._result = part
        else:
            self._tokens += self._content_of(part)

    def _content_of(self, piece: Piece) -> list[dict[str, Any]]:
        """The tokens of the content that are known with this piece. One without text, such as part of a character or
        of the tag that opens thoughts, belongs to the content if the texts before and after it do and no thoughts are
        between these. So the first bytes of a character after thoughts do not count."""
        found = _tokens(piece)
        self._reasoning_tokens += piece.channel == "thinking" and piece.token is not None
        if self._channel == "tool_call" and piece.channel == "answer" and piece.token is None:
            self._cut = piece.text
            return []
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

    def whole(self) -> dict[str, Any]:
        """The answer as one object."""
        result = self._result
        assert result is not None, "the answer has ended"
        calls, rest = self._ending(result)
        content = result.text.removesuffix(self._cut) + rest or (None if calls else "")
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if result.thinking:
            message["reasoning_content"] = result.thinking
        if calls:
            message["tool_calls"] = calls
        found = self._log_probs_of([*self._tokens, *self._last_tokens()])
        choice = {"index": 0, "message": message, "logprobs": found, "finish_reason": finish_reason(result)}
        return {**self._head, "choices": [choice], "usage": usage(self.statistics, self._reasoning_tokens)}

    def chunks(self, part: Piece | Result) -> list[dict[str, Any]]:
        """Chunks of a part, in a stream."""
        return self._closing(part) if isinstance(part, Result) else self._pieces(part)

    def last(self) -> list[dict[str, Any]]:
        """Chunks after the last part."""
        found = usage(self.statistics, self._reasoning_tokens)
        return [{**self._chunk({}), "choices": [], "usage": found}] if self._include_usage else []

    def _opening(self, content: str | None) -> list[dict[str, Any]]:
        """The chunk before all others. The content is null where the answer begins with a call or thoughts: clients
        take an empty text for a part of its own."""
        if self._has_begun:
            return []
        self._has_begun = True
        return [self._chunk({"role": "assistant", "content": content, "refusal": None})]

    def _pieces(self, piece: Piece) -> list[dict[str, Any]]:
        names, tokens = {"answer": "content", "thinking": "reasoning_content"}, self._content_of(piece)
        if piece.channel == "answer" and not piece.text:  # perhaps part of a tag
            return []
        if self._cut:
            return []
        chunks = self._opening("" if piece.channel == "answer" else None)
        if piece.channel in names and piece.text:
            chunks.append(self._chunk({names[piece.channel]: piece.text}, tokens=tokens))
        return chunks

    def _closing(self, result: Result) -> list[dict[str, Any]]:
        self._result = result
        reason = finish_reason(result)
        calls, rest = self._ending(result)
        last = self._last_tokens()
        chunks = self._opening(None if calls else "")
        if rest:
            chunks.append(self._chunk({"content": rest}))
        if last:
            chunks.append(self._chunk({"content": ""}, tokens=last))
        if calls:
            chunks.append(self._chunk({"tool_calls": [{"index": n, **call} for n, call in enumerate(calls)]}))
        return [*chunks, self._chunk({}, reason)]

    def _ending(self, result: Result) -> tuple[list[dict[str, Any]], str]:
        """The calls of an answer, and the text after them. A call that a limit has cut off has the beginning of its
        arguments: clients then report that they are incomplete, and do not take the call for text."""
        calls = [_call(call.name, json.dumps(call.arguments, ensure_ascii=False)) for call in result.tool_calls]
        cut = _cut_call(self._cut)
        if cut is not None:
            calls.append(cut)
        return (calls[:1] if self._one_call else calls), (self._cut if cut is None else "")

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
    """What continues each prompt of a request: a choice for each, one after the other."""

    def __init__(self, model: str, fingerprint: str, include_usage: bool, log_probs: bool) -> None:
        self._head = _head("cmpl", "text_completion", model, fingerprint)
        self._include_usage, self._log_probs = include_usage, log_probs
        self.statistics: list[Statistics] = []  # of the choices that have ended
        self._choices: list[dict[str, Any]] = []  # those, where they are sent as one object
        self._tokens: list[dict[str, Any]] = []  # of this choice, with log-probabilities, if they are asked for
        self._written = ""  # its text so far

    def take(self, part: Piece | Result) -> None:
        """Note a part of an answer that is sent as one object."""
        if isinstance(part, Piece):
            self._tokens += self._note(part)
            return
        text, tokens, index = self._written, self._tokens, self._end(part)
        self._choices.append(_text(index, text, finish_reason(part), self._log_probs_of(tokens)))

    def _note(self, piece: Piece) -> list[dict[str, Any]]:
        """The token that a piece may have, with its log-probability and its place in the text."""
        found = [{**token, "offset": len(self._written)} for token in _tokens(piece)]
        self._written += piece.text
        return found

    def _end(self, result: Result) -> int:
        """The index of the choice that ends here."""
        self.statistics.append(result.statistics)
        self._tokens, self._written = [], ""
        return len(self.statistics) - 1

    def whole(self) -> dict[str, Any]:
        """The answer as one object."""
        return {**self._head, "choices": self._choices, "usage": usage(self.statistics)}

    def chunks(self, part: Piece | Result) -> list[dict[str, Any]]:
        """Chunks of a part, in a stream."""
        if isinstance(part, Result):
            return [self._chunk([_text(self._end(part), "", finish_reason(part))])]
        tokens = self._note(part)
        if not part.text and not tokens:
            return []
        found = self._log_probs_of(tokens) if tokens else None
        return [self._chunk([_text(len(self.statistics), part.text, log_probs=found)])]

    def last(self) -> list[dict[str, Any]]:
        """Chunks after the last part."""
        return [{**self._chunk([]), "usage": usage(self.statistics)}] if self._include_usage else []

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


# In JSON; of other formats such a call stays text.
_CUT_CALL = re.compile(
    r'\{\s*(?:"type":.*?)?"name":\s*("(?:[^"\\]|\\.)*")(?:,\s*"(?:arguments|parameters)":\s*(.*))?', re.S
)


def _cut_call(text: str) -> dict[str, Any] | None:
    """A call that ends in its middle; None if not even its name is whole."""
    found = _CUT_CALL.search(text)
    try:
        return None if found is None else _call(json.loads(found[1]), found[2] or "")
    except ValueError:
        return None


def _call(name: str, arguments: str) -> dict[str, Any]:
    """With an id that no other answer has: clients store calls by their ids alone. Mistral's templates require nine
    letters or digits."""
    id_ = "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
