"""Constrained text with speculation is constrained plain text: the program for it, and a few of its cases.

All of them, with a real model: PYTHONPATH=tests/helpers python tools/constrained_equality.py --bundle build/demo

Run: python -m pytest tests/runtime/test_constrained_equality.py
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from constrained_equality import (
    CONSTRAINTS,
    Case,
    Engine,
    Found,
    Written,
    arithmetic_engine,
    bundle_engine,
    cases_of,
    compare,
)
from streamfuse.bench.structured.questions import Constraint

DIGITS = Constraint("regex", "[0-9]{3}")


def scripted(speculative: str, plain: str = "123") -> Found:
    """Two widths of one text."""

    def write(case: Case) -> Written:
        text = speculative if case.width else plain
        return Written(tuple(map(ord, text)), finished=True, drafted=Counter(model=len(text)))

    cases = [Case(DIGITS, 0.0, 1, width) for width in (4, 8)]
    return compare(Engine("scripted", write, lambda ids: "".join(map(chr, ids)), cases))


def test_equal_texts_are_counted() -> None:
    found = scripted("123")
    assert (found.generations, found.plain, found.finished, found.tokens) == (2, 1, 2, 6)
    assert not found.differences


def test_a_different_token_is_a_difference_of_every_width() -> None:
    found = scripted("124")
    assert [line.count("'123', speculative '124'") for line in found.differences] == [1, 1]
    assert "width=4" in found.differences[0]


def test_a_text_that_breaks_its_constraint_is_a_difference() -> None:
    (line,) = scripted("12", plain="12").differences
    assert "the regular expression does not match" in line


def test_cases_are_of_every_constraint_temperature_seed_and_width() -> None:
    cases = cases_of(CONSTRAINTS, (None, 4, 8), seeds=2)
    assert len(cases) == len(set(cases)) == len(CONSTRAINTS) * 3 * 2 * 3
    kinds = Counter(case.constraint.kind for case in cases)
    assert min(kinds[kind] for kind in ("schema", "regex", "grammar")) >= 4 * 18


@pytest.mark.parametrize("accuracy", [15, 4])
def test_the_core_over_a_model_that_agrees_and_one_that_does_not(tmp_path: Path, accuracy: int) -> None:
    with arithmetic_engine("arithmetic", tmp_path, accuracy, seeds=1) as engine:
        found = compare(engine)
    assert not found.differences
    assert found.finished > found.generations / 2
    assert min(found.drafted["grammar"], found.drafted["streams"]) > 0, found.drafted


def test_the_native_engine_on_a_small_model(chat_bundle: Path) -> None:
    short = [one for one in CONSTRAINTS if len(one.text) < 150]
    with bundle_engine("tiny", chat_bundle, short, seeds=1, max_new_tokens=48) as engine:
        found = compare(engine)
    assert not found.differences
    assert found.generations == len(engine.cases)
    assert found.finished > found.generations / 4
    assert found.drafted["grammar"], found.drafted
