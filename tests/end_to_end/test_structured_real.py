"""Structured answers of the real model: they fit, and speculation does not change them.

Run: python -m pytest tests/end_to_end/test_structured_real.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

import streamfuse

BUNDLE = Path(__file__).parents[2] / "build" / "demo"

pytestmark = pytest.mark.skipif(
    not (BUNDLE / "manifest.json").is_file(), reason="build/demo is missing; run: make bundle"
)

LARK = """start: "SELECT " columns " FROM " name (" WHERE " name " = " NUMBER)?
columns: name (", " name)*
name: /[a-z_]{1,12}/
NUMBER: /[0-9]{1,5}/
"""
SELECT = r"SELECT [a-z_]{1,12}(, [a-z_]{1,12})* FROM [a-z_]{1,12}( WHERE [a-z_]{1,12} = [0-9]{1,5})?"


@dataclass
class City:
    name: str
    country: str
    continent: Literal["Africa", "America", "Asia", "Europe", "Oceania"]
    capital: bool


@pytest.fixture(scope="module")
def model() -> Iterator[streamfuse.Model]:
    with streamfuse.load(BUNDLE) as model:
        yield model


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 5}], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    ("prompt", "restriction", "fits"),
    [
        ("Describe the city of Rome.", {"schema": City}, None),
        ("Is Rome the capital of Italy?", {"regex": "(Yes|No), because [a-z ]{10,60}\\."}, None),
        ("Write SQL: the names of people aged 30.", {"grammar": LARK}, SELECT),
    ],
    ids=["schema", "regex", "grammar"],
)
def test_an_answer_fits_and_is_the_same_with_and_without_speculation(
    model: streamfuse.Model, prompt: str, restriction: dict[str, Any], fits: str | None, sampling: dict[str, Any]
) -> None:
    ways: list[dict[str, Any]] = [{"speculative": False}, {}, {"width": 8}]
    answers = [model.generate(prompt, max_new_tokens=100, **restriction, **sampling, **way) for way in ways]
    assert {tuple(answer.tokens) for answer in answers} == {tuple(answers[0].tokens)}
    answer = answers[-1]
    assert answer.finish_reason == "stop"
    if "schema" in restriction:
        assert isinstance(answer.parsed, City)
        assert answer.statistics.accepted_by_source["grammar"] >= 5
    else:
        assert re.fullmatch(fits or restriction["regex"], answer.text)


def get_weather(city: str, unit: Literal["celsius", "fahrenheit"] = "celsius") -> dict[str, Any]:
    """Look up the current weather of a city.

    Args:
        city: Name of the city.
        unit: Unit of the temperature.
    """
    return {"city": city, "temperature": 21, "unit": unit}


def test_a_tool_call_fits_its_tool_and_is_the_same_with_and_without_speculation(model: streamfuse.Model) -> None:
    question, options = "How warm is it in Rome?", {"tools": [get_weather], "max_new_tokens": 100}
    ways: list[dict[str, Any]] = [{"speculative": False}, {}, {"width": 8}]
    answers = [model.generate(question, tool_choice="required", **options, **way) for way in ways]
    assert {tuple(answer.tokens) for answer in answers} == {tuple(answers[0].tokens)}
    (call,) = answers[-1].tool_calls
    assert (call.name, answers[-1].text) == ("get_weather", "")
    assert isinstance(call.arguments["city"], str)
    with model.chat(**options) as chat:
        answer = chat.send(question, tool_choice="required", max_tool_rounds=1)
        assert '"temperature":21' in chat.messages[2]["content"]
        assert chat.messages[-1]["content"] == answer.text
