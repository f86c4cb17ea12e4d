"""What the structured bench asks: a chat, the constraint of its answer, and how an answer is scored."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Any

from streamfuse.runtime.text import Message

Scorer = Callable[[str], Mapping[str, float]]  # an answer's text, whole or cut short -> metrics in percent


@dataclass(frozen=True, slots=True)
class Constraint:
    """One of the options of `Model.generate` that restrict a text.

    Attributes:
        kind: "schema" (JSON schema, draft 2020-12), "regex" or "grammar" (Lark).
        text: the schema as JSON, the expression, the grammar.
    """

    kind: str
    text: str

    @classmethod
    def schema(cls, schema: Mapping[str, Any]) -> Constraint:
        return cls("schema", json.dumps(schema, ensure_ascii=False))

    @property
    def option(self) -> dict[str, str]:
        return {self.kind: self.text}


@dataclass(frozen=True, slots=True)
class Question:
    """A chat that ends with the user's turn, and what is known of its answer: a constraint, and metrics by name.

    `score` gives no metrics where no answer is right or wrong.
    """

    messages: tuple[Message, ...]
    constraint: Constraint
    score: Scorer = lambda text: {}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def compact(value: object) -> str:
    """JSON as a constrained text spells it: without white space."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def parsed(text: str) -> Any:
    """The value of a JSON text; None for a text that is none, such as an answer that was cut short."""
    try:
        return json.loads(text)
    except ValueError:
        return None


def problem_of(constraint: Constraint, text: str) -> str | None:
    """Why `text` does not satisfy the constraint, by other means than those that enforce it; None where it does.

    A schema is checked by the package jsonschema, a grammar by the package lark, a regular expression by Python's re.
    """
    if constraint.kind == "regex":
        return None if re.fullmatch(constraint.text, text) else "the regular expression does not match"
    if constraint.kind == "grammar":
        from lark.exceptions import LarkError

        try:
            _lark(constraint.text).parse(text)
        except LarkError as error:
            return str(error)
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        return str(error)
    wrong = next(iter(_validator(constraint.text).iter_errors(value)), None)
    return None if wrong is None else f"{wrong.json_path}: {wrong.message}"


@lru_cache(maxsize=256)
def _lark(grammar: str) -> Any:
    from lark import Lark

    return Lark(grammar, parser="earley", lexer="dynamic_complete")


@lru_cache(maxsize=256)
def _validator(schema: str) -> Any:
    from jsonschema import Draft202012Validator, FormatChecker

    loaded = json.loads(schema)
    Draft202012Validator.check_schema(loaded)
    formats = FormatChecker()
    formats.checkers = {**Draft202012Validator.FORMAT_CHECKER.checkers, "date": (_is_date, ValueError)}
    return Draft202012Validator(loaded, format_checker=formats)


def _is_date(value: object) -> bool:
    """By RFC 3339, which allows the year 0000; Python's dates begin in 0001. The year 2000 is a leap year too."""
    if not isinstance(value, str):
        return True
    if not re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", value):
        return False
    return date.fromisoformat(re.sub("^0000", "2000", value)) is not None


def object_of(properties: Mapping[str, Any], required: Iterable[str] | None = None) -> dict[str, Any]:
    """The schema of an object with these properties and no others; all are required unless `required` says less."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties if required is None else required),
        "additionalProperties": False,
    }
