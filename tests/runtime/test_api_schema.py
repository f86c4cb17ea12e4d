"""Schemas from Python types, and answers as objects. Run: python -m pytest tests/runtime/test_api_schema.py"""

from __future__ import annotations

import enum
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypedDict

import pytest
import typing_extensions
from fakes import statistics_of
from pydantic import BaseModel, ValidationError, field_validator

from streamfuse.api import ParsedError, Result
from streamfuse.api.schema import schema_of
from streamfuse.options import OptionError
from streamfuse.runtime.config import Schema


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: float
    y: float | None = None


@dataclass
class City:
    name: str
    place: Point
    colours: list[Colour]
    kind: Literal["town", "village"]
    twins: dict[str, Point]
    nothing: None
    code: int | str = 0
    parts: list[City] = field(default_factory=list)
    open: bool = True


class Person(BaseModel):
    name: str
    age: int

    @field_validator("age")
    @classmethod
    def not_negative(cls, age: int) -> int:
        if age < 0:
            raise ValueError("an age is not negative")
        return age


class Answer(typing_extensions.TypedDict):
    yes: bool
    why: typing_extensions.NotRequired[str]


class Free(BaseModel, extra="allow"):
    name: str


class Thing:
    pass


@dataclass
class Wrong:
    count: int
    things: list[Thing]


@dataclass
class Outer:
    inner: dict[str, Wrong] | None


@dataclass
class Loop:
    loops: list[Loop]
    thing: Thing


@dataclass
class Calls:
    call: Callable[[], int]


@dataclass
class Unknown:
    what: Nowhere  # type: ignore[name-defined]  # noqa: F821


class Plain(TypedDict):
    yes: bool


def test_a_dataclass_becomes_a_schema_without_other_properties_and_its_text_an_instance() -> None:
    schema = schema_of(City)
    found = json.loads(schema.text)
    city = found["$defs"]["City"]
    assert found["$ref"] == "#/$defs/City"
    assert city["additionalProperties"] is False
    assert city["required"] == ["name", "place", "colours", "kind", "twins", "nothing"]  # the others have defaults
    assert list(city["properties"])[:3] == ["name", "place", "colours"]  # in the order of the class
    assert city["properties"]["kind"]["enum"] == ["town", "village"]
    assert city["properties"]["code"]["anyOf"] == [{"type": "integer"}, {"type": "string"}]
    assert city["properties"]["twins"] == {"type": "object", "additionalProperties": {"$ref": "#/$defs/Point"}}
    text = '{"name":"Rome","place":{"x":1},"colours":["red"],"kind":"town","twins":{"a":{"x":2,"y":3}},"nothing":null}'
    assert schema.read(text) == City(
        "Rome", Point(1.0), [Colour.RED], "town", {"a": Point(2.0, 3.0)}, None, 0, [], True
    )


def test_a_pydantic_model_a_typed_dict_and_a_list_of_either_are_schemas() -> None:
    assert json.loads(schema_of(Person).text) == {
        "type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"], "additionalProperties": False,
    }  # fmt: skip
    assert schema_of(list[Person]).read('[{"name":"Ann","age":3}]') == [Person(name="Ann", age=3)]
    answer = json.loads(schema_of(Answer).text)
    assert (answer["required"], answer["additionalProperties"]) == (["yes"], False)
    assert schema_of(Answer).read('{"yes":true}') == {"yes": True}
    assert json.loads(schema_of(Free).text)["additionalProperties"] is True


def test_a_schema_as_a_dict_or_text_stays_as_it_is_and_its_text_becomes_plain_values() -> None:
    given = {"type": "object", "properties": {"größe": {"type": "number"}}}
    assert json.loads(schema_of(given).text) == given
    text = '{"type": "array",\n "items": {"type": "integer"}}'
    assert schema_of(text).text == text
    assert schema_of(text).read("[1, 2]") == [1, 2]


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (Wrong, "schema: there is no JSON schema of Wrong.things: Thing is not a type of JSON values; see docs/struc"),
        (Outer, "schema: there is no JSON schema of Wrong.things: Thing is not"),
        (Loop, "schema: there is no JSON schema of Loop.thing: Thing is not"),
        (Calls, "schema: there is no JSON schema of Calls.call: "),
        (Thing, "schema: there is no JSON schema of Thing: "),
        (Unknown, "schema: Unknown: name 'Nowhere' is not defined; the type must be a global of its module"),
        (5, "schema must be a dict, JSON text, a pydantic model, a dataclass or a TypedDict, not 5"),
        (Point(1.0), "schema must be a dict, JSON text, a pydantic model, a dataclass or a TypedDict, not Point("),
        ("{", "schema is not JSON: Expecting property name enclosed in double quotes: line 1 column 2"),
        ("[1]", "schema must be a JSON schema, which is an object, not '[1]'"),
        ("[" * 100_000, "schema is not JSON: "),
        ({"enum": {1, 2}}, "schema is not a JSON schema: Object of type set is not JSON serializable"),
        ({"const": float("nan")}, "schema is not a JSON schema: "),
    ],
)
def test_what_is_no_schema_names_the_field_or_the_place(value: object, sentence: str) -> None:
    with pytest.raises(OptionError) as caught:
        schema_of(value)
    assert str(caught.value).startswith(sentence)
    assert caught.value.flags.startswith("--schema")


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="there pydantic reads typing's own")
def test_a_typed_dict_of_an_old_python_s_typing_says_where_to_import_it_from() -> None:
    with pytest.raises(OptionError, match=r"Plain is a typing\.TypedDict; import TypedDict from typing_extensions"):
        schema_of(Plain)


def result(text: str, reason: str = "stop", schema: Schema | None = None) -> Result:
    return Result(text, [1, 2], statistics_of(finish_reason=reason, generated_tokens=2), schema)


def test_a_result_s_parsed_object_is_made_once() -> None:
    found = result('{"name":"Ann","age":3}', schema=schema_of(Person))
    assert found.parsed == Person(name="Ann", age=3)
    assert found.parsed is found.parsed
    assert result("[1]", "length", schema_of({})).parsed == [1]  # the limit came with the end


@pytest.mark.parametrize(
    ("text", "reason", "sentence"),
    [
        (
            '{"name":"An',
            "incomplete",
            "a limit was reached after 2 tokens; raise max_new_tokens, or shorten the",
        ),
        ("12", "incomplete", "a limit was reached after 2 tokens; raise max_new_tokens"),
        ("12", "stopped", "it was stopped after 2 tokens; read the stream to its end"),
        ('{"name"', "stop", "a stop string or token ended it after 2 tokens; leave stop and stop_token_ids out"),
    ],
)
def test_an_incomplete_text_has_no_parsed_object_and_says_why(text: str, reason: str, sentence: str) -> None:
    with pytest.raises(ParsedError) as caught:
        _ = result(text, reason, schema_of({})).parsed
    assert sentence in str(caught.value)
    assert result(text, reason).finish_reason == reason


def test_a_result_without_a_schema_has_no_parsed_object() -> None:
    with pytest.raises(ParsedError, match="give a schema to the call"):
        _ = result("{}").parsed


def test_a_check_of_a_class_that_its_schema_does_not_express_raises_its_own_error() -> None:
    with pytest.raises(ValidationError, match="an age is not negative"):
        _ = result('{"name":"Ann","age":-3}', schema=schema_of(Person)).parsed
