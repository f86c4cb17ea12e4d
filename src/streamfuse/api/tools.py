"""Tools that a model may call: Python functions, or descriptions in JSON, and how a call is answered."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, get_type_hints

from pydantic import Field, ValidationError
from pydantic_core import to_json
from typing_extensions import NotRequired, TypedDict

from streamfuse.api.schema import adapter_of
from streamfuse.options import OptionError

_ENTRY = re.compile(r"(\w+)\s*(?:\([^)]*\))?:\s*(.*)")  # of a docstring's Args: `name (type): what it is`


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call. `parameters` is the JSON schema of its arguments, an object. Keywords of it
    that are not supported do not restrict the arguments; if the function is `strict`, they are an error."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    function: Callable[..., Any] | None = None  # None for a tool that is described in JSON
    strict: bool = False
    _adapter: Any = field(default=None, repr=False, compare=False)  # of the arguments of `function`

    def to_dict(self) -> dict[str, Any]:
        """The description that chat templates read."""
        own: dict[str, Any] = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        if self.strict:
            own["strict"] = True
        return {"type": "function", "function": own}

    def answer(self, arguments: Mapping[str, Any]) -> str:
        """Call the function. Its result as text: a string as it is, anything else as JSON. What it raises is the text
        "error: ...", for the model to read."""
        try:
            if self.function is None:
                raise ValueError(f"there is no function for the tool {self.name} here")
            result = self.function(**self._adapter.validate_python(dict(arguments)))
            text = result if isinstance(result, str) else to_json(result).decode()
            text.encode()  # half of a surrogate pair, as in a file's name that is not UTF-8, cannot be sent
            return text
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
            return f"error: {wrong}"
        except Exception as error:
            return f"error: {str(error) or type(error).__name__}"


def tools_of(values: object, flag: str = "tools") -> tuple[Tool, ...]:
    """The tools of a list of functions and JSON descriptions. OptionError names the one that is none."""
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise OptionError(f"--{flag} must be a list of functions or tool descriptions, not {values!r:.40}")
    tools = tuple(_tool(value, f"{flag}: tool {number}", flag) for number, value in enumerate(values, 1))
    names: set[str] = set()
    for tool in tools:
        if tool.name in names:
            raise OptionError(f"--{flag}: there are two tools with the name {tool.name}; give each its own")
        names.add(tool.name)
    return tools


def _tool(value: object, place: str, flag: str) -> Tool:
    if isinstance(value, Tool):
        return value
    if isinstance(value, Mapping):
        return _described(value, place)
    if not callable(value):
        raise OptionError(f"--{place} must be a function or a dict, not {value!r:.40}")
    return tool_of(value, flag)


def _described(given: Mapping[str, Any], place: str) -> Tool:
    """`{"type": "function", "function": {"name", "description", "parameters"}}`, or the inner part alone."""
    own = given.get("function", given)
    if not isinstance(own, Mapping) or not own.get("name"):
        raise OptionError(f'--{place} needs a "name", and may have a "description" and "parameters"')
    for key in own.keys() & {"name", "description", "parameters"}:
        kind, what = (Mapping, "a JSON schema") if key == "parameters" else (str, "text")
        if not isinstance(own[key], kind):
            raise OptionError(f'--{place}: its "{key}" must be {what}, not {own[key]!r:.40}')
    try:
        json.dumps(own, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError(f"--{place} is not JSON: {error}") from None
    parameters = own.get("parameters", {"type": "object", "properties": {}, "additionalProperties": False})
    return Tool(own["name"], own.get("description", ""), parameters, strict=own.get("strict") is True)


def tool_of(function: Callable[..., Any], flag: str = "tools") -> Tool:
    """A function as a tool: its name, the first paragraph of its docstring, the type hints of its parameters, and their
    descriptions from the docstring's "Args:" section. The arguments that a partial sets are left out; a callable object
    has its class's name. OptionError names the parameter that has no JSON schema."""
    inner, given = _called(function)
    name = getattr(function, "__name__", getattr(inner, "__name__", type(inner).__name__))
    call = inner if hasattr(inner, "__name__") else type(inner).__call__
    if inspect.iscoroutinefunction(call):
        raise OptionError(f"--{flag}: {name} is a coroutine; give a function that returns its result")
    text = inspect.getdoc(inner) or inspect.getdoc(call) or ""
    described = _arguments_section(text)
    try:
        hints = get_type_hints(call, include_extras=True)
    except Exception as error:  # a hint may be any expression
        step = "give a function whose type hints can be resolved at run time"
        raise OptionError(f"--{flag}: the parameters of {name} cannot be read ({error}); {step}") from None
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:  # of a builtin
        step = "wrap it in a function with type hints"
        raise OptionError(f"--{flag}: the parameters of {name} cannot be read ({error}); {step}") from None
    fields: dict[str, Any] = {}
    for parameter in signature.parameters.values():
        if parameter.name in given:
            continue
        place = f"--{flag}: the parameter {parameter.name} of {name}"
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise OptionError(f"{place} cannot be given by name; a tool's arguments have names")
        if parameter.name not in hints:
            raise OptionError(f"{place} has no type hint")
        fields[parameter.name] = _field(hints[parameter.name], parameter, described.get(parameter.name))
    adapter, parameters = adapter_of(_arguments(name, fields), flag)
    return Tool(name, _first_paragraph(text), parameters, function, _adapter=adapter)


def _called(function: Callable[..., Any]) -> tuple[Callable[..., Any], set[str]]:
    """The function that nested partials call, and the names of the arguments that they set."""
    given: set[str] = set()
    while isinstance(function, partial):
        given |= function.keywords.keys()
        function = function.func
    return function, given


def _field(hint: Any, parameter: inspect.Parameter, description: str | None) -> Any:
    described = Annotated[hint, Field(description=description)] if description else hint
    return described if parameter.default is parameter.empty else NotRequired[described]


def _arguments(name: str, fields: Mapping[str, Any]) -> Any:
    """A dictionary, because a pydantic model's own members would clash with parameters such as `copy` or `json`."""
    return TypedDict(name, dict(fields))  # type: ignore[operator]


def _first_paragraph(text: str) -> str:
    first = re.split(r"\n\s*\n", text, maxsplit=1)[0]
    return "" if re.match(r"Args:\s*(\n|$)", first) else " ".join(first.split())


def _arguments_section(text: str) -> dict[str, str]:
    """What the "Args:" section of a Google-style docstring says of each parameter."""
    lines = text.expandtabs().splitlines()
    start = next((i for i, line in enumerate(lines) if line.strip() in ("Args:", "Arguments:")), None)
    found: dict[str, str] = {}
    depth, last = 0, ""
    for line in lines[start + 1 :] if start is not None else ():
        indent = len(line) - len(line.lstrip())
        if line.strip() and indent == 0:
            break
        entry = _ENTRY.match(line.strip())
        depth = depth or indent
        if entry and indent <= depth:
            last = entry[1]
            found[last] = entry[2]
        elif last and line.strip():
            found[last] = f"{found[last]} {line.strip()}".strip()
    return found


def choice_of(value: object, tools: Sequence[Tool], flag: str = "tool-choice") -> str:
    """`auto`, `required`, `none`, or the name of a tool that must be called. OptionError for anything else."""
    names = [tool.name for tool in tools]
    if value not in ("auto", "required", "none", *names):
        listed = ", ".join(("auto", "required", "none", *names))
        raise OptionError(f"--{flag} must be one of {listed}, not {value!r:.40}")
    return str(value)
