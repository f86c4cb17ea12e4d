"""Grammars from strangers end within a time and little memory, on a small stack.

Run: python -m pytest tests/text/test_constraints_hostile.py
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizer_samples import llama_like, opened

from streamfuse.runtime.grammar import Grammar
from streamfuse.runtime.text import GrammarError

ROOT = Path(__file__).parents[2]
CHAIN = {f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(900)}
NAMES = [f"p{i}" for i in range(8_000)]
MANY = {"type": "object", "properties": {name: True for name in NAMES[:500]}}
CONTAINING: dict[str, Any] = {"type": "string"}
ITEMS: dict[str, Any] = {"type": "string"}
for _ in range(24):
    CONTAINING = {"contains": CONTAINING, "minContains": 16}
    ITEMS = {"items": ITEMS, "contains": {"type": "string"}}
LOOP = [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]
LOOPS = {"type": "object", "properties": {name: {"oneOf": LOOP} for name in NAMES[:100]}, "required": NAMES[:100]}
HOSTILE = {
    "references to references": {"schema": {"$ref": "#/$defs/d0", "$defs": CHAIN | {"d900": {}}}},
    "many properties": {"schema": {"type": "object", "properties": {name: {} for name in NAMES}}},
    "many required properties": {
        "schema": {"type": "object", "properties": {name: True for name in NAMES}, "required": NAMES}
    },
    "many objects with many properties": {"schema": {"items": [MANY] * 20}},
    "many properties again and again": {
        "schema": {"anyOf": [{"allOf": [{"$ref": "#/$defs/a"}, {"minProperties": 0}]}] * 2_000, "$defs": {"a": MANY}}
    },
    "options like each other": {
        "schema": {"oneOf": [{"type": "object", "properties": {"a": {"const": i}}} for i in range(4_000)]}
    },
    "many options with a discriminator": {
        "schema": {
            "oneOf": [
                {"type": "object", "properties": {"a": {"const": f"a{i}"}}, "required": ["a"]} for i in range(2_500)
            ]
        }
    },
    "options that lead to each other": {
        "schema": {"oneOf": LOOP, "$defs": {"a": {**LOOPS, "anyOf": LOOP}, "b": {**LOOPS, "oneOf": LOOP}}}
    },
    "lists that contain lists": {"schema": CONTAINING},
    "lists that contain texts, in lists": {"schema": ITEMS},
    "a long list that is excluded": {"schema": {"not": {"prefixItems": [False] * 12_000}}},
    "many names that are excluded, again and again": {
        "schema": {"not": {"anyOf": [{"$ref": "#/$defs/a"}] * 200}, "$defs": {"a": {"required": NAMES}}}
    },
    "the same schema excluded again and again": {
        "schema": {"allOf": [{"not": {"$ref": "#/$defs/a"}}] * 3_000, "$defs": {"a": {"required": NAMES[:4_000]}}}
    },
    "patterns of names": {
        "schema": {"anyOf": [{"propertyNames": {"pattern": f"(.{{0,50}}x){{0,40}}{i}"}} for i in range(2_000)]}
    },
    "names with a large schema": {
        "schema": {"propertyNames": {"enum": NAMES[:500]}, "additionalProperties": {"enum": list(range(20_000))}}
    },
    "patterns and constants": {
        "schema": {
            "oneOf": [
                *({"pattern": f"(\\w{{1,60}}x){{1,40}}{i}"} for i in range(8)),
                *({"const": f"a{i}"} for i in range(30)),
            ]
        }
    },
    "large values that differ": {
        "schema": {
            "anyOf": [{"items": {"$ref": "#/$defs/a"}, "uniqueItems": True}] * 300,
            "$defs": {"a": {"enum": [str(i) * 20_000 for i in range(5)]}},
        }
    },
    "many values that differ": {
        "schema": {"anyOf": [{"items": {"enum": list(range(20_000))}, "uniqueItems": True}] * 2}
    },
    "choices of properties": {
        "schema": {"properties": {name: {"type": "integer"} for name in NAMES[:60]}, "minProperties": 1}
    },
    "lists in lists": {"schema": '{"items":' * 120 + "{}" + "}" * 120},
    "lists in lists without end": {"schema": '{"items":' * 10_000},
    "products of options": {
        "schema": {"allOf": [{"anyOf": [{"pattern": f"a{i}"}, {"pattern": "b"}]} for i in range(16)]}
    },
    "products of options that are objects": {
        "schema": {"allOf": [{"anyOf": [{"properties": {f"{a}{i}": {"const": i}}} for a in "ab"]} for i in range(11)]}
    },
    "patterns that all match": {"schema": {"allOf": [{"pattern": f"a{{{i},30}}b"} for i in range(20)]}},
    "patterns that all match, by references": {
        "schema": {
            "$ref": "#/$defs/d0",
            "$defs": {f"d{i}": {"pattern": f"a{{{i},30}}b", "$ref": f"#/$defs/d{i + 1}"} for i in range(30)}
            | {"d30": {}},
        }
    },
    "patterns that all match, by references seen before": {
        "schema": {
            "properties": {f"p{i}": {"$ref": f"#/$defs/d{i}"} for i in range(30)}
            | {"z": {"allOf": [{"$ref": f"#/$defs/d{i}"} for i in range(30)]}},
            "$defs": {f"d{i}": {"pattern": f"a{{{i},30}}b"} for i in range(30)},
        }
    },
    "patterns that all match, in a property": {
        "schema": {"allOf": [{"properties": {"p": {"pattern": f"a{{{i},30}}b"}}} for i in range(30)]}
    },
    "patterns that all match, by references to each other": {
        "schema": {
            "anyOf": [{"$ref": f"#/$defs/a{k}"} for k in range(4)]
            + [{"allOf": [{"$ref": f"#/$defs/b{k}"} for k in range(4)]}],
            "$defs": {
                name: value
                for k in range(4)
                for name, value in (
                    (
                        f"a{k}",
                        {
                            "type": "object",
                            "properties": {
                                "n": {"allOf": [{"pattern": f"a{{{7 * k + i},30}}b"} for i in range(7)]},
                                f"c{k}": {"$ref": f"#/$defs/b{k}"},
                            },
                        },
                    ),
                    (f"b{k}", {"anyOf": [{"$ref": f"#/$defs/a{k}"}, {"type": "null"}]}),
                )
            },
        }
    },
    "many properties with patterns, by references": {
        "schema": {
            "anyOf": [{"$ref": "#/$defs/d"}] * 8_000,
            "$defs": {"d": {"anyOf": [{"properties": {f"p{i}": {"pattern": "a"}}} for i in range(2_500)]}},
        }
    },
    "patterns that may overlap": {"schema": {"patternProperties": {f"(a|b)*{i}(a|b)*": {} for i in range(32)}}},
    "many remainders": {"schema": {"type": "integer", "multipleOf": 268_435_399}},
    "remainders of several": {"schema": {"type": "number", "multipleOf": 4_093, "allOf": [{"multipleOf": 65_521}]}},
    "as many remainders as are allowed": {"schema": {"type": "integer", "multipleOf": 65_521}},
    "references that are copied": {
        "schema": {"oneOf": [{"$ref": "#/$defs/a"}] * 9_000, "$defs": {"a": {"enum": list(range(3_000))}}}
    },
    "repetitions of repetitions": {"regex": "((a{1,99}b?){1,99}c?){1,99}"},
    "optional parts in a row": {"regex": "".join(f"[a-z]{{0,3}}{chr(97 + i % 26)}?" for i in range(8_000))},
    "optional lexemes in a row": {"grammar": "start: T\nT: " + "/a/? /[b-d]/? " * 9_000},
    "optional parts in a pattern": {"schema": {"pattern": "".join(f"(a{i})?" for i in range(20_000))}},
    "a long repetition": {"regex": "[ab]{1,1000000}"},
    "states that double": {"regex": "(a|b)*a(a|b){25}"},
    "brackets": {"regex": "(" * 20_000 + "a" + ")" * 20_000},
    "brackets of a grammar": {"grammar": "start: " + "(" * 20_000 + '"a"' + ")" * 20_000},
    "an ambiguous grammar": {"grammar": 'start: start start | "a" | '},
    "a grammar of itself": {"grammar": "start: a\na: start"},
}


def walk(constraint: Grammar) -> None:
    """A text of whatever comes first; a limit that it meets is one sentence."""
    for _ in range(30):
        mask = constraint.mask()
        if not mask.any():
            return
        constraint.forced(32)
        constraint.accept(int(mask.argmax()))
    constraint.rollback(30)


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_a_grammar_that_would_cost_much_is_refused_or_quick(name: str) -> None:
    given = {kind: value if isinstance(value, str) else json.dumps(value) for kind, value in HOSTILE[name].items()}
    tokenizer = opened(llama_like())
    tokenizer.constraint(regex="a")
    began, message = time.process_time(), ""
    try:
        walk(tokenizer.constraint(**given))
    except GrammarError as error:
        message = str(error)
    assert "\n" not in message
    assert "report this" not in message
    assert time.process_time() - began < 3  # most of a second where the library is optimized


OBJECTS = [{"type": "object", "properties": {"a": {"const": 1}}}, {"properties": {"b": {"const": 1}}}]
SCALARS = [{"type": "string"}, {"enum": [1, "a"]}, {"const": True}, {"$ref": "#/$defs/a"}]


@pytest.mark.parametrize(
    ("options", "count", "is_refused"),
    [
        (OBJECTS, 9, False),
        (OBJECTS, 11, True),
        ([*OBJECTS, {"type": ["array", "null"]}], 6, False),
        ([*OBJECTS, {"type": ["array", "null"]}], 7, True),
        (SCALARS, 9, False),
        ([*SCALARS, OBJECTS[0]], 9, False),
    ],
)
def test_combinations_of_options_that_can_be_objects_are_limited(
    options: list[dict[str, Any]], count: int, is_refused: bool
) -> None:
    """docs/structured.md: 1,024."""
    schema = {"allOf": [{"anyOf": options}] * count, "$defs": {"a": {"type": "integer"}}}
    tokenizer = opened(llama_like())
    if is_refused:
        with pytest.raises(GrammarError, match=r"^#: .* more than 1024 combinations of options"):
            tokenizer.constraint(schema=json.dumps(schema))
    else:
        tokenizer.constraint(schema=json.dumps(schema))


def test_an_object_of_as_many_optional_properties_as_are_named_is_written() -> None:
    """docs/structured.md: 512."""
    tokenizer = opened(llama_like())
    schemas = ({"type": "object", "properties": dict.fromkeys(NAMES[:count], True)} for count in (512, 513))
    walk(tokenizer.constraint(schema=json.dumps(next(schemas))))
    with pytest.raises(GrammarError, match="512"):
        tokenizer.constraint(schema=json.dumps(next(schemas)))


def test_a_mask_of_an_ambiguous_grammar_is_quick_or_refused() -> None:
    tokenizer = opened(llama_like())
    made = tokenizer.constraint(grammar='start: start start | "Q" | start start start')
    (token,) = tokenizer.encode_rendered("Q")
    seconds: list[float] = []

    def go_on() -> None:
        for _ in range(300):
            started = time.process_time()
            made.mask()
            made.accept(token)
            seconds.append(time.process_time() - started)

    with pytest.raises(GrammarError, match=r"limit 4000|max is 1000"):
        go_on()
    assert max(seconds) < 0.5  # a tenth of it where the library is optimized


def test_grammars_of_a_generator_are_refused_or_consistent() -> None:
    """The first of tests/fuzz/grammars.py, which also holds each call to a second and all to 256 MiB."""
    command = [sys.executable, str(ROOT / "tests/fuzz/grammars.py"), "--count", "40"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "given",
    [
        {"schema": json.dumps({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]})},
        {"schema": json.dumps({"const": "ab c" * 20_000})},
        {"regex": "(ab c){20000}"},
    ],
    ids=["endless", "constant", "regex"],
)
def test_long_forced_text_is_found_once(given: dict[str, str]) -> None:
    """Also if the model splits it into other tokens."""
    tokenizer = opened(llama_like())
    made = tokenizer.constraint(**given)
    assert len(made.forced(16)) == 16
    started = time.process_time()
    for _ in range(200):
        assert len(made.forced(16)) == 16
        byte = tokenizer.token_bytes(made.forced(1)[0])[:1]
        single = next(one for one in np.flatnonzero(made.mask()) if tokenizer.token_bytes(int(one)) == byte)
        made.accept(int(single))
    assert time.process_time() - started < 5  # a hundredth of it where the library is optimized
