"""Constraints of text/: what a schema, a regular expression or a Lark grammar lets a text be.

Run: python -m pytest tests/text/test_constraints.py
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tokenizer_samples import llama_like, metaspace_like, opened, qwen_like, sentencepiece_like, word_like
from tokenizers import Tokenizer as Library

from streamfuse.runtime.constraint import MAY_END, MUST_END
from streamfuse.runtime.grammar import Grammar
from streamfuse.runtime.text import GrammarError, TextError, Tokenizer
from streamfuse.runtime.text_library import TextHandle

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "kind": {"enum": ["pub", "bar"]}},
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
SUM = 'start: term ("+" term)*\nterm: NUMBER | "(" start ")"\nNUMBER: /[0-9]+/'
GRAMMARS: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {  # and texts that fit, and that do not
    "schema": (
        {"schema": PERSON},
        ['{"name":"Zoë 日本","age":-3,"kind":"bar"}', '{"name":"a\\n\\"b","age":0,"kind":"pub"}'],
        ['{"name": "a","age":1,"kind":"pub"}', '{"age":1,"name":"a","kind":"pub"}', '{"name":"a","age":1.5}', "[]"],
    ),
    "regex": ({"regex": r"[a-z]+(-\d{2,3})?"}, ["the", "in-42", "a-123"], ["", "the-4", "The", "the-1234", " the"]),
    "grammar": ({"grammar": SUM}, ["1", "1+22+3", "(1+2)+(3)"], ["", "1+", "(1", "1 + 2", "a"]),
}
KINDS: dict[str, Callable[[], Library]] = {
    "bytes": llama_like,
    "metaspace": metaspace_like,
    "unigram": sentencepiece_like,
}


@pytest.fixture(scope="module", params=sorted(KINDS))
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return opened(KINDS[request.param](), bos=1, eos=[2])


def walk(constraint: Grammar, rng: random.Random, most: int) -> list[int]:
    """Random tokens that are allowed, until the text must end."""
    taken: list[int] = []
    while len(taken) < most and constraint.state() != MAY_END | MUST_END:
        allowed = np.flatnonzero(constraint.mask())
        taken.append(int(rng.choice(allowed)))
        constraint.accept(taken[-1])
    return taken


def advance(tokenizer: Tokenizer, constraint: Grammar, text: str) -> bool:
    """Accept a text, spelt by its own tokens, one of the allowed ones after another; False where none is allowed."""
    left = text.encode()
    spelt = spelling(tokenizer)
    while left:
        tokens = [token for length in range(len(left), 0, -1) for token in spelt.get(left[:length], [])]
        allowed = constraint.allows(tokens)
        if not allowed.any():
            return False
        token = tokens[int(np.argmax(allowed))]
        constraint.accept(token)
        left = left[len(next(word for word, ids in spelt.items() if token in ids)) :]
    return True


def fits(tokenizer: Tokenizer, given: dict[str, Any], text: str) -> bool:
    """Whether the grammar accepts a text."""
    constraint = tokenizer.constraint(**given)
    return advance(tokenizer, constraint, text) and bool(constraint.state() & MAY_END)


_SPELT: dict[int, dict[bytes, list[int]]] = {}


def spelling(tokenizer: Tokenizer) -> dict[bytes, list[int]]:
    """The tokens that spell some bytes, as streams show them."""
    if id(tokenizer) not in _SPELT:
        found: dict[bytes, list[int]] = {}
        quote = tokenizer.encode_rendered("!")[-1:]
        start = tokenizer.decode(quote)
        for token in range(tokenizer.constraint(regex="a").vocab_size):
            text = tokenizer.decode([*quote, token])[len(start) :]
            if text and "\ufffd" not in text:
                found.setdefault(text.encode(), []).append(token)
        _SPELT[id(tokenizer)] = found
    return _SPELT[id(tokenizer)]


@pytest.mark.parametrize("kind", sorted(GRAMMARS))
def test_a_grammar_accepts_its_texts_and_no_other(kind: str, tokenizer: Tokenizer) -> None:
    given, fitting, others = GRAMMARS[kind]
    ascii_only = [text for text in fitting if text.isascii()]
    assert [text for text in ascii_only if not fits(tokenizer, given, text)] == []
    assert [text for text in others if fits(tokenizer, given, text)] == []


@pytest.mark.parametrize("drafts", [0, 4])
def test_a_long_text_goes_on_without_a_mask_whatever_was_drafted(drafts: int) -> None:
    tokenizer = opened(llama_like(), bos=1, eos=[2])
    rng = random.Random(0)
    words = ["the", "dog", "jumps", "over", "cat", "lazily"]
    tokens = tokenizer.encode_rendered('"' + " ".join(rng.choice(words) for _ in range(500)))
    constraint = tokenizer.constraint(schema={"type": "string", "maxLength": 4000, "pattern": "fox"})
    for place, token in enumerate(tokens):
        ahead = tokens[place : place + drafts]
        for drafted in ahead:
            constraint.accept(drafted)
        if ahead:
            constraint.rollback(len(ahead))
        assert constraint.allows([token])[0]
        constraint.accept(token)
    assert constraint.state() == 0


@pytest.mark.parametrize("kind", sorted(GRAMMARS))
def test_a_rollback_is_as_if_the_tokens_had_never_been_accepted(kind: str, tokenizer: Tokenizer) -> None:
    given = GRAMMARS[kind][0]
    rng = random.Random(kind)
    constraint = tokenizer.constraint(**given)
    tokens: list[int] = []
    for _ in range(40):
        tokens += walk(constraint, rng, rng.randint(1, 12))
        n = rng.randint(0, len(tokens))
        constraint.rollback(n)
        del tokens[len(tokens) - n :]
        again = tokenizer.constraint(**given)
        for token in tokens:
            again.accept(token)
        assert again.state() == constraint.state()
        assert again.forced(64) == constraint.forced(64)
        assert (again.mask() == constraint.mask()).all()


@pytest.mark.parametrize("kind", sorted(GRAMMARS))
def test_a_mask_has_every_token_that_is_allowed_and_no_other(kind: str, tokenizer: Tokenizer) -> None:
    """Asked one by one, and as tokens that can be accepted."""
    given = GRAMMARS[kind][0]
    rng = random.Random(kind)
    constraint = tokenizer.constraint(**given)
    everything = np.arange(constraint.vocab_size)
    for _ in range(20):
        walk(constraint, rng, 1)
        allowed = constraint.allows(everything)  # before there is a mask
        assert (constraint.mask() == allowed).all()
        for token in rng.sample(everything.tolist(), 5):
            if allowed[token]:
                constraint.accept(token)
                constraint.rollback(1)
            else:
                with pytest.raises((GrammarError, TextError)):
                    constraint.accept(token)
        assert (constraint.mask() == allowed).all()


def test_forced_tokens_are_those_of_the_tokenizer(tokenizer: Tokenizer) -> None:
    constraint = tokenizer.constraint(schema=PERSON)
    forced = constraint.forced(64)
    assert tokenizer.decode(forced).strip() == '{"name":"'[: len(tokenizer.decode(forced).strip())]
    assert forced
    for token in forced:
        assert constraint.allows([token]).all()
        constraint.accept(token)
    assert constraint.forced(0) == []
    assert len(tokenizer.constraint(regex="abcdefgh").forced(2)) == 2


def test_states_with_the_same_few_next_bytes_share_a_key(tokenizer: Tokenizer) -> None:
    number = {"type": "integer", "minimum": 0, "maximum": 999}
    schema = {"type": "object", "properties": dict.fromkeys("abc", number), "required": list("abc")}

    def key_after(text: str) -> int:
        constraint = tokenizer.constraint(schema={**schema, "additionalProperties": False})
        assert advance(tokenizer, constraint, text)
        return constraint.choice_key()

    before, inside, last = key_after('{"a":'), key_after('{"a":1'), key_after('{"a":12,"b":34,"c":5')
    assert len({0, before, inside, last}) == 4, "the last number is followed by a brace"
    assert (key_after('{"a":12,"b":'), key_after('{"a":12,"b":3')) == (before, inside)
    assert tokenizer.constraint(regex=".*").choice_key() == 0, "in free text almost anything can follow"


def test_control_and_end_tokens_are_never_allowed() -> None:
    for library in (llama_like(), qwen_like(), metaspace_like()):
        tokenizer = opened(library, bos=1, eos=[2])
        words = library.get_added_tokens_decoder()
        constraint = tokenizer.constraint(regex="(?s:.*)")
        allowed = constraint.mask()
        for token, word in words.items():
            if word.content.startswith("<"):
                assert not allowed[token], word
                assert not constraint.allows([token]).any()
        assert not allowed[2]
        with pytest.raises(TextError, match="end tokens"):
            constraint.accept(2)


def test_a_negation_reaches_no_control_token() -> None:
    """Neither in masks nor for single tokens, which drafts are."""
    tokenizer = opened(llama_like(), eos=[2])
    constraint = tokenizer.constraint(grammar="start: A\nA: ~/a/")
    constraint.accept(tokenizer.encode_rendered("b", continues=True)[0])
    allowed = constraint.allows(np.arange(constraint.vocab_size))  # before there is a mask
    assert (allowed == constraint.mask()).all()
    assert not allowed[[0, 1]].any()


def test_a_text_that_spells_a_control_token_is_text() -> None:
    tokenizer = opened(llama_like())
    assert fits(tokenizer, {"regex": r"<\|im_end\|>"}, "<|im_end|>")
    forced = tokenizer.constraint(regex=r"<\|im_end\|>").forced(64)
    assert all(token > 2 for token in forced)


def test_a_grammar_may_name_a_control_token() -> None:
    library = llama_like()
    tokenizer = opened(library)
    start, end = (library.token_to_id(word) for word in ("<|im_start|>", "<|im_end|>"))
    constraint = tokenizer.constraint(grammar='start: "abcd" <|im_start|> "efgh" <|im_end|>?')
    forced = constraint.forced(64)
    assert start in forced
    assert tokenizer.decode(forced) == "abcdefgh"
    for token in forced:
        constraint.accept(token)
    assert constraint.state() == MAY_END
    assert np.flatnonzero(constraint.mask()).tolist() == [end]
    constraint.accept(end)
    assert constraint.state() == MAY_END | MUST_END
    constraint.rollback(len(forced) + 1)
    assert constraint.forced(64) == forced
    assert constraint.mask()[forced[0]]


@pytest.mark.parametrize("given", [{"regex": ""}, {"grammar": 'start: ""'}])
def test_a_text_that_can_only_be_empty_must_end_at_once(tokenizer: Tokenizer, given: dict[str, str]) -> None:
    constraint = tokenizer.constraint(**given)
    assert constraint.state() == MAY_END | MUST_END
    assert not constraint.mask().any()
    assert constraint.forced(8) == []


def test_options_with_a_constant_property_may_be_alternatives() -> None:
    """As pydantic writes a union with a discriminator."""
    kinds = {name: {"type": "object", "properties": {"kind": {"const": name}}, "required": ["kind"]} for name in "ab"}
    schema = {"oneOf": [{"$ref": f"#/$defs/{name}"} for name in kinds], "$defs": kinds}
    tokenizer = opened(llama_like())
    assert fits(tokenizer, {"schema": schema}, '{"kind":"b"}')
    assert not fits(tokenizer, {"schema": schema}, '{"kind":"c"}')


def tagged(kind: str, **properties: Any) -> dict[str, Any]:
    """An object whose property `kind` has this value."""
    properties = {"kind": {"const": kind, "type": "string"}, **properties}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def union(*names: str) -> dict[str, Any]:
    return {"oneOf": [{"$ref": f"#/$defs/{name}"} for name in names]}


# pydantic writes the property that tells options apart.
DISCRIMINATORS = pytest.mark.parametrize("beside", [{}, {"discriminator": {"propertyName": "kind", "mapping": {}}}])


@DISCRIMINATORS
def test_options_may_have_options_inside(beside: dict[str, Any]) -> None:
    content = {"type": "array", "items": {**beside, **union("Text", "Tool")}}
    schema = {
        **beside,
        **union("User", "Assistant"),
        "$defs": {
            "User": tagged("user", content={"type": "string"}),
            "Assistant": tagged("assistant", content=content),
            "Text": tagged("text", text={"type": "string"}),
            "Tool": tagged("tool", id={"type": "integer"}),
        },
    }
    tokenizer = opened(llama_like())
    parts = '[{"kind":"text","text":"a"},{"kind":"tool","id":1}]'
    assert fits(tokenizer, {"schema": schema}, '{"kind":"user","content":"a"}')
    assert fits(tokenizer, {"schema": schema}, f'{{"kind":"assistant","content":{parts}}}')
    assert not fits(tokenizer, {"schema": schema}, f'{{"kind":"user","content":{parts}}}')
    assert not fits(tokenizer, {"schema": schema}, '{"kind":"assistant","content":[{"kind":"text","id":1}]}')


@DISCRIMINATORS
def test_options_may_be_recursive(beside: dict[str, Any]) -> None:
    term = {**beside, **union("Number", "Sum")}
    defs = {
        "Number": tagged("number", value={"type": "integer"}),
        "Sum": tagged("sum", left=term, right=term),
    }
    tokenizer, given = opened(llama_like()), {"schema": {**term, "$defs": defs}}
    one = '{"kind":"number","value":1}'
    two = f'{{"kind":"sum","left":{one},"right":{one}}}'
    for text in (one, two, f'{{"kind":"sum","left":{two},"right":{one}}}'):
        assert fits(tokenizer, given, text)
        assert not fits(tokenizer, given, text.replace('"value":1', '"left":1'))


TAGGED = {"a": tagged("a"), "b": tagged("b"), "either": union("a", "b")}


@pytest.mark.parametrize(
    ("options", "fitting", "others"),
    [
        ([{"$ref": "#/$defs/a", "description": "A."}, {"$ref": "#/$defs/b"}], ['{"kind":"b"}'], ['{"kind":"c"}']),
        ([{"$ref": "#/$defs/either"}, {"type": "null"}], ["null", '{"kind":"b"}'], ["1"]),
        ([tagged("x", one={"oneOf": [TAGGED["a"], {"type": "null"}]}), {"type": "null"}],
         ["null", '{"kind":"x","one":null}', '{"kind":"x","one":{"kind":"a"}}'], ['{"kind":"x","one":{"kind":"b"}}']),
        ([{"const": 1}, {"const": 2}, {"enum": ["a", None]}], ["1", "2", "null"], ["3"]),
        ([{"allOf": [{"$ref": "#/$defs/a"}]}, {"allOf": [{"$ref": "#/$defs/b"}]}], ['{"kind":"a"}'], ["{}"]),
    ],
)  # fmt: skip
def test_options_that_exclude_each_other_may_be_alternatives(
    options: list[Any], fitting: list[str], others: list[str]
) -> None:
    tokenizer, given = opened(llama_like()), {"schema": {"oneOf": options, "$defs": TAGGED}}
    assert [text for text in fitting if not fits(tokenizer, given, text)] == []
    assert [text for text in others if fits(tokenizer, given, text)] == []


@pytest.mark.parametrize("options", [[{"const": 1}, {"const": 1.0}], [True, {}]])
def test_options_of_which_none_can_fit_alone_are_refused_where_they_are(options: list[Any]) -> None:
    inner = {"type": "object", "properties": {"x": union("a", "b"), "y": {"oneOf": options}}, "required": ["y"]}
    with pytest.raises(GrammarError, match=r"^#/items.*: .*nsatisfiable"):
        opened(llama_like()).constraint(schema={"type": "array", "items": inner, "minItems": 1, "$defs": TAGGED})


@pytest.mark.parametrize(
    "options",
    [
        [{"pattern": "^a"}, {"pattern": "b$"}],
        [{"type": "integer"}, {"type": "number"}],  # no schema has only the numbers with a fraction
        [{"$ref": "#"}, {"type": "null"}],
        [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}],
    ],
)
def test_options_that_cannot_be_told_apart_are_refused_where_they_are(options: list[Any]) -> None:
    inner = {"type": "object", "properties": {"x": union("a", "b"), "y": {"oneOf": options}}}
    with pytest.raises(GrammarError, match=r"^#/items/properties/y/oneOf: two options may accept the same value"):
        opened(llama_like()).constraint(schema={"items": inner, "$defs": TAGGED})


CLOSED = {"type": "object", "properties": {name: {"type": "integer"} for name in "abc"}, "additionalProperties": False}
KIND = {"type": "object", "properties": {"kind": {"enum": ["a", "ab", "c"]}, "n": {"type": "integer"}},
        "additionalProperties": False}  # fmt: skip
LIST = {"type": "array", "items": {"enum": ["x", "y", 1]}}


@pytest.mark.parametrize(
    ("schema", "fitting", "others"),
    [
        ({**CLOSED, "not": {"required": ["a", "b"]}}, ["{}", '{"a":1}', '{"b":1,"c":2}'], ['{"a":1,"b":1}']),
        ({**KIND, "not": {"properties": {"kind": {"const": "a"}}}}, ['{"kind":"ab"}'], ["{}", '{"kind":"a"}']),
        ({"type": "string", "not": {"enum": ["a", "ab"]}}, ['""', '"b"', '"abc"', '"ba"', '"ac"'], ['"a"', '"ab"']),
        ({"type": "integer", "not": {"enum": [0, 2]}}, ["1", "-1", "3"], ["0", "2"]),
        ({"not": {"type": ["object", "array"]}}, ["1", '"a"', "null"], ["{}", "[]"]),
        ({"type": "boolean", "not": {"const": True}}, ["false"], ["true"]),
        ({"type": "string", "not": {"minLength": 3}}, ['"ab"'], ['"abc"']),
        ({**CLOSED, "oneOf": [{"required": ["a"]}, {"required": ["b", "c"]}]},
         ['{"a":1}', '{"a":1,"b":1}', '{"b":1,"c":1}'], ["{}", '{"b":1}', '{"a":1,"b":1,"c":1}']),
        ({"oneOf": [{"maximum": 2, "type": "integer"}, {"maximum": 5, "type": "integer"}]}, ["3", "5"], ["2", "6"]),
        ({"oneOf": [{"type": "string", "pattern": "^[0-9]{3}$"}, {"enum": [""]}]}, ['""', '"123"'], ['"12"']),
        ({"oneOf": [{**CLOSED, "required": ["a"]}, {**KIND, "required": ["n"]}]}, ['{"a":1}', '{"n":1}'], ["{}"]),
        ({**KIND, "if": {"properties": {"kind": {"const": "a"}}}, "then": {"required": ["n"]}},
         ['{"n":1}', '{"kind":"a","n":1}', '{"kind":"ab"}'], ["{}", '{"kind":"a"}']),
        ({**KIND, "if": {"required": ["kind"]}, "else": {"required": ["n"]}}, ['{"kind":"a"}', '{"n":1}'], ["{}"]),
        ({**CLOSED, "dependentRequired": {"a": ["b"], "b": ["c"]}},
         ["{}", '{"c":1}', '{"b":1,"c":1}', '{"a":1,"b":1,"c":1}'], ['{"a":1}', '{"a":1,"b":1}', '{"b":1}']),
        ({**CLOSED, "dependencies": {"a": {"required": ["c"]}, "b": ["c"]}}, ["{}", '{"a":1,"c":1}'], ['{"a":1}']),
        ({**CLOSED, "required": ["a"], "dependentSchemas": {"a": {"properties": {"b": {"minimum": 5}}}}},
         ['{"a":1}', '{"a":1,"b":5}'], ['{"a":1,"b":4}']),
        ({**CLOSED, "minProperties": 2}, ['{"a":1,"c":1}', '{"a":1,"b":1,"c":1}'], ["{}", '{"b":1}']),
        ({**CLOSED, "maxProperties": 1}, ["{}", '{"c":1}'], ['{"a":1,"c":1}']),
        ({**CLOSED, "required": ["a", "a"], "minProperties": 2}, ['{"a":1,"b":1}'], ['{"a":1}']),
        ({"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "integer"}},
         ["{}", '{"a":1,"b":2}'], ['{"c":1}', '{"a":null}']),
        ({"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}, "properties": {"a": {}, "B": {}}},
         ['{"a":1}', '{"zz":1}'], ['{"B":1}', '{"z1":1}']),
        ({**LIST, "contains": {"type": "string"}}, ['["x"]', '["y",1,"x"]'], ["[]", "[1]"]),
        ({**LIST, "contains": {"const": 1}, "minContains": 2, "maxContains": 2}, ['[1,1,"x"]'], ["[1]", "[1,1,1]"]),
        ({**LIST, "uniqueItems": True}, ["[]", '["y","x"]', '["x","y",1]'], ['["x","x"]', "[1,1]"]),
        ({"type": "array", "items": {"enum": list("abcdefgh")}, "uniqueItems": True}, ['["a","c","h"]'], ['["a","a"]']),
        ({**CLOSED, "additionalProperties": True, "unevaluatedProperties": False}, ['{"z":1}'], []),
        ({"properties": {"a": {}}, "unevaluatedProperties": False, "type": "object"}, ['{"a":1}'], ['{"b":1}']),
        ({"prefixItems": [{}], "unevaluatedItems": {"type": "null"}, "type": "array"}, ["[1,null]"], ["[1,1]"]),
        ({"type": "string", "format": "json-pointer"}, ['"/a/b~0"', '""'], ['"a"', '"/~2"']),
        ({"type": "string", "format": "uri-reference"}, ['"../a?b#c"', '"http://a/b"'], ['"a b"', '"http://[a]"']),
        ({"type": "integer", "minimum": 1, "maximum": 2**63 - 1}, ["1", str(2**53)], ["0", str(2**64)]),
        ({"required": ["a"], "dependentSchemas": {"a": {"type": "object"}}, "maximum": 5},
         ["1", '"a"', '{"a":1}'], ["6"]),
        ({"properties": {"a": {"$id": "b", "type": "null"}}, "type": "object", "required": ["a"]}, ['{"a":null}'],
         ['{"a":1}']),
    ],
)  # fmt: skip
def test_keywords_that_the_compiler_lacks(schema: dict[str, Any], fitting: list[str], others: list[str]) -> None:
    """In a place of its own, and where a reference leads."""
    tokenizer = opened(llama_like())
    for given in (schema, {"$ref": "#/$defs/it", "$defs": {"it": schema}}):
        assert [text for text in fitting if not fits(tokenizer, {"schema": given}, text)] == []
        assert [text for text in others if fits(tokenizer, {"schema": given}, text)] == []


@pytest.mark.parametrize(
    ("schema", "fitting", "others"),
    [
        ({"exclusiveMinimum": 0, "maximum": 0.5}, ["0.1", "0.5"], ["0", "-0", "0.0", "0.6"]),
        ({"exclusiveMinimum": 5, "maximum": 5.5}, ["5.1", "5.5"], ["5", "5.0", "5.6"]),
        ({"minimum": -5.5, "exclusiveMaximum": -5}, ["-5.1", "-5.5"], ["-5", "-5.0", "-5.6"]),
        ({"minimum": -0.5, "exclusiveMaximum": 0}, ["-0.1", "-0.5"], ["0", "-0"]),
        ({"exclusiveMinimum": 0, "minimum": 0.25, "exclusiveMaximum": 0.5}, ["0.25", "0.4"], ["0.2", "0.5"]),
        ({"allOf": [{"exclusiveMinimum": 0}, {"maximum": 0.5}]}, ["0.1"], ["0"]),
        ({"exclusiveMinimum": 0}, ["1", "0.001", "12.5"], ["0", "-1"]),
        ({"minimum": 0, "exclusiveMaximum": 1}, ["0", "0.9"], ["1", "1.0"]),
        ({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 3}, ["1", "2"], ["0", "3"]),
        ({"type": ["integer", "null"], "exclusiveMinimum": 0, "exclusiveMaximum": 3}, ["1", "2", "null"], ["0", "3"]),
    ],
)
def test_an_exclusive_bound_is_not_reached(schema: dict[str, Any], fitting: list[str], others: list[str]) -> None:
    tokenizer, given = opened(llama_like()), {"schema": {"type": "number", **schema}}
    assert [text for text in fitting if not fits(tokenizer, given, text)] == []
    assert [text for text in others if fits(tokenizer, given, text)] == []


NINES = "9" * 18
ANY_NUMBERS = (["0", "-0.5", "6.02e23", "1E-300", f"-{NINES}.123456789012345"], ["1" * 19, "0." + "3" * 16, "1e1000"])
INTEGERS = (["0", "-7", f"{NINES}", f"-{NINES}"], ["9" * 19, "1" * 20, "-" + "1" * 20])
BOUNDED_NUMBERS = (["0", "0.5", "0.3333333333"], ["0.33333333333", "0.5e0"])


@pytest.mark.parametrize(
    ("schema", "digits"),
    [
        ({"type": "number"}, ANY_NUMBERS),
        ({"type": ["number", "null"]}, ANY_NUMBERS),
        ({"anyOf": [{"type": "null"}, {"type": "number"}, {"type": "boolean"}]}, ANY_NUMBERS),
        ({}, ANY_NUMBERS),
        (
            {"anyOf": [{"type": "integer"}, {"type": "number"}, {"const": "x"}, {"type": "string"}]},
            (ANY_NUMBERS[0], ["9" * 19, "0." + "3" * 16]),
        ),
        ({"type": ["integer", "number"]}, ANY_NUMBERS),
        ({"type": "integer"}, INTEGERS),
        ({"type": ["integer", "string"]}, INTEGERS),
        ({"type": "integer", "minimum": -(10**18)}, INTEGERS),
        ({"type": "integer", "multipleOf": 1}, INTEGERS),
        ({"type": "number", "minimum": 0, "maximum": 1}, BOUNDED_NUMBERS),
        ({"type": "number", "minimum": 0}, (BOUNDED_NUMBERS[0] + [NINES], [*BOUNDED_NUMBERS[1], "1" * 20])),
        ({"exclusiveMaximum": 1}, (BOUNDED_NUMBERS[0] + ["-" + NINES], [*BOUNDED_NUMBERS[1], "-" + "1" * 20])),
        ({"type": "number", "minimum": 0, "maximum": 1e-7}, (["0", "0.00000000001"], ["1"])),
        ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, (["3", NINES], ["2", "3.0", "1" * 20])),
        ({"allOf": [{"minimum": 0}, {"multipleOf": 0.25}], "type": "number"}, (["0.25", "7.50"], ["0.3", "1" * 20])),
        ({"type": "number", "multipleOf": 0.5}, (["-0.5", NINES], ["0.3", "1" * 20, "0.500"])),
        ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, INTEGERS),
        ({"type": "number", "minimum": -3.4e38, "maximum": 3.4e38}, (BOUNDED_NUMBERS[0] + [NINES], BOUNDED_NUMBERS[1])),
        ({"type": "integer", "multipleOf": 86400}, (["0", "172800"], ["1"])),
        ({"allOf": [{"enum": [0.12345678901234]}, {"minimum": 0}]}, (["0.12345678901234"], ["0.1"])),
        ({"type": "number", "allOf": [{"minimum": 1e-12}, {"maximum": 5e-12}]}, (["0.000000000002"], ["0.1"])),
    ],
    ids=lambda given: json.dumps(given) if isinstance(given, dict) else "",
)
def test_digits_have_an_end(schema: dict[str, Any], digits: tuple[list[str], list[str]]) -> None:
    """A small model may repeat digits until its token limit."""
    tokenizer = opened(llama_like())
    inside = {"type": "object", "properties": {"a": {"type": "array", "items": schema}}, "required": ["a"]}
    for own, before, after in ((schema, "", ""), (inside, '{"a":[', "]}")):
        for given in ({"schema": own}, {"grammar": f"start: %json {json.dumps(own)}"}):
            assert [text for text in digits[0] if not fits(tokenizer, given, before + text + after)] == []
            assert [text for text in digits[1] if fits(tokenizer, given, before + text + after)] == []


def test_a_grammar_without_a_schema_has_its_own_digits() -> None:
    number = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?"
    for given in ({"regex": number}, {"grammar": f"start: /{number}/"}):
        assert fits(opened(llama_like()), given, "1" * 40)


@pytest.mark.parametrize(
    ("schema", "fitting", "others"),
    [
        ({"multipleOf": 200_000_000}, ["0", "600000000", "-200000000"], ["200000001", "300000000"]),
        ({"multipleOf": 0.01}, ["1.25", "3"], ["1.255"]),
        ({"multipleOf": 1e-8}, ["0.00000001", "1"], []),
        ({"multipleOf": 4, "allOf": [{"multipleOf": 0.6}]}, ["12", "-24"], ["4", "6"]),
        ({"multipleOf": 9_000, "allOf": [{"multipleOf": 10_000}]}, ["90000"], ["9000", "10000", "45000"]),
    ],
)
def test_multiple_of_accepts_multiples_alone(schema: dict[str, Any], fitting: list[str], others: list[str]) -> None:
    tokenizer, given = opened(llama_like()), {"schema": {"type": "number", **schema}}
    assert [text for text in fitting if not fits(tokenizer, given, text)] == []
    assert [text for text in others if fits(tokenizer, given, text)] == []


@pytest.mark.parametrize("named", ["properties", "patternProperties"])
def test_an_additional_property_does_not_spell_a_name_in_another_way(named: str) -> None:
    schema = {"type": "object", named: {"age": {"type": "integer"}}, "required": ["age"]}
    tokenizer = opened(llama_like())
    assert fits(tokenizer, {"schema": schema}, '{"age":3,"b":"\\n"}')
    assert not fits(tokenizer, {"schema": schema}, '{"age":3,"\\u0061ge":"x"}')


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": "string"}}, "additionalProperties": False},
        {"additionalProperties": {"type": "string"}},
        {"properties": {"a": {"const": "\x1f"}}, "additionalProperties": False},
    ],
)
def test_control_characters_are_written_where_no_name_is_in_doubt(schema: dict[str, Any]) -> None:
    assert fits(opened(llama_like()), {"schema": {"type": "object", **schema}}, '{"a":"\\u001f"}')


def test_a_constant_with_control_characters_beside_other_names_is_refused() -> None:
    """With `\\u`, which it needs, a name could be spelled in another way."""
    with pytest.raises(GrammarError, match=r"^#: a constant has control characters"):
        opened(llama_like()).constraint(schema={"properties": {"a": {"const": "\x1f"}}})
    schema = {"properties": {"ab": {}}, "not": {"enum": ["\x01", "a"]}}
    assert not fits(opened(llama_like()), {"schema": schema}, '"a"')


KEYS = {"type": "object", "patternProperties": {"^x_": {"type": "string"}}}


@pytest.mark.parametrize(
    ("schema", "fitting", "others"),
    [
        (KEYS | {"anyOf": [{"required": ["x_a"]}, {"required": ["x_b"]}], "additionalProperties": False},
         ['{"x_a":"1"}', '{"x_b":"1","x_c":"2"}'], ["{}", '{"x_a":1}', '{"x_a":"1","y":"1"}']),
        (KEYS | {"allOf": [{"minProperties": 1}], "additionalProperties": False}, ['{"x_a":"1"}'], ["{}", '{"y":"1"}']),
        (KEYS | {"allOf": [{"minProperties": 1}], "additionalProperties": {"type": "null"}},
         ['{"x_a":"1"}', '{"y":null}'], ["{}", '{"y":"1"}', '{"x_a":null}']),
        ({"type": "array", "items": [{"type": "integer"}], "allOf": [{"minItems": 1}], "additionalItems": False},
         ["[1]"], ["[]", "[1,2]"]),
    ],
)  # fmt: skip
def test_a_keyword_that_depends_on_another_may_stand_anywhere(
    schema: dict[str, Any], fitting: list[str], others: list[str]
) -> None:
    tokenizer, given = opened(llama_like()), {"schema": schema}
    assert [text for text in fitting if not fits(tokenizer, given, text)] == []
    assert [text for text in others if fits(tokenizer, given, text)] == []


def test_one_unnamed_property_may_be_required() -> None:
    schema = {"type": "object", "properties": {"a": {}}, "required": ["a"], "minProperties": 2}
    tokenizer = opened(llama_like())
    assert fits(tokenizer, {"schema": schema}, '{"a":1,"b":1}')
    assert not fits(tokenizer, {"schema": schema}, '{"a":1}')


@pytest.mark.parametrize(
    "nothing",
    [
        {"propertyNames": {"type": "string"}},  # as Zod writes records
        {"propertyNames": {}},
        {"propertyNames": True},
        {"unevaluatedProperties": {}},
        {"unevaluatedItems": {}},
        {"uniqueItems": False},
        {"minContains": 2},
    ],
)
def test_a_keyword_that_has_no_effect_is_accepted(nothing: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "object", **nothing}}, "required": ["a"]}
    assert fits(opened(llama_like()), {"schema": schema}, '{"a":{"b":[1,1]}}')


@pytest.mark.parametrize("kind", ["integer", ["integer", "null"]])
def test_the_format_of_a_number_only_annotates(kind: str | list[str]) -> None:
    assert fits(opened(llama_like()), {"schema": {"type": kind, "format": "int32"}}, "5")


def test_a_format_that_is_not_known_only_annotates() -> None:
    assert fits(opened(llama_like()), {"schema": {"type": "string", "format": "phone"}}, '"any"')


def test_a_schema_that_a_reference_leads_to_is_read_alike_anywhere() -> None:
    """In OpenAPI's components too."""
    day = {"type": "string", "format": "date", "uniqueItems": False}
    schema = {"$ref": "#/components/schemas/Day", "components": {"schemas": {"Day": day}}}
    tokenizer = opened(llama_like())
    assert fits(tokenizer, {"schema": schema}, '"2024-02-29"')
    assert not fits(tokenizer, {"schema": schema}, '"2023-02-29"')


def test_white_space_is_the_schema_s_choice() -> None:
    tokenizer = opened(llama_like())
    for options, text in (
        ({}, '{"a":[1,2]}'),
        ({"whitespace_flexible": True}, '{ "a" : [1,\n2]}'),
        ({"item_separator": ", ", "key_separator": ": "}, '{"a": [1, 2]}'),
    ):
        schema = {"properties": {"a": {"type": "array"}}, "type": "object", "x-guidance": options}
        assert fits(tokenizer, {"schema": schema}, text)
        assert not fits(tokenizer, {"schema": schema | {"x-guidance": {}}}, text) or not options


def test_a_schema_in_a_grammar_is_compact_and_one_in_a_text_is_text() -> None:
    tokenizer = opened(llama_like())
    given = {"grammar": 'start: "%json {}" %json {"type": "array", "items": {"type": "integer"}} // %json {"not": {}}'}
    assert fits(tokenizer, given, "%json {}[1,2]")
    assert not fits(tokenizer, given, "%json {}[1, 2]")
    given = {"grammar": 'start: %json {"type": "array", "x-guidance": {"item_separator": ", "}}'}
    assert fits(tokenizer, given, "[1, 2]")


def test_added_words_are_text() -> None:
    library = qwen_like()
    tokenizer = opened(library)
    covid = library.token_to_id("covid")
    assert tokenizer.constraint(regex="covid").allows([covid]).all()


def test_a_model_with_more_logits_than_tokens_or_fewer_has_masks_of_its_own_size(tmp_path: Any) -> None:
    library = llama_like()
    library.save(str(tmp_path / "tokenizer.json"))
    size = library.get_vocab_size()
    for vocab_size in (size + 40, size - 40):
        tokenizer = Tokenizer(tmp_path / "tokenizer.json", vocab_size=vocab_size)
        constraint = tokenizer.constraint(regex=".*")
        mask = constraint.mask()
        assert len(mask) == vocab_size
        assert not mask[size:].any()
        assert not constraint.allows([vocab_size, size + 40, -1, 2**40]).any()


def test_other_threads_use_a_tokenizer_while_it_compiles(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    compiling, call = [], TextHandle.call

    def watched(handle: TextHandle, function: str, *arguments: Any) -> int:
        compiling.append(handle)
        return call(handle, function, *arguments)

    monkeypatch.setattr(TextHandle, "call", watched)
    tokenizer.constraint(regex="a")
    tokenizer.constraint(regex="a")
    assert len({id(handle) for handle in compiling}) == 2  # threads take turns with a handle


def test_a_vocabulary_that_needs_gigabytes_is_refused(tmp_path: Any) -> None:
    most, path = 1 << 22, tmp_path / "tokenizer.json"
    llama_like().save(str(path))
    with pytest.raises(TextError, match=f"the model has {most + 1} tokens; constraints support at most {most}"):
        Tokenizer(path, vocab_size=most + 1).constraint(regex="a")
    fields = json.loads(path.read_text())
    fields["model"]["vocab"]["a lone token"] = 4_000_000_000
    path.write_text(json.dumps(fields))
    with pytest.raises(TextError, match=f"the tokenizer has 4000000001 tokens; constraints support at most {most}"):
        Tokenizer(path, vocab_size=600).constraint(regex="a")


def test_a_tokenizer_of_parts_of_words_is_refused() -> None:
    with pytest.raises(TextError, match="constraints need a tokenizer whose tokens are texts"):
        opened(word_like()).constraint(regex="a")


def test_a_constraint_that_was_given_away_is_used_no_more(tokenizer: Tokenizer) -> None:
    constraint = tokenizer.constraint(regex="a")
    table = constraint.constraint_table()
    with pytest.raises(ValueError, match="closed"):
        constraint.mask()
    with pytest.raises(ValueError, match="closed"):
        constraint.constraint_table()
    constraint.close()
    table.release(table.context)


def test_a_token_that_does_not_fit_is_refused_and_changes_nothing(tokenizer: Tokenizer) -> None:
    constraint = tokenizer.constraint(regex="ab*")
    a, b = (int(np.flatnonzero(tokenizer.constraint(regex=letter).mask())[0]) for letter in "ab")
    with pytest.raises(GrammarError):
        constraint.accept(b)
    constraint.accept(a)
    assert constraint.state() == MAY_END
    constraint.accept(b)
    with pytest.raises(TextError, match="cannot be dropped"):
        constraint.rollback(3)
    constraint.rollback(2)
    assert constraint.state() == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"regex": "("}, "unclosed group"),
        ({"regex": "(?=a)b"}, "look-around"),
        ({"grammar": "start: foo"}, 'unknown name: "foo"'),
        ({"grammar": ""}, "grammar"),
        ({"schema": "{"}, "not valid JSON"),
        ({"schema": False}, "^#: "),
        ({"schema": {"$ref": "#"}}, "no text fits"),
        ({"schema": {"x-guidance": {"lenient": True}}}, "^#/x-guidance/lenient: "),
        ({"schema": {"x-guidance": {"spaces": 2}}}, "^#/x-guidance: unknown field `spaces`"),
        ({"schema": {"items": {"x-guidance": {}}}}, "^#/items/x-guidance: "),
        (
            {"schema": {"properties": {"a/b": {"not": {"pattern": "a"}}}}},
            "^#/properties/a~1b/not: .* cannot be excluded",
        ),
        (
            {"schema": {"items": [{}, {"if": {"format": "date"}, "then": False}]}},
            "^#/items/1/if: .* cannot be excluded",
        ),
        ({"schema": {"allOf": [{"anyOf": [{"not": {"type": []}, "type": "x"}]}]}}, '^#/allOf/0/anyOf/0/type: "x"'),
        (
            {"schema": {"minProperties": 9, "properties": {f"p{i}": {} for i in range(20)}}},
            "^#/minProperties: more than 64",
        ),
        ({"schema": {"propertyNames": {"not": {}}}}, "^#/propertyNames: names can be restricted by"),
        ({"schema": {"contains": {}, "prefixItems": [{}]}}, "^#/contains: not supported beside a list"),
        ({"schema": {"allOf": [{}], "unevaluatedProperties": False}}, "^#/unevaluatedProperties: .* beside"),
        ({"schema": {"if": {"type": "string"}, "then": {"pattern": "(?=a)"}}}, "^#/then/pattern: .*look-around"),
        (
            {"schema": {"items": {"type": "array"}, "contains": {"items": {"uniqueItems": True}}}},
            "^#/contains/items/uniqueItems: ",
        ),
        ({"schema": {"properties": {"a": {"not": 5}}}}, "^#/properties/a/not: a schema is an object"),
        ({"schema": {"properties": {"b": {"$ref": "#/allOf/0"}}, "not": {"type": "null"}}}, r"^#/.*\$ref: .* nowhere"),
        ({"schema": {"not": {"maxLength": 2**64 - 1}, "type": "string"}}, "nsatisfiable"),
        ({"schema": {"type": "integer", "not": {"const": 2**53 + 1}}}, "^#/not: "),
        ({"schema": {"items": {"minimum": 1e30, "type": "integer"}}}, "^#/items/minimum: 1e.*30 needs more than 64"),
        ({"schema": {"type": "object", "not": {"minProperties": -1}}}, "^#/not: "),
        ({"schema": {"const": 1e300}}, r"^#/const: 1e\+300 is larger than 2\^53"),
        ({"schema": {"$ref": "#/$defs/a", "$defs": {"a": {"uniqueItems": True}}}}, r"^#/\$defs/a/uniqueItems: "),
        ({"schema": {"properties": {"a": {"format": 1}}}}, "^#/properties/a/format: must be a text"),
        ({"schema": {"properties": {"a": {"pattern": "(?=a)"}}}}, "^#/properties/a/pattern: .*look-around"),
        ({"schema": {"anyOf": [{"type": "text"}]}}, '^#/anyOf/0/type: "text" is no type'),
        ({"schema": {"anyOf": [{"const": 2**53 + 1}]}}, r"^#/anyOf/0/const: 9007199254740993 is larger than 2\^53"),
        ({"schema": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}, "^#/oneOf: two options may accept"),
        ({"schema": {"$ref": "other.json"}}, r'^#/\$ref: "other.json" leads nowhere'),
        ({"schema": {"properties": {"a": {"$id": "b", "items": {"$ref": "#"}}}}}, r"^#/properties/a/\$id: "),
        ({"schema": {"nullable": True}}, "^#/nullable: "),
        ({"schema": {"items": {"maximum": True}}}, "^#/items/maximum: true is no number"),
        ({"schema": {"multipleOf": 0}}, "^#/multipleOf: 0 is no number"),
        (
            {"schema": {"name": "a", "schema": {"type": "integer"}}},
            "^#/schema: is not a keyword of JSON Schema; pass the schema inside it",
        ),
        ({"schema": {"multipleOf": 10**9}}, "^#/multipleOf: 1000000000 is not supported: at most 8 decimals"),
        ({"schema": {"items": {"multipleOf": 1e-9}}}, "^#/items/multipleOf: 1e-9 is not supported: at most 8 decimals"),
        ({"schema": {"allOf": [{"multipleOf": 10**5}] * 2}}, r"^#/allOf: a number .* multiple of several .*28 bits"),
        ({"schema": {"allOf": [{"multipleOf": 10**4}, {"multipleOf": 0.0007}]}}, "^#/allOf: a number .* multiple"),
        ({"schema": {"exclusiveMinimum": 5, "maximum": 5, "type": "number"}}, r"exclusiveMinimum \(5\) is equal to"),
        (
            {"schema": {"additionalProperties": {"type": "integer"}, "minProperties": 2}},
            "^#/minProperties: more than one unnamed property cannot be required",
        ),
        (
            {"schema": {"type": "array", "items": {"minimum": 2, "maximum": 1, "type": "integer"}, "minItems": 1}},
            "^#/items: ",
        ),
        (
            {"grammar": 'start: "a"\n  | %json {"items": {"not": {"pattern": "a"}}}'},
            "^the grammar: line 2: #/items/not: ",
        ),
        ({"grammar": "start: a\na[temperature=0.5]: /b*/"}, "temperature"),
        ({"grammar": 'start: "a" b[stop="x"]\nb: /b*/'}, "grammar: "),
        ({"regex": "a" * 300_000}, "300000 bytes"),
    ],
)
def test_a_grammar_that_cannot_be_taken_is_one_sentence(given: dict[str, Any], message: str) -> None:
    with pytest.raises(GrammarError, match=message) as error:
        opened(llama_like()).constraint(**given)
    assert "\n" not in str(error.value)


def test_exactly_one_grammar_is_given() -> None:
    for given in ({}, {"regex": "a", "schema": {}}):
        with pytest.raises(ValueError, match="exactly one"):
            opened(llama_like()).constraint(**given)
