"""Core and reference loop on the real model: the same trees and tokens, pass by pass. Run with --full for fifty.

Run: python -m pytest tests/end_to_end/test_core_real.py
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from streamfuse.api import Model, load
from streamfuse.runtime.backend import Backend
from streamfuse.runtime.config import GenerationConfig, SamplingConfig
from streamfuse.runtime.reference.draft import DraftTables, StreamDrafter
from streamfuse.runtime.reference.loop import Loop, Round
from streamfuse.runtime.reference.watch import Pass
from streamfuse.runtime.session import Session

BUNDLE = Path(__file__).parents[2] / "build" / "demo"
SUBJECTS = ["the sea", "a bridge", "prime numbers", "bread", "the moon", "trees in winter", "a lost dog", "old maps"]
REQUESTS = ["Write a short letter about {}.", "List five facts about {}.", "Why do people like {}?", "Translate: {}"]
SAMPLINGS = [
    SamplingConfig(),
    SamplingConfig(temperature=0.7, seed=5),
    SamplingConfig(temperature=1.0, top_p=0.9, top_k=50, seed=2**40),
    SamplingConfig(repetition_penalty=1.2),
]
TOKENS = 32

pytestmark = [
    pytest.mark.alone,  # the engine takes all cores
    pytest.mark.skipif(not (BUNDLE / "manifest.json").is_file(), reason="build/demo is missing; run: make bundle"),
]


class Real(NamedTuple):
    model: Model
    session: Session  # the core
    engine: Backend  # for the reference loop
    tables: DraftTables


@pytest.fixture(scope="module")
def real() -> Iterator[Real]:
    from streamfuse.engines import engines_of

    with load(BUNDLE, cost_cache=False) as model:
        assert model.bundle.tables is not None
        engine = engines_of(model.bundle, None)()
        yield Real(model, model.session(), engine, DraftTables.load(model.bundle.tables))
        engine.close()


@pytest.mark.parametrize("numbers", [range(4), pytest.param(range(4, 50), marks=pytest.mark.full)], ids=["4", "46"])
def test_the_core_does_what_the_readable_loop_does_and_plain_decoding_says(real: Real, numbers: Sequence[int]) -> None:
    for number in numbers:
        chance = np.random.default_rng(number)
        prompt = real.model.encode(str(chance.choice(REQUESTS)).format(chance.choice(SUBJECTS)))
        sampling = SAMPLINGS[number % len(SAMPLINGS)]
        config = GenerationConfig(TOKENS, sampling, width=int(chance.choice(real.engine.spec.verify_widths)))
        passes: list[Pass] = []
        rounds: list[Round] = []
        trees: list[tuple[list[int], list[int], list[float]]] = []

        def see(one: Round, rounds: list[Round] = rounds, trees: list[object] = trees) -> None:
            rounds.append(one)
            trees.append((one.tree.tokens.tolist(), one.tree.parents.tolist(), one.tree.log_probs.tolist()))

        real.session.reset()
        generation = real.session.generate(prompt, config, passes.append)
        generation.finish()
        real.engine.truncate(0)
        loop = Loop(real.engine, list(prompt), config, StreamDrafter(real.tables), observe=see)
        assert [one.token for one in loop.run()] == generation.token_ids
        assert [(one.tokens, one.parents, one.log_probs) for one in passes] == trees
        assert [(one.method, one.walk_rows) for one in passes] == [(one.method, one.walk.rows) for one in rounds]
        for other in (GenerationConfig(TOKENS, sampling, speculative=False), GenerationConfig(TOKENS, sampling)):
            real.session.reset()
            again = real.session.generate(prompt, other)
            again.finish()
            assert again.token_ids == generation.token_ids
