"""Extraction: the attributes that a description of a restaurant was written from, as JSON (E2E).

A row of E2E has a meaning representation, "name[Aromi], food[Chinese]", and texts that people wrote from it. The first
text is the question and the representation the answer. All attributes are required; one that is not mentioned is null.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from streamfuse.train.formats import DataError, Row
from streamfuse.train.readers import rows

from .questions import Constraint, Question, assistant, compact, object_of, parsed, system, user

_VALUES: Mapping[str, tuple[str, ...]] = {  # of E2E's attributes; none: any text
    "name": (),
    "eatType": ("restaurant", "pub", "coffee shop"),
    "food": ("Chinese", "English", "Fast food", "French", "Indian", "Italian", "Japanese"),
    "priceRange": ("cheap", "moderate", "high", "less than £20", "£20-25", "more than £30"),
    "customer rating": ("low", "average", "high", "1 out of 5", "3 out of 5", "5 out of 5"),
    "area": ("city centre", "riverside"),
    "familyFriendly": ("yes", "no"),
    "near": (),
}
_SYSTEM = (
    "You extract a restaurant's attributes from a text, as JSON. An attribute that the text does not mention is null."
)
_EXAMPLE = (
    "The Olive Grove is a cheap French pub by the river, near The Bakers. Families are welcome.",
    {
        "name": "The Olive Grove", "eatType": "pub", "food": "French", "priceRange": "cheap", "customer rating": None,
        "area": "riverside", "familyFriendly": "yes", "near": "The Bakers",
    },
)  # fmt: skip
_ATTRIBUTE = re.compile(r"\s*([\w ]+)\[([^\]]*)\]\s*,?")


def read_questions(source: str, split: str = "test") -> list[Question]:
    """A question for each meaning representation. DataError names the row and its field."""
    questions: dict[str, Question] = {}
    for place, row in rows(source, split):
        meaning, text = _columns(row, place)
        if meaning not in questions:
            questions[meaning] = _question(attributes(meaning, place), text)
    return list(questions.values())


def attributes(meaning: str, place: str) -> dict[str, str | None]:
    """All attributes of a meaning representation, None for those that it does not have."""
    found = {name.strip(): value for name, value in _ATTRIBUTE.findall(meaning)}
    if unknown := found.keys() - _VALUES.keys():
        raise DataError(f"{place}: {min(unknown)} is no attribute of E2E; they are {', '.join(_VALUES)}")
    return {name: found.get(name) for name in _VALUES}


def schema() -> dict[str, Any]:
    """Texts for the names, else one of the values that E2E has; null for each."""
    return object_of(
        {
            name: {"enum": [*values, None]} if values else {"type": ["string", "null"]}
            for name, values in _VALUES.items()
        }
    )


_CONSTRAINT = Constraint.schema(schema())


def _question(right: Mapping[str, str | None], text: str) -> Question:
    example, answer = _EXAMPLE
    messages = (system(_SYSTEM), user(example), assistant(compact(answer)), user(text))

    def score(answer: str) -> dict[str, float]:
        given = parsed(answer)
        same = [isinstance(given, dict) and given.get(name, ...) == value for name, value in right.items()]
        return {"exact_match": 100.0 * all(same), "fields": 100 * sum(same) / len(same)}

    return Question(messages, _CONSTRAINT, score)


def _columns(row: Row, place: str) -> tuple[str, str]:
    meaning = next((row[name] for name in ("meaning_representation", "mr", "prompt") if name in row), None)
    texts = row.get("references") or [row[name] for name in ("human_reference", "ref", "completion") if name in row]
    if not isinstance(meaning, str) or not texts or not isinstance(texts[0], str):
        raise DataError(f"{place}: is no row of E2E; its fields are {', '.join(map(json.dumps, row))}")
    return meaning, texts[0]
