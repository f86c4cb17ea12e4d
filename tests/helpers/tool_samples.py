"""Tools, and chats in which they are called."""

from __future__ import annotations

from typing import Any

from streamfuse.runtime.text import Message

WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": 'Weather <now> in a city, "today\'s" too',
    "parameters": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "A city, é"},
            "days": {"type": "integer", "default": 1},
            "unit": {"type": "string", "enum": ["c", "f"]},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["city"],
    },
}
CLOCK: dict[str, Any] = {
    "name": "now",
    "description": "The time",
    "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
}
TOOLS = [{"type": "function", "function": function} for function in (WEATHER, CLOCK)]
DOCUMENTS = [{"title": "A", "text": "alpha"}, {"title": "B", "text": "beta"}]


def call(name: str, arguments: Any, number: int = 1) -> dict[str, Any]:
    return {"id": f"call{number:05}", "type": "function", "function": {"name": name, "arguments": arguments}}


def result(name: str, content: str, number: int = 1) -> Message:
    return {"role": "tool", "name": name, "tool_call_id": f"call{number:05}", "content": content}


def turn(role: str, content: str | None, **fields: Any) -> Message:
    return {"role": role, "content": content, **fields}


_ASK, _BRIEF = turn("user", "Weather?"), turn("system", "Be brief.")
_PARIS = [call("get_weather", {"city": "Paris"})]
CHATS: dict[str, list[Message]] = {
    "a question": [turn("user", "Hi é 'q' \"d\"")],
    "a system message": [_BRIEF, turn("user", "Hi")],
    "several turns": [
        _BRIEF, turn("user", "Hi"), turn("assistant", "Hello"), turn("user", "Why?"), turn("assistant", "So."),
        turn("user", "x"),
    ],
    "thoughts in the text": [
        turn("user", "Hi"), turn("assistant", "<think>\nhm\n</think>\n\nFine."), turn("user", "x"),
        turn("assistant", "[THINK]hm[/THINK]y"), turn("user", "z"),
    ],
    "thoughts in a field": [turn("user", "Hi"), turn("assistant", "Fine.", reasoning_content="hm"), turn("user", "x")],
    "a call": [
        _BRIEF, _ASK,
        turn("assistant", None, tool_calls=[
            call("get_weather", {"city": "Paris é", "days": 2, "x": 1.5, "y": None, "z": [True], "w": {"a": {}}}),
        ]),
        result("get_weather", '{"t": 20}'),
    ],
    "a call and its answer": [
        _ASK, turn("assistant", "", tool_calls=_PARIS), result("get_weather", "20"), turn("assistant", "It is 20."),
        turn("user", "ok?"),
    ],
    "two calls": [
        _ASK, turn("assistant", "Let me see.", tool_calls=[*_PARIS, call("now", {}, 2)]),
        result("get_weather", "20"), result("now", "12:00", 2),
    ],
    "arguments as text": [
        _ASK, turn("assistant", "", tool_calls=[call("get_weather", '{"city": "Paris"}')]), result("get_weather", "20"),
    ],
    "thoughts and a call": [
        _ASK, turn("assistant", "", reasoning_content="I need it.", tool_calls=_PARIS), result("get_weather", "20"),
    ],
}  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {
    "nothing else": {},
    "tools": {"tools": TOOLS},
    "no thinking": {"enable_thinking": False},
    "thinking": {"tools": TOOLS, "enable_thinking": True},
    "documents": {"documents": DOCUMENTS},
    "other variables": {
        "tools": TOOLS, "reasoning_effort": "high", "xml_tools": ["x"], "date_string": "01 Jan 2026",
        "builtin_tools": ["code_interpreter"], "thinking": True, "custom_system_prompt": "Q",
    },
}  # fmt: skip
