"""The grammars of the JSON Schema Test Suite: each accepts the valid instances and refuses the others, or the schema is
refused by a keyword that json_schema_suite.json lists.

Run: JSON_SCHEMA_TEST_SUITE=.../tests/draft2020-12 python -m pytest tests/text/test_json_schema_suite.py
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import pytest
from bundle_samples import byte_tokenizer
from json_schema_suite import SUITE, Group, accepts, groups
from tokenizer_samples import opened

from streamfuse.runtime.grammar import Grammar
from streamfuse.runtime.text import GrammarError, Tokenizer

# Both parts may only shrink: a line that is needed no more fails.
LISTED = json.loads(Path(__file__).with_name("json_schema_suite.json").read_text(encoding="utf-8"))
pytestmark = pytest.mark.skipif(
    not (SUITE / "properties.json").is_file(),
    reason="the JSON Schema Test Suite is missing; JSON_SCHEMA_TEST_SUITE names its folder tests/draft2020-12",
)


@lru_cache(maxsize=1)
def tokenizer() -> Tokenizer:
    return opened(byte_tokenizer())


def grammar_of(group: Group) -> Grammar | str:
    """Its constraint, or the keyword that is refused."""
    try:
        return tokenizer().constraint(schema=json.dumps(group.schema))
    except GrammarError as error:
        message = str(error)
    path, _, reason = message.partition(": ")
    assert path.startswith("#"), message
    assert reason, message
    return path.rpartition("/")[2] if "/" in path else "false"


def test_every_schema_that_is_refused_is_listed_by_its_keyword() -> None:
    refused: dict[str, list[str]] = {}
    for group in groups():
        found = grammar_of(group)
        if isinstance(found, str):
            refused.setdefault(found, []).append(group.name)
    assert refused == LISTED["refused"]


def test_every_other_schema_accepts_its_instances_and_no_others() -> None:
    wrong = []
    for group in groups():
        constraint = grammar_of(group)
        if isinstance(constraint, Grammar):
            for description, value, is_valid in group.tests:
                if accepts(constraint, tokenizer(), value) != is_valid:
                    wrong.append(f"{group.name}: {description}")
    assert sorted(wrong) == sorted(name for names in LISTED["deviations"].values() for name in names)
