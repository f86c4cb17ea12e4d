"""The JSON Schema Test Suite (draft 2020-12), and what the grammars of its schemas make of its instances."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamfuse.runtime.constraint import MAY_END
from streamfuse.runtime.grammar import Grammar
from streamfuse.runtime.text import Tokenizer

ROOT = Path(__file__).parents[2]
# The folder tests/draft2020-12 of https://github.com/json-schema-org/JSON-Schema-Test-Suite.
SUITE = Path(os.environ.get("JSON_SCHEMA_TEST_SUITE", ROOT.parent / "shared" / "data" / "json_schema_suite"))
_MOST_SPELLINGS = 2_000


@dataclass(frozen=True)
class Group:
    """A schema, and its instances: (what is tested, value, whether the schema holds)."""

    name: str  # file: description
    schema: Any
    tests: tuple[tuple[str, Any, bool], ...]


def groups() -> list[Group]:
    """In the order of files. Cases of a `format` that is an assertion are its own files' (optional/format)."""
    found = []
    for file in sorted(SUITE.rglob("*.json")):
        name = file.relative_to(SUITE).with_suffix("").as_posix()
        for group in json.loads(file.read_text(encoding="utf-8")):
            tests = tuple((test["description"], test["data"], test["valid"]) for test in group["tests"])
            found.append(Group(f"{name}: {group['description']}", group["schema"], tests))
    return found


def spellings(value: Any) -> Iterator[str]:
    """The compact JSON texts of a value: properties in any order, since a grammar has them in the schema's, and a whole
    number with a fraction of zero also without it."""
    return itertools.islice(_spellings(value), _MOST_SPELLINGS)


def _spellings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for items in itertools.permutations(value.items()):
            names = [json.dumps(name, ensure_ascii=False) for name, _ in items]
            for values in itertools.product(*(list(spellings(inner)) for _, inner in items)):
                yield "{" + ",".join(f"{name}:{text}" for name, text in zip(names, values, strict=True)) + "}"
    elif isinstance(value, list):
        for values in itertools.product(*(list(spellings(inner)) for inner in value)):
            yield "[" + ",".join(values) + "]"
    else:
        yield json.dumps(value, ensure_ascii=False)
        if isinstance(value, float) and value.is_integer():
            yield str(int(value))


def fits(constraint: Grammar, tokenizer: Tokenizer, text: str) -> bool:
    """Whether the grammar accepts a text, token by token. The constraint is at its beginning before and after."""
    taken, whole = 0, True
    for token in tokenizer.encode_rendered(text):
        whole = bool(constraint.allows([token])[0])
        if not whole:
            break
        constraint.accept(token)
        taken += 1
    whole = whole and bool(constraint.state() & MAY_END)
    constraint.rollback(taken)
    return whole


def accepts(constraint: Grammar, tokenizer: Tokenizer, value: Any) -> bool:
    return any(fits(constraint, tokenizer, text) for text in spellings(value))
