"""Constrained texts: the core against the reference loop, with drafts and without, and constraints that fail.

Run: pytest tests/core/test_core_constraints.py
"""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from automata import Automaton, GrammarFailed, random_automaton
from fakes import ArithmeticBackend, StubbornBackend, logits_after, spec
from tokenizer_samples import llama_like, opened

from streamfuse.runtime.backend import DECODE, STREAMS, BackendError, ModelSpec
from streamfuse.runtime.config import GenerationConfig, SamplingConfig
from streamfuse.runtime.constraint import Constraint
from streamfuse.runtime.core import CoreError, CoreModel, CoreSession, Token, TokenLogProb
from streamfuse.runtime.reference.draft import DraftTables, StreamDrafter
from streamfuse.runtime.reference.guide import Guide
from streamfuse.runtime.reference.lookup import LookUpDrafter
from streamfuse.runtime.reference.loop import Loop, Round
from streamfuse.runtime.reference.ngram_table import NgramTable
from streamfuse.runtime.reference.watch import Pass, observe
from streamfuse.runtime.statistics import Statistics
from streamfuse.runtime.text import Tokenizer

SAMPLINGS = {
    "greedy": SamplingConfig(),
    "hot": SamplingConfig(temperature=1.0),
    "filters": SamplingConfig(temperature=1.3, top_k=12, top_p=0.9, min_p=0.02, repetition_penalty=1.1),
    "penalty": SamplingConfig(repetition_penalty=1.2),
}
SCHEDULES = ("fused", "deferred", "no streams")
Ending = tuple[list[int], str]  # the delivered tokens, and the finish reason or the message of what was raised


def model_of(schedule: str, rng: np.random.Generator, **more: Any) -> ModelSpec:
    widths = {"verify_2": (2, 2), "verify_4": (4, 4), "verify_8": (8, 6)}
    widths |= {"verify_1": (1, 1)} if rng.random() < 0.5 else {}
    facts: dict[str, Any] = {"widths": widths, "capacity": int(rng.integers(16, 90)), **more}
    if schedule == "no streams":
        return spec(num_streams=0, top_k=0, **facts)
    deferred = schedule == "deferred"
    return spec(deferred=deferred, stream_nodes={"verify_8": 2, "verify_4": 0} if deferred else {}, **facts)


def tables_of(rng: np.random.Generator, model: ModelSpec) -> dict[str, np.ndarray]:
    """A parent term that changes probabilities a lot."""
    size, rank = model.vocab_size, 5
    return {
        "parent_left": rng.normal(size=(size, rank)).astype(np.float16),
        "parent_right": rng.normal(size=(size, rank)).astype(np.float16),
        "gate": rng.normal(size=(model.num_streams, rank)).astype(np.float32),
        "stream_vocab": np.arange(size, dtype=np.int32),
    }


def costs_of(model: ModelSpec) -> dict[str, float]:
    found = {DECODE: 2.0, **{method: 2.0 + rows / 20 for method, (rows, _) in model.widths.items()}}
    return {**found, STREAMS: 0.4} if model.deferred else found


def ending_of(step: Callable[[], object], ended: Callable[[], str]) -> str:
    """What `step` raises, or how the text ended."""
    try:
        step()
    except (CoreError, GrammarFailed, ValueError) as error:
        return str(error)
    return ended()


def in_core(
    backend: ArithmeticBackend, prompt: list[int], config: GenerationConfig, constraint: Constraint | None,
    tables: dict[str, np.ndarray] | None = None, watch: Callable[[Pass], None] | None = None,
) -> tuple[Ending, Statistics]:  # fmt: skip
    """A text of the core: planned by fixed costs if the configuration has no width."""
    delivered: list[int] = []
    with CoreSession(CoreModel(backend.spec, tables), backend) as session:
        session.set_costs(costs_of(backend.spec), frozen=True)
        observe(session, watch)

        def run() -> None:
            session.start(prompt, config, constraint)
            while (token := session.next()) is not None:
                delivered.append(token.id)

        ending = ending_of(run, lambda: session.statistics.finish_reason)
        assert backend.cache == session.tokens[: len(backend.cache)]
        assert session.tokens == [*prompt, *delivered]
        return (delivered, ending), session.statistics


def in_loop(
    backend: ArithmeticBackend, prompt: list[int], config: GenerationConfig, constraint: Constraint | None,
    tables: dict[str, np.ndarray] | None = None, watch: Callable[[Round], None] | None = None,
) -> Ending:  # fmt: skip
    parsed = None if tables is None else DraftTables.of(*tables.values())
    drafter = StreamDrafter(parsed) if backend.spec.num_streams else LookUpDrafter()
    loop = Loop(backend, list(prompt), config, drafter, constraint=constraint, observe=watch)
    ending = ending_of(lambda: list(loop.run()), lambda: loop.counts.finish_reason)
    assert backend.cache == loop.tokens[: len(backend.cache)]
    return loop.tokens[len(prompt) :], ending


def both(
    model: ModelSpec, accuracy: int, prompt: list[int], config: GenerationConfig, make: Callable[[], Constraint],
    tables: dict[str, np.ndarray] | None = None,
) -> tuple[Ending, list[Pass]]:  # fmt: skip
    """The core and the reference loop do the same, pass by pass, on equal engines and under equal constraints."""
    rounds: list[Round] = []
    passes: list[Pass] = []
    engines = [ArithmeticBackend(model, accuracy, mixed=True) for _ in range(2)]
    found, _ = in_core(engines[0], prompt, config, make(), tables, passes.append)
    assert found == in_loop(engines[1], prompt, config, make(), tables, rounds.append)
    assert engines[0].cache == engines[1].cache
    assert [(one.method, one.tokens, one.parents, one.log_probs) for one in passes] == [
        (one.method, one.tree.tokens.tolist(), one.tree.parents.tolist(), one.tree.log_probs.tolist()) for one in rounds
    ]
    assert [(one.walk_rows, one.walk_tokens, one.delivered, one.cached) for one in passes] == [
        (one.walk.rows, one.walk.tokens, one.delivered, one.length) for one in rounds
    ]
    return found, passes


def assert_in_grammar(automaton: Automaton, tokens: list[int], ending: str) -> None:
    for token in tokens:
        assert automaton.allows(np.array([token])).all()
        automaton.accept(token)
    if ending == "stop":
        assert automaton.state(), "a text ends where it may"
    elif ending == "incomplete":
        assert not automaton.state()


# Each schedule with every second sampling, so that each of them has two; the others repeat these with other draws.
SITUATIONS = [
    pytest.param(schedule, sampling, id=f"{schedule}-{name}", marks=[] if (i + j) % 2 == 0 else pytest.mark.full)
    for i, schedule in enumerate(SCHEDULES)
    for j, (name, sampling) in enumerate(SAMPLINGS.items())
]


@pytest.mark.parametrize(("schedule", "sampling"), SITUATIONS)
@pytest.mark.parametrize("count", [30, pytest.param(300, marks=pytest.mark.full)])
def test_core_and_readable_loop_do_the_same_and_drafts_change_nothing(
    rng: np.random.Generator, sampling: SamplingConfig, schedule: str, count: int
) -> None:
    """Random automata, seeds and widths. Plain and planned texts are the same too."""
    endings, drafted, refused, from_grammar = set(), 0, 0, 0
    for number in range(count):
        model, automaton = model_of(schedule, rng), random_automaton(rng)
        prompt = rng.integers(0, 64, int(rng.integers(1, 10))).tolist()
        config = GenerationConfig(
            int(rng.integers(1, 60)), replace(sampling, seed=int(rng.integers(2**60))),
            stop_token_ids=tuple(rng.integers(0, 64, int(rng.integers(0, 3))).tolist()),
            width=int(rng.choice([2, 4, 8])),
        )  # fmt: skip
        accuracy = int(rng.integers(0, 17))
        tables = tables_of(rng, model) if model.num_streams and number % 2 else None
        make = lambda automaton=automaton: copy.deepcopy(automaton)  # noqa: E731
        ending, passes = both(model, accuracy, prompt, config, make, tables)
        assert_in_grammar(make(), *ending)
        plain = replace(config, speculative=False, width=None)
        assert both(model, accuracy, prompt, plain, make)[0] == ending
        engine = ArithmeticBackend(model, accuracy, mixed=True)
        planned, statistics = in_core(engine, prompt, replace(config, width=None), make(), tables)
        assert planned == ending
        endings.add(ending[1].partition(" after ")[0])
        drafted += sum(len(one.walk_tokens) - 1 for one in passes)
        refused += statistics.refused_drafts
        from_grammar += sum(one.sources.count("grammar") for one in passes)
    assert {"stop", "incomplete"} <= endings
    assert drafted > count
    assert from_grammar > count
    assert refused > 0


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_log_probabilities_are_the_models_with_drafts_and_without_and_change_no_text(
    rng: np.random.Generator, sampling: str, schedule: str
) -> None:
    """Softmax over the vocabulary, whatever the sampling and the constraint, which also ends texts by forced tokens."""
    for number in range(12):
        model, automaton = model_of(schedule, rng), random_automaton(rng) if number % 3 else None
        prompt = rng.integers(0, 64, int(rng.integers(1, 10))).tolist()
        config = GenerationConfig(
            40, replace(SAMPLINGS[sampling], seed=int(rng.integers(2**60))), width=int(rng.choice([2, 4, 8]))
        )
        accuracy, found, tops = int(rng.integers(0, 17)), [], list[list[tuple[TokenLogProb, ...]]]()
        for asked in (
            config,
            replace(config, log_probs=True),
            replace(config, log_probs=True, width=None),
            replace(config, top_log_probs=3, width=None, speculative=False),
            replace(config, top_log_probs=3),
        ):
            engine = ArithmeticBackend(model, accuracy, mixed=True)
            tokens: list[Token] = []
            with CoreSession(CoreModel(model), engine) as session, suppress(CoreError):  # the automaton may end nowhere
                session.set_costs(costs_of(model), frozen=True)
                session.start(prompt, asked, copy.deepcopy(automaton))
                tokens.extend(iter(session.next, None))
            found.append(([token.id for token in tokens], [token.log_prob for token in tokens]))
            tops.append([token.top for token in tokens])
        (text, without), *others = found
        assert without == [None] * len(text)
        assert tops[:3] == [[()] * len(text)] * 3
        assert tops[3] == tops[4]
        expected = []
        for place, token in enumerate(text):
            logits = logits_after([*prompt, *text[:place]], model.vocab_size).astype(np.float64)
            all_log_probs = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
            expected.append(all_log_probs[token])
            best = np.argsort(-logits, kind="stable")[:3].tolist()  # equal ones by their ids
            assert [one.token for one in tops[3][place]] == best
            np.testing.assert_allclose([one.log_prob for one in tops[3][place]], all_log_probs[best], rtol=1e-6)
        assert others == [(text, others[0][1])] * 4
        np.testing.assert_allclose(others[0][1], expected, rtol=1e-6)


FUNCTIONS = ["accept", "state", "allows", "mask", "forced"]
# Where a function fails under a schedule with one sampling, greedy and hot in turn, the other one tests no more; but
# `allows` ends a text where it is greedy only.
FAILING = [
    pytest.param(
        function,
        schedule,
        sampling,
        marks=[] if ((i + j + k) % 2 == 0 or (function, sampling) == ("allows", "greedy")) else pytest.mark.full,
    )
    for i, function in enumerate(FUNCTIONS)
    for j, schedule in enumerate(SCHEDULES)
    for k, sampling in enumerate(["greedy", "hot"])
]


@pytest.mark.parametrize(("function", "schedule", "sampling"), FAILING)
def test_a_constraint_that_raises_ends_the_text_at_the_same_token_with_drafts_and_without(
    rng: np.random.Generator, function: str, schedule: str, sampling: str
) -> None:
    """Drafts that lead to the failure are cut, and their sources stay in use."""
    raised = 0
    for _ in range(6):
        model, automaton = model_of(schedule, rng, capacity=90), random_automaton(rng)
        automaton.raises = (function, int(rng.integers(len(automaton.edges))))
        prompt = rng.integers(0, 64, 4).tolist()
        config = GenerationConfig(40, replace(SAMPLINGS[sampling], seed=int(rng.integers(2**60))), speculative=False)
        make = lambda automaton=automaton: copy.deepcopy(automaton)  # noqa: E731
        ending, _ = both(model, 12, prompt, config, make)
        for width in (4, 8):
            assert both(model, 12, prompt, replace(config, speculative=True, width=width), make)[0] == ending
        engine = ArithmeticBackend(model, 12, mixed=True)
        assert in_core(engine, prompt, replace(config, speculative=True), make())[0] == ending
        raised += "fails in state" in ending[1]
    assert raised == 0 if function == "forced" or (function, sampling) == ("allows", "hot") else raised > 0


RECORDS = Automaton(  # ("5 6 7" word+ (8 | 9))*, which ends after a 9; a word is a token from 10 to 63
    [{5: 1}, {6: 2}, {7: 3}, {word: 4 for word in range(10, 64)}, {8: 0, 9: 5} | {word: 4 for word in range(10, 64)},
     {}], [5]
)  # fmt: skip


def test_a_session_goes_on_after_a_constraint_that_raised() -> None:
    with CoreSession(CoreModel(spec()), ArithmeticBackend(spec())) as session:
        failing = copy.deepcopy(RECORDS)
        failing.raises = ("accept", 2)
        session.start([3, 1, 4], GenerationConfig(20, width=4), failing)
        assert session.next() == Token(5, "model")
        with pytest.raises(GrammarFailed, match="accept fails in state 2"):
            session.next()
        assert session.next() is None
        session.start(session.tokens, GenerationConfig(20, width=4), copy.deepcopy(RECORDS))
        found = []
        while (token := session.next()) is not None:
            found.append(token)
        assert [token.id for token in found[:3]] == [5, 6, 7]
        assert [token.source for token in found[:3]] == ["grammar"] * 3
        assert session.statistics.fallback_reason is None


@pytest.mark.parametrize("sampling", ["greedy", "hot"])
@pytest.mark.parametrize("may_end", [True, False])
def test_an_end_token_ends_an_unrestricted_text_only_where_it_may_end(
    rng: np.random.Generator, sampling: str, may_end: bool
) -> None:
    early = 0
    for _ in range(4):
        model = model_of("fused", rng, capacity=90)
        prompt, ends = rng.integers(0, 63, 4).tolist(), tuple(range(0, 63, 5))
        config = GenerationConfig(
            25, replace(SAMPLINGS[sampling], seed=int(rng.integers(2**60))), stop_token_ids=ends, speculative=False
        )
        make = lambda: Automaton(RECORDS.edges, RECORDS.may_end, trigger=63, free_may_end=may_end)  # noqa: E731
        ending, _ = both(model, 12, prompt, config, make)
        for width in (4, 8):
            assert both(model, 12, prompt, replace(config, speculative=True, width=width), make)[0] == ending
        early += ending[1] == "stop" and 63 not in ending[0]
    assert early == (4 if may_end else 0)


def test_a_constraint_of_another_vocabulary_is_refused(tokenizer: Tokenizer) -> None:
    class Longer(Automaton):
        def mask(self) -> np.ndarray:
            return np.ones(400_000, np.bool_)

    with CoreSession(CoreModel(spec()), ArithmeticBackend(spec())) as session:
        session.start([3, 1, 4], GenerationConfig(20, width=4), Longer(RECORDS.edges, RECORDS.may_end))
        with pytest.raises(ValueError, match=r"mask has the shape \(400000,\), the vocabulary 64 tokens"):
            session.next()
        grammar = tokenizer.constraint(regex="[a-z]+")
        message = f"the constraint's vocabulary has {grammar.vocab_size} tokens, the model's 64"
        with pytest.raises(ValueError, match=message):
            session.start([3, 1, 4], GenerationConfig(20, width=4), grammar)
        assert grammar.state() == 0, "it is still the caller's"


def test_a_closed_session_does_not_take_a_constraint(tokenizer: Tokenizer) -> None:
    grammar = tokenizer.constraint(regex="[a-z]+")
    model = spec(vocab_size=grammar.vocab_size)
    session = CoreSession(CoreModel(model), ArithmeticBackend(model))
    session.close()
    with pytest.raises(CoreError, match="closed"):
        session.start([3, 1, 4], GenerationConfig(20), grammar)
    assert grammar.state() == 0


def test_a_failed_start_releases_the_constraint() -> None:
    with CoreSession(CoreModel(spec()), engine := StubbornBackend(spec())) as session:
        session.start([3, 1, 4], GenerationConfig(20, width=4), copy.deepcopy(RECORDS))
        assert session.next() is not None
        engine.fails = True
        with pytest.raises(BackendError, match="cannot go back"):
            session.start([3, 5], GenerationConfig(20, width=4), copy.deepcopy(RECORDS))
        assert not any(one.in_use for one in session.kept["constraints"])
        assert session.next() is None
        session.start([3, 1, 4], GenerationConfig(3, width=4), copy.deepcopy(RECORDS))
        assert (token := session.next()) is not None
        assert token.id == 5


def test_an_interrupted_start_leaves_a_text_under_its_constraint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control-C during a call raises after it, so the text may have begun."""
    with CoreSession(CoreModel(spec()), ArithmeticBackend(spec())) as session:
        start = session.library.sf_sequence_start

        def interrupted(*arguments: Any) -> int:
            start(*arguments)
            raise KeyboardInterrupt

        monkeypatch.setattr(session.library, "sf_sequence_start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.start([3, 1, 4], GenerationConfig(20, width=4), copy.deepcopy(RECORDS))
        monkeypatch.undo()
        assert [one.in_use for one in session.kept["constraints"]] == [True]
        assert (token := session.next()) is not None
        assert token.id == 5
        session.start([3, 1, 4], GenerationConfig(3, width=4))
        assert not any(one.in_use for one in session.kept["constraints"])


def test_an_interrupt_in_a_draft_is_no_failure_of_the_constraint() -> None:
    class Interrupted(Automaton):
        def forced(self, room: int) -> list[int]:
            raise KeyboardInterrupt

    interrupted = Interrupted(RECORDS.edges, RECORDS.may_end)
    with CoreSession(CoreModel(spec()), ArithmeticBackend(spec())) as session:
        session.start([3, 1, 4], GenerationConfig(20, width=4), interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.next()


def test_saved_and_restored_between_constrained_texts_the_next_ones_are_the_same(tmp_path: Path) -> None:
    config = GenerationConfig(25, SamplingConfig(temperature=1.0, seed=7), width=8)
    texts: list[list[list[int]]] = []
    for saves in (False, True):
        session, context = CoreSession(CoreModel(spec()), ArithmeticBackend(spec())), [3, 1, 4]
        texts.append([])
        for count, constraint in ((8, copy.deepcopy(RECORDS)), (25, None), (25, copy.deepcopy(RECORDS))):
            session.start(context, config, constraint)
            for _ in range(count):
                if session.next() is None:
                    break
            if saves:  # which ends a text in its middle
                session.save(str(tmp_path / "saved"))
                session.close()
                session = CoreSession(CoreModel(spec()), ArithmeticBackend(spec()))
                session.restore(str(tmp_path / "saved"))
            session.finish()
            texts[-1].append(session.tokens[len(context) :])
            context = session.tokens
        session.close()
    assert texts[0] == texts[1]
    assert [len(text) for text in texts[0][:2]] == [8, 25]
    for text in (texts[0][0], texts[0][2]):
        assert_in_grammar(copy.deepcopy(RECORDS), text, "")
    assert texts[0][1][0] != 5, "the text between is free"


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["pub", "bar"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
GRAMMARS: dict[str, dict[str, Any]] = {
    "schema": {"schema": PERSON},
    "regex": {"regex": r"(one|two) and [a-z ]{1,30}(-[0-9]{2,3})?"},
    "grammar": {"grammar": 'start: term ("+" term){0,5}\nterm: NUMBER | "(" start ")"\nNUMBER: /[0-9]{1,3}/'},
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return opened(llama_like(), bos=0, eos=[2])


@pytest.mark.parametrize("sampling", ["greedy", "hot", "penalty"])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("kind", sorted(GRAMMARS))
def test_grammars_of_text_give_the_same_text_in_the_core_and_in_the_loop(
    rng: np.random.Generator, tokenizer: Tokenizer, kind: str, schedule: str, sampling: str
) -> None:
    endings = []
    for width in (2, 8):
        make = lambda: tokenizer.constraint(**GRAMMARS[kind])  # noqa: E731
        more = {"capacity": 200, "vocab_size": make().vocab_size, "eos_token_ids": (2,)}
        model, prompt = model_of(schedule, rng, **more), tokenizer.encode("one and two three one and")
        config = GenerationConfig(90, replace(SAMPLINGS[sampling], seed=int(rng.integers(2**60))), width=width)
        ending, passes = both(model, 12, prompt, config, make)
        assert both(model, 12, prompt, replace(config, speculative=False, width=None), make)[0] == ending
        engine = ArithmeticBackend(model, 12, mixed=True)
        assert in_core(engine, prompt, replace(config, width=None), make())[0] == ending
        endings.append(ending[1])
        written = tokenizer.decode(ending[0])
        if ending[1] == "stop" and kind == "schema":
            assert json.loads(written).keys() == PERSON["properties"].keys()
        elif ending[1] == "stop" and kind == "regex":
            assert re.fullmatch(GRAMMARS[kind]["regex"], written)
        assert kind != "schema" or any("grammar" in one.sources for one in passes), "its keys are forced"
    assert endings == ["stop", "stop"]


def test_trees_of_the_n_gram_table_are_equal_to_the_bit_under_constraints(rng: np.random.Generator) -> None:
    """After a text of one token look-up finds nothing but forced tokens, so a planned draft is the table's."""
    sources: Counter[str] = Counter()
    model = spec(num_streams=0, top_k=0, widths={"verify_16": (16, 16)})
    for _ in range(80):
        counts = rng.integers(0, 6, 64)
        probs = [np.sort(np.log(rng.dirichlet(np.full(n + 1, 0.4))[:n] + 1e-3))[::-1] for n in counts]
        tables = {
            "ngram_keys": np.arange(64) * 65,
            "ngram_starts": np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
            "ngram_ids": np.concatenate([rng.permutation(64)[:n] for n in counts]).astype(np.int32),
            "ngram_log_probs": np.minimum(np.concatenate(probs), 0).astype(np.float16),
        }
        automaton, root, room = random_automaton(rng), int(rng.integers(64)), int(rng.integers(2, 12))
        passes: list[Pass] = []
        engine = ArithmeticBackend(model, mixed=True)
        in_core(engine, [root], GenerationConfig(room), copy.deepcopy(automaton), tables, passes.append)
        if not passes:  # the constraint begins with its end
            continue
        guide = Guide(automaton, widest=16)
        tree = NgramTable.of(64, *tables.values()).grow([root], 16, room - 1, guide)
        first = passes[0]
        count = len(first.tokens)
        assert first.tokens == tree.tokens[:count].tolist()
        assert first.parents == tree.parents[:count].tolist()
        assert first.log_probs == tree.log_probs[:count].tolist()
        sources.update(first.sources)
    assert min(sources["table"], sources["grammar"]) > 20
