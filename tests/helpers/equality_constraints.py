"""Schemas, regular expressions and grammars for tools/equality.py, many of which force few tokens or none."""

from __future__ import annotations

from typing import Any

from streamfuse.bench.structured import extraction, function_calling, objects, sql
from streamfuse.bench.structured.questions import Constraint, object_of

_TEXT: dict[str, Any] = {"type": "string", "maxLength": 12}
_NODE = {"$ref": "#/$defs/node"}
SCHEMAS: tuple[dict[str, Any], ...] = (
    {"const": 'quotes " and \\ backslashes,\n lines, Zürich, ☕ and 漢字'},
    {"enum": ["a", "ab", "abc", "abcd", 1, 1.5, -2, True, None, ["a"], {"a": "ab"}]},
    {"type": "array", "items": {"enum": ["north", "north-east", "north-west", "south"]}, "minItems": 2, "maxItems": 6},
    {"type": "array", "prefixItems": [{"type": "integer"}, _TEXT, {"type": "boolean"}], "items": False, "minItems": 3},
    object_of({"optional": _TEXT, "also": {"type": "null"}, "needed": {"type": "boolean"}}, required=["needed"]),
    object_of({"empty": object_of({}), "list": {"type": "array", "items": False}}),
    {"anyOf": [object_of({"kind": {"const": kind}, kind: _TEXT}) for kind in ("one", "other", "another")]},
    {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 3},
    {
        "$defs": {"node": object_of({"value": {"type": "integer"}, "next": {"anyOf": [_NODE, {"type": "null"}]}})},
        **_NODE,
    },
    {"type": "integer", "minimum": -100, "maximum": 1000},
    {"type": "number", "minimum": 0, "maximum": 1},
    object_of({"when": {"type": "string", "format": "date-time"}, "id": {"type": "string", "format": "uuid"}}),
    {
        "x-guidance": {"whitespace_flexible": True},
        **object_of({"spaced": {"type": "array", "items": _TEXT, "maxItems": 2}}),
    },
)
REGEXES = (  # without \d: the library knows digits of later Unicode versions than Python, which checks them
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}",
    r"(yes|no|maybe)( because [a-z]{3,10})?\.",
    r"#[0-9a-f]{6}(,#[0-9a-f]{6}){1,3}",
    r"[A-Z][a-z]{2,8}( [A-Z][a-z]{2,8}){0,2}",
    r"(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])(\.(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])){3}",
    r"the keeper climbed the steps( again){0,3}",
)
GRAMMARS = (
    """start: sum
sum: product (("+" | "-") product)~0..3
product: NUMBER (("*" | "/") NUMBER)~0..2
NUMBER: /[0-9]{1,4}/
""",
    """start: line~1..4
line: KEY " = " value "\\n"
value: "true" | "false" | NUMBER
KEY: /[a-z_]{2,8}/
NUMBER: /[0-9]{1,3}/
""",
    """start: "(" NAME (" " (NAME | start))~0..3 ")"
NAME: /[a-z]{1,6}/
""",
    sql.grammar("CREATE TABLE books (title VARCHAR, author VARCHAR, year INTEGER, pages INTEGER)"),
)
TOOLS = (
    {"name": "get_weather", "parameters": {"type": "dict", "properties": {"city": _TEXT, "days": {"type": "integer"}}}},
    {
        "name": "get_time",
        "parameters": {"type": "dict", "properties": {"zone": {"type": "string", "enum": ["UTC", "CET"]}}},
    },
    {"name": "stop", "parameters": {"type": "dict", "properties": {}}},
)
CONSTRAINTS: tuple[Constraint, ...] = (
    *(question.constraint for question in objects.read_questions()),
    Constraint.schema(extraction.schema()),
    Constraint.schema(function_calling.call_schema(TOOLS)),
    Constraint.schema(function_calling.call_schema(TOOLS[:1])),
    *map(Constraint.schema, SCHEMAS),
    *(Constraint("regex", regex) for regex in REGEXES),
    *(Constraint("grammar", grammar) for grammar in GRAMMARS),
)
# For the arithmetic model, whose vocabulary is 64 letters from 0 to o.
LETTER_CONSTRAINTS = tuple(
    Constraint("regex", regex)
    for regex in (
        "[0-9]{2}:[0-9]{2}:[0-9]{2}",
        "(ABBA|ABBEY|ACDC)(;(ABBA|ABBEY|ACDC)){0,5}",
        "[A-Za-o]{3,30}=[0-9]+;",
        "(@[a-f]+<[0-9]{1,3}>){2,6}",
        "(abc|abd|bcd)*",
        "[0-9A-F]{40}",
    )
)  # fmt: skip
