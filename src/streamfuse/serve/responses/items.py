"""Items, of which the input and the output of a response consist, and the messages that a chat template reads."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any

from streamfuse.runtime.text import ROLES
from streamfuse.serve.errors import RequestError
from streamfuse.serve.fields import unsupported, wrong
from streamfuse.serve.messages import arguments_of, text_of

Item = dict[str, Any]
_INPUT = ("input_text", "text")
_OUTPUT = ("output_text", "text", "refusal")


def new_id(prefix: str) -> str:
    """An id that nobody can guess."""
    return f"{prefix}_{secrets.token_hex(24)}"


def read_input(given: object, find: Callable[[str], Item | None]) -> list[Item]:
    """The items of the field `input`, which is text or a list of items, as they are stored. `find` has stored items by
    id, for references to them. RequestError names the item that is wrong."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise wrong("input", "text, or a list of items", given)
    return [_read(item, f"input[{place}]", find) for place, item in enumerate(given)]


def messages_of(items: Sequence[Item]) -> list[dict[str, Any]]:
    """The messages of a conversation. Thoughts and calls become part of the assistant's message that they belong to."""
    messages: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for item in items:
        match item["type"]:
            case "reasoning":
                thoughts += _thoughts(item)
                continue
            case "function_call":
                if thoughts or not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant", "content": ""})
                arguments = arguments_of(item["arguments"], "arguments")
                call = {"type": "function", "function": {"name": item["name"], "arguments": arguments}}
                messages[-1].setdefault("tool_calls", []).append({"id": item["call_id"], **call})
            case "function_call_output":
                content = text_of(item["output"], "output", _INPUT)
                messages.append({"role": "tool", "content": content, "tool_call_id": item["call_id"]})
            case _:
                kinds = _OUTPUT if item["role"] == "assistant" else _INPUT
                messages.append({"role": item["role"], "content": text_of(item["content"], "content", kinds)})
        if thoughts and messages[-1]["role"] == "assistant":
            messages[-1]["reasoning_content"] = "\n".join(thoughts)
        thoughts = []
    return messages


def _read(item: object, param: str, find: Callable[[str], Item | None]) -> Item:
    if not isinstance(item, dict):
        raise wrong(param, "an object", item)
    kind = item.get("type") or ("message" if "role" in item else "item_reference")
    match kind:
        case "message":
            return _message(item, param)
        case "function_call":
            call_id, name = _text(item, "call_id", param), _text(item, "name", param)
            arguments = _text(item, "arguments", param)
            return _item(item, "fc", {"call_id": call_id, "name": name, "arguments": arguments})
        case "function_call_output":
            output = "" if item.get("output") is None else item["output"]
            text_of(output, f"{param}.output", _INPUT)
            return _item(item, "fco", {"call_id": _text(item, "call_id", param), "output": output})
        case "reasoning":
            parts = {name: item.get(name) or [] for name in ("summary", "content")}
            if not all(isinstance(part, list) for part in parts.values()):
                raise wrong(param, 'reasoning with a "summary" and a "content", which are lists', item)
            for name, kinds in (("summary", ("summary_text",)), ("content", ("reasoning_text",))):
                text_of(parts[name], f"{param}.{name}", kinds)
            return _item(item, "rs", parts)
        case "item_reference":
            id_ = _text(item, "id", param)
            if (found := find(id_)) is None:
                message = f"{param} refers to {id_!r:.80}, which is not stored (any more); send the item itself"
                raise RequestError(404, message, f"{param}.id", "item_not_found")
            return found
    why = "only messages, function calls, their outputs, reasoning and references to items are"
    raise unsupported(f"{param}.type", f"{param} has type {kind!r:.60}, which is not supported: {why}")


def _message(item: Item, param: str) -> Item:
    role = ROLES.get(str(item.get("role")))
    if role is None or role == "tool":
        raise wrong(f"{param}.role", "one of user, assistant, system, developer", item.get("role"))
    kinds = _OUTPUT if role == "assistant" else _INPUT
    content = item.get("content")
    text_of(content, f"{param}.content", kinds)
    if isinstance(content, str):
        empty: Item = {"annotations": [], "logprobs": []} if role == "assistant" else {}
        content = [{"type": kinds[0], "text": content, **empty}]
    return _item(item, "msg", {"role": role, "content": content})


def _item(item: Item, prefix: str, fields: Item) -> Item:
    """An item as it is stored, with an id of its own if it has none."""
    kind, id_ = item.get("type") or "message", item.get("id")
    return {
        "id": id_ if isinstance(id_, str) and id_ else new_id(prefix),
        "type": kind,
        "status": "completed",
        **fields,
    }


def _thoughts(item: Item) -> list[str]:
    """The text of reasoning, which is in its content or, if a summary was asked for, there."""
    return [part["text"] for part in item["content"] or item["summary"]]


def _text(item: Item, name: str, param: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise wrong(f"{param}.{name}", "text", value)
    return value
