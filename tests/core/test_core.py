"""The core against the reference loop: numbers, trees, tokens to the bit; sessions that are stopped, saved, restored.

Run: pytest tests/core/test_core.py
"""

from __future__ import annotations

import ctypes
import ctypes.util
import fcntl
import itertools
import json
import os
import platform
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import ArithmeticBackend, StubbornBackend, greedy_after, plainly, spec
from tiers import cases

from streamfuse.options import OptionError
from streamfuse.runtime.backend import DECODE, STREAMS, BackendError, ModelSpec, PassOutput
from streamfuse.runtime.backends.callbacks import Table, callback_table
from streamfuse.runtime.config import GenerationConfig, PromptError, SamplingConfig
from streamfuse.runtime.core import CoreError, CoreModel, CoreSession, TablesError, load_core
from streamfuse.runtime.reference.coupling import Coupling
from streamfuse.runtime.reference.draft import DraftTables, StreamDrafter, grow
from streamfuse.runtime.reference.lookup import LookUpDrafter
from streamfuse.runtime.reference.loop import Loop, Round
from streamfuse.runtime.reference.ngram_table import NgramTable
from streamfuse.runtime.reference.noise import gumbel
from streamfuse.runtime.reference.numbers import exponential, logarithm
from streamfuse.runtime.reference.sampling import Sampler, distribution, penalise
from streamfuse.runtime.reference.tree import Tree
from streamfuse.runtime.reference.watch import Pass
from streamfuse.runtime.session import Generation, Session
from streamfuse.runtime.structures import RELEASE, TAKE, Options
from streamfuse.runtime.text_library import BAD_FILE, END, EXECUTION, OK

CORE = Path(__file__).parents[2] / "core"
VOCAB, SLOTS = 60, 40
DOWNWARD = {"x86_64": 0x400, "aarch64": 0x800000, "arm64": 0x800000}  # FE_DOWNWARD of fenv.h
MACHINE, LIBM = platform.machine(), ctypes.util.find_library("m")
SAMPLINGS = (
    SamplingConfig(),
    SamplingConfig(temperature=1.0, seed=2**63 + 5),
    SamplingConfig(temperature=0.7, top_p=0.9, seed=7),
    SamplingConfig(temperature=1.3, top_k=12, min_p=0.02, repetition_penalty=1.1, seed=3),
    SamplingConfig(repetition_penalty=1.2),
)


def options_of(config: SamplingConfig) -> Options:
    return Options(
        temperature=config.temperature, top_k=config.top_k, top_p=config.top_p, min_p=config.min_p,
        repetition_penalty=config.repetition_penalty, seed=config.seed, max_new_tokens=1,
    )  # fmt: skip


def numbers(rng: np.random.Generator) -> np.ndarray:
    wide = -np.exp(rng.uniform(-40, 8, 20_000))
    edges = [0.0, -0.0, -700.0, np.nextafter(-700, 0), np.nextafter(-700, -800), -745.2, -1e308, -np.inf, 0.5, 700.0]
    return np.concatenate([wide, edges])


def test_exponential_and_logarithm_are_numpys_to_the_bit_and_right_to_two_last_places(rng: np.random.Generator) -> None:
    library, x = load_core(), numbers(rng)
    y = np.empty_like(x)
    library.sf_exp(x.ctypes.data, y.ctypes.data, len(x))
    assert y.tobytes() == exponential(x).tobytes()
    normal = x >= -700
    np.testing.assert_allclose(y[normal], np.exp(x[normal]), rtol=5e-16)
    assert not y[x < -700].any()
    positive = np.concatenate([np.exp(rng.uniform(-600, 600, 20_000)), 1 + rng.uniform(-1e-6, 1e-6, 1000), [1.0, 2.0]])
    z = np.empty_like(positive)
    library.sf_log(positive.ctypes.data, z.ctypes.data, len(positive))
    assert z.tobytes() == logarithm(positive).tobytes()
    np.testing.assert_allclose(z, np.log(positive), rtol=5e-16, atol=1e-300)


def test_the_noise_is_that_of_the_reference(rng: np.random.Generator) -> None:
    for _ in range(60):
        seed, position, vocab = int(rng.integers(2**63)), int(rng.integers(2**62)), int(rng.integers(1, 3000))
        tokens = rng.integers(0, vocab, 30)
        found = [load_core().sf_noise(seed, position, int(token), vocab) for token in tokens]
        assert found == gumbel(seed, position, tokens, vocab).tolist()


def sampled(rng: np.random.Generator) -> SamplingConfig:
    return SamplingConfig(temperature=float(rng.choice([0.0, 0.3, 0.7, 1.0, 9.0])), seed=int(rng.integers(2**62)))


def streams_of(rng: np.random.Generator, count: int, k: int, tied: bool) -> tuple[np.ndarray, np.ndarray]:
    ids = np.stack([rng.permutation(SLOTS)[:k] for _ in range(count)]).astype(np.int64)
    if tied:
        return ids, -np.sort(rng.integers(1, 4, (count, k)), axis=1).astype(np.float32)
    probs = np.sort(rng.dirichlet(np.full(k + 1, 0.5), count)[:, :k] * 0.98 + 1e-3)[:, ::-1]
    return ids, np.log(probs).astype(np.float32)


def grown(model: CoreModel, name: str, *arguments: object, width: int, depth: int) -> Tree:
    tokens, parents, log_probs = np.empty(width, np.int64), np.empty(width, np.int64), np.empty(width)
    outputs = (array.ctypes.data for array in (tokens, parents, log_probs))
    with model.handle as handle:
        rows = getattr(model.library, name)(handle, *arguments, width, depth, *outputs)
        assert rows >= 1, model.library.sf_core_model_error(handle)
    return Tree.of(tokens[:rows].tolist(), parents[:rows].tolist(), log_probs[:rows].tolist())


def assert_same_bits(found: Tree, expected: Tree) -> None:
    assert found.tokens.tolist() == expected.tokens.tolist()
    assert found.parents.tolist() == expected.parents.tolist()
    assert found.log_probs.tobytes() == expected.log_probs.tobytes()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("rank", [0, 1, 8, 13, 32])
def test_two_thousand_random_trees_are_equal_to_the_bit(rng: np.random.Generator, rank: int, tied: bool) -> None:
    for _ in range(cases(5, 20)):
        left = (rng.normal(size=(VOCAB, rank)) * 10.0 ** rng.integers(-8, 1)).astype(np.float16)  # subnormal ones too
        right, gate = rng.normal(size=(SLOTS, rank)).astype(np.float16), rng.normal(size=(4, rank)).astype(np.float32)
        vocab, k = np.arange(SLOTS, dtype=np.int32), int(rng.integers(1, 17))
        widths = {"verify_18": (18, 18)}
        tensors = {"parent_left": left, "parent_right": right, "gate": gate, "stream_vocab": vocab}
        model = CoreModel(ModelSpec(64, VOCAB, 4, k, 8, widths), tensors)
        tables = DraftTables.of(left, right, gate, vocab)
        for _ in range(10):
            ids, log_probs = streams_of(rng, 4, k, tied)
            width, depth = int(rng.integers(1, 18)), int(rng.integers(1, 6))
            sampling, position = sampled(rng), int(rng.integers(2**40))
            places = (7, ids.ctypes.data, log_probs.ctypes.data, position, ctypes.byref(options_of(sampling)))
            found = grown(model, "sf_grow_streams", *places, width=width, depth=depth)
            coupling = Coupling.of(sampling, VOCAB)
            assert_same_bits(found, grow(7, ids, log_probs, width, depth, tables, coupling, position))


needs_downward = pytest.mark.skipif(MACHINE not in DOWNWARD, reason="the number of FE_DOWNWARD is not known here")


@contextmanager
def rounding_downward() -> Iterator[None]:
    """The calling thread rounds towards minus infinity; a call must leave that so."""
    math = ctypes.CDLL(LIBM)
    nearest = math.fegetround()
    assert math.fesetround(DOWNWARD[MACHINE]) == 0
    try:
        yield
        assert math.fegetround() == DOWNWARD[MACHINE]
    finally:
        math.fesetround(nearest)


@needs_downward
def test_numbers_do_not_follow_the_caller_s_rounding_mode(rng: np.random.Generator) -> None:
    library, x = load_core(), numbers(rng)
    positive = np.exp(rng.uniform(-600, 600, 1000))
    y, z = np.empty_like(x), np.empty_like(positive)

    def found() -> list[object]:
        library.sf_exp(x.ctypes.data, y.ctypes.data, len(x))
        library.sf_log(positive.ctypes.data, z.ctypes.data, len(positive))
        return [y.tobytes(), z.tobytes(), [library.sf_noise(3, 5, token, VOCAB) for token in range(VOCAB)]]

    expected = found()
    with rounding_downward():
        changed = found()
    assert changed == expected


@needs_downward
def test_trees_do_not_follow_the_caller_s_rounding_mode(rng: np.random.Generator) -> None:
    left, right = (rng.normal(size=(rows, 8)).astype(np.float16) for rows in (VOCAB, SLOTS))
    gate, vocab = rng.normal(size=(4, 8)).astype(np.float32), np.arange(SLOTS, dtype=np.int32)
    tensors = {"parent_left": left, "parent_right": right, "gate": gate, "stream_vocab": vocab}
    model = CoreModel(ModelSpec(64, VOCAB, 4, 8, 8, {"verify_18": (18, 18)}), tensors)
    for _ in range(20):
        ids, log_probs = streams_of(rng, 4, 8, tied=False)
        options = options_of(SamplingConfig(temperature=0.7, seed=3))
        places = (7, ids.ctypes.data, log_probs.ctypes.data, 5, ctypes.byref(options))
        expected = grown(model, "sf_grow_streams", *places, width=18, depth=4)
        with rounding_downward():
            found = grown(model, "sf_grow_streams", *places, width=18, depth=4)
        assert_same_bits(found, expected)


def table_of(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Pairs of tokens and single ones, and longer contexts, each with one before it that it lengthens."""
    pairs = VOCAB * (VOCAB + 1)
    keys = np.unique(rng.integers(0, pairs, 400))
    for _ in range(3):
        known = np.flatnonzero((keys >= pairs) | (keys % (VOCAB + 1) > 0))
        longer = pairs + rng.choice(known, 200) * VOCAB + rng.integers(0, VOCAB, 200)
        keys = np.concatenate([keys, np.setdiff1d(longer[longer > keys[-1]], keys)])
    counts = rng.integers(0, 5, len(keys))
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    probs = [np.sort(np.log(rng.dirichlet(np.full(n + 1, 0.4))[:n] + 1e-3))[::-1] for n in counts]
    probs = np.minimum(np.concatenate([*probs, []]), 0).astype(np.float16)
    ids = rng.integers(0, VOCAB, int(starts[-1])).astype(np.int32)
    return {"ngram_keys": keys, "ngram_starts": starts, "ngram_ids": ids, "ngram_log_probs": probs}


def test_trees_of_the_n_gram_table_are_equal_to_the_bit(rng: np.random.Generator) -> None:
    for _ in range(cases(5, 20)):
        arrays = table_of(rng)
        model = CoreModel(ModelSpec(64, VOCAB, 0, 0, 8, {"verify_18": (18, 18)}), arrays)
        table = NgramTable.of(VOCAB, *arrays.values())
        for _ in range(20):
            width, depth = int(rng.integers(1, 18)), int(rng.integers(0, 9))
            text = _known_text(rng, arrays["ngram_keys"])
            sampling = sampled(rng)
            places = (text.ctypes.data, len(text), ctypes.byref(options_of(sampling)))
            found = grown(model, "sf_grow_table", *places, width=width, depth=depth)
            coupling = Coupling.of(sampling, VOCAB)
            assert_same_bits(found, table.grow(text.tolist(), width, depth, coupling=coupling))


def _known_text(rng: np.random.Generator, keys: np.ndarray) -> np.ndarray:
    """A few tokens that end with a context of the table, or nearly."""
    pairs, place, text = VOCAB * (VOCAB + 1), int(rng.integers(len(keys))), []
    while keys[place] >= pairs:
        place, token = divmod(int(keys[place]) - pairs, VOCAB)
        text.append(token)
    last, before = divmod(int(keys[place]), VOCAB + 1)
    text += [before - 1, last] if before else [last]
    if rng.integers(4) == 0:
        text[0] = int(rng.integers(VOCAB))
    return np.array([*rng.integers(0, VOCAB, rng.integers(0, 4)), *text], np.int64)


@pytest.mark.parametrize("number", range(8))
def test_sampled_tokens_are_those_of_the_reference(rng: np.random.Generator, number: int) -> None:
    """Wide and flat rows, many equal scores, masked tokens. The core computes the noise of few tokens only, the
    reference that of all."""
    for round_ in range(cases(15, 60)):
        vocab = int(rng.integers(1, 1500))
        logits = (rng.normal(size=vocab) * 10 ** rng.uniform(-2, 1.3)).astype(np.float32)
        if round_ % 3 == 0:
            logits = np.round(logits)
        if round_ % 5 == 0:
            logits[rng.random(vocab) < 0.3] = -np.inf
        logits[rng.integers(vocab)] = 3.0
        config = SamplingConfig(
            temperature=float(rng.choice([0.0, 0.05, 0.7, 1.0, 3.0])),
            top_k=int(rng.choice([0, 1, 5, 300])),
            top_p=float(rng.choice([1.0, 0.95, 0.5, 1e-6])),
            min_p=float(rng.choice([0.0, 0.05, 1.0])),
            repetition_penalty=float(rng.choice([1.0, 1.3, 0.8])),
            seed=int(rng.integers(2**62)),
        )
        history = rng.integers(0, vocab, 9)
        for position in range(10, 16):
            near, sampler = ctypes.c_int32(), Sampler(config)
            places = (logits.ctypes.data, vocab, history.ctypes.data, len(history), position)
            found = load_core().sf_choose(*places, ctypes.byref(options_of(config)), ctypes.byref(near))
            assert found == sampler.pick(logits, history.tolist(), position), (config, position)
            assert near.value == sampler.near_ties_before(position + 1)


@pytest.mark.parametrize(
    "config",
    [
        SamplingConfig(temperature=1.0),
        SamplingConfig(temperature=0.6),
        SamplingConfig(temperature=1.5, top_k=7),
        SamplingConfig(temperature=1.0, top_p=0.8),
        SamplingConfig(temperature=1.2, min_p=0.1, repetition_penalty=1.3),
    ],
    ids=["plain", "cold", "top-k", "top-p", "min-p and penalty"],
)
@pytest.mark.parametrize("vocab", [12, 600])
def test_tokens_are_sampled_with_the_probabilities_of_the_softmax(
    rng: np.random.Generator, config: SamplingConfig, vocab: int
) -> None:
    logits = (rng.normal(size=vocab) * 1.5).astype(np.float32)
    logits[rng.choice(vocab, 12, replace=False)] += 4.0 if vocab > 12 else 0.0
    history = [0, 3]
    ids, _, weights = distribution(penalise(logits, history, config.repetition_penalty), config)
    counts, draws = np.zeros(vocab), 4000
    for seed in range(draws):
        options = options_of(replace(config, seed=seed))
        places = (logits.ctypes.data, vocab, np.array(history).ctypes.data, len(history), 2)
        counts[load_core().sf_choose(*places, ctypes.byref(options), None)] += 1
    assert counts[np.setdiff1d(np.arange(vocab), ids)].sum() == 0
    expected = draws * weights / weights.sum()
    often = expected >= 8
    found, expected = np.append(counts[ids][often], 0), np.append(expected[often], 0)
    found[-1], expected[-1] = draws - found.sum(), draws - expected.sum()  # the others together
    keep = expected > 1e-6
    statistic, freedom = ((found - expected)[keep] ** 2 / expected[keep]).sum(), keep.sum() - 1
    assert statistic < freedom + 4 * np.sqrt(2 * freedom) + 6  # beyond four standard deviations of chi-square


def both(backend: ArithmeticBackend, twin: ArithmeticBackend, prompt: list[int], config: GenerationConfig) -> None:
    """The core and the reference loop on equal engines: the same passes, tokens and cache."""
    rounds: list[Round] = []
    passes: list[Pass] = []
    drafter = StreamDrafter() if twin.spec.num_streams else LookUpDrafter()
    loop = Loop(twin, list(prompt), config, drafter, observe=rounds.append)
    expected = [one.token for one in loop.run()]
    with Session(backend) as session:
        generation = session.generate(prompt, config, passes.append)
        generation.finish()
        assert generation.token_ids == expected
        assert backend.cache == twin.cache == session.tokens[: len(backend.cache)]
    assert generation.statistics.finish_reason == loop.counts.finish_reason
    assert [(one.method, one.tokens, one.parents, one.log_probs) for one in passes] == [
        (one.method, one.tree.tokens.tolist(), one.tree.parents.tolist(), one.tree.log_probs.tolist()) for one in rounds
    ]
    assert [(one.walk_rows, one.walk_tokens, one.delivered, one.cached) for one in passes] == [
        (one.walk.rows, one.walk.tokens, one.delivered, one.length) for one in rounds
    ]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "hot", "top-p", "filters", "penalty"])
@pytest.mark.parametrize("deferred", [False, True], ids=["fused", "deferred"])
def test_the_core_and_the_readable_loop_do_the_same_pass_by_pass(
    rng: np.random.Generator, sampling: SamplingConfig, deferred: bool
) -> None:
    """So many generations each, ten times as many in all; half of the models have a `verify_1`."""
    nodes = {"verify_8": 2, "verify_4": 0} if deferred else {}
    for number in range(cases(10, 100)):
        widths = {"verify_2": (2, 2), "verify_4": (4, 4), "verify_8": (8, 6)}
        widths |= {"verify_1": (1, 1)} if number % 2 else {}
        model = spec(widths=widths, deferred=deferred, stream_nodes=nodes, capacity=int(rng.integers(12, 60)))
        accuracy, width = int(rng.integers(0, 17)), int(rng.choice([1, 2, 4, 8]))
        prompt = rng.integers(0, 64, int(rng.integers(1, 10))).tolist()
        config = GenerationConfig(
            int(rng.integers(1, 40)), replace(sampling, seed=int(rng.integers(2**60))),
            stop_token_ids=(int(rng.integers(64)),), speculative=width > 1, width=width if width > 1 else None,
        )  # fmt: skip
        engines = (ArithmeticBackend(model, accuracy, mixed=True) for _ in range(2))
        both(*engines, prompt, config)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "hot", "top-p", "filters", "penalty"])
def test_without_streams_the_core_drafts_by_look_up_as_the_readable_loop_does(
    rng: np.random.Generator, sampling: SamplingConfig
) -> None:
    for _ in range(cases(8, 25)):
        model = spec(num_streams=0, top_k=0, capacity=int(rng.integers(12, 90)))
        prompt = rng.integers(0, int(rng.integers(2, 64)), int(rng.integers(1, 10))).tolist()
        config = GenerationConfig(
            int(rng.integers(1, 80)), replace(sampling, seed=int(rng.integers(2**60))), width=int(rng.choice([2, 4, 8]))
        )
        engines = (ArithmeticBackend(model, mixed=True) for _ in range(2))
        both(*engines, prompt, config)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "hot", "top-p", "filters", "penalty"])
def test_without_streams_planned_text_is_the_plain_one_and_drafts_are_look_ups(
    rng: np.random.Generator, sampling: SamplingConfig
) -> None:
    model, accepted = spec(num_streams=0, top_k=0), 0
    with Session(ArithmeticBackend(model), costs=costs_of(model)) as session:
        for _ in range(15):
            chosen = replace(sampling, seed=int(rng.integers(2**60)))
            prompt = rng.integers(0, 64, 3).tolist() * 3
            plain = session.generate(prompt, GenerationConfig(70, chosen, speculative=False))
            plain.finish()
            drafting = session.generate(prompt, GenerationConfig(70, chosen))
            drafting.finish()
            assert drafting.token_ids == plain.token_ids
            found = drafting.statistics
            assert found.speculative
            assert set(found.widths) <= {DECODE, *model.widths}
            drafted = {source: count for source, count in found.accepted_by_source.items() if count}
            assert drafted in ({}, {"lookup": found.draft_tokens_accepted})
            assert set(found.fallback_reasons) <= {
                "nothing to draft from in the text",
                "verifying costs more here than drafts bring",
            }
            accepted += found.draft_tokens_accepted
    assert accepted > 0 or sampling.temperature >= 1  # hot text repeats nothing


def test_turns_stops_saves_and_restores_at_random_leave_the_text_as_it_would_be(
    rng: np.random.Generator, tmp_path: Path
) -> None:
    """Random sequences: whatever happens between tokens, each token is the model's own after what is there."""
    for number in range(cases(75, 500)):
        model = spec(deferred=bool(number % 2), stream_nodes={"verify_8": 3, "verify_4": 1} if number % 2 else None)
        backend = ArithmeticBackend(model, int(rng.integers(0, 17)), mixed=True)
        session = Session(backend, costs=costs_of(model), identity="x")
        context = rng.integers(0, 64, 3).tolist()
        for _ in range(3):
            prompt = [*context, *rng.integers(0, 64, int(rng.integers(1, 5))).tolist()]
            wanted, left = int(rng.integers(1, 14)), int(rng.integers(0, 14))
            generation = session.generate(prompt, GenerationConfig(wanted))
            for count, _ in enumerate(generation, start=1):
                if count == left:
                    session.stop() if rng.random() < 0.5 else generation.close()
            generation.close()
            context = session.tokens
            assert backend.cache == context[: len(backend.cache)]
            for place in range(len(prompt), len(context)):
                assert context[place] == greedy_after(context[:place], 64)
            if rng.random() < 0.3:
                session.save(tmp_path / "saved")
                session.close()
                backend = ArithmeticBackend(model, 8, mixed=True)
                session = Session(backend, costs=costs_of(model), identity="x")
                session.restore(tmp_path / "saved")
                assert session.tokens == context
        session.close()


class WindowBackend(ArithmeticBackend):
    """An engine that can only drop its last four tokens, or all."""

    furthest = 0

    def commit(self, rows: Sequence[int]) -> None:
        super().commit(rows)
        self.furthest = max(self.furthest, self.length)

    def truncatable(self, length: int) -> int:
        return length if length >= self.furthest - 4 else 0

    def truncate(self, length: int) -> None:
        assert length == self.truncatable(length)
        super().truncate(length)
        if length == 0:
            self.furthest = 0


def test_tokens_that_an_engine_cannot_go_back_to_are_read_again() -> None:
    backend = WindowBackend(spec())
    with Session(backend) as session:
        session.generate([3, 1, 4, 1, 5], GenerationConfig(20, width=4)).finish()
        cached = backend.length
        for kept, reread in ((cached - 2, 0), (5, 5)):
            prompt = [*session.tokens[:kept], 7]
            generation = session.generate(prompt, GenerationConfig(4, width=4))
            generation.finish()
            assert generation.token_ids == plainly(prompt, 4)
            assert (generation.statistics.reread_tokens, generation.statistics.prefilled_tokens) == (reread, reread)


def test_reread_tokens_are_at_most_the_prefilled_ones() -> None:
    """The remaining turns are encoded again, perhaps to fewer tokens than the cache had."""
    with Session(ArithmeticBackend(spec())) as session:
        session.generate([3, 1, 4, 1, 5], GenerationConfig(20, width=4)).finish()
        generation = session.generate([3, 1, 5, 9], GenerationConfig(4, width=4), dropped=(1, 2))
        generation.finish()
        assert (generation.statistics.reread_tokens, generation.statistics.prefilled_tokens) == (1, 1)


def test_reread_tokens_are_at_most_those_prefilled_before_the_text_ended() -> None:
    with Session(WindowBackend(spec(prefill_rows=4))) as session:
        session.generate([3, 1, 4, 1, 5], GenerationConfig(20, width=4)).finish()
        generation = session.generate([*session.tokens[:12], 7], GenerationConfig(4, width=4))
        assert generation.statistics.reread_tokens == 12, "so that a chat can tell it before it waits for them"
        assert session.core.read()
        generation.stop()
        generation.finish()
        assert (generation.statistics.reread_tokens, generation.statistics.prefilled_tokens) == (4, 4)


class SavingWindowBackend(WindowBackend):
    """The same; a saved cache goes back as far as the one that it was saved from."""

    def cache_bytes(self, length: int) -> int:
        return 8 * (length + 1)

    def save_cache(self, length: int, write: Callable[[bytes], None]) -> None:
        for number in (self.furthest, *self.cache[:length]):
            write(number.to_bytes(8, "little"))

    def load_cache(self, length: int, read: Callable[[int], bytes]) -> None:
        self.furthest, *self.cache = (int.from_bytes(read(8), "little") for _ in range(length + 1))


def test_a_prefix_that_cannot_drop_its_last_token_is_not_counted_as_loaded(tmp_path: Path) -> None:
    backend = SavingWindowBackend(spec())
    with Session(backend) as session:
        session.generate([3, 1, 4, 1, 5], GenerationConfig(20, width=4)).finish()
        prefix = session.tokens[: backend.length - 4]
        session.generate([*prefix, 7], GenerationConfig(1)).stop()
        assert backend.length == len(prefix)
        session.save(tmp_path / "prefix")
    model = CoreModel(spec())
    model.add_prefix(str(tmp_path / "prefix"))
    for prompt, loaded in ((prefix, 0), ([*prefix, 7], len(prefix))):
        with Session(SavingWindowBackend(spec()), model=model) as session:
            generation = session.generate(prompt, GenerationConfig(4, width=4))
            generation.finish()
            assert generation.token_ids == plainly(prompt, 4)
            found = generation.statistics
            assert (found.prefix_tokens, found.prefilled_tokens) == (loaded, len(prompt) - 1 - loaded)
            assert found.prefix_refused is None


def costs_of(model: ModelSpec) -> dict[str, float]:
    found = {DECODE: 2.0, "verify_2": 2.1, "verify_4": 2.3, "verify_8": 3.0}
    return {**found, STREAMS: 0.4} if model.deferred else found


class SavingBackend(ArithmeticBackend):
    """An engine that hands out its rows: four bytes a token."""

    def cache_bytes(self, length: int) -> int:
        return 4 * length

    def save_cache(self, length: int, write: Callable[[bytes], None]) -> None:
        for token in self.cache[:length]:
            write(np.int32(token).tobytes())

    def load_cache(self, length: int, read: Callable[[int], bytes]) -> None:
        half = length // 2
        self.cache = np.frombuffer(read(4 * half) + read(4 * (length - half)), np.int32).tolist()


def test_a_restored_session_reads_nothing_again_and_goes_on_token_for_token(tmp_path: Path) -> None:
    prompt, config = [3, 1, 4, 1, 5], GenerationConfig(20, SAMPLINGS[2], width=4)
    with Session(SavingBackend(spec()), identity="a") as session:
        first = session.generate(prompt, config)
        for _ in range(9):
            next(first)
        session.save(tmp_path / "saved", b"a \0 note")
        context = session.tokens
    backend = SavingBackend(spec())
    with Session(backend, identity="a") as session:
        assert session.restore(tmp_path / "saved") == b"a \0 note"
        assert backend.cache == context[:-1]
        rest = session.generate(context, replace(config, max_new_tokens=11))
        rest.finish()
        assert "prefill" not in {method for method, _ in backend.calls}
    with Session(SavingBackend(spec())) as session:
        whole = session.generate(prompt, config)
        whole.finish()
    assert context[len(prompt) :] + rest.token_ids == whole.token_ids


def test_costs_are_measured_behind_what_is_cached(tmp_path: Path) -> None:
    model = spec(deferred=True, stream_nodes={"verify_8": 2})
    backend = SavingBackend(model)
    with Session(backend) as session:
        session.generate([3, 1, 4, 1, 5], GenerationConfig(20, width=4)).finish()
        session.save(tmp_path / "saved")
        context = session.tokens
    backend = SavingBackend(model)
    with Session(backend) as session:
        session.restore(tmp_path / "saved")
        planned = session.generate(context, GenerationConfig(8))
        planned.finish()
        assert planned.statistics.prefilled_tokens == 0
        assert planned.token_ids == plainly(context, 8)
    with Session(SavingBackend(spec(capacity=24))) as session:  # no room for a pass behind it
        session.generate([3] * 20, GenerationConfig(2, width=4)).finish()
        full = session.generate([3] * 20, GenerationConfig(3))
        full.finish()
        assert full.token_ids == plainly([3] * 20, 3)


def test_a_row_of_the_timing_passes_that_cannot_be_dropped_is_dropped_by_the_next_start() -> None:
    with Session(engine := StubbornBackend(spec(deferred=True, stream_nodes={"verify_8": 2}))) as session:
        session.generate([3, 1, 4, 1, 5], GenerationConfig(6, speculative=False)).finish()
        context = session.tokens
        engine.fails = True
        with pytest.raises(BackendError, match="cannot go back"):
            session.generate([*context, 9], GenerationConfig(6))
        assert len(engine.cache) == session.core.cached + 1
        generation = session.generate([*context, 9], GenerationConfig(6, speculative=False))
        generation.finish()
        assert generation.token_ids == plainly([*context, 9], 6)
        assert engine.cache == session.tokens[: session.core.cached]


def test_a_saved_session_that_is_damaged_or_anothers_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "saved"
    with Session(SavingBackend(spec()), identity="a") as session:
        session.generate([1, 2, 3], GenerationConfig(5, width=4)).finish()
        session.save(path, b"note")
        good, tokens = path.read_bytes(), session.tokens
        cut, late = (b"", good[:20], good[:-1], good[:-9]), flipped(good, len(good) - 10)
        for damaged in (*cut, good + b"x", b"x" + good[1:], flipped(good, 100), late):
            path.write_bytes(damaged)
            with pytest.raises(CoreError, match=re.escape(str(path))):
                session.restore(path)
            assert session.tokens == tokens
        with pytest.raises(CoreError, match="cannot be opened"):
            session.restore(tmp_path / "missing")
        with pytest.raises(CoreError, match="cannot be written"):
            session.save(tmp_path / "no" / "folder")
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(CoreError, match="pipe cannot be written: it is not a regular file"):
            session.save(tmp_path / "pipe")
        assert (tmp_path / "pipe").is_fifo()
        (tmp_path / "pipe").unlink()
        path.write_bytes(good)
        with pytest.raises(ZeroDivisionError):
            session.restore(path, lambda note: 1 // (note != b"note"))
        assert session.tokens == tokens
    for identity, model in (("b", spec()), ("a", spec(capacity=50))):
        with (
            Session(SavingBackend(model), identity=identity) as other,
            pytest.raises(CoreError, match="another bundle"),
        ):
            other.restore(path)
    with Session(ArithmeticBackend(spec()), identity="a") as other, pytest.raises(CoreError, match="another engine"):
        other.restore(path)
    assert sorted(tmp_path.iterdir()) == [path], "no draft is left behind"


def test_a_file_that_a_session_cannot_be_saved_to_or_restored_from_is_named_with_the_reason(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()

    class Unasked(SavingBackend):
        def save_cache(self, length: int, write: Callable[[bytes], None]) -> None:
            raise AssertionError("the file cannot be written")

    with Session(Unasked(spec())) as session:
        session.generate([1, 2, 3], GenerationConfig(5)).finish()
        for path, reason in ((folder, "it is a folder"), (tmp_path / ("n" * 252), "its name is too long")):
            with pytest.raises(CoreError, match=f"^{path} cannot be written: {reason}$"):
                session.save(path)
        with pytest.raises(CoreError, match=f"^{folder} cannot be read: it is a folder$"):
            session.restore(folder)
    assert list(tmp_path.iterdir()) == [folder]


@contextmanager
def being_written(path: Path) -> Iterator[None]:
    """As if another process, which is suspended, were writing the file."""
    temporary = path.with_name(path.name + "..tmp")
    with temporary.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    temporary.unlink()


def test_a_session_is_not_saved_to_a_file_that_another_process_is_writing(tmp_path: Path) -> None:
    path, errors = tmp_path / "saved", []

    def save() -> None:
        try:
            session.save(path)
        except CoreError as error:
            errors.append(str(error))

    with Session(SavingBackend(spec())) as session:
        session.generate([1, 2, 3], GenerationConfig(5)).finish()
        with being_written(path):
            saver = threading.Thread(target=save)
            saver.start()
            saver.join(10)
            assert errors == [f"{path} cannot be written: another process is writing the file"]
            assert path.with_name("saved..tmp").exists(), "it is the other's"
        saver.join()
        session.save(path)


LARGE = """
import resource, sys
from test_core import GenerationConfig, SavingBackend, Session, spec
class Large(SavingBackend):
    part = bytes(1 << 20)
    def cache_bytes(self, length):
        return 4 * length + 256 * len(self.part)
    def save_cache(self, length, write):
        super().save_cache(length, write)
        for _ in range(256):
            write(self.part)
    def load_cache(self, length, read):
        super().load_cache(length, read)
        assert all(read(len(self.part)) == self.part for _ in range(256))
with Session(Large(spec())) as session:
    session.generate([1, 2, 3], GenerationConfig(5, width=4)).finish()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    session.save(sys.argv[1])
    session.restore(sys.argv[1])
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / before)
"""


def in_another_process(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    folders = [str(Path(__file__).parent), *sys.path]
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(folders)}, capture_output=True, text=True,
    )  # fmt: skip


def test_a_large_cache_is_saved_and_restored_without_a_copy_in_memory(tmp_path: Path) -> None:
    done = in_another_process(LARGE, tmp_path / "saved")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "saved").stat().st_size > 256 << 20
    assert float(done.stdout) < 0.2, "of 256 MiB only parts are held"


class WrongBackend(SavingBackend):
    """Writes `more` bytes than it announced, and asks for as many more."""

    more = 0

    def save_cache(self, length: int, write: Callable[[bytes], None]) -> None:
        write(bytes(4 * length + self.more))

    def load_cache(self, length: int, read: Callable[[int], bytes]) -> None:
        read(4 * length + self.more)
        super().truncate(0)
        self.cache = [1] * length


def test_an_engine_that_saves_or_takes_another_number_of_bytes_than_it_said_is_refused(tmp_path: Path) -> None:
    backend = WrongBackend(spec())
    with Session(backend) as session:
        session.generate([1, 2, 3], GenerationConfig(5, width=4)).finish()
        for more in (-1, 1):
            backend.more = more
            with pytest.raises(CoreError, match=rf"saved {4 * len(backend.cache) + more} bytes of its cache"):
                session.save(tmp_path / "saved")
        assert list(tmp_path.iterdir()) == []
        backend.more = 0
        session.save(tmp_path / "saved")
        backend.more = 1
        with pytest.raises(OSError, match="has not"):
            session.restore(tmp_path / "saved")
        assert session.tokens == []


@pytest.mark.parametrize("code", [BAD_FILE, EXECUTION])
def test_a_cache_that_cannot_be_read_is_no_refused_file(code: int, tmp_path: Path) -> None:
    """A refused file, SF_BAD_FILE, has changed nothing; here the old cache is gone, and so is what the engine read."""

    class Failing(SavingBackend):
        def engine_table(self) -> Table:
            def reads_one_row(*_: Any) -> int:
                self.cache.append(1)
                return code

            table = callback_table(self)
            table.struct.load = load = type(table.struct.load)(reads_one_row)
            table.held.append(load)
            return table

    with Session(engine := Failing(spec())) as session:
        session.generate([1, 2, 3], GenerationConfig(5, width=4)).finish()
        session.save(tmp_path / "saved")
        with session.core.handle as handle:
            restore, path = session.core.library.sf_sequence_restore, str(tmp_path / "saved").encode()
            assert restore(handle, path, TAKE(lambda *_: OK), None) == EXECUTION
        assert (session.tokens, session.core.cached, engine.cache) == ([], 0, [])


KILLED = """
import resource, signal, sys
from test_core import GenerationConfig, SavingBackend, Session, spec
with Session(SavingBackend(spec()), identity="a") as session:
    session.generate([1, 2, 3], GenerationConfig(50, width=4)).finish()
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))  # the system ends the process in the middle of the file
    session.save(sys.argv[1], b"note" * 100)
"""


def test_killed_saves_leave_the_file_that_was_there_and_one_draft_that_the_next_save_writes_over(
    tmp_path: Path,
) -> None:
    path = tmp_path / "saved"
    with Session(SavingBackend(spec()), identity="a") as session:
        session.generate([1, 2, 3], GenerationConfig(5, width=4)).finish()
        session.save(path, b"first")
        for _ in range(3):
            assert in_another_process(KILLED, path).returncode == -signal.SIGXFSZ
            assert sorted(tmp_path.iterdir()) == [path, tmp_path / "saved..tmp"]
            assert session.restore(path) == b"first"
        session.save(path, b"second")
        assert session.restore(path) == b"second"
    assert [(file.name, file.stat().st_mode & 0o777) for file in tmp_path.iterdir()] == [("saved", 0o600)]


def test_a_session_is_saved_under_a_name_that_is_no_utf_8(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"chat-\xff")
    with Session(SavingBackend(spec()), cost_folder=tmp_path / os.fsdecode(b"costs-\xff")) as session:
        session.generate([1, 2, 3], GenerationConfig(5)).finish()
        session.save(path, b"note")
        assert session.restore(path) == b"note"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_note_that_is_refused_with_the_code_of_an_end_is_a_failure(tmp_path: Path) -> None:
    with Session(SavingBackend(spec())) as session:
        session.save(tmp_path / "saved")
        with session.core.handle as handle:
            restore, path = session.core.library.sf_sequence_restore, str(tmp_path / "saved").encode()
            assert restore(handle, path, TAKE(lambda *_: END), None) == EXECUTION


def test_a_name_with_a_zero_byte_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with Session(SavingBackend(spec())) as session:
        session.generate([1, 2, 3], GenerationConfig(5)).finish()
        for use in (session.save, session.restore):
            with pytest.raises(ValueError, match="embedded null byte"):
                use(f"{tmp_path / 'chat'}\0.saved")
    with pytest.raises(ValueError, match="embedded null byte"):
        Session(SavingBackend(spec()), cost_folder=f"{tmp_path / 'costs'}\0")
    assert not list(tmp_path.iterdir())


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]


def test_tokens_say_who_drafted_them() -> None:
    tables = {
        "ngram_keys": np.array([7 * 65], np.int64),
        "ngram_starts": np.array([0, 1], np.int32),
        "ngram_ids": np.array([(31 * 7 + 7) % 64], np.int32),
        "ngram_log_probs": np.array([-0.1], np.float16),
    }
    model = spec(deferred=True, stream_nodes=dict.fromkeys(("verify_2", "verify_4", "verify_8"), 0))
    passes: list[Pass] = []
    session = Session(ArithmeticBackend(model, 16), tables, costs=costs_of(model))
    pieces = list(session.generate([9, 7], GenerationConfig(60), passes.append))
    assert {piece.source for piece in pieces} >= {"model", "streams"}
    told = [piece.source for piece in pieces if piece.drafted]
    rows = [[one.sources[row] for row in one.walk_rows[1 : one.delivered + 1]] for one in passes]
    assert told == [source for path in rows for source in path][: len(told)]
    assert sum(session.core.statistics.accepted_by_source.values()) == len(told)


def passes_with_a_table(model: ModelSpec) -> list[Pass]:
    """After every token the table names the right one, which the streams name too, and one that they do not."""
    tokens = np.arange(64)
    tables = {
        "ngram_keys": tokens * 65,
        "ngram_starts": np.arange(0, 129, 2).astype(np.int32),
        "ngram_ids": np.stack([(31 * tokens + 7) % 64, (tokens + 3) % 64], 1).ravel().astype(np.int32),
        "ngram_log_probs": np.tile(np.log([0.5, 0.4]), 64).astype(np.float16),
    }
    passes: list[Pass] = []
    session = Session(ArithmeticBackend(model, 16), tables, costs=costs_of(model))
    list(session.generate([9, 7], GenerationConfig(60), passes.append))
    return passes


def test_beside_deferred_streams_the_table_does_not_draft() -> None:
    model = spec(deferred=True, stream_nodes=dict.fromkeys(("verify_2", "verify_4", "verify_8"), 0))
    drafted = [set(one.sources) - {"model", "lookup"} for one in passes_with_a_table(model)]
    assert {"streams"} in drafted
    assert {"table"} in drafted
    assert {"streams", "table"} not in drafted


def test_the_table_joins_the_streams_of_a_fused_pass_and_a_node_of_both_is_theirs() -> None:
    passes = passes_with_a_table(spec(stream_nodes={"verify_2": 1, "verify_4": 1, "verify_8": 1}))
    both = [one for one in passes if {"streams", "table"} <= set(one.sources)]
    theirs = 0
    for one in both:
        children = [(int(parent), int(token)) for parent, token in zip(one.parents, one.tokens, strict=True)]
        assert len(set(children)) == len(children), "no node stands twice"
        assert all(parent < row for row, (parent, _) in enumerate(children))
        # These streams are never wrong, so they name the table's token wherever the model says it.
        named = (31 * one.tokens[0] + 7) % 64
        if one.walk_tokens[0] == named:
            assert one.sources[children.index((0, named))] == "streams"
            theirs += 1
    assert theirs


class TimedBackend(ArithmeticBackend):
    """Passes take a millisecond per real row and two at least; every fifth is interrupted for a second."""

    def __init__(self, model: ModelSpec) -> None:
        super().__init__(model)
        self.now = 0.0

    def _spend(self, ms: float) -> None:
        self.now += ms / 1000 + (1.0 if len(self.calls) % 5 == 0 else 0.0)

    def run(self, method: str, *args: object) -> PassOutput:
        output = super().run(method, *args)  # type: ignore[arg-type]
        self._spend(1.0 + self.calls[-1][1])
        return output

    def streams(self, index: int, next_token: int) -> PassOutput:
        self._spend(0.5)
        return super().streams(index, next_token)


def cost_session(backend: TimedBackend, folder: Path | None, device: str = "d") -> Session:
    return Session(backend, clock=lambda: backend.now, cost_folder=folder, device=device, identity="a")


def cost_file(folder: Path) -> Path:
    """The one in a folder."""
    (file,) = folder.iterdir()
    return file


def test_costs_are_measured_once_remembered_and_checked(tmp_path: Path) -> None:
    expected = {DECODE: 2, "verify_2": 3, "verify_4": 5, "verify_8": 9, STREAMS: 0.5}
    folder, calls = tmp_path / "deep" / "costs", []
    for _ in range(2):
        backend = TimedBackend(spec(deferred=True))
        session = cost_session(backend, folder)
        session.prepare()
        calls.append(len(backend.calls))
        assert backend.cache == []
        generation = session.generate([1], GenerationConfig(1))
        generation.finish()
        assert generation.statistics.cost_ms == pytest.approx(expected)
    assert calls[1] < calls[0] / 2, "a few passes check what was remembered"
    file = cost_file(folder)
    good = file.read_text()
    lines = good.splitlines()
    spoilt = "\n".join([*lines[:4], "2 2", *lines[5:-3], "40 90", *lines[-2:]])
    for text in ("", "streamfuse costs 3\n", good.replace("\nd\n", "\ne\n"), good.replace("\na\n", "\nb\n"), spoilt):
        file.write_text(text)
        backend = TimedBackend(spec(deferred=True))
        cost_session(backend, folder).prepare()
        assert len(backend.calls) >= calls[0], "measured anew"
    cost_session(TimedBackend(spec()), file / "in a file").prepare()


def test_costs_of_other_bundles_and_devices_are_in_files_of_their_own(tmp_path: Path) -> None:
    for identity, device in (("a", "d"), ("a", "e"), ("b", "d"), ("a", "d")):
        backend = TimedBackend(spec())
        with Session(
            backend, clock=lambda at=backend: at.now, cost_folder=tmp_path, device=device, identity=identity
        ) as session:
            session.prepare()
    assert len(list(tmp_path.glob("*.costs"))) == 3


def test_costs_are_not_stored_in_a_file_that_another_process_is_writing(tmp_path: Path) -> None:
    with cost_session(TimedBackend(spec()), tmp_path) as session:
        session.prepare()
    file = cost_file(tmp_path)
    file.unlink()
    with cost_session(TimedBackend(spec()), tmp_path) as session:
        with being_written(file):
            preparer = threading.Thread(target=session.prepare)
            preparer.start()
            preparer.join(10)
            assert not preparer.is_alive()
        preparer.join()
    assert not file.exists()


class SlowBackend(TimedBackend):
    """Every pass takes so many milliseconds; `at_call` is called with the number of each."""

    def __init__(self, model: ModelSpec, ms: float, at_call: Callable[[int], None] = lambda number: None) -> None:
        super().__init__(model)
        self.ms, self.at_call = ms, at_call

    def _spend(self, ms: float) -> None:
        self.now += self.ms / 1000
        self.at_call(len(self.calls))


def test_measuring_ends_when_it_has_cost_a_quarter_of_a_second() -> None:
    for ms, most in ((1.0, 0.25), (5.0, 0.25), (20.0, 0.25), (100.0, 0.4), (1000.0, 4.0)):
        backend = SlowBackend(spec(), ms)
        session = cost_session(backend, None)
        session.prepare()
        assert 0 < backend.now <= most + 1e-6, "slow passes: decode and the widest method, twice"
        generation = session.generate([1], GenerationConfig(1))
        generation.finish()
        assert generation.statistics.cost_ms == pytest.approx(dict.fromkeys(spec().widths, ms) | {DECODE: ms})


class SharedCacheBackend(TimedBackend):
    """A plain pass takes 2 ms after a plain pass and 2.6 after another one; each further row takes 0.2 ms."""

    before = DECODE

    def run(self, method: str, *args: object) -> PassOutput:
        output = ArithmeticBackend.run(self, method, *args)  # type: ignore[arg-type]
        self.now += 0.0018 + 0.0002 * self.calls[-1][1] + (0.0006 if method == DECODE != self.before else 0.0)
        self.before = method
        return output


def test_a_plain_pass_costs_what_it_costs_in_plain_decoding(tmp_path: Path) -> None:
    for _ in range(2):  # the second session reads what the first one has measured
        backend = SharedCacheBackend(spec())
        passes: Counter[str] = Counter()
        with cost_session(backend, tmp_path) as session:
            for _ in range(20):
                session.generate([1, 2, 3, 4], GenerationConfig(1)).finish()  # a prefill and a plain pass
                session.reset()
            for seed in range(8):
                sampling = SamplingConfig(temperature=0.3 + 0.3 * (seed % 2), seed=seed)
                generation = session.generate([1, 2, 3] * 3, GenerationConfig(60, sampling, ignore_eos=True))
                generation.finish()
                passes.update(generation.statistics.widths)
                assert generation.statistics.cost_ms[DECODE] == pytest.approx(2, rel=0.03)
        assert min(passes[DECODE], passes.total() - passes[DECODE]) > 100


def test_a_context_too_short_for_any_draft_is_measured_too() -> None:
    session = cost_session(SlowBackend(spec(capacity=6, widths={"verify_8": (8, 8)}), 200.0), None)
    session.prepare()
    generation = session.generate([1], GenerationConfig(1))
    generation.finish()
    assert generation.statistics.cost_ms[DECODE] == pytest.approx(200)


class RowsBackend(TimedBackend):
    """Passes take `slowness` times 90 ms and 10 more per row; streams take 30 ms."""

    slowness = 1.0

    def _spend(self, ms: float) -> None:
        self.now += self.slowness * (0.03 if ms == 0.5 else 0.08 + 0.01 * ms)


def test_methods_that_there_was_no_time_for_are_taken_to_lie_between_the_others() -> None:
    backend = RowsBackend(spec(deferred=True))
    session = cost_session(backend, None)
    generation = session.generate([1], GenerationConfig(1))
    generation.finish()
    costs = generation.statistics.cost_ms
    assert {method for method, _ in backend.calls} >= {DECODE, "verify_8"}
    assert not {"verify_2", "verify_4"} & {method for method, _ in backend.calls}
    assert costs[DECODE] < costs["verify_2"] < costs["verify_4"] < costs["verify_8"]
    assert costs[STREAMS] == pytest.approx(30)


def test_remembered_costs_follow_the_speed_of_the_device(tmp_path: Path) -> None:
    costs, written = [], []
    for slowness in (1.0, 2.0):
        backend = RowsBackend(spec(deferred=True))
        backend.slowness = slowness
        generation = cost_session(backend, tmp_path).generate([1], GenerationConfig(1))
        generation.finish()
        costs.append(generation.statistics.cost_ms)
        written.append(cost_file(tmp_path).read_text())
    assert costs[1] == pytest.approx({method: 2 * ms for method, ms in costs[0].items()})
    assert written[0] == written[1], "its ratios hold"


def test_a_stop_ends_the_measuring_of_costs() -> None:
    sessions: list[Session] = []
    backend = SlowBackend(spec(), 50.0, lambda number: sessions[0].stop() if number == 3 else None)
    sessions.append(cost_session(backend, None))
    generation = sessions[0].generate([1, 2, 3], GenerationConfig(8))
    assert list(generation) == []
    assert generation.statistics.finish_reason == "stopped"
    assert len(backend.calls) == 3
    assert sessions[0].generate([1, 2, 3], GenerationConfig(8)).finish() == ""
    assert sessions[0].generate([1, 2, 3], GenerationConfig(8)).statistics.cost_ms, "the next text measures them"


def test_the_first_token_counts_what_was_waited_for() -> None:
    session = cost_session(SlowBackend(spec(), 10.0), None)
    waited, measured = [], []
    for speculative in (True, False, True):
        generation = session.generate([1, 2], GenerationConfig(4, speculative=speculative))
        generation.finish()
        waited.append(generation.statistics.first_token_ms)
        measured.append(generation.statistics.measure_ms)
        session.reset()
    assert 200 < measured[0] < waited[0], "the first text had to measure what passes cost"
    assert measured[1:] == [0, 0]
    assert max(waited[1:]) < 100


def test_one_session_measures_for_all_of_a_model_on_a_device() -> None:
    model = CoreModel(spec(), None, "a")
    first, second, other = (SlowBackend(spec(), 1.0) for _ in range(3))
    for backend, device in ((first, "d"), (second, "d"), (other, "e")):
        with CoreSession(model, backend, clock=lambda backend=backend: backend.now, device=device) as session:
            session.prepare()
    assert len(first.calls) > 0
    assert len(second.calls) == 0
    assert len(other.calls) > 0, "another device has costs of its own"


def test_the_cost_file_takes_the_place_of_what_a_killed_process_left(tmp_path: Path) -> None:
    cost_session(TimedBackend(spec()), tmp_path).prepare()
    name = cost_file(tmp_path).name
    cost_file(tmp_path).unlink()
    (tmp_path / f"{name}..tmp").write_text("half of a file" * 100)
    cost_session(TimedBackend(spec()), tmp_path).prepare()
    file = cost_file(tmp_path)
    assert file.name == name
    assert file.read_text().startswith("streamfuse costs 3\na\nd\n")
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_change_of_cost_is_followed() -> None:
    backend = TimedBackend(spec(widths={"verify_4": (4, 4)}))
    session = cost_session(backend, None)
    session.core.set_costs({DECODE: 1.0, "verify_4": 50.0})
    for _ in range(4):
        session.reset()
        session.generate([1, 2], GenerationConfig(60)).finish()
    assert session.generate([1, 2], GenerationConfig(1)).statistics.cost_ms[DECODE] > 1.5, "it takes 2"


def test_the_phases_hold_all_of_the_loops_time_and_none_of_the_callers() -> None:
    ticks = itertools.count()
    session = Session(ArithmeticBackend(spec()), clock=lambda: float(next(ticks)), model_load_ms=12.5)
    generation = session.generate([1, 2, 3], GenerationConfig(8, width=4))
    for _ in generation:
        for _ in range(1000):
            next(ticks)
    stats = generation.statistics
    assert stats.model_load_ms == 12.5
    assert stats.prefill_ms == stats.time_ms["prefill"] == 1000
    assert sum(stats.time_ms.values()) < 1000 * 1000, "the caller's thousand seconds per token are not counted"
    assert stats.first_token_ms <= 1000 * 10
    assert stats.decode_token_per_sec == pytest.approx(8000 / (sum(stats.time_ms.values()) - 1000))
    assert stats.prefill_token_per_sec == 2


@pytest.mark.parametrize("accuracy", [0, 8, 16])
def test_the_counts_agree_with_one_another(accuracy: int) -> None:
    generation = Session(ArithmeticBackend(spec(), accuracy)).generate([3, 0, 1], GenerationConfig(40, width=8))
    generation.finish()
    stats = generation.statistics
    assert stats.generated_tokens == 40
    assert stats.target_forward_passes == sum(stats.widths.values())
    assert stats.rounds == stats.target_forward_passes - stats.widths.get("decode", 0)
    assert stats.generated_tokens == stats.target_forward_passes + stats.draft_tokens_accepted
    assert stats.mean_accepted_tokens == pytest.approx(40 / stats.target_forward_passes)
    assert all(0 <= share <= 1 for share in stats.acceptance_per_depth + stats.acceptance_per_rank)
    assert sorted(stats.acceptance_per_depth, reverse=True) == stats.acceptance_per_depth


def test_a_stop_token_ends_plain_decoding_at_one_token_per_pass() -> None:
    text = Session(ArithmeticBackend(spec())).generate([3, 0, 1], GenerationConfig(10, width=4))
    text.finish()
    config = GenerationConfig(10, speculative=False, stop_token_ids=(text.token_ids[5],))
    plain = Session(ArithmeticBackend(spec())).generate([3, 0, 1], config)
    plain.finish()
    assert plain.token_ids == text.token_ids[:5], "the end token is not delivered"
    assert plain.statistics.mean_accepted_tokens == 1
    assert plain.statistics.rounds == plain.statistics.draft_tokens_proposed == 0


def test_stop_comes_from_another_thread() -> None:
    session = Session(ArithmeticBackend(spec(capacity=100_000)))
    generation = session.generate([3, 0, 1], GenerationConfig(90_000, width=4))
    arrived = threading.Event()
    thread = threading.Thread(target=lambda: arrived.wait(10) and session.stop())
    thread.start()
    for _ in generation:
        arrived.set()
    thread.join(10)
    assert generation.statistics.finish_reason == "stopped"
    assert 0 < len(generation.token_ids) < 90_000


class RestingBackend(ArithmeticBackend):
    """Counts how often it is told that no pass follows."""

    def engine_table(self) -> Table:
        self.rests = 0
        table = callback_table(self)
        table.struct.idle = rest = RELEASE(lambda _: self.rest())
        table.held.append(rest)
        return table

    def rest(self) -> None:
        self.rests += 1


def test_the_engine_hears_of_each_texts_end_once() -> None:
    with Session(engine := RestingBackend(spec())) as session:
        for texts in (1, 2):
            session.generate([1, 2, 3], GenerationConfig(5, width=4)).finish()
            assert engine.rests == texts
        generation = session.generate([1, 2, 3], GenerationConfig(20, width=4))
        assert len(list(itertools.islice(generation, 3))) == 3
        assert engine.rests == 2
        generation.finish()
        session.reset()
        assert engine.rests == 3


def test_the_engine_hears_of_the_end_of_passes_that_measure_also_by_an_error() -> None:
    class Failing(RestingBackend):
        def run(self, method: str, *args: object) -> PassOutput:
            if method != DECODE:
                raise BackendError("out of memory")
            return super().run(method, *args)  # type: ignore[arg-type]

    with Session(engine := Failing(spec())) as session:
        with pytest.raises(BackendError, match="out of memory"):
            session.prepare()
        assert engine.rests == 1


class LyingBackend(ArithmeticBackend):
    """Gives results that cannot be."""

    def __init__(self, model: ModelSpec, lie: str) -> None:
        super().__init__(model, 16)
        self.lie = lie

    def run(self, method: str, *args: object) -> PassOutput:
        output = super().run(method, *args)  # type: ignore[arg-type]
        if method == "prefill" or not len(self.cache):
            return output
        if self.lie == "fails":
            raise BackendError("the engine is on fire")
        changes = {
            "no survivors": {"best": output.best[:0], "kept": output.kept[:0]},
            "a token outside": {"best": output.best + 1000},
            "a row outside": {"kept": output.kept + 99},
            "no root": {"kept": output.kept + 1},
            "streams outside": {"stream_ids": output.stream_ids + 1000},
            "other streams": {
                "stream_ids": output.stream_ids[:, :1],
                "stream_log_probs": output.stream_log_probs[:, :1],
            },
        }
        return replace(output, **changes[self.lie])


@pytest.mark.parametrize("lie", ["fails", "no survivors", "a token outside", "a row outside", "no root"])
def test_an_engine_that_fails_or_lies_gives_a_sentence_and_a_session_that_goes_on(lie: str) -> None:
    backend = LyingBackend(spec(), lie)
    session = Session(backend)
    with pytest.raises(BackendError) as caught:
        session.generate([1, 2, 3, 4], GenerationConfig(30, width=4)).finish()
    assert str(caught.value)
    assert backend.cache == session.tokens[: len(backend.cache)]
    backend.run = lambda *args: ArithmeticBackend.run(backend, *args)  # type: ignore[method-assign]
    generation = session.generate([1, 2, 3, 4], GenerationConfig(30, width=4))
    generation.finish()
    assert generation.token_ids[0] == greedy_after([1, 2, 3, 4], 64)


@pytest.mark.parametrize(
    ("lie", "words"), [("streams outside", "outside the vocabulary"), ("other streams", "shape that the bundle names")]
)
@pytest.mark.parametrize("width", [4, None])
def test_streams_that_cannot_be_are_left_alone_and_the_text_is_the_plain_one(
    lie: str, words: str, width: int | None
) -> None:
    with Session(LyingBackend(spec(), lie), costs=costs_of(spec())) as session:
        for _ in range(2):
            generation = session.generate([1, 2, 3, 4], GenerationConfig(30, width=width))
            generation.finish()
            assert generation.token_ids == plainly([1, 2, 3, 4], 30)
            statistics = generation.statistics
            assert statistics.accepted_by_source["streams"] == 0
            if width is not None or statistics.widths.get(DECODE):
                assert re.match(f"drafts are damaged: .*{words}", statistics.fallback_reason)


@pytest.mark.parametrize("width", [4, None])
@pytest.mark.parametrize("deferred", [False, True])
def test_a_text_is_drafted_by_the_chosen_sources_alone(deferred: bool, width: int | None) -> None:
    stream_nodes = dict.fromkeys(("verify_2", "verify_4", "verify_8"), 0 if deferred else 1)
    model = spec(deferred=deferred, stream_nodes=stream_nodes)
    prompt = [1, 2, 3, 4] * 6
    with Session(ArithmeticBackend(model), costs=costs_of(model)) as session:
        for sources in (None, ("streams",), ("lookup",), ("table",), ("memory",), ("lookup", "table")):
            generation = session.generate(prompt, GenerationConfig(40, width=width, sources=sources))
            generation.finish()
            assert generation.token_ids == plainly(prompt, 40)
            found = generation.statistics
            used = {name for name, count in found.accepted_by_source.items() if count}
            assert used <= set(sources or ("streams", "lookup"))
            if sources in (None, ("streams",)):
                assert "streams" in used
            else:
                assert found.streams_passes == 0
        with pytest.raises(OptionError, match="sources must be some of streams, lookup, table, memory, not 'model'"):
            GenerationConfig(sources=("model",))


class NoStreamsBackend(ArithmeticBackend):
    """Its pass for streams fails."""

    def streams(self, index: int, next_token: int) -> PassOutput:
        raise BackendError("the streams are on fire \udc80")


@pytest.mark.parametrize("width", [4, None])
def test_a_text_goes_on_where_the_pass_for_streams_fails(width: int | None) -> None:
    model = spec(deferred=True, stream_nodes=dict.fromkeys(("verify_2", "verify_4", "verify_8"), 0))
    for costs in (costs_of(model), None):  # None: measured, which fails too
        with Session(NoStreamsBackend(model), costs=costs) as session:
            generation = session.generate([3, 1, 4], GenerationConfig(20, width=width))
            generation.finish()
            assert generation.token_ids == plainly([3, 1, 4], 20)
            assert generation.statistics.streams_passes <= 1
            reason = generation.statistics.fallback_reason
            assert re.match("drafts are damaged: .*the streams are on fire", reason)


def test_tables_that_fail_at_a_draft_leave_the_text_as_it_is() -> None:
    size = spec().vocab_size
    good = {
        "parent_left": np.ones((size, 1), np.float16),
        "parent_right": np.ones((size, 1), np.float16),
        "gate": np.ones((3, 1), np.float32),
        "stream_vocab": np.arange(size, dtype=np.int32),
    }
    few = {**good, "stream_vocab": np.arange(8, dtype=np.int32), "parent_right": np.ones((8, 1), np.float16)}
    for tables in (good, {**good, "gate": np.full((3, 1), 900, np.float32)}, few):
        for width in (8, None):
            with Session(ArithmeticBackend(spec()), tables, costs=costs_of(spec())) as session:
                generation = session.generate([1, 2, 3, 4], GenerationConfig(40, width=width))
                generation.finish()
                assert generation.token_ids == plainly([1, 2, 3, 4], 40)
                found = generation.statistics
                assert (found.accepted_by_source["streams"] > 0) == (tables is good)
                assert ("drafts are damaged" in str(found.fallback_reason)) == (tables is not good)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"gate": np.full((3, 1), 1e3, np.float32), "parent_left": np.full((64, 1), 6e4, np.float16)},
            "terms of up to",
        ),
        (
            {
                "parent_left": np.ones((64, 0), np.float16),
                "parent_right": np.ones((64, 0), np.float16),
                "gate": np.ones((2**40, 0), np.float32),
            },
            r"gate has the shape \[1099511627776, 0\], the bundle 3 streams",
        ),
        ({"stream_vocab": np.arange(63, dtype=np.int32), "parent_right": np.ones((63, 1), np.float16)}, "lists 63 tok"),
    ],
)
def test_tables_that_are_clearly_damaged_are_refused(changes: dict[str, np.ndarray], words: str) -> None:
    tables = {
        "parent_left": np.ones((64, 1), np.float16),
        "parent_right": np.ones((64, 1), np.float16),
        "gate": np.ones((3, 1), np.float32),
        "stream_vocab": np.arange(64, dtype=np.int32),
    }
    model = replace(spec(), stream_vocab_size=64)
    CoreModel(model, tables).close()
    with pytest.raises(TablesError, match=words):
        CoreModel(model, {**tables, **changes})


class UnsureBackend(ArithmeticBackend):
    """What it says after one token is not a number, or (near) its best two are as good."""

    def __init__(self, model: ModelSpec, token: int, near: bool = False) -> None:
        super().__init__(model, 16)
        self.token, self.near = token, near

    def run(self, method: str, input_ids: np.ndarray, *args: object) -> PassOutput:
        output = super().run(method, input_ids, *args)  # type: ignore[arg-type]
        if output.logits is None:
            return output
        logits = output.logits.copy()
        for place, row in enumerate(output.kept.tolist() or [0]):
            if int(input_ids[row]) != self.token:
                continue
            if self.near:
                logits[place] = np.where(logits[place] == logits[place].max(), logits[place], logits[place].min())
                logits[place, (int(logits[place].argmax()) + 1) % 64] = logits[place].max()
            else:
                logits[place] = np.nan
        return replace(output, logits=logits)


def told(engine: ArithmeticBackend, prompt: list[int], config: GenerationConfig) -> tuple[list[int], str]:
    """The tokens that were delivered, and what ended the text."""
    with Session(engine, costs=costs_of(engine.spec)) as session:
        generation = session.generate(prompt, config)
        try:
            generation.finish()
        except (BackendError, ValueError) as error:
            return generation.token_ids, str(error)
        return generation.token_ids, generation.statistics.finish_reason


@pytest.mark.parametrize("sampling", [SAMPLINGS[1], SAMPLINGS[3], SAMPLINGS[4]], ids=["hot", "filters", "penalty"])
def test_a_draft_that_leads_behind_the_text_s_end_never_ends_it_otherwise(
    rng: np.random.Generator, sampling: SamplingConfig
) -> None:
    """After some token the model's logits are no numbers: a failure, a stop token or the length ends the text there."""
    ends = set()
    for _ in range(cases(10, 40)):
        prompt = rng.integers(0, 64, 3).tolist()
        plain = GenerationConfig(24, replace(sampling, seed=int(rng.integers(2**60))), speculative=False)
        whole, _ = told(ArithmeticBackend(spec(), 16), prompt, plain)
        place = int(rng.integers(1, 20))
        token = whole[place]
        if token in (*prompt, *whole[:place]):
            continue
        for config in (plain, replace(plain, stop_token_ids=(token,)), replace(plain, max_new_tokens=place + 1)):
            expected = told(UnsureBackend(spec(), token), prompt, config)
            assert expected[0] == whole[: place + (not config.stop_token_ids)]
            ends.add(expected[1])
            for width in (4, 8, None):
                drafted = replace(config, speculative=True, width=width)
                assert told(UnsureBackend(spec(), token), prompt, drafted) == expected
    assert {"stop", "length"} < ends
    assert any("not a finite number" in end for end in ends)


def test_near_ties_are_those_of_the_text_with_drafts_and_without(rng: np.random.Generator) -> None:
    total = 0
    for number in range(20):
        prompt, token = rng.integers(0, 64, 3).tolist(), int(rng.integers(64))
        config = GenerationConfig(
            int(rng.integers(1, 60)), SamplingConfig(repetition_penalty=1 + 1e-12), speculative=False,
            stop_token_ids=(number,),
        )  # fmt: skip
        counts = []
        for width in (None, 4, 8):
            with Session(UnsureBackend(spec(), token, near=True)) as session:
                chosen = replace(config, speculative=width is not None, width=width)
                generation = session.generate(prompt, chosen)
                generation.finish()
                counts.append((generation.token_ids, generation.statistics.near_ties))
        assert counts[0] == counts[1] == counts[2]
        total += counts[0][1]
    assert total > 0


def test_wrong_calls_are_refused_in_a_sentence_and_change_nothing() -> None:
    session = Session(ArithmeticBackend(spec()))
    session.generate([1, 2, 3], GenerationConfig(5, width=4)).finish()
    tokens = session.tokens
    for ids, words in (([], "empty"), ([1] * 97, "97 tokens"), ([64], "outside"), ([-1], "token -1")):
        with pytest.raises(PromptError, match=words):
            session.core.start(ids, GenerationConfig(5))
    with pytest.raises(ValueError, match="width must be one of 2, 4, 8 for this bundle, not 5"):
        session.core.start([1], GenerationConfig(5, width=5))
    for option, value, words in (
        ("temperature", 1e30, "temperature must be at least 0 and below 1e+30"),
        ("repetition_penalty", 1e30, "repetition_penalty must be at least 1e-30 and below 1e+30"),
        ("repetition_penalty", 1e-310, "repetition_penalty must be at least 1e-30 and below 1e+30"),
    ):
        sampling = SamplingConfig()
        object.__setattr__(sampling, option, value)  # past Python's own check, as another language may be
        with pytest.raises(ValueError, match=re.escape(words)):
            session.core.start([1], GenerationConfig(5, sampling))
    assert session.tokens == tokens
    with pytest.raises(CoreError, match="costs are asked for 4 methods"):
        session.core.set_costs({**costs_of(spec()), STREAMS: 1.0})
    with pytest.raises(CoreError, match="positive time"):
        session.core.set_costs({**costs_of(spec()), DECODE: 0.0})
    session.close()
    with pytest.raises(CoreError, match="closed"):
        session.core.next()
    session.close()
    session.stop()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"capacity": 2**40}, "capacity"),
        ({"vocab_size": 2**22 + 1}, "vocab_size must be from 1 to 4194304"),
        ({"num_streams": 99}, "streams"),
        ({"top_k": 0, "num_streams": 3}, "top_k"),
        ({"widths": {"": (4, 4)}}, "name"),
    ],
)
def test_facts_that_cannot_be_are_refused(changes: dict[str, object], words: str) -> None:
    with pytest.raises(CoreError, match=words):
        CoreModel(replace(spec(), **changes))  # type: ignore[arg-type]


def test_statistics_do_not_follow_the_locale() -> None:
    import locale

    before = locale.setlocale(locale.LC_NUMERIC)
    try:
        for name in ("de_DE.UTF-8", "fr_FR.UTF-8"):
            try:
                locale.setlocale(locale.LC_NUMERIC, name)
            except locale.Error:
                continue
        generation = Session(ArithmeticBackend(spec()), model_load_ms=1.5).generate([1], GenerationConfig(3, width=4))
        generation.finish()
        assert json.dumps(generation.statistics.model_load_ms) == "1.5"
    finally:
        locale.setlocale(locale.LC_NUMERIC, before)


def test_statistics_are_json_whatever_the_reason_and_the_names_are() -> None:
    model = spec(widths={'verify "8"\n': (8, 8)})
    with Session(ArithmeticBackend(model, 16), costs={DECODE: 2.0, 'verify "8"\n': 2.1}) as session:
        for reason, shown in ((b"a\xffb\xed\xa0\x80", "a?b???"), ('"\\\t\u00fc'.encode(), '"\\\t\u00fc')):
            generation = session.generate([3, 1, 4], GenerationConfig(20))
            next(generation)
            with session.core.handle as handle:
                assert load_core().sf_sequence_finish(handle, reason) == 0
                text = load_core().sf_sequence_statistics(handle)
            statistics = json.loads(text.decode())
            assert statistics["finish_reason"] == shown
            assert set(statistics["cost_ms"]) == {DECODE, 'verify "8"\n'}


STANDARD = {  # and POSIX, for files
    *("cerrno", "dirent.h", "exception", "fcntl.h", "sys/file.h", "sys/stat.h", "unistd.h", "utility"),
    *("algorithm", "array", "atomic", "bit", "chrono", "cmath", "cstddef", "cstdint", "cstdio", "cstring", "ctime"),
    *(
        "filesystem",
        "fstream",
        "functional",
        "initializer_list",
        "iomanip",
        "iterator",
        "limits",
        "locale",
        "map",
        "memory",
        "mutex",
        "new",
    ),
    *(
        "numeric",
        "optional",
        "unordered_map",
        "span",
        "sstream",
        "stdexcept",
        "stddef.h",
        "stdint.h",
        "string",
        "string_view",
        "system_error",
        "thread",
        "vector",
    ),
}


def includes() -> Iterator[tuple[Path, str]]:
    for path in sorted([*CORE.glob("*.h"), *CORE.glob("*.cpp")]):
        for name in re.findall(r'#include [<"]([^>"]+)[>"]', path.read_text(encoding="utf-8")):
            yield path, name


TRACING = {"dlfcn.h", "os/log.h", "os/signpost.h"}  # of Android and Apple, where trace.cpp uses them
PROCESSOR = {"immintrin.h"}  # where float_state.h sets the state of floating-point numbers


def test_the_core_includes_itself_and_the_standard_library_only() -> None:
    own = {path.name for path in CORE.glob("*.h")}
    strangers = {(path.name, name) for path, name in includes() if name not in own | STANDARD}
    assert strangers == {*(("trace.cpp", name) for name in TRACING), *(("float_state.h", name) for name in PROCESSOR)}


def test_a_closed_model_does_not_take_an_engine() -> None:
    model, engine = CoreModel(spec()), RestingBackend(spec())
    model.close()
    with pytest.raises(CoreError, match="this model is closed"):
        CoreSession(model, engine)
    with pytest.raises(CoreError, match="this model is closed"):
        model.self_test(engine, None, 0)
    assert not hasattr(engine, "rests"), "its table is not asked for"


def test_closing_while_another_thread_generates_is_safe() -> None:
    for delay in range(40):
        backend = ArithmeticBackend(spec())
        session = Session(backend)
        session.generate([3, 1, 4], GenerationConfig(50, width=4))
        generation = session.generate([3, 1, 4], GenerationConfig(50, width=4))
        seen: list[str] = []

        def write(generation: Generation = generation, seen: list[str] = seen) -> None:
            try:
                seen.append("ended" if generation.finish() is not None else "")
            except CoreError as error:
                seen.append(str(error))

        writer = threading.Thread(target=write)
        writer.start()
        time.sleep(delay * 1e-4)
        session.close()
        session.close()
        writer.join()
        assert backend.closed
        assert seen[0] in ("ended", "this session is closed")
        with pytest.raises(CoreError, match="closed"):
            session.core.next()


def test_a_session_at_work_refuses_a_second_thread_and_can_be_stopped_by_it() -> None:
    entered, go = threading.Event(), threading.Event()

    class Waiting(ArithmeticBackend):
        def run(self, *arguments: Any, **more: Any) -> Any:
            entered.set()
            go.wait(10)
            return super().run(*arguments, **more)

    with Session(Waiting(spec())) as session:
        generation = session.generate([3, 1, 4], GenerationConfig(50, width=4))
        writer = threading.Thread(target=generation.finish)
        writer.start()
        entered.wait(10)
        for question in (lambda: session.tokens, session.reset, lambda: session.generate([1])):
            with pytest.raises(CoreError, match="at work in another thread"):
                question()
        session.stop()
        go.set()
        writer.join()
        assert generation.statistics.finish_reason == "stopped"
        assert len(session.tokens) < 53
