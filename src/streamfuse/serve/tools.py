"""The tools of a request, and which of them an answer may call.

Chat completions nest what belongs to a type in a field of its name ({"type": "function", "function": {"name": ...}});
the Responses API does not ({"type": "function", "name": ...}). `flat` says which of the two a body has.
"""

from __future__ import annotations

from typing import Any

from streamfuse.api import GenerationOptions
from streamfuse.runtime.config import CONSTRAINTS
from streamfuse.serve.errors import RequestError
from streamfuse.serve.fields import Fields, wrong

_CHOICES = ("auto", "none", "required")


def add_tools(fields: Fields, options: GenerationOptions, flat: bool = False) -> bool:
    """Add the tools of a body to the options. Returns whether the answer may have at most one call."""
    given = fields.take("tools", list, "a list of tools") or []
    tools = [_tool(tool, f"tools[{place}]", flat) for place, tool in enumerate(given)]
    choice = fields.take("tool_choice", object, "")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        choice, tools = _allowed(choice, tools, flat)
    choice = _choice(choice, flat)
    if tools:
        options["tools"] = tools
    restriction = next((name for name in CONSTRAINTS if name in options), None)
    if restriction is not None and choice in (None, "auto"):
        choice = "auto" if tools else None  # an answer that fits, or a call
    elif restriction is not None and choice != "none":
        del options[restriction]  # type: ignore[misc]  # the answer is a call
    if choice is not None:
        options["tool_choice"] = choice
    return not fields.switch("parallel_tool_calls", True)


def _own(value: object, kind: str, flat: bool) -> dict[str, Any] | None:
    """What belongs to a value of this type; None if it has another one."""
    if not isinstance(value, dict) or value.get("type") != kind:
        return None
    own = value if flat else value.get(kind)
    return own if isinstance(own, dict) else None


def _tool(tool: object, param: str, flat: bool) -> dict[str, Any]:
    own = _own(tool, "function", flat)
    if own is None:
        form = '{"type": "function", "name": ...}' if flat else '{"type": "function", "function": {...}}'
        raise wrong(param, f"a function, {form}", tool)
    function = {name: value for name, value in own.items() if value is not None and not (flat and name == "type")}
    if not isinstance(function.get("name"), str):
        raise wrong(f"{param}.name" if flat else f"{param}.function.name", "a string", function.get("name"))
    return {"type": "function", "function": function}


def _choice(choice: object, flat: bool) -> str | None:
    """A tool_choice as our option has it."""
    if choice is None or choice in _CHOICES:
        return choice
    own = _own(choice, "function", flat)
    if own is None or not isinstance(own.get("name"), str):
        form = '{"type": "function", "name": ...}' if flat else '{"type": "function", "function": {"name": ...}}'
        raise wrong("tool_choice", f"auto, none, required or {form}", choice)
    if own["name"] in _CHOICES:
        message = f"tool_choice cannot name a tool {own['name']}, which is a choice of its own; rename the tool"
        raise RequestError(400, message, "tool_choice", "invalid_value")
    return str(own["name"])


def _allowed(choice: dict[str, Any], tools: list[dict[str, Any]], flat: bool) -> tuple[str, list[dict[str, Any]]]:
    """A tool_choice among some of the tools: the choice, and these tools."""
    param, given = "tool_choice" if flat else "tool_choice.allowed_tools", _own(choice, "allowed_tools", flat)
    listed = None if given is None else given.get("tools")
    if given is None or given.get("mode") not in ("auto", "required") or not isinstance(listed, list):
        raise wrong(
            param, '{"mode": "auto" or "required", "tools": [...]}', choice if flat else choice.get("allowed_tools")
        )
    names = [_tool(tool, f"{param}.tools[{place}]", flat)["function"]["name"] for place, tool in enumerate(listed)]
    allowed = [tool for tool in tools if tool["function"]["name"] in names]
    for name in names:
        if name not in [tool["function"]["name"] for tool in allowed]:
            raise RequestError(400, f"{param} has {name!r:.60}, which is not in tools", param, "invalid_value")
    return given["mode"], allowed
