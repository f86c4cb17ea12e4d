"""Answers that a schema, a regular expression or a grammar restricts, by the Python API.

The engine is the arithmetic model of fakes.py, which likes the letters a to h; everything else is real.
Run: python -m pytest tests/runtime/test_api_structured.py
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import fakes
import numpy as np
import numpy.typing as npt
import pytest
from bundle_samples import LETTERS, VOCAB_SIZE, PrintableBackend, write_bundle
from engine_fixtures import made_engines

import streamfuse
from streamfuse.api import ParsedError
from streamfuse.options import OptionError
from streamfuse.runtime.constraint import MAY_END, MUST_END

WAYS: list[dict[str, Any]] = [{"speculative": False}, {}, {"width": 4}, {"width": 8}]
SAMPLED = {"temperature": 0.9, "seed": 3}


@dataclass
class Choice:
    letter: Literal["a", "b"]
    also: list[bool]


CHOICE = {
    "type": "object",
    "properties": {
        "letter": {"enum": ["a", "b"]},
        "also": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["letter", "also"],
    "additionalProperties": False,
}


made = made_engines(PrintableBackend)


@pytest.fixture
def model(made: list[fakes.ArithmeticBackend], tmp_path: Path) -> Iterator[streamfuse.Model]:
    with streamfuse.load(write_bundle(tmp_path / "demo")) as model:
        yield model


def ask(model: streamfuse.Model, **options: Any) -> streamfuse.api.Result:
    return model.generate("x", raw=True, max_new_tokens=40, **options)


@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    ("restriction", "fits"),
    [
        ({"schema": CHOICE}, r'\{"letter":"[ab]","also":\[((true|false)(,(true|false))?)?\]\}'),
        ({"regex": "[a-c]{3}-[x-z]{2}"}, "[a-c]{3}-[x-z]{2}"),
        ({"grammar": 'start: "(" word ")"\nword: /[a-d]{2,5}/'}, r"\([a-d]{2,5}\)"),
    ],
    ids=["schema", "regex", "grammar"],
)
def test_an_answer_fits_and_speculation_does_not_change_it(
    model: streamfuse.Model, restriction: dict[str, Any], fits: str, sampling: dict[str, Any]
) -> None:
    answers = [ask(model, **restriction, **sampling, **way) for way in WAYS]
    assert re.fullmatch(fits, answers[0].text)
    assert {tuple(answer.tokens) for answer in answers} == {tuple(answers[0].tokens)}
    assert {answer.finish_reason for answer in answers} == {"stop"}


def test_an_answer_with_a_schema_becomes_the_object_that_it_spells(model: streamfuse.Model) -> None:
    found = ask(model, schema=CHOICE).parsed
    assert found == json.loads(ask(model, schema=json.dumps(CHOICE)).text)
    assert found["letter"] in "ab"
    assert ask(model, schema=Literal["a", "b"]).parsed in ("a", "b")
    with pytest.raises(ParsedError, match="give a schema"):
        _ = ask(model, regex="a").parsed


def test_an_answer_with_a_class_becomes_an_instance_of_it(model: streamfuse.Model) -> None:
    found = model.generate("x", raw=True, schema=Choice, max_new_tokens=60)
    if found.finish_reason == "stop":
        assert isinstance(found.parsed, Choice)
    assert isinstance(ask(model, schema=_Small).parsed, _Small)


@dataclass
class _Small:
    letter: Literal["a", "b"]


def test_what_the_grammar_forces_is_drafted_and_counted(model: streamfuse.Model) -> None:
    with model.stream("x", raw=True, schema=CHOICE, max_new_tokens=40, width=4) as pieces:
        sources = [piece.source for piece in pieces]
        found = pieces.statistics
    assert "grammar" in sources
    assert found.forced_tokens >= found.accepted_by_source["grammar"] == sources.count("grammar") > 5
    assert found.mask_ms > 0
    assert ask(model, width=4).statistics.forced_tokens == 0


def test_a_limit_inside_the_object_is_an_incomplete_answer(model: streamfuse.Model) -> None:
    found = model.generate("x", raw=True, schema=CHOICE, max_new_tokens=5)
    assert (found.finish_reason, found.text) == ("incomplete", '{"let')
    with pytest.raises(ParsedError, match="a limit was reached after 5 tokens; raise max_new_tokens"):
        _ = found.parsed


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"schema": CHOICE, "regex": "a"}, "schema and regex do not go together; one of them restricts the text"),
        ({"regex": "a", "grammar": "start: A"}, "regex and grammar do not go together"),
        ({"regex": 3}, "regex must be text, not 3"),
        ({"grammar": b"start: A"}, "grammar must be text, not b'start: A'"),
        ({"schema": {"type": "nothing"}}, 'schema: #/type: "nothing" is no type'),
        ({"schema": {"properties": {"a": {"uniqueItems": True}}}}, "schema: #/properties/a/uniqueItems: "),
        ({"regex": "(a"}, "regex: "),
        ({"grammar": "start: nowhere"}, "grammar: "),
    ],
)
def test_a_restriction_that_cannot_be_used_is_refused_before_the_engine_is_loaded(
    model: streamfuse.Model, made: list[fakes.ArithmeticBackend], options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(OptionError) as caught:
        ask(model, **options)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)
    assert made == []


@pytest.mark.parametrize("speculative", [True, False])
def test_a_number_that_a_limit_cuts_off_is_no_answer(model: streamfuse.Model, speculative: bool) -> None:
    found = model.generate("x", raw=True, schema=int, max_new_tokens=3, speculative=speculative)
    assert re.fullmatch("-?[0-9]{1,3}", found.text)
    assert found.finish_reason == "incomplete"
    with pytest.raises(ParsedError, match="a limit was reached after 3 tokens"):
        _ = found.parsed
    assert model.generate("x", raw=True, schema=Literal[123456], max_new_tokens=9).parsed == 123456
    assert model.generate("x", raw=True, regex="[0-9]+", max_new_tokens=3).finish_reason == "length"


def test_a_chat_takes_a_restriction_for_one_turn_or_for_all(model: streamfuse.Model) -> None:
    with model.chat(regex="[a-c]{2}", max_new_tokens=8) as chat:
        assert re.fullmatch("[a-c]{2}", chat.send("a").text)
        assert re.fullmatch("[d-e]{3}", chat.send("b", regex="[d-e]{3}").text)
    with model.chat(regex="[a-c]{2}", max_new_tokens=8) as chat:
        assert re.fullmatch("[a-h]{8}", chat.send("a", regex=None).text)
        assert re.fullmatch("[a-c]{2}", chat.send("b").text)
        chat.reset()
        assert re.fullmatch("[d-e]{3}", chat.send("c", grammar="start: /[d-e]{3}/").text)
        assert re.fullmatch("[a-h]{8}", chat.send("d", tool_choice="none").text)
        chat.reset()
        assert re.fullmatch("[a-c]{2}", chat.send("e", schema=None).text), "None is no restriction in place of another"
    with model.chat() as chat, pytest.raises(OptionError, match=r"^regex: "):
        chat.send("a", regex="(")
    with pytest.raises(OptionError, match="do not go together"):
        model.chat(regex="a", schema={})


def test_an_asyncio_stream_takes_a_restriction(model: streamfuse.Model) -> None:
    async def text() -> str:
        async with model.astream("x", raw=True, regex="[a-c]{3}") as pieces:
            found = "".join([piece.text async for piece in pieces])
            assert pieces.result.finish_reason == "stop"
            return found

    assert re.fullmatch("[a-c]{3}", asyncio.run(text()))


def test_a_session_of_token_ids_cannot_read_a_grammar(model: streamfuse.Model) -> None:
    with model.session(text=False) as session, pytest.raises(ValueError, match="regex needs a tokenizer"):
        session.generate([1], model.config(regex="a"))


class Alternating:
    """Letters and digits of the byte tokenizer in turn, `length` of them: a constraint of one's own."""

    def __init__(self, length: int, broken: bool = False) -> None:
        self.text: list[int] = []
        self.length, self.broken = length, broken
        digits = [byte - 33 for byte in b"0123456789"]  # as the byte tokenizer numbers printable bytes
        self.allowed = [np.array(LETTERS), np.array(digits)]

    def accept(self, token: int) -> None:
        assert self.allows(np.array([token]))[0]
        self.text.append(token)

    def rollback(self, n: int) -> None:
        assert n <= len(self.text)
        del self.text[len(self.text) - n :]

    def state(self) -> int:
        return MAY_END | MUST_END if len(self.text) == self.length else 0

    def allows(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        return self.mask()[tokens]

    def mask(self) -> npt.NDArray[np.bool_]:
        if self.broken:
            raise KeyError("this constraint is broken")
        bits = np.zeros(VOCAB_SIZE, np.bool_)
        bits[self.allowed[len(self.text) % 2]] = len(self.text) < self.length
        return bits

    def forced(self, room: int) -> Sequence[int]:
        return []


def test_a_constraint_may_be_written_in_python(model: streamfuse.Model) -> None:
    with model.session() as session:
        texts = []
        for way in WAYS:
            generation = session.generate([70], model.config(max_new_tokens=20, **way), constraint=Alternating(7))
            texts.append(generation.finish())
            assert generation.statistics.finish_reason == "stop"
        assert set(texts) == {texts[0]}
        assert re.fullmatch(r"([a-h]\d){3}[a-h]", texts[0])
        with pytest.raises(KeyError, match="this constraint is broken"):
            session.generate([70], model.config(), constraint=Alternating(7, broken=True)).finish()
        assert len(session.generate([70], model.config(max_new_tokens=3)).finish()) == 3
