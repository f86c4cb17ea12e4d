"""Every text that a schema's grammar lets through is JSON that the schema accepts, by another library.

Run: python -m pytest tests/text/test_constraints_valid.py
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from bundle_samples import byte_tokenizer
from hostile_grammars import conditions, schema
from tokenizer_samples import opened

from streamfuse.runtime.constraint import MAY_END, MUST_END
from streamfuse.runtime.grammar import Grammar
from streamfuse.runtime.text import GrammarError, Tokenizer

Unresolvable = pytest.importorskip("referencing.exceptions").Unresolvable
jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed: pip install 'streamfuse[bench]'")
CLOSING = '"}],:0123456789'


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return opened(byte_tokenizer())


def written(constraint: Grammar, tokenizer: Tokenizer, rng: random.Random) -> str | None:
    """A random text that may end; None where it does not within 200 bytes."""
    closing = {tokenizer.encode_rendered(letter)[0] for letter in CLOSING}
    ids: list[int] = []
    while len(ids) < 200:
        state, allowed = constraint.state(), np.flatnonzero(constraint.mask()).tolist()
        if state & MUST_END or (state & MAY_END and (not allowed or rng.random() < 0.4)):
            return tokenizer.decode(ids)
        few = [token for token in allowed if token in closing]
        ids.append(rng.choice(few if few and rng.random() < 0.6 else allowed))
        constraint.accept(ids[-1])
    return None


@pytest.mark.parametrize(("make", "least"), [(lambda rng: schema(rng, 3), 200), (conditions, 300)])
def test_every_text_is_valid(tokenizer: Tokenizer, make: Callable[[random.Random], Any], least: int) -> None:
    accepted, texts = 0, set()
    for number in range(600):
        rng = random.Random(number)
        made = make(rng)
        try:
            constraint = tokenizer.constraint(schema=json.dumps(made))
        except GrammarError:
            continue
        accepted += 1
        try:
            text = written(constraint, tokenizer, rng)
        except GrammarError:
            continue  # a limit
        if text is not None:
            texts.add(text)
            value = json.loads(text)
            with contextlib.suppress(Unresolvable):  # of a reference whose keyword has no effect
                jsonschema.Draft202012Validator(made).validate(value)
            assert json.loads(json.dumps(value)) == value
    assert accepted > least
    assert len(texts) > 100
