"""Random grammars for constraints: sound ones, ones that cost much, and ones with a fault in them."""

from __future__ import annotations

import json
import random
from typing import Any

_WORDS = ["a", "name", "Zoë", "日本", "x-y", '"', "\\", "<|im_end|>", "", "0", "$ref", "type"]
_NUMBERS = [0, 1, -1, 2, 3.5, 1e-7, 1e300, -0.0, 0.1, 100, 2**53, 2**63, 10**30, True, "1", None]
_COUNTS = [0, 1, 2, 3, 7, 100, 2.0, -1, 10_000, 1_000_000, 2**40]
_FORMATS = ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "regex", 3]
_BOMBS = ["(a{1,99}){1,99}", "((a|b)*c){50}", "(.{0,50}x){0,50}", "(a?){1000}", "[^a]{1,5000}b", "(((a*)*)*)*"]
_STATEMENTS = [
    "%ignore /[ ]+/",
    '%llguidance { "no_forcing": true }',
    '%llguidance { "allow_invalid_utf8": true }',
    "%import common.INT",
    "%declare D",
]
_OPTIONS = {
    "whitespace_flexible": [True, False], "item_separator": [", ?", ",", "("], "key_separator": [": ", ":"],
    "coerce_one_of": [True], "lenient": [True, False], "whitespace_pattern": [" ?", "( *)*", "x{1000}"],
    "json_allowed_escapes": ["n", "", "zz"], "json_allow_general_unicode_escapes": [True], "other": [1],
}  # fmt: skip


def grammar(rng: random.Random) -> tuple[str, str]:
    """The argument of Tokenizer.constraint and its text."""
    kind = rng.choice(["schema", "schema", "regex", "grammar"])
    text = {"schema": _schema_text, "regex": regex, "grammar": lark}[kind](rng)
    return kind, damaged(rng, text) if rng.random() < 0.15 else text


def damaged(rng: random.Random, text: str) -> str:
    """With some characters lost, doubled or put elsewhere."""
    letters = list(text)
    for _ in range(rng.randint(1, 4)):
        if letters:
            at = rng.randrange(len(letters))
            change = rng.randrange(3)
            if change == 0:
                del letters[at]
            elif change == 1:
                letters.insert(at, rng.choice('{}[]()"\\|*+?:,/.a0\n\0\u2028'))
            else:
                letters[at:at] = letters[at : at + rng.choice([1, 10, 100])] * rng.choice([1, 3])
    return "".join(letters)


def _schema_text(rng: random.Random) -> str:
    made: Any = rng.choice([_large, schema, schema, schema])(rng, rng.randint(1, 4))
    if isinstance(made, dict):
        if rng.random() < 0.5:
            made["$defs"] = {name: schema(rng, 2) for name in ("a", "b", "c")}
        if rng.random() < 0.2:
            name = rng.choice(list(_OPTIONS))
            made["x-guidance"] = {name: rng.choice(_OPTIONS[name])}
    return json.dumps(made, ensure_ascii=rng.random() < 0.5)


def schema(rng: random.Random, depth: int) -> Any:
    if rng.random() < 0.08:
        return rng.choice([True, False, {}])
    made: dict[str, Any] = {}
    if rng.random() < 0.7:
        made["type"] = rng.choice(["object", "object", "array", "string", "integer", "number", "boolean", "null"])
        if rng.random() < 0.1:
            made["type"] = rng.sample(["object", "array", "string", "integer", "null"], rng.randint(1, 3))
    for _ in range(rng.choice([0, 1, 1, 2, 3, 5])):
        name = rng.choice(list(_KEYWORDS if depth > 0 else _PLAIN))
        made[name] = (_KEYWORDS if depth > 0 else _PLAIN)[name](rng, depth - 1)
    return made


_PROPERTIES = {
    "kind": {"enum": ["a", "b", "ab"]},
    "size": {"type": "integer"},
    "on": {"type": "boolean"},
    "tags": {"type": "array", "items": {"enum": ["x", "y", 1]}},
}


def conditions(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    """A schema of objects whose properties depend on each other."""
    names = rng.sample(sorted(_PROPERTIES), rng.randint(1, 4))
    made: dict[str, Any] = {"properties": {name: _PROPERTIES[name] for name in names}}
    if rng.random() < 0.8:
        made["type"] = "object"
    if rng.random() < 0.7:
        made["additionalProperties"] = rng.choice([False, {"type": "null"}])
    if rng.random() < 0.4:
        made["required"] = rng.sample(names, rng.randint(1, len(names)))
    for _ in range(rng.randint(1, 3)):
        name, value = rng.choice(_CONDITIONS)(rng, names, depth)
        made[name] = value
        if name == "if":
            made |= {branch: _part(rng, names, depth - 1) for branch in rng.sample(["then", "else"], rng.randint(1, 2))}
    return made


def _part(rng: random.Random, names: list[str], depth: int) -> Any:
    """What a few of the properties may be."""
    if depth > 0 and rng.random() < 0.2:
        return conditions(rng, depth - 1)
    if rng.random() < 0.1:
        return rng.choice([True, False, {"type": "object"}, {"minProperties": 1}, {"maxProperties": 2}])
    name = rng.choice(names)
    values: dict[str, list[Any]] = {
        "kind": [{"const": "a"}, {"enum": ["a", "ab"]}, {"minLength": 2}, {"type": "string"}, {"not": {"const": "b"}}],
        "size": [{"minimum": 3}, {"maximum": 7}, {"enum": [1, 2, 10]}, {"exclusiveMinimum": 0}, {"const": 5.0}],
        "on": [{"const": True}, {"enum": [False]}],
        "tags": [
            {"minItems": 1},
            {"maxItems": 2},
            {"contains": {"const": "x"}},
            {"uniqueItems": True},
            {"items": {"type": "string"}},
            {"contains": {"type": "string"}, "minContains": 2},
            {"contains": {"type": "integer"}, "maxContains": 1},
        ],
    }
    made: dict[str, Any] = {"properties": {name: rng.choice(values[name])}}
    if rng.random() < 0.5:
        made["required"] = rng.sample(names, rng.randint(1, min(2, len(names))))
    return made


_CONDITIONS: list[Any] = [
    lambda rng, names, depth: ("not", _part(rng, names, depth - 1)),
    lambda rng, names, depth: ("if", _part(rng, names, depth - 1)),
    lambda rng, names, depth: ("oneOf", [_part(rng, names, depth - 1) for _ in range(rng.randint(2, 3))]),
    lambda rng, names, depth: ("anyOf", [_part(rng, names, depth - 1) for _ in range(2)]),
    lambda rng, names, depth: ("allOf", [{"not": _part(rng, names, depth - 1)} for _ in range(2)]),
    lambda rng, names, _: ("dependentRequired", {rng.choice(names): rng.sample(names, 1)}),
    lambda rng, names, depth: ("dependentSchemas", {rng.choice(names): _part(rng, names, depth - 1)}),
    lambda rng, *_: ("minProperties", rng.randint(1, 3)),
    lambda rng, *_: ("maxProperties", rng.randint(1, 3)),
    lambda rng, *_: (
        "propertyNames",
        rng.choice([{"enum": ["kind", "on", "new"]}, {"pattern": "^[ks]"}, {"maxLength": 4}]),
    ),
    lambda rng, *_: ("unevaluatedProperties", rng.choice([False, {"type": "null"}])),
]


def _many(rng: random.Random, depth: int) -> list[Any]:
    return [schema(rng, depth) for _ in range(rng.choice([0, 1, 2, 2, 3, 6]))]


def _named(rng: random.Random, depth: int) -> dict[str, Any]:
    return {rng.choice(_WORDS): schema(rng, depth) for _ in range(rng.choice([0, 1, 2, 3, 5]))}


def _value(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(5)
    if depth > 0 and kind == 0:
        return [_value(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    if depth > 0 and kind == 1:
        return {rng.choice(_WORDS): _value(rng, depth - 1) for _ in range(rng.randint(0, 3))}
    return rng.choice(_WORDS) if kind < 4 else rng.choice(_NUMBERS)


_PLAIN: dict[str, Any] = {
    "const": _value,
    "enum": lambda rng, depth: [_value(rng, depth) for _ in range(rng.choice([0, 1, 3, 20]))],
    "pattern": lambda rng, _: regex(rng),
    "format": lambda rng, _: rng.choice(_FORMATS),
    "$ref": lambda rng, _: rng.choice(["#", "#/$defs/a", "#/$defs/b", "#/$defs/c", "#/$defs/none", "other.json", 1]),
    "default": _value,
    "unknown": _value,
    "uniqueItems": lambda rng, _: rng.random() < 0.5,
    **{
        name: lambda rng, _: rng.choice(_NUMBERS)
        for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
    },
    **{
        name: lambda rng, _: rng.choice(_COUNTS)
        for name in ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
    },
}
_KEYWORDS: dict[str, Any] = {
    **_PLAIN,
    **{name: _many for name in ("anyOf", "allOf", "oneOf", "prefixItems")},
    **{name: _named for name in ("properties", "properties", "patternProperties")},
    **{name: schema for name in ("items", "additionalProperties", "not", "propertyNames", "additionalItems")},
    **{name: schema for name in ("if", "then", "else", "contains", "unevaluatedItems", "unevaluatedProperties")},
    **{name: lambda rng, _: rng.choice(_COUNTS) for name in ("minContains", "maxContains")},
    "dependentRequired": lambda rng, _: {rng.choice(_WORDS): rng.sample(_WORDS, rng.randint(0, 2))},
    "dependentSchemas": _named,
    "required": lambda rng, _: rng.sample(_WORDS, rng.randint(0, 3)),
    "patternProperties": lambda rng, depth: {regex(rng): schema(rng, depth) for _ in range(rng.randint(0, 4))},
}


def _large(rng: random.Random, _: int) -> Any:
    """What is large in one way."""
    n = rng.choice([30, 300, 3_000, 20_000])
    chain = {f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(n)}
    nested: Any = {"type": "string"}
    for _ in range(min(n, 120)):
        nested = rng.choice([{"type": "array", "items": nested}, {"anyOf": [nested, {"type": "null"}]}])
    options = [{"type": "object", "properties": {f"p{i}": {"const": i}}} for i in range(min(n, 40))]
    large: list[Any] = [
        {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(n)}},
        {"type": "object", "properties": {f"p{i}": {} for i in range(n)}, "required": [f"p{i}" for i in range(n)]},
        {"enum": [f"word {i}" for i in range(n)]},
        {"enum": list(range(n))},
        {"$ref": "#/$defs/d0", "$defs": {**chain, f"d{n}": {"type": "null"}}},
        nested,
        {"allOf": [{"anyOf": [options[i], options[-i]]} for i in range(min(len(options), 12))]},
        {"anyOf": options, "oneOf": options},
        {"allOf": [{"pattern": f"a{{{i},{n}}}b"} for i in range(20)]},
        {"type": "string", "minLength": n, "maxLength": n * 10},
        {"type": "array", "items": {"type": "string", "pattern": rng.choice(_BOMBS)}, "minItems": n},
        {"type": "object", "patternProperties": {f"^{'a?' * i}b{i}$": {} for i in range(min(n, 40))}},
        {"type": "integer", "minimum": -(10**15) + 7, "maximum": 10**15 - 3, "multipleOf": 7},
        {"type": "array", "prefixItems": [{"type": "string"}] * min(n, 5_000)},
        {"oneOf": [{"$ref": "#/$defs/big"}] * min(n, 500), "$defs": {"big": {"enum": list(range(2_000))}}},
    ]
    return rng.choice(large)


def regex(rng: random.Random, depth: int = 3) -> str:
    if rng.random() < 0.1:
        return rng.choice(_BOMBS)
    parts = []
    for _ in range(rng.randint(1, 4)):
        kind = rng.randrange(8)
        if kind < 3 or depth == 0:
            part = rng.choice(
                ["a", "b", "日", r"\d", r"\w", ".", r"\s", "[a-z]", "[^0-9]", r"\p{L}", r"\x41", " ", "(?=a)"]
            )
        elif kind < 5:
            part = "(?:" + regex(rng, depth - 1) + ")"
        elif kind == 5:
            part = "(" + "|".join(regex(rng, depth - 1) for _ in range(rng.randint(1, 4))) + ")"
        else:
            part = rng.choice(["abc", "(?i:abc)", "^", "$", r"\b", "(?s:.)", "[[:alpha:]&&[^b]]", r"\u{1F600}"])
        least = rng.choice([0, 1, 2, 50, 3_000])
        part += rng.choice(["", "", "", "*", "+", "?", "*?", f"{{{least}}}", f"{{{least},}}", f"{{0,{least}}}"])
        parts.append(part)
    return "".join(parts)


def lark(rng: random.Random) -> str:
    """Rules of each other, terminals, and some of llguidance's own words."""
    rules, terminals = ["start", "a", "b", "c"], ["A", "B", "C"]

    def item(depth: int) -> str:
        kind = rng.randrange(10)
        if kind < 4 or depth == 0:
            made = rng.choice(
                [
                    *rules,
                    *terminals,
                    '"x"',
                    '"yz"',
                    '"日"i',
                    '""',
                    "/[a-z]+/",
                    "/" + regex(rng, 1).replace("/", "") + "/",
                ]
            )
        elif kind < 6:
            made = "(" + choice(depth - 1) + ")"
        elif kind == 6:
            made = "[" + choice(depth - 1) + "]"
        elif kind == 7:
            made = rng.choice(["<|im_start|>", "<[1]>", "<[5-9]>", "<[*]>", '"a".."z"', "@other", "nothing"])
        elif kind == 8:
            made = "%json " + json.dumps(schema(rng, 1))
        else:
            made = rng.choice(['%regex { "substring_words": "a b c" }', "%regex {}", "/a/ & /b/", "~/a/"])
        return made + rng.choice(["", "", "", "*", "+", "?", "{3}", "{2,500}", "{,9}", "~2..3"])

    def choice(depth: int) -> str:
        return " | ".join(" ".join(item(depth) for _ in range(rng.randint(0, 3))) for _ in range(rng.randint(1, 3)))

    marks = [
        "",
        "",
        "",
        "[max_tokens=5]",
        '[stop="x"]',
        "[lazy]",
        "[capture]",
        '[suffix="y"]',
        "[temperature=0.5]",
        "[x=1]",
    ]
    lines = [f"{name}{rng.choice(marks)}: {choice(2)}" for name in rules]
    lines += [f"{name}: {rng.choice(['/' + regex(rng, 2).replace('/', '') + '/', choice(1)])}" for name in terminals]
    lines += rng.sample(_STATEMENTS, rng.choice([0, 0, 1, 2]))
    if rng.random() < 0.1:
        lines.append("deep: " + "(" * 5_000 + '"x"' + ")" * 5_000)
    rng.shuffle(lines)
    return "\n".join(lines)
