"""Function calling: questions with tools, in the form of the Berkeley Function Calling Leaderboard.

A row is {"messages", "tools", "ground_truth"}. A tool has a name, a description and `parameters`, a schema in the
leaderboard's dialect: "dict" for object, "float" for number, "tuple" for array. `ground_truth` is a list of one call,
{name: {parameter: [accepted values]}}; an accepted value "" says that the parameter may be left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from streamfuse.train.formats import DataError, Row
from streamfuse.train.readers import rows

from .questions import Constraint, Question, compact, object_of, parsed, system

_TYPES = {"dict": "object", "float": "number", "tuple": "array"}
_KEPT = ("type", "enum", "properties", "required", "items")  # others say nothing about what is valid
_IGNORED = re.compile(r"[ ,./\-_*^]")  # in a text, when it is compared with an accepted one
_SYSTEM = (
    "You answer with one function call, as JSON: "
    '{{"name": the function, "arguments": its parameters}}. The functions:\n{tools}'
)


def read_questions(source: str, split: str = "test") -> list[Question]:
    """The questions of a file of JSON lines, or of all of a folder. DataError names the row and its field."""
    folder = Path(source)
    files = sorted(map(str, folder.glob("*.jsonl"))) if folder.is_dir() else []
    return [_question(row, place) for file in files or [source] for place, row in rows(file, split)]


def call_schema(tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One call of one of the tools: {"name": ..., "arguments": {...}}."""
    calls = [
        object_of({"name": {"const": tool["name"]}, "arguments": standard_schema(tool["parameters"])}) for tool in tools
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


def standard_schema(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The leaderboard's schema in the words of JSON Schema, without annotations. Objects take no other properties."""
    schema = {key: value for key, value in parameters.items() if key in _KEPT}
    kind = schema.get("type")
    schema["type"] = _TYPES.get(kind, kind)  # type: ignore[arg-type]
    if schema["type"] in (None, "any"):
        del schema["type"]
    if "items" in schema:
        schema["items"] = standard_schema(schema["items"])
    if "properties" in schema:
        known = {name: standard_schema(value) for name, value in schema["properties"].items()}
        return object_of(known, [name for name in schema.get("required", ()) if name in known])
    return schema


def accepted(call: object, truth: Mapping[str, Mapping[str, Sequence[Any]]]) -> bool:
    """Whether a call is the one that is right: its name, no parameter that is unknown or missing, accepted values.

    As on the leaderboard, texts are compared without case, spaces and the characters ,./-_*^ and an integer equals a
    float of the same value.
    """
    ((name, arguments),) = truth.items()
    return isinstance(call, dict) and call.get("name") == name and _fits(call.get("arguments"), arguments)


def _fits(given: object, right: Mapping[str, Sequence[Any]]) -> bool:
    """An object, against the accepted values of each of its properties."""
    if not isinstance(given, dict) or given.keys() - right.keys():
        return False
    return all(
        any(_equal(given[name], value) for value in values) if name in given else "" in values
        for name, values in right.items()
    )


def _equal(given: object, right: object) -> bool:
    if isinstance(right, Mapping):
        return _fits(given, right)
    if isinstance(right, list):
        return isinstance(given, list) and len(given) == len(right) and all(map(_equal, given, right))
    if isinstance(right, str):
        return isinstance(given, str) and _plain(given) == _plain(right)
    return isinstance(given, bool) == isinstance(right, bool) and given == right


def _plain(text: str) -> str:
    return _IGNORED.sub("", text).lower().replace("'", '"')


def _question(row: Row, place: str) -> Question:
    messages, tools, truth = (row.get(name) for name in ("messages", "tools", "ground_truth"))
    if not isinstance(messages, list) or not isinstance(tools, list) or not tools:
        raise DataError(f"{place}: needs messages and tools, both lists")
    if not isinstance(truth, list) or len(truth) != 1 or not isinstance(truth[0], dict) or len(truth[0]) != 1:
        raise DataError(f"{place}: ground_truth is not a list of one call, {{name: {{parameter: [values]}}}}")
    (arguments,) = truth[0].values()
    if not isinstance(arguments, dict) or not all(isinstance(values, list) for values in arguments.values()):
        raise DataError(f"{place}: ground_truth has no list of accepted values for each parameter")
    try:
        constraint = Constraint.schema(call_schema(tools))
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{place}: a tool is not {{name, parameters}}: {error!r}") from None
    right: Any = truth[0]
    instructions = system(_SYSTEM.format(tools="\n".join(map(compact, tools))))
    return Question(
        (instructions, *messages), constraint, lambda text: {"exact_match": 100.0 * accepted(parsed(text), right)}
    )
