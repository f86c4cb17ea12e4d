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
_NO_TOKENS: Item = {"annotations": [], "logprobs": []}


def new_id(prefix: str) -> str:
    """An id that nobody can guess."""
    return f"{prefix}_{secrets.token_hex(24)}"


def read_input(given: object, find: Callable[[str], Item | None]) -> list[Item]:
    """The items of the field `input`, which is text or a list of items, as they are stored. `find` has stored items by
    id, for references to them. RequestError names the item that is wrong."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list):
        raise wrong("input", "a string or a list of items", given)
    return [_read(item, f"input[{place}]", find) for place, item in enumerate(given)]


def messages_of_items(items: Sequence[Item]) -> list[dict[str, Any]]:
    """The messages of a conversation. Reasoning becomes part of the assistant's message after it, and a call of the one
    before it."""
    messages: list[dict[str, Any]] = []
    reasoning: list[str] = []
    for item in items:
        last = messages[-1] if messages and messages[-1]["role"] == "assistant" and not reasoning else None
        match item["type"]:
            case "reasoning":
                reasoning += [part["text"] for part in item.get("content") or item["summary"]]
                continue
            case "function_call":
                if last is None:
                    messages.append(last := {"role": "assistant", "content": ""})
                function = {"name": item["name"], "arguments": arguments_of(item["arguments"], "arguments")}
                calls = last.setdefault("tool_calls", [])
                calls.append({"id": item["call_id"], "type": "function", "function": function})
            case "function_call_output":
                messages.append({"role": "tool", "content": item["output"], "tool_call_id": item["call_id"]})
            case _:
                text = "".join(part["text"] for part in item["content"])
                if item["role"] == "assistant" and last is not None and "tool_calls" in last and not last["content"]:
                    last["content"] = text
                else:
                    messages.append({"role": item["role"], "content": text})
        if reasoning and messages[-1]["role"] == "assistant":
            messages[-1]["reasoning_content"] = "\n".join(reasoning)
        reasoning = []
    return messages


def _read(item: object, param: str, find: Callable[[str], Item | None]) -> Item:
    """Validates an input item. Only a stored item keeps its id, so that a client cannot use that of another's item."""
    if not isinstance(item, dict):
        raise wrong(param, "an object", item)
    kind = item.get("type") or ("message" if {"role", "content"} & set(item) else "item_reference")
    id_ = item.get("id")
    stored = find(id_) if isinstance(id_, str) else None
    if kind == "item_reference":
        if stored is None:
            named = _text(item, "id", param)
            message = f"{param}: item {named!r:.80} is not stored; send the item itself"
            raise RequestError(404, message, f"{param}.id", "item_not_found")
        return stored
    fields = _fields(item, kind, param)
    prefix = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}[kind]
    return {"id": new_id(prefix) if stored is None else id_, "type": kind, "status": "completed", **fields}


def _fields(item: Item, kind: str, param: str) -> Item:
    """The fields of an item of a type, texts of several parts as one."""
    match kind:
        case "message":
            role = ROLES.get(str(item.get("role")))
            if role is None or role == "tool":
                raise wrong(f"{param}.role", "one of user, assistant, system, developer", item.get("role"))
            content = item.get("content")
            if content is None and role == "assistant":
                content = ""
            kinds = _OUTPUT if role == "assistant" else _INPUT
            part: Item = {"type": kinds[0], "text": text_of(content, f"{param}.content", kinds)}
            return {"role": role, "content": [{**part, **(_NO_TOKENS if role == "assistant" else {})}]}
        case "function_call":
            return {name: _text(item, name, param) for name in ("call_id", "name", "arguments")}
        case "function_call_output":
            output = "" if item.get("output") is None else text_of(item["output"], f"{param}.output", _INPUT)
            return {"call_id": _text(item, "call_id", param), "output": output}
        case "reasoning":
            found: Item = {"summary": []}
            for name, of in (("summary", "summary_text"), ("content", "reasoning_text")):
                parts = item.get(name) or []
                if not isinstance(parts, list):
                    raise wrong(f"{param}.{name}", "a list of parts", parts)
                if parts:
                    found[name] = [{"type": of, "text": text_of(parts, f"{param}.{name}", (of,))}]
            return found
    known = "message, function_call, function_call_output, reasoning and item_reference"
    raise unsupported(f"{param}.type", f"{param}.type {kind!r:.60} is not supported; supported types are {known}")


def _text(item: Item, name: str, param: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise wrong(f"{param}.{name}", "a string", value)
    return value
