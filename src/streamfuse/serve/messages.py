"""Messages of a conversation, as clients of OpenAI's API send them, read into what chat templates read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from streamfuse.runtime.text import ROLES
from streamfuse.serve.errors import RequestError
from streamfuse.serve.fields import unsupported, wrong


def messages_of(given: list[Any] | None) -> list[dict[str, Any]]:
    """The messages of a chat. RequestError names the one that is wrong, and its field."""
    if not given:
        raise RequestError(400, "messages must be a list with at least one message", "messages", "invalid_type")
    return [_message(message, f"messages[{place}]") for place, message in enumerate(given)]


def _message(message: object, param: str) -> dict[str, Any]:
    """A message with what chat templates read of it."""
    if not isinstance(message, dict):
        raise wrong(param, "an object", message)
    role = ROLES.get(str(message.get("role")))
    if role is None:
        raise wrong(f"{param}.role", f"one of {', '.join(ROLES)}", message.get("role"))
    calls = message.get("tool_calls") or []
    content = message.get("content")
    # An answer of calls alone comes back with the null that it was sent with, and so does a tool's empty result; a chat
    # keeps an empty text there, which every template can write.
    if content is None and role in ("assistant", "tool"):
        content = (message.get("refusal") if role == "assistant" else None) or ""
    kinds = ("text", "refusal") if role == "assistant" else ("text",)
    made: dict[str, Any] = {"role": role, "content": text_of(content, f"{param}.content", kinds)}
    for name in ("audio", "function_call"):
        if message.get(name) is not None:
            raise unsupported(f"{param}.{name}", f"{param}.{name} is not supported")
    if calls:
        if role != "assistant" or not isinstance(calls, list):
            raise wrong(f"{param}.tool_calls", "a list of calls, in a message of the assistant", calls)
        made["tool_calls"] = [_call(call, f"{param}.tool_calls[{place}]") for place, call in enumerate(calls)]
    kept = {"assistant": ("reasoning_content",), "tool": ("tool_call_id", "name")}.get(role, ())
    for name in kept:
        if (value := message.get(name)) is not None:
            if not isinstance(value, str):
                raise wrong(f"{param}.{name}", "a string", value)
            made[name] = value
    return made


def text_of(content: object, param: str, kinds: Sequence[str]) -> str:
    """The text of a message, whose parts become lines. `kinds` are the types of parts that it may have."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise wrong(param, "a string or a list of parts", content)
    lines = []
    for place, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("refusal" if kind == "refusal" else "text") if kind in kinds else None
        if not isinstance(text, str):
            where = f"{param}[{place}]"
            raise unsupported(where, f"{where} is {part!r:.60}; the model reads text only")
        lines.append(text)
    return "\n".join(lines)


def _call(call: object, param: str) -> dict[str, Any]:
    own = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(own, dict) or not isinstance(own.get("name"), str):
        raise wrong(param, '{"id", "type": "function", "function": {"name", "arguments"}}', call)
    arguments = arguments_of(own.get("arguments"), f"{param}.function.arguments")
    made = {"type": "function", "function": {"name": own["name"], "arguments": arguments}}
    return made if call.get("id") is None else {"id": str(call["id"]), **made}


def arguments_of(text: object, param: str) -> object:
    """The object that templates write; clients send its text. A model's broken call stays text: the conversation goes
    on after it."""
    try:
        found = json.loads(text or "{}") if isinstance(text, str) else text
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return found
    if not isinstance(text, str):
        raise wrong(param, "the text of a JSON object", text)
    return text
