"""What the pieces of an answer to messages add up to, in whatever form it is sent."""

from __future__ import annotations

import json
import math
import re
import secrets
import string
from dataclasses import dataclass
from typing import Any

from streamfuse.api import Piece, Result
from streamfuse.serve.errors import RequestError


def finish_reason(result: Result) -> str:
    """stop, length or tool_calls. RequestError for an answer that the server has ended."""
    if result.finish_reason == "stopped":
        raise RequestError(503, "the server is shutting down and has ended this answer", code="shutting_down")
    if result.finish_reason != "stop":
        return "length"
    return "tool_calls" if result.tool_calls else "stop"


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool. Its arguments are JSON, of which a limit may have cut off the end."""

    name: str
    arguments: str
    is_whole: bool = True


class Content:
    """The text of an answer, its tokens with log-probabilities if they are asked for, and its calls of tools. Calls are
    parsed at the end of the answer; with `one_call` those after the first are left out."""

    def __init__(self, one_call: bool) -> None:
        self._one_call = one_call
        self._channel = "answer"  # of the last piece with text
        self._pending: list[dict[str, Any]] = []  # tokens since then, which have no text of their own
        self.reasoning_tokens = 0
        self.cut = ""  # the text of a call in which the answer has ended

    def tokens_of(self, piece: Piece) -> list[dict[str, Any]]:
        """The tokens of the text that are known with this piece. One without text, such as part of a character or
        of the tag that opens thoughts, belongs to the text if what comes before and after it does and no thoughts are
        between these. So the first bytes of a character after thoughts do not count."""
        found = tokens_of(piece)
        self.reasoning_tokens += piece.channel == "thinking" and piece.token is not None
        if self._channel == "tool_call" and piece.channel == "answer" and piece.token is None:
            self.cut = piece.text
            return []
        if not piece.text and piece.channel == "answer":
            self._pending += found
            return []
        before, self._channel = self._channel, piece.channel
        pending, self._pending = self._pending, []
        if piece.channel != "answer":
            return []
        return [*pending, *found] if before == "answer" else found

    def last_tokens(self) -> list[dict[str, Any]]:
        """Those after the last piece of the text."""
        return self._pending if self._channel == "answer" else []

    def ending(self, result: Result) -> tuple[list[Call], str]:
        """The calls of an answer, and the text after them. A call that a limit has cut off has the beginning of its
        arguments: clients then report that they are incomplete, and do not take the call for text."""
        calls = [Call(call.name, json.dumps(call.arguments, ensure_ascii=False)) for call in result.tool_calls]
        cut = _cut_call(self.cut)
        if cut is not None:
            calls.append(cut)
        return (calls[:1] if self._one_call else calls), (self.cut if cut is None else "")


def tokens_of(piece: Piece) -> list[dict[str, Any]]:
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


# In JSON; of other formats such a call stays text.
_CUT_CALL = re.compile(
    r'\{\s*(?:"type":.*?)?"name":\s*("(?:[^"\\]|\\.)*")(?:,\s*"(?:arguments|parameters)":\s*(.*))?', re.S
)


def _cut_call(text: str) -> Call | None:
    """A call that ends in its middle; None if not even its name is whole."""
    found = _CUT_CALL.search(text)
    try:
        return None if found is None else Call(json.loads(found[1]), found[2] or "", is_whole=False)
    except ValueError:
        return None


def new_call_id() -> str:
    """One that no other answer has: clients store calls by their ids alone. Mistral's templates require nine letters
    or digits."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(9))
