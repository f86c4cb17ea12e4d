"""Turns of a chat over one cache. Run: pytest tests/runtime/test_runtime_session.py"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Sequence
from types import FrameType
from typing import Any

import pytest
from fakes import ArithmeticBackend, decode_letters, spec
from tokenizer_samples import letters, opened, words_of

from streamfuse.runtime import handle, stops
from streamfuse.runtime.config import GenerationConfig, PromptError
from streamfuse.runtime.session import Session
from streamfuse.runtime.text import Tokenizer


def fresh(prompt: list[int], config: GenerationConfig) -> list[int]:
    generation = Session(ArithmeticBackend(spec())).generate(prompt, config)
    generation.finish()
    return generation.token_ids


def session_with_text() -> Session:
    return Session(ArithmeticBackend(spec(), 16), tokenizer=letters())


@pytest.mark.parametrize("width", [None, 2, 8])
def test_a_second_turn_equals_a_fresh_session_and_reads_only_what_is_new(width: int | None) -> None:
    config = GenerationConfig(10, width=width)
    backend = ArithmeticBackend(spec())
    session = Session(backend)
    prompt = [5, 6, 7, 8]
    for _ in range(4):
        generation = session.generate(prompt, config)
        generation.finish()
        assert generation.token_ids == fresh(prompt, config)
        prefilled = generation.statistics.prefilled_tokens
        assert prefilled == 3, "the prompt, or the pending token and the three new ones, without the last"
        prompt = [*session.tokens, 11, 12, 13]
    assert generation.statistics.prompt_tokens == 4 + 3 * 13


def test_a_second_turn_does_not_draft_from_the_streams_of_the_first() -> None:
    backend = ArithmeticBackend(spec())
    session = Session(backend)
    session.generate([1, 2, 3], GenerationConfig(6, width=4)).finish()
    backend.calls.clear()
    session.generate([9, 9, 9], GenerationConfig(6, width=4)).finish()
    assert backend.calls[:2] == [("prefill", 2), ("verify_2", 1)]


def test_an_edited_history_keeps_only_the_common_prefix() -> None:
    backend = ArithmeticBackend(spec())
    session = Session(backend)
    session.generate([1, 2, 3, 4, 5, 6], GenerationConfig(5)).finish()
    edited = [1, 2, 3, 9, 9, 9]
    generation = session.generate(edited, GenerationConfig(5))
    assert backend.cache == [1, 2, 3]
    generation.finish()
    assert generation.token_ids == fresh(edited, GenerationConfig(5))


def test_the_same_prompt_again_reads_nothing_but_its_last_token() -> None:
    session = Session(ArithmeticBackend(spec()))
    first = session.generate([1, 2, 3], GenerationConfig(6))
    first.finish()
    again = session.generate([1, 2, 3], GenerationConfig(6))
    again.finish()
    assert again.token_ids == first.token_ids
    assert again.statistics.prefilled_tokens == 0


@pytest.mark.parametrize("count", range(0, 8))
def test_a_turn_left_early_can_be_continued(count: int) -> None:
    session = session_with_text()
    with session.generate([1, 2, 3], GenerationConfig(40)) as generation:
        for _ in range(count):
            next(generation)
    assert session.backend.cache == session.tokens[: session.backend.length]
    assert session.tokens[3:] == generation.token_ids
    prompt = [*session.tokens, 50, 51]
    following = session.generate(prompt, GenerationConfig(10))
    following.finish()
    assert following.token_ids == fresh(prompt, GenerationConfig(10))


def test_a_new_generation_ends_the_one_that_still_runs() -> None:
    session = session_with_text()
    first = session.generate([1, 2, 3], GenerationConfig(40))
    next(first)
    second = session.generate([4, 5], GenerationConfig(6))
    assert list(first) == []
    second.finish()
    assert second.token_ids == fresh([4, 5], GenerationConfig(6))


def test_stop_ends_the_generation_also_before_its_first_token() -> None:
    session = session_with_text()
    generation = session.generate([1, 2, 3], GenerationConfig(40))
    session.stop()
    assert generation.finish() == ""
    assert generation.statistics.finish_reason == "stopped"


def test_the_pieces_make_the_text_and_the_tokens() -> None:
    generation = session_with_text().generate([1, 2, 3], GenerationConfig(12))
    pieces = list(generation)
    assert [piece.token for piece in pieces] == generation.token_ids
    assert "".join(piece.text for piece in pieces) == generation.text == decode_letters(generation.token_ids)


@pytest.mark.parametrize("speculative", [True, False])
@pytest.mark.parametrize("place", range(1, 10))
def test_a_stop_string_cuts_the_text_inside_a_block(place: int, speculative: bool) -> None:
    text = decode_letters(fresh([3, 0, 1], GenerationConfig(30)))
    stop = text[place : place + 2]
    assert text.find(stop) == place
    session = session_with_text()
    generation = session.generate(
        [3, 0, 1], GenerationConfig(30, stop_strings=(stop, "never"), speculative=speculative)
    )
    assert generation.finish() == text[:place]
    assert generation.statistics.finish_reason == "stop"
    assert generation.statistics.generated_tokens == place + 2, "the tokens of the stop string were delivered"
    assert session.backend.cache == session.tokens[:-1]


def test_text_held_back_for_a_stop_string_is_released_at_the_end() -> None:
    text = decode_letters(fresh([1, 2, 3], GenerationConfig(6)))
    generation = session_with_text().generate([1, 2, 3], GenerationConfig(6, stop_strings=(text[-2:] + "?",)))
    pieces = list(generation)
    assert pieces[-1].token is None
    assert pieces[-1].text == text[-2:]
    assert generation.text == text


def test_a_refused_prompt_leaves_the_session_as_it_was() -> None:
    session = session_with_text()
    session.generate([1, 2, 3], GenerationConfig(5)).finish()
    tokens, cache = session.tokens, list(session.backend.cache)
    with pytest.raises(PromptError, match="context holds 96"):
        session.generate([1] * 100)
    with pytest.raises(ValueError, match=r"^width must be one of 2, 4, 8 for this bundle"):
        session.generate([1], GenerationConfig(width=3))
    assert (session.tokens, session.backend.cache) == (tokens, cache)


def test_stop_strings_without_a_tokenizer_are_refused() -> None:
    with pytest.raises(ValueError, match="need a tokenizer"):
        Session(ArithmeticBackend(spec())).generate([1], GenerationConfig(stop_strings=("a",)))


def test_reset_forgets_and_close_gives_the_memory_back() -> None:
    session = session_with_text()
    session.generate([1, 2, 3], GenerationConfig(5)).finish()
    session.reset()
    assert (session.tokens, session.backend.length) == ([], 0)
    session.close()
    assert session.backend.closed


def decode_words(ids: Sequence[int]) -> str:
    """A space before each word but the first of a text, as SentencePiece has it; odd tokens are special."""
    return "".join(f" w{token}" for token in ids if token % 2 == 0)[1:]


def words() -> Tokenizer:
    """What `decode_words` decodes with."""
    special = [f"<{token}>" for token in range(1, 64, 2)]
    return opened(words_of([f"<{token}>" if token % 2 else f"▁w{token}" for token in range(64)], special, spaced=True))


def spelt(token: int) -> str:
    return f"<{token}>" if token % 2 else ""


def test_trim_reaches_an_engine_that_has_it_and_its_cache_is_empty_then() -> None:
    class Trimmed(ArithmeticBackend):
        def run(self, *arguments: Any, **options: Any) -> Any:
            output = super().run(*arguments, **options)
            if len(output.best):
                bests.append(weakref.ref(output.best))
            return output

        def trim(self) -> None:
            trimmed.append(self.length)

    trimmed: list[int] = []
    bests: list[weakref.ref[Any]] = []
    with Session(Trimmed(spec())) as session:
        session.generate([1, 2, 3], GenerationConfig(9)).finish()
        tokens = session.tokens
        session.trim()
        assert (trimmed, session.tokens) == ([0], tokens)
        assert bests
        assert all(best() is None for best in bests), "results are memory too"
        session.generate([1, 2, 3], GenerationConfig(9)).finish()
        assert session.tokens == tokens


def test_the_text_of_a_raw_prompt_continues_it() -> None:
    session = Session(ArithmeticBackend(spec()), tokenizer=words())
    for prompt in ([4, 2, 3], [2, 5, 7]):
        for raw in (True, False):
            generation = session.generate(prompt, GenerationConfig(12), raw=raw)
            text, ids = generation.finish(), generation.token_ids
            continued = decode_words([*prompt, *ids])[len(decode_words(prompt)) :]
            assert text == (continued if raw else decode_words(ids))
            assert text.startswith(" ") == raw


def test_a_special_token_can_be_a_stop_string() -> None:
    session = Session(ArithmeticBackend(spec()), tokenizer=words())
    whole = session.generate([4, 2, 3], GenerationConfig(40))
    whole.finish()
    place = next(place for place, token in enumerate(whole.token_ids) if place > 3 and token % 2)
    stopped = session.generate([4, 2, 3], GenerationConfig(40, stop_strings=(spelt(whole.token_ids[place]),)))
    assert stopped.finish() == decode_words(whole.token_ids[: whole.token_ids.index(whole.token_ids[place])])
    assert stopped.statistics.finish_reason == "stop"


def test_a_signal_handler_may_stop_at_any_line() -> None:
    session = Session(ArithmeticBackend(spec()))
    config = GenerationConfig(10)
    session.generate([5, 6, 7], config).finish()
    lines = set()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        """As Python runs a handler between two lines of the main thread."""
        if frame.f_code.co_filename not in (handle.__file__, stops.__file__):
            return trace if event == "call" else None
        if event == "line":
            lines.add(frame.f_lineno)
            session.stop()
        return trace

    def run() -> None:
        sys.settrace(trace)
        list(session.generate([5, 6, 7], config))
        session.stop()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "it waits for itself"
    assert len(lines) > 5
