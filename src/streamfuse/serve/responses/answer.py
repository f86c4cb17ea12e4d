"""A response: the object, and the events of a stream that builds it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from streamfuse.api import Piece, Result, Statistics
from streamfuse.serve.answers import Answer, Part, usage
from streamfuse.serve.content import Call, Content, finish_reason, new_call_id
from streamfuse.serve.errors import RequestError
from streamfuse.serve.responses.items import Item, new_id
from streamfuse.serve.responses.request import ResponseRequest
from streamfuse.serve.responses.store import Store

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of text, and how items and events name it."""

    item: str  # the type of its items
    prefix: str  # of their ids
    part: str  # the type of the part that has the text
    list: str  # the field of an item that has the part
    part_event: str
    text_event: str


_MESSAGE = _Kind("message", "msg", "output_text", "content", "content_part", "output_text")
_REASONING = _Kind("reasoning", "rs", "reasoning_text", "content", "content_part", "reasoning_text")
_SUMMARY = _Kind("reasoning", "rs", "summary_text", "summary", "reasoning_summary_part", "reasoning_summary_text")


@dataclass(slots=True)
class _Text:
    """An item of text while it is written."""

    kind: _Kind
    id: str = field(init=False)
    texts: list[str] = field(default_factory=list)
    tokens: list[dict[str, Any]] = field(default_factory=list)  # with log-probabilities, if they are asked for

    def __post_init__(self) -> None:
        self.id = new_id(self.kind.prefix)

    def part(self) -> dict[str, Any]:
        """The text so far, as a part of the item."""
        part: dict[str, Any] = {"type": self.kind.part, "text": "".join(self.texts)}
        return {**part, "annotations": [], "logprobs": list(self.tokens)} if self.kind is _MESSAGE else part

    def item(self, status: str) -> Item:
        """The item with this status; an item in progress has no part yet."""
        own: Item = {"role": "assistant"} if self.kind is _MESSAGE else {"summary": []}
        parts = [self.part()] if status != "in_progress" else []
        return {"id": self.id, "type": self.kind.item, "status": status, **own, self.kind.list: parts}


class ResponseAnswer(Answer):
    """Builds the response object and its stream events. The output has an item for the reasoning, the message and each
    tool call. Calls are parsed at the end of the answer, so their arguments arrive in one delta. A finished response is
    stored unless `store` is false.

    `sampling` has the default temperature and top_p.
    """

    end = None

    def __init__(self, request: ResponseRequest, sampling: dict[str, float], store: Store) -> None:
        self._request, self._store = request, store
        self._content = Content(request.request.one_call)
        self._result: Result | None = None
        self._events = 0  # so far
        self._output: list[Item] = []  # that has ended
        self._text: _Text | None = None  # the item after it
        self._response: dict[str, Any] = {
            "id": new_id("resp"),
            "object": "response",
            "created_at": int(time.time()),
            "completed_at": None,
            "status": "in_progress",
            "model": request.request.model,
            "output": [],
            "background": False,
            "error": None,
            "incomplete_details": None,
            "max_tool_calls": None,
            "service_tier": "default",
            "usage": None,
            **sampling,
            **request.echo,
        }

    @property
    def statistics(self) -> list[Statistics]:
        return [] if self._result is None else [self._result.statistics]

    def take(self, part: Part) -> None:
        self.chunks(part)

    def whole(self) -> dict[str, Any]:
        return self._response

    def chunks(self, part: Part) -> list[Event]:
        reason = finish_reason(part) if isinstance(part, Result) else ""  # raises if the server has stopped it
        begin = self._begin()
        return [*begin, *(self._finish(part, reason) if isinstance(part, Result) else self._piece(part))]

    def last(self) -> list[Event]:
        return []

    def failed(self, error: RequestError) -> list[Event]:
        events = [*self._begin(), *self._end_item("incomplete")]
        failure = {"code": error.code or "server_error", "message": error.message}
        self._response |= {"status": "failed", "error": failure, "output": self._output}
        return [*events, self._response_event("failed")]

    def _begin(self) -> list[Event]:
        """The events before all others, once."""
        return [] if self._events else [self._response_event("created"), self._response_event("in_progress")]

    def _piece(self, piece: Piece) -> list[Event]:
        tokens = self._content.tokens_of(piece)
        if self._content.cut or not piece.text or piece.channel == "tool_call":
            return []
        reasoning = _SUMMARY if self._request.summary else _REASONING
        return self._write(reasoning if piece.channel == "thinking" else _MESSAGE, piece.text, tokens)

    def _write(self, kind: _Kind, text: str, tokens: list[dict[str, Any]]) -> list[Event]:
        """Append text to the item that is written, or to a new one of this kind."""
        events: list[Event] = []
        if self._text is None or self._text.kind is not kind:
            events += self._end_item("completed")
            self._text = _Text(kind)
            events.append(self._item_event("added", self._text.item("in_progress")))
            events.append(self._text_event(f"{kind.part_event}.added", part=self._text.part()))
        self._text.texts.append(text)
        tokens = _with_bytes(tokens)
        self._text.tokens += tokens
        log_probs = {"logprobs": tokens} if kind is _MESSAGE else {}
        return [*events, self._text_event(f"{kind.text_event}.delta", delta=text, **log_probs)]

    def _end_item(self, status: str) -> list[Event]:
        """End the item that is written, if any."""
        if self._text is None:
            return []
        kind, part, item = self._text.kind, self._text.part(), self._text.item(status)
        log_probs = {"logprobs": part["logprobs"]} if kind is _MESSAGE else {}
        events = [
            self._text_event(f"{kind.text_event}.done", text=part["text"], **log_probs),
            self._text_event(f"{kind.part_event}.done", part=part),
            self._item_event("done", item),
        ]
        self._output.append(item)
        self._text = None
        return events

    def _call(self, call: Call) -> list[Event]:
        """An item for a call."""
        own = {"call_id": new_call_id(), "name": call.name, "arguments": call.arguments}
        item = {"id": new_id("fc"), "type": "function_call", **own}
        where = {"item_id": item["id"], "output_index": len(self._output)}
        arguments, whole = call.arguments, {**item, "status": "completed" if call.is_whole else "incomplete"}
        events = [
            self._item_event("added", {**item, "arguments": "", "status": "in_progress"}),
            self._event("function_call_arguments.delta", **where, delta=arguments),
            self._event("function_call_arguments.done", **where, name=call.name, arguments=arguments),
            self._item_event("done", whole),
        ]
        self._output.append(whole)
        return events

    def _finish(self, result: Result, reason: str) -> list[Event]:
        self._result = result
        is_cut = reason == "length"
        calls, rest = self._content.ending(result)
        last, events = self._content.last_tokens(), []
        if rest or last or not (calls or self._output or self._text):
            events += self._write(_MESSAGE, rest, last)
        events += self._end_item("incomplete" if is_cut and not calls else "completed")
        for call in calls:
            events += self._call(call)
        counts = usage(self.statistics)
        cached = counts["prompt_tokens_details"]["cached_tokens"]
        self._response |= {
            "status": "incomplete" if is_cut else "completed",
            "completed_at": None if is_cut else int(time.time()),
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": self._output,
            "usage": {
                "input_tokens": counts["prompt_tokens"],
                "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
                "output_tokens": counts["completion_tokens"],
                "output_tokens_details": {"reasoning_tokens": self._content.reasoning_tokens},
                "total_tokens": counts["total_tokens"],
            },
        }
        if self._request.store:
            self._store.add(self._response, self._request.input)
        return [*events, self._response_event(self._response["status"])]

    def _event(self, kind: str, **fields: Any) -> Event:
        self._events += 1
        return {"type": f"response.{kind}", "sequence_number": self._events - 1, **fields}

    def _response_event(self, kind: str) -> Event:
        """An event with the response as it is now."""
        return self._event(kind, response=dict(self._response))

    def _item_event(self, kind: str, item: Item) -> Event:
        return self._event(f"output_item.{kind}", output_index=len(self._output), item=item)

    def _text_event(self, kind: str, **fields: Any) -> Event:
        """An event of the text that is written."""
        assert self._text is not None
        where = {"item_id": self._text.id, "output_index": len(self._output), f"{self._text.kind.list}_index": 0}
        return self._event(kind, **where, **fields)


def _with_bytes(tokens: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tokens with log-probabilities, in which `bytes` is never null: a part of a character has none here."""
    top = [[{**one, "bytes": one["bytes"] or []} for one in token["top_logprobs"]] for token in tokens]
    return [{**token, "top_logprobs": own} for token, own in zip(tokens, top, strict=True)]
