"""Scoring given tokens: the log-probabilities of generation, to the bit, whatever the passes.

Run: pytest tests/core/test_core_score.py
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fakes import ArithmeticBackend, StubbornBackend, greedy_after, spec

from streamfuse.runtime.backend import BackendError, ModelSpec, PassOutput
from streamfuse.runtime.config import GenerationConfig, PromptError
from streamfuse.runtime.core import CoreModel, CoreSession, Stopped

PROMPT = [5, 3, 9, 3, 9, 1, 7]
SPECS: dict[str, Callable[[], ModelSpec]] = {
    "a pruner": lambda: spec(widths={"verify_4": (4, 4), "verify_16": (16, 8)}),
    "all pruned": lambda: spec(widths={"verify_8": (8, 3)}),
    "no verify pass": lambda: spec(widths={}, num_streams=0),
    "deferred": lambda: spec(deferred=True),
}


def session_of(backend: ArithmeticBackend) -> CoreSession:
    return CoreSession(CoreModel(backend.spec, None), backend)


def generated(
    session: CoreSession, prompt: list[int], config: GenerationConfig
) -> list[tuple[int, float | None, object]]:
    session.start(prompt, config)
    found = []
    while (token := session.next()) is not None:
        found.append((token.id, token.log_prob, token.top))
    return found


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("mixed", [False, True])
def test_scores_are_the_log_probabilities_of_generation(name: str, mixed: bool) -> None:
    backend = ArithmeticBackend(SPECS[name](), mixed=mixed)
    config = GenerationConfig(30, ignore_eos=True, top_log_probs=3)
    with session_of(ArithmeticBackend(SPECS[name]())) as session:
        expected = generated(session, PROMPT, config)
    tokens = [token for token, _, _ in expected]
    with session_of(backend) as session:
        found = session.score(PROMPT + tokens, len(PROMPT), 3)
        assert found.tokens == tokens
        assert found.log_probs == [log_prob for _, log_prob, _ in expected]
        assert found.top_log_probs == [top for _, _, top in expected]
        assert found.log_prob == pytest.approx(sum(found.log_probs))
        assert found.perplexity == pytest.approx(np.exp(-np.mean(found.log_probs)))
        assert session.score(PROMPT + tokens, len(PROMPT)).top_log_probs == []
        # From another first token, and after a text.
        assert session.score(PROMPT + tokens, 1).log_probs[len(PROMPT) - 1 :] == found.log_probs
        generated(session, [2, 2, 4], config)
        assert session.score(PROMPT + tokens, len(PROMPT) + 4).log_probs == found.log_probs[4:]
        # A text after it continues from its cache, and is the same.
        calls = len(backend.calls)
        assert generated(session, PROMPT + tokens[:9], config)[: len(tokens) - 9] == expected[9:]
        assert "prefill" not in [method for method, _ in backend.calls[calls:]]


def test_the_widest_method_that_prunes_nothing_runs_and_the_cached_prefix_does_not() -> None:
    backend = ArithmeticBackend(spec(widths={"verify_4": (4, 4), "verify_16": (16, 8)}, prefill_rows=4))
    text = [*PROMPT, *range(10)]
    with session_of(backend) as session:
        session.score(text, len(PROMPT))
        # 6 of the 7 tokens of the prompt, then that prompt's last token and all others except the last one
        assert backend.calls == [("prefill", 4), ("prefill", 2), ("verify_4", 4), ("verify_4", 4), ("verify_4", 2)]
        assert (session.tokens, session.cached) == (text, len(text) - 1)
        backend.calls.clear()
        session.score([*text, 4], len(text))
        assert backend.calls == [("verify_4", 1)]


def test_bad_arguments_change_nothing() -> None:
    backend = ArithmeticBackend(spec())
    with session_of(backend) as session:
        session.score(PROMPT, 2)
        before = (session.tokens, session.cached, len(backend.calls))
        for ids, first, sentence in (
            (PROMPT, 0, "the first token to score must be one of 1 to 6, not 0"),
            (PROMPT, 7, "not 7"),
            (PROMPT, -1, "not -1"),
            ([], 1, "the prompt is empty"),
            ([4], 1, "not 1"),
            ([4, -1], 1, "the prompt holds token -1"),
            ([4] * (backend.spec.capacity + 1), 1, "context holds"),
            ("text", 1, "a list of token ids"),
        ):
            with pytest.raises(PromptError, match=sentence):
                session.score(ids, first)  # type: ignore[arg-type]
        for wrong in (-1, 21):
            with pytest.raises(ValueError, match=f"must be 0 to 20 and at most the vocabulary's size, not {wrong}"):
                session.score(PROMPT, 2, wrong)
        assert (session.tokens, session.cached, len(backend.calls)) == before


class Pausing(ArithmeticBackend):
    """Calls `then` in its third pass."""

    then: Callable[[], None]

    def run(self, *arguments: Any, **named: Any) -> PassOutput:
        if len(self.calls) == 2:
            self.then()
        return super().run(*arguments, **named)


def test_stop_ends_it_after_the_current_pass() -> None:
    backend = Pausing(spec(prefill_rows=2))
    text = PROMPT * 5
    with session_of(backend) as session:

        def stop() -> None:
            thread = threading.Thread(target=session.stop)
            thread.start()
            thread.join()

        backend.then = stop
        with pytest.raises(Stopped, match="the scoring was stopped"):
            session.score(text, 20)
        assert (len(backend.calls), session.cached) == (3, 6)
        with session_of(ArithmeticBackend(spec())) as other:
            assert session.score(text, 20) == other.score(text, 20)


def test_a_failing_engine_leaves_a_session_that_goes_on() -> None:
    backend = StubbornBackend(spec())
    with session_of(backend) as session:
        expected = session.score(PROMPT, 2)
        backend.fails = True
        with pytest.raises(BackendError, match="cannot go back"):
            session.score(PROMPT, 2)
        assert session.score(PROMPT, 2) == expected


def test_a_greedy_token_is_the_most_probable_one() -> None:
    backend = ArithmeticBackend(spec())
    text = list(PROMPT)
    for _ in range(12):
        text.append(greedy_after(text, backend.spec.vocab_size))
    with session_of(backend) as session:
        found = session.score(text, len(PROMPT), 1)
    for token, log_prob, (top,) in zip(found.tokens, found.log_probs, found.top_log_probs, strict=True):
        assert (top.token, top.log_prob) == (token, log_prob)
