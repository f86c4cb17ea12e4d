"""Chats that are longer than the context: the policy `drop_oldest`, the errors, and the counts of tokens.

The engine is the arithmetic model of fakes.py; everything else is real.
Run: python -m pytest tests/runtime/test_context_policy.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fakes
import pytest
from bundle_samples import CHAT_TEMPLATE, SavingBackend, byte_tokenizer, edit_manifest, write_bundle
from engine_fixtures import made_engines
from text_samples import TEMPLATES
from tiers import cases
from tool_samples import CLOCK, call, result, turn

import streamfuse
from long_chat import compare
from streamfuse.api import Chat
from streamfuse.options import OptionError
from streamfuse.runtime.config import PromptError
from streamfuse.runtime.text import Conversation, TextError, Tokenizer

CONTEXT, TURNS, NEW = 128, 40, 12
SYSTEM = "be brief"
SAMPLINGS: list[dict[str, Any]] = [{}, {"temperature": 1.0, "seed": 5}]

made = made_engines(SavingBackend)


@pytest.fixture
def model(tmp_path: Path, made: list[fakes.ArithmeticBackend]) -> Iterator[streamfuse.Model]:
    folder = write_bundle(tmp_path / "demo")
    edit_manifest(folder, lambda manifest: manifest["cache"].update(capacity=CONTEXT))
    with streamfuse.load(folder) as model:
        yield model


def question(number: int) -> str:
    """Questions of one to nine characters."""
    return "abcdefghi"[: 1 + number * 7 % 9]


def long_chat(model: streamfuse.Model, **options: Any) -> Chat:
    return model.chat(SYSTEM, context_policy="drop_oldest", max_new_tokens=NEW, **options)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_chat_ten_times_as_long_as_the_context_is_the_same_with_speculation_and_without(
    model: streamfuse.Model, sampling: dict[str, Any]
) -> None:
    texts = []
    widths = (4, 8) if cases(0, 1) else (8,) if sampling else (4,)  # greedy and sampled share the widths
    for drafts in ({"speculative": False}, *({"width": width} for width in widths), {}):
        with long_chat(model, **sampling, **drafts) as chat:
            answers = [chat.send(question(number)) for number in range(TURNS)]
        texts.append([answer.tokens for answer in answers])
        found = [answer.statistics for answer in answers]
        assert sum(map(len, texts[-1])) + sum(one.prompt_tokens - one.prefilled_tokens for one in found) > 10 * CONTEXT
        assert sum(one.dropped_turns for one in found) > TURNS - 6
        assert {one.finish_reason for one in found} <= {"length", "stop"}  # there was room for each answer
        for one in found:
            assert one.prompt_tokens + NEW <= CONTEXT
            assert (one.reread_tokens > 0) == (one.dropped_turns > 0)
            assert one.reread_tokens <= one.prefilled_tokens
    assert texts.count(texts[0]) == len(texts)


def test_as_few_turns_are_dropped_as_leave_room_and_the_system_message_stays(model: streamfuse.Model) -> None:
    with long_chat(model) as chat:
        for number in range(TURNS):
            before = chat.messages
            answer = chat.send(question(number))
            kept, count = chat.messages[:-2], answer.statistics.dropped_turns
            first = 1 if before else 0
            assert [message["role"] for message in kept] == ["system"] + ["user", "assistant"] * (len(kept) // 2)
            assert kept == before[:first] + before[first + 2 * count :] if before else kept == chat.messages[:1]
            if count:  # one more would not have fitted
                more = before[:1] + before[first + 2 * (count - 1) :] + [{"role": "user", "content": question(number)}]
                assert len(model.encode(messages=more)) + NEW > CONTEXT


def test_tokens_that_are_read_again_are_those_beyond_a_turn_that_drops_none(model: streamfuse.Model) -> None:
    ordinary = {}  # tokens that a turn reads, by the length of its question
    with model.chat(SYSTEM, max_new_tokens=NEW) as chat:
        for number in range(9):
            chat.reset()
            chat.send("a")
            ordinary[len(question(number))] = chat.send(question(number)).statistics.prefilled_tokens
    with long_chat(model) as chat:
        for number in range(TURNS):
            found = chat.send(question(number)).statistics
            if number > 0:
                assert found.prefilled_tokens == found.reread_tokens + ordinary[len(question(number))]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_fresh_chat_with_the_kept_turns_gives_the_same_answer(
    model: streamfuse.Model, sampling: dict[str, Any]
) -> None:
    with long_chat(model, **sampling) as chat:
        for number in range(TURNS):
            answer = chat.send(question(number))
            if not answer.statistics.dropped_turns:
                continue
            history = chat.messages[:-2]
            with model.chat(history=history, max_new_tokens=NEW, **sampling) as fresh:
                assert fresh.send(question(number)).tokens == answer.tokens
                assert fresh.messages == chat.messages


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_chat_that_is_saved_and_restored_at_any_turn_goes_on_alike(
    model: streamfuse.Model, tmp_path: Path, sampling: dict[str, Any]
) -> None:
    with long_chat(model, **sampling) as chat:
        whole = [chat.send(question(number)) for number in range(12)]
        messages = chat.messages
    for turns in range(12):
        with long_chat(model, **sampling) as chat, long_chat(model, **sampling) as other:
            for number in range(turns):
                chat.send(question(number))
            chat.save(tmp_path / "chat")
            other.restore(tmp_path / "chat")
            rest = [other.send(question(number)) for number in range(turns, 12)]
            assert [answer.tokens for answer in rest] == [answer.tokens for answer in whole[turns:]]
            dropped = [(one.statistics.dropped_turns, one.statistics.reread_tokens) for one in rest]
            assert dropped == [(one.statistics.dropped_turns, one.statistics.reread_tokens) for one in whole[turns:]]
            assert other.messages == messages


def test_a_question_that_is_not_answered_brings_the_dropped_turns_back(model: streamfuse.Model, tmp_path: Path) -> None:
    with long_chat(model) as chat, long_chat(model) as other:
        for number in range(6):
            chat.send(question(number))
        before = chat.messages
        chat.save(tmp_path / "chat")
        other.restore(tmp_path / "chat")
        stream = chat.stream("abcdefghi")
        assert stream.statistics.dropped_turns > 0
        assert len(chat.messages) < len(before)
        stream.stop()
        assert list(stream) == []
        assert chat.messages == before
        with pytest.raises(OptionError):
            chat.send("abcdefghi", regex="[")
        assert chat.messages == before
        assert chat.send("abc").tokens == other.send("abc").tokens


def test_fail_is_the_default_and_its_error_names_the_limit_and_the_policy(model: streamfuse.Model) -> None:
    with model.chat(max_new_tokens=NEW) as chat:
        while chat.remaining_tokens > NEW + 21:
            chat.send("a")
        before = chat.messages
        with pytest.raises(PromptError, match=rf"context holds {CONTEXT}; reset the chat, or .* drop_oldest"):
            chat.send("a" * NEW * 2)
        assert chat.messages == before


@pytest.mark.parametrize("policy", ["fail", "drop_oldest"])
def test_a_question_that_is_longer_than_the_context_is_refused(model: streamfuse.Model, policy: Any) -> None:
    with model.chat(SYSTEM, context_policy=policy, max_new_tokens=NEW) as chat:
        chat.send("a")
        before = chat.messages
        with pytest.raises(PromptError, match=rf"the question has \d+ tokens .* holds {CONTEXT}; shorten it"):
            chat.send("a" * CONTEXT)
        assert chat.messages == before
        chat.send("b")


def test_a_long_question_drops_all_turns_and_gets_the_room_that_is_left(model: streamfuse.Model) -> None:
    with model.chat(context_policy="drop_oldest", max_new_tokens=NEW, ignore_eos=True) as chat:
        for _ in range(3):
            chat.send("a")
        rest = 3
        words = "a" * (CONTEXT - rest - (len(model.encode("ab")) - 2))
        answer = chat.send(words)
        assert answer.statistics.dropped_turns == 3
        assert answer.statistics.finish_reason == "context"
        assert len(answer.tokens) == rest
        assert chat.remaining_tokens == 0
        assert chat.used_tokens == CONTEXT
        assert chat.send("a").statistics.finish_reason == "length"


@pytest.mark.parametrize("policy", ["fail", "drop_oldest"])
def test_a_question_that_leaves_no_room_for_an_answer_is_refused(model: streamfuse.Model, policy: Any) -> None:
    with model.chat(context_policy=policy, max_new_tokens=NEW, ignore_eos=True) as chat:
        chat.send("a")
        before = chat.messages
        with pytest.raises(PromptError, match=rf"needs room for an answer, .* holds {CONTEXT}; shorten it"):
            chat.send("a" * (CONTEXT - (len(model.encode("ab")) - 2)))
        assert chat.messages == before


def test_an_answer_without_a_limit_gets_a_quarter_of_the_context(model: streamfuse.Model) -> None:
    with model.chat(context_policy="drop_oldest", max_new_tokens=10**9, stop="h") as chat:
        lengths = [chat.send("ab").statistics.prompt_tokens for _ in range(12)]
    assert CONTEXT / 2 < max(lengths) <= CONTEXT - CONTEXT // 4


def test_a_turn_is_a_question_with_its_calls_results_and_answer(tmp_path: Path) -> None:
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path / "tokenizer.json", TOOL_TEMPLATE)
    with_call = [
        turn("user", "one"), turn("assistant", "", tool_calls=[call("now", {}, 7)]), result("now", "noon", 7),
        turn("assistant", "noon it is"),
    ]  # fmt: skip
    history = [turn("system", "s"), *with_call, turn("user", "two"), turn("assistant", "2")]
    whole = len(tokenizer.encode_chat([*history, turn("user", "three")]))
    shortest = len(tokenizer.encode_chat([history[0], turn("user", "three")]))
    for capacity in range(whole + 1, shortest, -1):
        conversation = Conversation(tokenizer, history=history)
        conversation.set_limit(capacity, 1, "drop_oldest")
        ids = conversation.ask("three")
        kept = conversation.messages
        assert kept[:1] == history[:1]
        assert kept[1:-1] in (history[1:], history[5:], [])
        assert conversation.dropped == ({8: 0, 4: 1, 2: 2}[len(kept)], whole - len(ids))
        assert len(ids) < capacity
    conversation.take_back()
    assert conversation.messages == history
    conversation.set_limit(shortest, 1, "drop_oldest")
    with pytest.raises(PromptError, match="the question has"):
        conversation.ask("three")


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_the_kept_turns_are_written_as_a_chat_of_their_own_by_every_template(tmp_path: Path, name: str) -> None:
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path / "tokenizer.json", TEMPLATES[name])
    history = [turn("system", "s")]
    try:
        tokenizer.encode_chat([*history, turn("user", "a")])
    except TextError:  # a template without system messages
        history = []
    conversation = Conversation(tokenizer, history=history)
    dropped = 0
    for number in range(8):
        before = conversation.messages or history
        whole = len(tokenizer.encode_chat([*before, turn("user", question(number))]))
        conversation.set_limit(whole - 1 if number > 2 else whole + 1, 1, "drop_oldest")
        ids = conversation.ask(question(number))
        dropped += conversation.dropped[0]
        kept = conversation.messages
        assert ids == tokenizer.encode_chat(kept)
        assert conversation.dropped == ((len(before) + 1 - len(kept)) // 2, whole - len(ids))
        assert kept[: len(history)] == history
        conversation.answer(byte_tokenizer().encode("abc").ids)
    assert dropped >= 5


def test_results_belong_to_their_question_and_drop_older_turns_only(tmp_path: Path) -> None:
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path / "tokenizer.json", TOOL_TEMPLATE)
    asks = [turn("user", "now?"), turn("assistant", "", tool_calls=[call("now", {}, 3)])]
    conversation = Conversation(tokenizer, history=[turn("user", "old"), turn("assistant", "o" * 40), *asks])
    conversation.set_limit(90, 8, "drop_oldest")
    conversation.ask_results([{"content": "noon"}])
    assert conversation.messages == [*asks, result("now", "noon", 3)]
    assert conversation.dropped[0] == 1


def test_calls_after_dropped_ones_keep_ids_of_their_own(tmp_path: Path) -> None:
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path / "tokenizer.json", TOOL_TEMPLATE)
    asks = [turn("user", "now?"), turn("assistant", "", tool_calls=[call("now", {}, 3)]), result("now", "noon", 3)]
    conversation = Conversation(tokenizer, history=[*asks, turn("assistant", "a")], tools=[CLOCK])
    conversation.ask("and now?")
    spelt = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    conversation.answer(byte_tokenizer().encode(spelt).ids)
    assert [found["id"] for found in conversation.tool_calls] == ["call00004"]


TOOL_TEMPLATE = (
    "{# <tool_call> {'name', 'arguments'} #}{% if tools %}{{ '<|im_start|>system\nT<|im_end|>\n' if false }}{% endif %}"
    + CHAT_TEMPLATE
)


def test_another_policy_is_refused(model: streamfuse.Model) -> None:
    with pytest.raises(OptionError, match="context_policy must be one of fail, drop_oldest, not 'newest'"):
        model.chat(context_policy="newest")  # type: ignore[arg-type]


def test_used_and_remaining_tokens_are_those_of_prompt_and_answer(model: streamfuse.Model) -> None:
    with model.chat(max_new_tokens=NEW) as chat:
        assert (chat.used_tokens, chat.remaining_tokens) == (0, CONTEXT)
        answer = chat.send("abc")
        assert chat.used_tokens == answer.statistics.prompt_tokens + len(answer.tokens)
        assert chat.used_tokens + chat.remaining_tokens == CONTEXT == model.context_length
        chat.reset()
        assert (chat.used_tokens, chat.remaining_tokens) == (0, CONTEXT)


def test_tokens_of_a_text_are_those_that_it_takes_in_a_message(model: streamfuse.Model) -> None:
    empty = len(model.encode(""))
    for text in ("", "abc", "é", "a <|im_end|> b", "<|im_start|>user\n"):
        assert model.count_tokens(text) == len(model.encode(text)) - empty


@pytest.mark.parametrize("policy", ["fail", "drop_oldest"])
def test_the_report_of_a_long_chat_counts_its_answers_and_what_was_dropped(
    policy: Any, model: streamfuse.Model
) -> None:
    found = compare(model, [question(number) for number in range(5)], 5 * CONTEXT, NEW, policy)
    assert found["equal_answers"] == found["questions"] > 0
    assert found["context"] == CONTEXT
    dropped = policy == "drop_oldest"
    assert (found["tokens"] >= 5 * CONTEXT) == dropped
    assert (found["refused"] is None) == dropped
    assert (found["dropped_turns"] >= found["questions_with_dropped_turns"] > 0) == dropped
    assert (found["reread_tokens"] > 0) == dropped
    assert found["longest_prompt"] + NEW <= CONTEXT
    assert (found["speculative"]["seconds_with_dropped_turns"] is not None) == dropped
    assert found["plain"]["tokens_per_pass"] == 1.0
