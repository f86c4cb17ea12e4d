"""What ends a text early or fails, and the state of the sequence afterwards.

Run: pytest tests/core/test_core_failures.py
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from automata import Automaton
from fakes import ArithmeticBackend, plainly, spec

from streamfuse.runtime.backend import DECODE, STREAMS, BackendError, ModelSpec, PassOutput
from streamfuse.runtime.config import GenerationConfig
from streamfuse.runtime.constraint import table_of
from streamfuse.runtime.core import CoreModel, CoreSession
from streamfuse.runtime.reference.watch import Pass, observe

PROMPT = [3, 1, 4, 15, 9, 26, 5, 35, 8, 9, 7, 9, 32]
# A choice, then three forced tokens, and again.
RECORDS = Automaton([{5: 1, 7: 1}, {11: 2}, {12: 3}, {13: 0}], may_end=[0])


def rest(session: CoreSession) -> list[int]:
    return [token.id for token in iter(session.next, None)]


def with_costs(model: ModelSpec, engine: Any) -> CoreSession:
    session = CoreSession(CoreModel(model), engine)
    costs = {DECODE: 2.0, **{method: 2.05 for method in model.widths}}
    session.set_costs({**costs, STREAMS: 0.01} if model.deferred else costs, frozen=True)
    return session


def test_preparing_ends_a_text_whose_prompt_is_not_processed() -> None:
    with with_costs(model := spec(prefill_rows=4), ArithmeticBackend(model)) as session:
        session.start(PROMPT, GenerationConfig(8))
        assert session.read()
        session.stop()
        assert not session.read()
        session.prepare()
        assert session.next() is None
        assert session.statistics.finish_reason == "stopped"
        session.start(PROMPT, GenerationConfig(8))
        assert rest(session) == plainly(PROMPT, 8)


def test_preparing_ends_a_text_in_the_middle() -> None:
    with with_costs(model := spec(), ArithmeticBackend(model)) as session:
        session.start(PROMPT, GenerationConfig(8, width=8))
        assert session.next() is not None
        session.prepare()
        assert session.next() is None
        assert session.statistics.finish_reason == "stopped"


@pytest.mark.parametrize("fails", ["load_cache", "cache_bytes"])
def test_a_text_is_the_plain_one_though_its_prefix_cannot_be_loaded(fails: str, tmp_path: Path) -> None:
    class Saving(ArithmeticBackend):
        def cache_bytes(self, length: int) -> int:
            return length

        def save_cache(self, length: int, write: Callable[[bytes], None]) -> None:
            write(bytes(self.cache[:length]))

        def load_cache(self, length: int, read: Callable[[int], bytes]) -> None:
            self.cache += read(length)

    class Failing(Saving):
        """Reads half of a cache; or does not say what it takes."""

        broken = False

        def cache_bytes(self, length: int) -> int:
            if self.broken and fails == "cache_bytes":
                raise BackendError("no room\nfor so much")
            return super().cache_bytes(length)

        def load_cache(self, length: int, read: Callable[[int], bytes]) -> None:
            super().load_cache(length // 2, read)
            raise BackendError("no room\nfor so much")

    model = CoreModel(found := spec())
    with CoreSession(model, Saving(found)) as session:
        session.start(PROMPT, GenerationConfig(1, speculative=False))
        rest(session)
        session.save(str(tmp_path / "prefix"))
    model.add_prefix(str(tmp_path / "prefix"))
    with CoreSession(model, engine := Failing(found)) as session:
        engine.broken = True
        for width in (None, 4):
            session.reset()
            session.start([*PROMPT, 2, 3], GenerationConfig(8, speculative=width is not None, width=width))
            assert rest(session) == plainly([*PROMPT, 2, 3], 8)
            assert session.statistics.prefix_tokens == 0
            assert session.statistics.prefix_refused == "BackendError: no room for so much"


def test_an_exception_of_several_lines_is_raised_again() -> None:
    raised = ValueError("first\n\tsecond")

    class Broken(Automaton):
        def accept(self, token: int) -> None:
            raise raised

    with CoreSession(CoreModel(spec()), ArithmeticBackend(spec())) as session:
        session.start(PROMPT, GenerationConfig(8, width=4), Broken(RECORDS.edges, RECORDS.may_end))
        with pytest.raises(ValueError, match="second") as caught:
            rest(session)
        assert caught.value is raised


def test_streams_that_no_method_verifies_are_no_draft() -> None:
    with with_costs(model := spec(widths={}), ArithmeticBackend(model)) as session:
        session.start(PROMPT, GenerationConfig(8))
        assert rest(session) == plainly(PROMPT, 8)


def test_a_refused_constraint_leaves_the_running_text_as_it_is() -> None:
    class Incomplete:
        """Its table lacks a function."""

        released = 0

        def constraint_table(self) -> Any:
            self.table = table_of(copy.deepcopy(RECORDS), 64, [])
            struct = self.table.struct
            struct.mask = type(struct.mask)()
            self.release = struct.release = type(struct.release)(self.count)
            return struct

        def count(self, _: object) -> None:
            self.released += 1

    with CoreSession(CoreModel(spec()), ArithmeticBackend(spec())) as session:
        session.start(PROMPT, GenerationConfig(8, width=4))
        first = session.next()
        assert first is not None
        with pytest.raises(ValueError, match="a constraint needs accept"):
            session.start([1, 2], GenerationConfig(8, width=4), constraint := Incomplete())  # type: ignore[arg-type]
        assert constraint.released == 1
        assert [first.id, *rest(session)] == plainly(PROMPT, 8)


def test_a_refused_start_leaves_the_stop_of_the_running_text() -> None:
    with CoreSession(CoreModel(spec()), ArithmeticBackend(spec())) as session:
        session.start(PROMPT, GenerationConfig(8, width=4))
        assert session.next() is not None
        session.stop()
        with pytest.raises(ValueError, match="width must be"):
            session.start([1, 2], GenerationConfig(8, width=5))
        assert session.next() is None
        assert session.statistics.finish_reason == "stopped"
        session.start(PROMPT, GenerationConfig(8, width=4))
        assert rest(session) == plainly(PROMPT, 8), "it ends no later one"


def test_forced_tokens_are_drafted_after_streams_have_failed() -> None:
    class Broken(ArithmeticBackend):
        """Its streams are no tokens of the vocabulary."""

        def run(self, *arguments: Any, **named: Any) -> PassOutput:
            output = super().run(*arguments, **named)
            return replace(output, stream_ids=output.stream_ids + self.spec.vocab_size)

    with CoreSession(CoreModel(model := spec()), Broken(model)) as session:
        session.start(PROMPT, GenerationConfig(24, width=4), copy.deepcopy(RECORDS))
        sources = [token.source for token in iter(session.next, None)]
        assert sources[8:].count("grammar") >= 9


class Counting(Automaton):
    """Counts what a draft asks of a constraint."""

    asked = 0

    def allows(self, tokens: Any) -> Any:
        self.asked += 1
        return super().allows(tokens)

    def forced(self, room: int) -> list[int]:
        self.asked += 1
        return super().forced(room)


def test_nothing_is_drafted_after_the_end_of_a_text() -> None:
    choices = [dict.fromkeys(range(64), at + 1) for at in range(24)]  # of every token; nothing follows the last
    model = spec(deferred=True, stream_nodes=dict.fromkeys(("verify_2", "verify_4", "verify_8"), 0))
    bought = 0
    for first in range(8):
        constraint = Counting([*choices, {}], [len(choices)])
        with with_costs(model, ArithmeticBackend(model, accuracy=16)) as session:
            session.start([first, *PROMPT], GenerationConfig(40), constraint)
            for _ in choices:
                assert session.next() is not None
            constraint.asked = 0
            assert session.next() is None
            bought += session.statistics.streams_passes
            assert constraint.asked == 0
    assert bought > 8


def test_the_last_token_of_a_text_is_not_learned_for_another_place() -> None:
    class Few(Automaton):
        """Its key says that every state has few continuations."""

        def choice_key(self) -> int:
            return 5

    free = Few([dict.fromkeys(range(64), 0)], [0])
    trees: list[Pass] = []
    with with_costs(model := spec(num_streams=0, top_k=0), ArithmeticBackend(model)) as session:
        for _ in range(2):
            trees.clear()
            observe(session, trees.append)
            session.start(PROMPT, GenerationConfig(2), copy.deepcopy(free))
            first, last = rest(session)
    children = zip(trees[0].tokens[1:], trees[0].parents[1:], strict=True)
    offered = [token for token, parent in children if parent == 0]
    assert first != last
    assert offered[0] == first
    assert last not in offered
