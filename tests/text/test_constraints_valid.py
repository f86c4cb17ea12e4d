"""Every text that a schema's grammar lets through is JSON that the schema accepts, by another library.

Run: python -m pytest tests/text/test_constraints_valid.py
"""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from bundle_samples import byte_tokenizer
from hostile_grammars import schema
from tokenizer_samples import opened

from streamfuse.runtime.constraint import MAY_END, MUST_END
from streamfuse.runtime.grammar import Grammar
from streamfuse.runtime.text import GrammarError, Tokenizer

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
        state = constraint.state()
        if state & MUST_END or (state & MAY_END and rng.random() < 0.4):
            return tokenizer.decode(ids)
        allowed = np.flatnonzero(constraint.mask()).tolist()
        few = [token for token in allowed if token in closing]
        ids.append(rng.choice(few if few and rng.random() < 0.6 else allowed))
        constraint.accept(ids[-1])
    return None


def test_every_text_is_valid(tokenizer: Tokenizer) -> None:
    accepted, texts = 0, set()
    for number in range(600):
        rng = random.Random(number)
        made: Any = schema(rng, 3)
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
            jsonschema.Draft202012Validator(made).validate(value)
            assert json.loads(json.dumps(value)) == value
    assert accepted > 200
    assert len(texts) > 100
