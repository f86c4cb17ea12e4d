"""The way in for Python: a model opened, asked, streamed, chatted with, saved and closed; and exports by a call.

The engine is the arithmetic model of fakes.py; everything else is real. Run: python -m pytest tests/runtime/test_api.py
"""

from __future__ import annotations

import gc
import inspect
import os
import re
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import fakes
import numpy as np
import pytest
from bundle_samples import CAPACITY, IM_END, SavingBackend, byte_tokenizer, edit_manifest, fake_engines, write_bundle
from engine_fixtures import made_engines

import streamfuse
from streamfuse import engines
from streamfuse.api import GenerationOptions, Result, Statistics
from streamfuse.bundle import BundleError, KeyProblem, open_bundle
from streamfuse.bundle.signature import public_line, write_keys
from streamfuse.cli.commands.run import run
from streamfuse.extras import MissingExtra
from streamfuse.options import OptionError
from streamfuse.runtime.config import PromptError
from streamfuse.runtime.core import CoreError, CoreModel, Stopped
from streamfuse.runtime.session import Session
from streamfuse.runtime.text import Conversation, TextError

IMPORT_SECONDS = 0.3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "demo")


made = made_engines(SavingBackend)


@pytest.fixture
def model(folder: Path, made: list[fakes.ArithmeticBackend]) -> Iterator[streamfuse.Model]:
    with streamfuse.load(folder) as model:
        yield model


def read(engine: fakes.ArithmeticBackend) -> int:
    """Tokens of prompts that an engine has read."""
    return sum(rows for method, rows in engine.calls if method == "prefill")


def test_answers_are_kept_for_later_conversations_until_they_are_forgotten(
    folder: Path, made: list[fakes.ArithmeticBackend], tmp_path: Path
) -> None:
    file = tmp_path / "memory"

    def ask(model: streamfuse.Model) -> Result:
        with model.chat(max_new_tokens=40, width=4, sources=["lookup", "memory"]) as chat:
            return chat.send("hello")

    with streamfuse.load(folder, memory=file) as model:
        first, again = ask(model), ask(model)
    with streamfuse.load(folder, memory=file) as model:
        later = ask(model)
        model.forget()
        assert file.stat().st_size == 0
    with streamfuse.load(folder) as model:
        plain = ask(model)
    assert first.tokens == again.tokens == later.tokens == plain.tokens
    remembered = [one.statistics.accepted_by_source["memory"] for one in (first, again, later, plain)]
    assert remembered[1] > remembered[0] == remembered[3] == 0
    assert remembered[2] > 0
    with streamfuse.load(folder, memory="") as model:
        assert ask(model).tokens == first.tokens
        assert ask(model).statistics.accepted_by_source["memory"] > 0
    with (
        streamfuse.load(folder, memory=folder / "manifest.json") as model,
        pytest.raises(CoreError, match="is not a memory of streamfuse"),
    ):
        ask(model)


def test_the_memory_is_the_file_that_was_named_when_the_model_was_loaded(
    folder: Path, made: list[fakes.ArithmeticBackend], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    with streamfuse.load(folder, memory="memory") as model:
        monkeypatch.chdir(tmp_path / "there")
        model.generate("hello")
    assert (tmp_path / "memory").is_file()
    assert list((tmp_path / "there").iterdir()) == []


def test_an_answer_has_text_tokens_and_statistics(model: streamfuse.Model) -> None:
    answer = model.generate("hello")
    assert len(answer.text) == len(answer.tokens) == 16  # by the bundle's sampling defaults
    assert set(answer.text) <= set("abcdefgh")
    assert model.tokenizer.decode(answer.tokens) == answer.text
    assert (answer.statistics.generated_tokens, answer.statistics.finish_reason) == (16, "length")
    assert answer.statistics.model_load_ms > 0


@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "seed": 3}, {"repetition_penalty": 1.3}])
def test_speculation_does_not_change_an_answer(model: streamfuse.Model, options: dict[str, Any]) -> None:
    fast = model.generate("hello", **options)
    for way in ({"speculative": False}, {"width": 4}, {"width": 8}):
        assert model.generate("hello", **options, **way).tokens == fast.tokens  # type: ignore[arg-type]


def test_a_stream_gives_the_answer_in_pieces(model: streamfuse.Model) -> None:
    pieces = list(model.stream("hello", width=8))
    whole = model.generate("hello")
    assert [piece.token for piece in pieces] == whole.tokens
    assert "".join(piece.text for piece in pieces) == whole.text
    assert {piece.source for piece in pieces} <= {"model", "streams", "lookup", "table"}


def test_a_stream_may_be_left_at_any_token_and_the_next_prompt_reads_only_what_is_new(
    model: streamfuse.Model, made: list[fakes.ArithmeticBackend]
) -> None:
    whole = model.generate("hello", width=4)
    before = read(made[0])
    for piece in model.stream("hello", width=4):
        if piece.token == whole.tokens[3]:
            break
    assert model.generate("hello", width=4).tokens == whole.tokens
    assert read(made[0]) == before  # the prompt lay in the cache
    assert len(made) == 1


def test_a_prompt_may_be_words_with_a_system_message_plain_text_or_tokens(
    model: streamfuse.Model, made: list[fakes.ArithmeticBackend]
) -> None:
    def cached() -> str:
        return byte_tokenizer().decode(made[0].cache, skip_special_tokens=False)

    model.generate("hi", system="be brief", max_new_tokens=1)
    assert cached().startswith("<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>as")
    model.generate("hi", raw=True, max_new_tokens=1)
    assert cached() == "hi"
    model.generate(model.tokenizer.encode("yo"), max_new_tokens=1)
    assert cached() == "yo"


def test_a_system_message_is_refused_where_no_chat_template_is_used(model: streamfuse.Model) -> None:
    for ask in (model.generate, model.stream, model.astream):
        with pytest.raises(PromptError, match="system is for the chat template, so it does not go with raw text"):
            ask("hi", system="be brief", raw=True)
        with pytest.raises(PromptError, match="system is for the chat template, so it does not go with token ids"):
            ask([104, 105], system="be brief")
    with pytest.raises(PromptError, match="system is for the chat template"):
        model.encode("hi", system="be brief", raw=True)


def test_a_whole_conversation_may_be_asked_at_once(model: streamfuse.Model) -> None:
    with model.chat("brief", max_new_tokens=3) as chat:
        chat.send("a")
        messages = [*chat.messages, {"role": "user", "content": "b"}]
        assert model.generate(messages=messages, max_new_tokens=3).tokens == chat.send("b").tokens
    assert [piece.token for piece in model.stream(messages=messages, max_new_tokens=3)] == chat_tokens(model, messages)
    for wrong, sentence in (
        ({"prompt": "hi"}, "give a prompt or messages, not both"),
        ({"system": "brief"}, "system does not go with messages: it is the first of them"),
        ({"raw": True}, "raw does not go with messages: they are for the chat template"),
    ):
        with pytest.raises(PromptError, match=sentence):
            model.generate(messages=messages, **wrong)  # type: ignore[arg-type]
    with pytest.raises(TextError, match="message 1"):
        model.generate(messages=["hi"])  # type: ignore[list-item]


def chat_tokens(model: streamfuse.Model, messages: list[dict[str, str]]) -> list[int]:
    return model.generate(model.tokenizer.encode_chat(messages), max_new_tokens=3).tokens


def test_statistics_are_the_object_of_the_core_key_by_key(model: streamfuse.Model) -> None:
    found = model.generate("hello", width=4).statistics
    assert list(found.to_dict()) == [field.name for field in fields(Statistics)]
    assert found.to_dict()["widths"] == found.widths
    assert found.generated_tokens == found.target_forward_passes + found.draft_tokens_accepted


def test_a_model_can_be_prepared_and_forget_its_sequence(
    model: streamfuse.Model, made: list[fakes.ArithmeticBackend]
) -> None:
    model.prepare()
    assert model.backend is made[0]
    first = model.generate("hello")
    assert first.statistics.measure_ms == 0
    before = read(made[0])
    model.reset()
    assert model.generate("hello").tokens == first.tokens
    assert read(made[0]) > before


def test_a_stop_string_ends_the_text_before_it(model: streamfuse.Model) -> None:
    whole = model.generate("hello").text
    cut = model.generate("hello", stop=[whole[5:8], "xyz"])
    assert cut.text == whole[: whole.index(whole[5:8])]
    assert cut.statistics.finish_reason == "stop"


def test_stop_tokens_end_the_text_and_the_models_own_may_be_ignored(model: streamfuse.Model) -> None:
    whole = model.generate("hello").tokens
    fifth = whole[4]
    assert model.generate("hello", stop_token_ids=[fifth]).tokens == whole[: whole.index(fifth)]
    assert model.config(ignore_eos=True).stop_ids(model.bundle.spec()) == frozenset()
    assert model.config().stop_ids(model.bundle.spec()) == {IM_END}


def test_stop_ends_what_runs_at_its_next_token(model: streamfuse.Model) -> None:
    generation = model.stream("hello")
    next(generation)
    model.stop()
    assert len(generation.finish()) <= 2
    assert generation.statistics.finish_reason == "stopped"
    model.stop()  # nothing runs: nothing happens
    assert len(model.generate("hello").tokens) == 16


def test_stop_ends_a_generation_whose_engine_is_still_being_loaded(
    folder: Path, made: list[fakes.ArithmeticBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    make = engines.engines_of
    stops: list[Callable[[], None]] = []

    def load(*arguments: Any) -> Any:
        if stops:
            thread = threading.Thread(target=stops.pop())  # as a button does
            thread.start()
            thread.join()
        return make(*arguments)

    monkeypatch.setattr(engines, "engines_of", load)
    for use in ("generate", "stream"):
        with streamfuse.load(folder) as model:
            stops.append(model.stop)
            found = model.generate("hello") if use == "generate" else model.stream("hello")
            result = found if isinstance(found, Result) else (found.finish(), found.result)[1]
            assert (result.tokens, result.finish_reason) == ([], "stopped")
            assert len(model.generate("hello").tokens) == 16


def test_stop_ends_a_generation_whose_request_is_still_being_read(model: streamfuse.Model) -> None:
    def stopping(stop: Callable[[], None]) -> Iterator[str]:
        stop()
        yield "xyz"

    with model.chat(max_new_tokens=16) as chat, model.session() as session:
        cases: list[tuple[Callable[..., Any], Callable[[], None]]] = [
            (model.generate, model.stop),
            (model.stream, model.stop),
            (chat.send, chat.stop),
            (chat.send, model.stop),
            (chat.stream, chat.stop),
            (chat.stream, model.stop),
        ]
        for ask, stop in cases:
            found = ask("hello", stop=stopping(stop))
            if not isinstance(found, Result):
                found = (found.finish(), found.result)[1]
            assert (found.tokens, found.finish_reason) == ([], "stopped"), (ask, stop)
        assert len(chat.send("hello").tokens) == 16
        requested = session.watch_stops()
        session.stop()
        generation = session.generate([1, 2, 3], stopped=requested)
        assert (list(generation), generation.statistics.finish_reason) == ([], "stopped")
        assert len(list(session.generate([1, 2, 3]))) > 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"temperature": -1}, "temperature must be at least 0 and below 1e+30, not -1"),
        ({"temperature": 1e30}, "temperature must be at least 0 and below 1e+30, not 1e+30"),
        ({"top_k": -1}, "top_k must be an integer of at least 0 (0 = off), not -1"),
        ({"top_p": 0}, "top_p must be above 0 and at most 1 (1 = off), not 0"),
        ({"min_p": 2}, "min_p must be from 0 (off) to 1, not 2"),
        ({"repetition_penalty": 0}, "repetition_penalty must be at least 1e-30 and below 1e+30 (1 = off), not 0"),
        (
            {"repetition_penalty": 1e38},
            "repetition_penalty must be at least 1e-30 and below 1e+30 (1 = off), not 1e+38",
        ),
        ({"seed": -1}, "seed must be an integer from 0 to 2**64 - 1, not -1"),
        ({"seed": 10**50}, f"seed must be an integer from 0 to 2**64 - 1, not 1{'0' * 19}... (51 digits)"),
        ({"seed": 10**5000}, "seed must be an integer from 0 to 2**64 - 1, not a number of thousands of digits"),
        (
            {"temperature": 10**5000},
            "temperature must be at least 0 and below 1e+30, not a number of thousands of digits",
        ),
        ({"max_new_tokens": 0}, "max_new_tokens must be an integer of at least 1, not 0"),
        ({"seed": 1.0}, "seed must be an integer from 0 to 2**64 - 1, not 1.0"),
        ({"max_new_tokens": 2.5}, "max_new_tokens must be an integer of at least 1, not 2.5"),
        ({"max_new_tokens": True}, "max_new_tokens must be an integer of at least 1, not True"),
        ({"temperature": "hot"}, "temperature must be a number, not 'hot'"),
        ({"top_k": 1.5}, "top_k must be an integer of at least 0 (0 = off), not 1.5"),
        ({"top_p": True}, "top_p must be a number, not True"),
        ({"width": 4.0}, "width must be an integer, not 4.0"),
        ({"ignore_eos": 5}, "ignore_eos must be True or False, not 5"),
        ({"speculative": "no"}, "speculative must be True or False, not 'no'"),
        ({"log_probs": 1}, "log_probs must be True or False, not 1"),
        ({"sources": []}, "sources must not be empty: leave it out for all, or use speculative=False for none"),
        ({"sources": {"lookup": True}}, "sources must be a list of names, not {'lookup': True}"),
        ({"template_variables": 0}, "template_variables must hold names and values, not 0"),
        ({"documents": ""}, "documents must be a list of dicts, not ''"),
        ({"tools": 0}, "tools must be a list of functions or tool descriptions, not 0"),
        ({"stop_token_ids": [1.5]}, "stop_token_ids must be a list of token ids, not 1.5"),
        ({"stop_token_ids": [-1]}, "stop_token_ids must be a list of token ids, not -1"),
        ({"stop_token_ids": [2**70]}, f"stop_token_ids must be a list of token ids, not {2**70}"),
        ({"stop_token_ids": [True]}, "stop_token_ids must be a list of token ids, not True"),
        ({"stop_token_ids": 5}, "stop_token_ids must be a list of token ids, not 5"),
        ({"stop_token_ids": b"ab"}, "stop_token_ids must be a list of token ids, not b'ab'"),
        ({"stop": b"x"}, "stop must be text, or a list of texts, not b'x'"),
        ({"stop": [b"x"]}, "stop must be text, or a list of texts, not b'x'"),
        ({"width": 5}, "width must be one of 4, 8 for this bundle, not 5"),
        ({"stop": [""]}, "stop must not be empty; leave it out to stop at the model's own end only"),
    ],
)
def test_an_option_out_of_range_is_named_by_its_keyword(
    model: streamfuse.Model, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        model.generate("hi", **options)
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        model.chat(**options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"threads": 1.5}, "threads must be an integer from 1 to 64, not 1.5"),
        ({"threads": True}, "threads must be an integer from 1 to 64, not True"),
        ({"threads": "2"}, "threads must be an integer from 1 to 64, not '2'"),
        ({"threads": 65}, "threads must be an integer from 1 to 64, not 65"),
        ({"provider": 5}, "provider must be cpu, webgpu, qnn, coreml or directml, not 5"),
        ({"provider": []}, "provider must be cpu, webgpu, qnn, coreml or directml, not []"),
        ({"cost_cache": "no"}, "cost_cache must be True or False, not 'no'"),
        ({"memory": 5}, "memory must be a path, not 5"),
        ({"progress": 5}, "progress must be a function, not 5"),
        ({"public_key": 5}, "the public key must be text, not 5"),
        ({"public_key": b"ab"}, "the public key must be text, not b'ab'"),
        (
            {"public_key": "\udcff"},
            "the public key must be 64 hexadecimal digits, the line that `streamfuse bundle keygen` writes",
        ),
        ({"public_key": "ab\0"}, "the public key contains a zero byte"),
    ],
)
def test_an_option_of_load_that_has_another_type_is_named(folder: Path, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises((OptionError, KeyProblem), match=f"^{re.escape(sentence)}$"):
        streamfuse.load(folder, **options)


@pytest.mark.parametrize(
    ("backend", "engine"), [("openvino", "OpenVINO"), ("qnn", "QNN"), ("coreml", "Core ML"), ("vulkan", "Vulkan")]
)
def test_an_engine_that_chooses_its_threads_refuses_a_number(backend: str, engine: str, folder: Path) -> None:
    edit_manifest(folder, lambda manifest: manifest.update(backend=backend))
    bundle = open_bundle(folder, verify=False)
    with pytest.raises(
        OptionError, match=f"threads has no effect on a bundle for {engine}, which chooses its own; leave it out"
    ):
        engines.engines_of(bundle, 1)
    assert engines.threads_for(bundle, 1) is None


@pytest.mark.parametrize("threads", [1, np.int64(2), 64, None])
def test_a_number_of_threads_is_an_integer_of_any_kind(threads: Any) -> None:
    found = engines.threads_of(threads)
    assert (found, type(found)) == (threads, type(None) if threads is None else int)


def test_costs_are_kept_for_the_number_of_threads_in_use(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XNNPACK's may be another one than was asked for, because all models of a process share them."""

    class Described(fakes.ArithmeticBackend):
        description: dict[str, Any]

    def costs(asked: int | None, reported: dict[str, int]) -> set[str]:
        """Names of the files that a generation leaves."""

        def make(*_: Any) -> Any:
            backend = Described(open_bundle(folder).spec())
            backend.description = reported
            return lambda bundle=None: backend

        kept = tmp_path / f"{asked} {reported}"
        monkeypatch.setattr(engines, "cost_folder", lambda: kept)
        monkeypatch.setattr(engines, "engines_of", make)
        with streamfuse.load(folder, threads=asked) as model, model.session(text=False) as session:
            session.prepare()
        return {path.name for path in kept.iterdir()}

    assert costs(1, {"threads": 2}) == costs(2, {"threads": 2}) == costs(None, {"threads": 2})
    assert costs(2, {"threads": 1}) != costs(2, {"threads": 2}) == costs(2, {})


def test_an_argument_that_has_another_type_is_named(
    model: streamfuse.Model, made: list[fakes.ArithmeticBackend]
) -> None:
    any_model: Any = model
    for use in (any_model.generate, any_model.stream, any_model.astream, any_model.encode):
        for raw in ("x", None):
            with pytest.raises(OptionError, match=f"^raw must be True or False, not {raw!r}$"):
                use("hi", raw=raw)
    with pytest.raises(OptionError, match=r"^raw must be True or False, not 1$"):
        any_model.generate([1, 2], raw=1)
    for messages in (None, 5, "hi", {"role": "user", "content": "hi"}):
        with pytest.raises(TextError, match=r"^the messages must be a list of \{.*\}, not "):
            any_model.chat(history=messages)
        if messages is not None:
            with pytest.raises(TextError, match=r"^the messages must be a list of \{.*\}, not "):
                any_model.generate(messages=messages)
    assert made == []
    with any_model.chat() as chat:
        for results in (5, None, "sunny", {"content": "sunny"}, [5]):
            for send in (chat.send_tool_results, chat.stream_tool_results):
                with pytest.raises(OptionError, match=r"^results must be a text for each call, or dicts, not "):
                    send(results)
        for calls in (5, None, "now", [5]):
            with pytest.raises(OptionError, match=r"^calls must be the tool calls of an answer, not "):
                chat.call_tools(calls)
        assert chat.messages == []


def test_a_last_message_of_the_assistant_is_continued(model: streamfuse.Model) -> None:
    question = {"role": "user", "content": [{"type": "text", "text": "count"}, {"type": "text", "text": "up"}]}
    messages = [question, {"role": "assistant", "content": "1, 2,"}]
    ids = model.encode(messages=messages)
    begun = model.tokenizer.render([{"role": "user", "content": "count\nup"}])
    assert ids == model.tokenizer.encode_rendered(begun + "1, 2,")
    options: Any = {"max_new_tokens": 8, "ignore_eos": True}
    found = model.generate(messages=messages, **options)
    assert (found.tokens, found.text) == ((same := model.generate(ids, **options)).tokens, same.text)
    assert re.fullmatch("[x-z]{3}", model.generate(messages=messages, regex="[x-z]{3}").text)
    for wrong, error, sentence in (
        ({"messages": []}, PromptError, "the messages are empty"),
        ({"messages": messages, "tools": [{"name": "f"}]}, PromptError, "continued as text, without tools"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, TextError, "message 1: the model reads"),
    ):
        with pytest.raises(error, match=sentence):
            model.generate(**wrong)


def test_a_given_answer_is_scored_as_if_it_were_generated(model: streamfuse.Model) -> None:
    result = model.generate("hi", system="Be brief.", max_new_tokens=12, ignore_eos=True, top_log_probs=3)
    found = model.score("hi", result.tokens, system="Be brief.", top_log_probs=3)
    assert (found.tokens, found.log_probs) == (result.tokens, result.log_probs)
    assert found.top_log_probs == result.top_log_probs
    ids = model.encode("hi", system="Be brief.")
    assert model.score(ids, result.tokens) == replace(found, top_log_probs=[])
    text = model.score("hi", "yes")
    assert text.tokens == model.tokenizer.encode_rendered("yes", continues=True)
    raw = model.score("one", " two", raw=True)
    whole = model.encode("one two", raw=True)
    assert raw.tokens == whole[len(whole) - len(raw.tokens) :]
    assert raw.log_probs == model.score(whole[:1], whole[1:]).log_probs[-len(raw.tokens) :]


def test_a_stop_between_the_request_of_a_score_and_its_start_is_not_lost(model: streamfuse.Model) -> None:
    session = model.session()
    scored = session.core.score

    def late(*arguments: Any) -> Any:
        session.stop()
        return scored(*arguments)

    session.core.score = late  # type: ignore[method-assign]
    with pytest.raises(Stopped, match="the scoring was stopped"):
        session.score([1, 2, 3], 1)


@pytest.mark.parametrize(
    ("arguments", "options", "sentence"),
    [
        (("", "a"), {"raw": True}, "the prompt is empty"),
        (([], "a"), {}, "the prompt is empty"),
        (("a", ""), {"raw": True}, "the answer is empty"),
        (("a", []), {}, "the answer is empty"),
        (([1], [2]), {"system": "b"}, "system is for the chat template"),
        (("a", [10**7]), {}, "^the prompt with its answer holds token 10000000, outside this bundle's vocabulary"),
        (("a", "b" * 10_000), {}, "^the prompt with its answer has .* but this bundle's context holds"),
        (("a", None), {}, "^the answer must be a list of token ids"),
        (("x", 5), {}, "^the answer must be a list of token ids, not 5"),
        (([1], b"abc"), {}, "^the answer must be a list of token ids, not b'abc'"),
        (([1], [1.5]), {}, "^the answer must be a list of token ids, which are integers; it holds 1.5"),
        (("a", "b\ud800"), {}, "^the answer is not UTF-8 text"),
        (("a", "b\ud800"), {"raw": True}, "^the answer is not UTF-8 text"),
        (("a\ud800", "b"), {"raw": True}, "^the prompt is not UTF-8 text"),
        (([1], "b\ud800"), {}, "^the answer is not UTF-8 text"),
        ((None, "a"), {}, "list of token ids"),
        (("a", "b"), {"top_log_probs": 21}, "top_log_probs must be an integer from 0 to 20, not 21"),
        (("a", "b"), {"raw": 1}, "raw must be True or False"),
    ],
)
def test_a_wrong_prompt_or_answer_is_refused(
    model: streamfuse.Model, arguments: tuple[Any, Any], options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises((PromptError, OptionError, TextError), match=sentence):
        model.score(*arguments, **options)


def test_a_piece_and_a_result_have_the_log_probabilities_that_are_asked_for(model: streamfuse.Model) -> None:
    options = {"max_new_tokens": 12, "temperature": 0.9, "seed": 3}
    plain = model.generate("hi", speculative=False, log_probs=True, **options)
    with model.stream("hi", log_probs=True, **options) as stream:
        pieces = list(stream)
    assert [piece.log_prob for piece in pieces if piece.token is not None] == plain.log_probs == stream.result.log_probs
    assert len(plain.log_probs) == len(plain.tokens) == 12
    assert max(plain.log_probs) < 0
    assert [piece.log_prob for piece in model.stream("hi", **options)] == [None] * len(pieces)
    assert model.generate("hi", **options).log_probs == []


def test_the_most_probable_tokens_come_with_their_text(model: streamfuse.Model) -> None:
    options = {"max_new_tokens": 12, "temperature": 0.9, "seed": 3}
    plain = model.generate("hi", speculative=False, top_log_probs=4, **options)
    drafted = model.generate("hi", top_log_probs=4, **options)
    assert plain.tokens == drafted.tokens == model.generate("hi", **options).tokens
    assert plain.log_probs == drafted.log_probs == model.generate("hi", log_probs=True, **options).log_probs
    assert plain.top_log_probs == drafted.top_log_probs
    assert [len(top) for top in plain.top_log_probs] == [4] * 12
    for token, log_prob, top in zip(plain.tokens, plain.log_probs, plain.top_log_probs, strict=True):
        values = [one.log_prob for one in top]
        assert values == sorted(values, reverse=True)
        assert dict((one.token, one.log_prob) for one in top).get(token, log_prob) == log_prob
        assert [one.text for one in top] == [
            model.tokenizer.token_bytes(one.token).decode(errors="replace") for one in top
        ]
    with model.stream("hi", top_log_probs=4, **options) as pieces:
        assert [piece.top_log_probs for piece in pieces if piece.token is not None] == plain.top_log_probs
    ids = [token for token in range(model.manifest.model.vocab_size) if model.tokenizer.token_bytes(token) == b"a"]
    assert len(ids) == 1
    (end,) = model.tokenizer.encode_rendered("<|im_end|>")
    assert model.tokenizer.token_bytes(end) == b"<|im_end|>", "special tokens have their names"
    assert model.tokenizer.token_bytes(1 << 31) == b""
    for wrong in (21, -1, 1.5, True):
        with pytest.raises(OptionError, match=rf"^top_log_probs must be an integer from 0 to 20, not {wrong}$"):
            model.generate("hi", top_log_probs=wrong)  # type: ignore[arg-type]


def test_the_options_are_the_command_lines_by_name(model: streamfuse.Model) -> None:
    flags = {*inspect.signature(run).parameters}
    assert {*GenerationOptions.__annotations__} - flags == {
        "stop_token_ids",
        "ignore_eos",
        "speculative",
        "documents",
        "sources",
    }
    for use in (model.generate, model.stream, model.chat, model.chat().send, model.encode):
        with pytest.raises(TypeError, match="there is no option temprature; the options are max_new_tokens, tempera"):
            use("hi", temprature=1.0)


def test_a_width_that_the_bundle_does_not_have_is_refused_without_speculation_too(model: streamfuse.Model) -> None:
    for speculative in (True, False):
        with pytest.raises(OptionError, match=r"width must be one of .* for this bundle, not 5"):
            model.generate("hi", width=5, speculative=speculative)
    plain = model.generate("hi", max_new_tokens=4, speculative=False)
    assert model.generate("hi", max_new_tokens=4, width=4, speculative=False).tokens == plain.tokens


def test_a_prompt_that_does_not_fit_is_refused_before_an_engine_is_loaded(
    model: streamfuse.Model, made: list[fakes.ArithmeticBackend]
) -> None:
    with pytest.raises(PromptError, match=f"context holds {CAPACITY}"):
        model.generate("x" * 200)
    with pytest.raises(PromptError, match="empty"):
        model.generate("", raw=True)
    with pytest.raises(PromptError, match="outside this bundle's vocabulary"):
        model.generate([1, 999])
    assert made == []


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        (b"Hi", "must be text or a list of token ids, not b'Hi'"),
        (None, "must be text or a list of token ids, not None"),
        (5, "must be text or a list of token ids, not 5"),
        ([1.0, True], "which are integers; it holds 1.0"),
        ([1, True], "which are integers; it holds True"),
        (["a"], "which are integers; it holds 'a'"),
        ([{"role": "user", "content": "hi"}], "which are integers; it holds {'role': 'user'"),
    ],
)
def test_what_is_no_prompt_is_refused_in_a_sentence(
    prompt: Any, words: str, model: streamfuse.Model, made: list[fakes.ArithmeticBackend]
) -> None:
    with pytest.raises(PromptError, match=re.escape(words)):
        model.generate(prompt)
    assert made == []


def test_what_is_no_message_is_refused_in_a_sentence(model: streamfuse.Model) -> None:
    for words in (None, b"hi", ["hi"]):
        with pytest.raises(TextError, match="the user message must be text, not"):
            model.chat().send(words)  # type: ignore[arg-type]
        with pytest.raises(TextError, match="the prompt must be text, not"):
            model.encode(words, raw=True)  # type: ignore[arg-type]
    with pytest.raises(TextError, match="its content must be text, not b'brief'"):
        model.generate("hi", system=b"brief")  # type: ignore[arg-type]
    with pytest.raises(TextError, match="the system message must be text, not b'brief'"):
        model.chat(b"brief")  # type: ignore[arg-type]


def test_numpy_integers_are_token_ids(model: streamfuse.Model) -> None:
    ids = model.tokenizer.encode("yo")
    assert model.generate(np.array(ids), max_new_tokens=3).tokens == model.generate(ids, max_new_tokens=3).tokens


@pytest.mark.parametrize("limit", [1 << 63, 1 << 64, (1 << 64) + 5, 1 << 70])
def test_a_limit_that_no_text_reaches_is_none(model: streamfuse.Model, limit: int) -> None:
    found = model.generate("hello", max_new_tokens=limit)
    assert (found.tokens, found.finish_reason) == (model.generate("hello", max_new_tokens=1000).tokens, "context")


def test_an_option_that_is_none_has_the_default(model: streamfuse.Model) -> None:
    names = streamfuse.api.GenerationOptions.__annotations__
    nothing: Any = dict.fromkeys(names)
    assert model.config(**nothing) == model.config()
    assert model.generate("hello", **nothing).tokens == model.generate("hello").tokens
    with model.chat(**nothing) as chat:
        assert chat.send("hello", **nothing).tokens == model.generate("hello").tokens


def test_one_stop_string_needs_no_list(model: streamfuse.Model) -> None:
    assert model.generate("hello", stop="ab").text == model.generate("hello", stop=["ab"]).text


def test_paths_need_not_be_utf_8(folder: Path, tmp_path: Path, made: list[fakes.ArithmeticBackend]) -> None:
    place = tmp_path / os.fsdecode(b"caf\xe9")
    folder.rename(place)
    with streamfuse.load(place) as model, model.chat() as chat:
        chat.send("hi", max_new_tokens=3)
        chat.save(tmp_path / os.fsdecode(b"ch\xe2t"))
        chat.restore(tmp_path / os.fsdecode(b"ch\xe2t"))
        assert len(chat.messages) == 2


def test_a_folder_that_is_no_bundle_is_named(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="nowhere: no such folder"):
        streamfuse.load(tmp_path / "nowhere")


def test_a_bundle_that_is_open_already_can_be_given(folder: Path, made: list[fakes.ArithmeticBackend]) -> None:
    with streamfuse.load(open_bundle(folder)) as one, streamfuse.load(str(folder)) as other:
        assert one.generate("hello").tokens == other.generate("hello").tokens


def test_a_saved_sequence_goes_on_in_another_model(
    folder: Path, made: list[fakes.ArithmeticBackend], tmp_path: Path
) -> None:
    with streamfuse.load(folder) as model:
        first = model.generate("hello", raw=True, max_new_tokens=6)
        model.save(tmp_path / "saved")
    with streamfuse.load(folder) as model:
        model.restore(tmp_path / "saved")
        again = model.generate(model.tokenizer.encode("hello") + first.tokens, max_new_tokens=4)
        assert read(made[1]) == 0
        whole = model.generate("hello", raw=True, max_new_tokens=10)
    assert first.tokens + again.tokens == whole.tokens


def test_a_file_of_another_bundle_or_a_damaged_one_changes_nothing(
    folder: Path, made: list[fakes.ArithmeticBackend], tmp_path: Path
) -> None:
    other = write_bundle(tmp_path / "other")
    edit_manifest(other, lambda manifest: manifest["files"]["tokenizer.json"].update(sha256="0" * 64))
    with streamfuse.load(open_bundle(other, verify=False)) as model:
        model.generate("hi", raw=True)
        model.save(tmp_path / "saved")
    with streamfuse.load(folder) as model:
        whole = model.generate("hello")
        (tmp_path / "noise").write_bytes(b"noise")
        for name in ("saved", "noise", "nowhere"):
            with pytest.raises(CoreError, match=name):
                model.restore(tmp_path / name)
        before = read(made[1])
        assert model.generate("hello").tokens == whole.tokens
        assert read(made[1]) == before


def test_where_an_engine_cannot_save_its_cache_the_tokens_are_read_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, new = fake_engines()
    monkeypatch.setattr(engines, "engines_of", new)
    with streamfuse.load(folder, cost_cache=False) as model:
        whole = model.generate("hi").tokens
        model.save(tmp_path / "saved")
    with streamfuse.load(folder, cost_cache=False) as model:
        model.restore(tmp_path / "saved")
        before = read(made[1])
        assert model.generate("hi").tokens == whole
        assert read(made[1]) > before


def test_a_chat_reads_only_what_is_new(model: streamfuse.Model, made: list[fakes.ArithmeticBackend]) -> None:
    with model.chat("brief", max_new_tokens=3) as chat:
        answers = [chat.send("a"), chat.send("b", max_new_tokens=2)]
        assert [len(answer.tokens) for answer in answers] == [3, 2]
        assert [message["role"] for message in chat.messages] == ["system", *["user", "assistant"] * 2]
        assert [message["content"] for message in chat.messages[2::2]] == [answer.text for answer in answers]
        assert read(made[0]) <= len(made[0].cache)  # no token of the first turn was read twice
        chat.reset()
        assert [message["role"] for message in chat.messages] == ["system"]
        assert chat.send("a").tokens == answers[0].tokens


def test_a_saved_chat_goes_on_in_another_model_as_if_it_had_not_stopped(
    folder: Path, made: list[fakes.ArithmeticBackend], tmp_path: Path
) -> None:
    with streamfuse.load(folder) as model, model.chat("brief", max_new_tokens=3) as chat:
        chat.send("a")
        chat.save(tmp_path / "saved")
        messages, whole = chat.messages, chat.send("b")
    with streamfuse.load(folder) as model, model.chat(max_new_tokens=3) as chat:
        chat.send("something else")
        chat.restore(tmp_path / "saved")
        assert chat.messages == messages
        before = read(made[-1])
        assert chat.send("b").tokens == whole.tokens
        assert 0 < read(made[-1]) - before < 40, "only the new turn is read"


def test_a_cache_that_cannot_be_loaded_leaves_the_conversation_as_it_was(
    folder: Path, made: list[fakes.ArithmeticBackend], tmp_path: Path
) -> None:
    def fail(length: int, read: object) -> None:
        raise OSError("the disk is gone")

    with streamfuse.load(folder) as model, model.chat(max_new_tokens=3) as one, model.chat(max_new_tokens=3) as other:
        one.send("a")
        one.save(tmp_path / "saved")
        one.reset()
        for chat in (one, other):
            chat.send("b")
        made[-1].load_cache = fail  # type: ignore[attr-defined]
        with pytest.raises(OSError, match="the disk is gone"):
            other.restore(tmp_path / "saved")
        assert other.used_tokens == 0, "the next question processes it again"
        assert other.messages == one.messages
        assert other.send("c").tokens == one.send("c").tokens


def test_a_file_that_is_refused_does_not_touch_the_conversation(
    model: streamfuse.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(conversation: Conversation, note: bytes) -> None:
        raise TextError("no note is to be taken")

    with model.chat(max_new_tokens=3) as chat:
        chat.send("a")
        monkeypatch.setattr(Conversation, "take_note", refuse)
        with pytest.raises(CoreError, match="nowhere"):
            chat.restore(tmp_path / "nowhere")
        assert len(chat.messages) == 2


def test_a_session_that_is_closed_is_not_kept_by_its_model(model: streamfuse.Model) -> None:
    session = model.session()
    kept = weakref.ref(session)
    session.close()
    del session
    with model.session():
        gc.collect()
        assert kept() is None


def test_a_session_without_a_conversation_is_no_chat_and_changes_nothing(
    model: streamfuse.Model, made: list[fakes.ArithmeticBackend], tmp_path: Path
) -> None:
    with model.chat(max_new_tokens=3) as chat:
        first, engine = chat.send("a"), made[-1]
        for note in (
            b"",
            b"[]",
            b"{}",
            b"\xff",
            b'{"messages": [{"role": 1, "content": ""}], "read_text": "", "read_ids": []}',
        ):
            with model.session() as session:
                session.save(tmp_path / "saved", note)
            with pytest.raises(TextError, match="holds no conversation"):
                chat.restore(tmp_path / "saved")
        assert [message["content"] for message in chat.messages] == ["a", first.text]
        before = read(engine)
        assert len(chat.send("b").tokens) == 3
        assert read(engine) - before < 40, "the cache of the first turn is still there"


def test_a_chat_turn_that_is_left_early_counts_as_far_as_it_was_delivered(model: streamfuse.Model) -> None:
    with model.chat(max_new_tokens=8) as chat, chat.stream("a") as answer:
        first = next(answer)
        answer.close()
        assert chat.messages == [{"role": "user", "content": "a"}, {"role": "assistant", "content": first.text}]
        assert answer.result.tokens == [first.token]
    with model.chat(max_new_tokens=2) as chat:
        for _ in chat.stream("a"):
            break  # and nobody closes it
        chat.send("b")
        assert [message["role"] for message in chat.messages] == ["user", "assistant"] * 2
    with model.chat(max_new_tokens=2) as chat:
        chat.stream("a").close()  # nothing was delivered: nothing was asked
        assert chat.messages == []


def test_a_chat_is_after_a_reset_what_it_was_when_it_was_made(model: streamfuse.Model) -> None:
    for system in ("s", None):
        history = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        first = [*([] if system is None else [{"role": "system", "content": system}]), *map(dict, history)]
        with model.chat(system, history, max_new_tokens=2) as chat:
            history[1]["content"] = "z"
            assert chat.messages == first
            answer = chat.send("c")
            assert chat.messages == [
                *first, {"role": "user", "content": "c"}, {"role": "assistant", "content": answer.text},
            ]  # fmt: skip
            chat.reset()
            assert chat.messages == first
            assert chat.send("c").tokens == answer.tokens
    for wrong in ([{"role": "user"}], ["one"], [{"role": "user", "content": 1}]):
        with pytest.raises(TextError, match="message 1"):
            model.chat(history=wrong)
    assert model.generate("c", raw=True, max_new_tokens=2).tokens


def test_a_chat_goes_on_from_the_messages_of_another(model: streamfuse.Model) -> None:
    with model.chat("s", max_new_tokens=2) as chat:
        chat.send("a")
        messages = chat.messages
        with model.chat(history=messages, max_new_tokens=2) as other:
            assert other.messages == messages
            assert other.send("b").text == chat.send("b").text


def test_stop_in_a_chat_ends_the_answer_and_keeps_the_chat(model: streamfuse.Model) -> None:
    with model.chat(max_new_tokens=8) as chat:
        for stop in (chat.stop, model.stop):
            answer = chat.stream("a")
            next(answer)
            stop()
            assert len(list(answer)) <= 1
            assert answer.result.statistics.finish_reason == "stopped"
        assert [message["role"] for message in chat.messages] == ["user", "assistant"] * 2


@pytest.mark.parametrize("step", ["ask", "dropped"])
def test_ctrl_c_while_a_question_is_asked_leaves_the_chat_as_it_was(
    model: streamfuse.Model, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    with model.chat(max_new_tokens=4) as chat:
        expected = [chat.send("one"), chat.send("two")]
    ask = Conversation.ask

    def interrupted(*arguments: Any) -> Any:
        if step == "ask":
            ask(*arguments)
        raise KeyboardInterrupt

    with model.chat(max_new_tokens=4) as chat:
        answers = [chat.send("one")]
        before = chat.messages
        with monkeypatch.context() as patch:
            patch.setattr(Conversation, step, interrupted if step == "ask" else property(interrupted))
            with pytest.raises(KeyboardInterrupt):
                chat.send("another")
        assert chat.messages == before
        answers.append(chat.send("two"))
    assert [answer.tokens for answer in answers] == [answer.tokens for answer in expected]


def test_a_turn_whose_end_fails_is_ended_by_the_next_question(
    model: streamfuse.Model, made: list[fakes.ArithmeticBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    with model.chat(max_new_tokens=8) as chat:
        next(chat.stream("one", width=4))
        left = made[-1]

        def fail_once(rows: Sequence[int]) -> None:
            monkeypatch.undo()
            raise RuntimeError("no room for the rows")

        monkeypatch.setattr(left, "commit", fail_once)
        with pytest.raises(Exception, match="no room for the rows"):
            chat.send("two")
        assert chat.send("two").finish_reason == "length"
        assert [message["content"] for message in chat.messages if message["role"] == "user"] == ["one", "two"]


def test_a_source_that_is_named_twice_is_one_source(model: streamfuse.Model) -> None:
    once, twice = (
        model.generate("abcabcabc", max_new_tokens=12, width=4, sources=["lookup"] * count).statistics
        for count in (1, 2)
    )
    assert twice.accepted_by_source == once.accepted_by_source
    assert twice.draft_tokens_proposed == once.draft_tokens_proposed > 0


def test_a_chat_that_outgrew_the_context_is_as_before(model: streamfuse.Model) -> None:
    with model.chat(max_new_tokens=2) as chat:
        with pytest.raises(PromptError, match="context holds"):
            chat.send("x" * 100)
        assert chat.messages == []
        assert len(chat.send("a").tokens) == 2


def test_a_bundle_without_chat_template_completes_but_does_not_chat(
    folder: Path, made: list[fakes.ArithmeticBackend]
) -> None:
    edit_manifest(folder, lambda manifest: manifest["model"].update(chat_template=None))
    with streamfuse.load(folder) as model:
        assert model.generate("hi").tokens == model.generate("hi", raw=True).tokens
        with pytest.raises(TextError, match="no chat template"):
            model.chat()
        with pytest.raises(TextError, match="no chat template"):
            model.generate("hi", system="be brief")


def test_sequences_of_one_model_do_not_disturb_each_other(
    model: streamfuse.Model, made: list[fakes.ArithmeticBackend]
) -> None:
    alone = model.generate("hello").tokens
    with model.chat() as chat:
        answered = chat.send("a").tokens
        chat.reset()
        stream, answer = model.stream("hello"), chat.stream("a")
        turns = list(zip(stream, answer, strict=True))
    assert [one.token for one, _ in turns] == alone
    assert [other.token for _, other in turns] == answered
    assert len(made) == 2
    assert made[1].closed  # with its chat


def test_an_engine_that_fails_says_so_and_the_next_answer_is_whole(
    model: streamfuse.Model, made: list[fakes.ArithmeticBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = model.generate("hello", width=4).tokens

    def fail(*_: object) -> None:
        raise OSError("the disk is gone")

    for method in ("run", "commit"):
        stream = model.stream("hello", width=4)
        next(stream)
        with monkeypatch.context() as patched:
            patched.setattr(made[0], method, fail)
            with pytest.raises(OSError, match="the disk is gone"):
                stream.finish()
        assert model.generate("hello", width=4).tokens == whole


def test_an_engine_that_fails_at_its_end_keeps_no_other_open(
    folder: Path, made: list[fakes.ArithmeticBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> None:
        raise OSError("the device is lost")

    model = streamfuse.load(folder, cost_cache=False)
    first, second = model.chat(), model.chat()
    second.send("a", max_new_tokens=2)
    stream = first.stream("one", max_new_tokens=40)
    next(stream)
    for engine in made:
        monkeypatch.setattr(engine, "commit", lost)
    with suppress(OSError):
        model.close()
    assert made
    assert all(engine.closed for engine in made)
    model.close()


def test_after_close_everything_is_one_sentence(
    folder: Path, made: list[fakes.ArithmeticBackend], tmp_path: Path
) -> None:
    with streamfuse.load(folder) as model:
        stream, chat, session = model.stream("hello"), model.chat(), model.session()
        first = next(stream)
        chat.send("a")
    assert list(stream) == []  # what was delivered stays
    assert (stream.token_ids, stream.statistics.generated_tokens) == ([first.token], 1)
    for use in (
        lambda: model.generate("hello"),
        lambda: model.stream("hello"),
        lambda: model.chat(),
        lambda: model.session(),
        lambda: model.save(tmp_path / "saved"),
        lambda: model.restore(tmp_path / "saved"),
        model.forget,
    ):
        with pytest.raises(CoreError, match=r"^this model is closed; open its bundle again$"):
            use()
    for use in (lambda: chat.send("b"), lambda: session.generate([1]), lambda: session.prepare(), chat.reset):
        with pytest.raises(CoreError, match=r"^this session is closed$"):
            use()
    assert len(chat.messages) == 2
    for harmless in (model.stop, model.close, chat.stop, chat.close, session.close, stream.stop, stream.close):
        harmless()


@pytest.mark.parametrize("during", ["program", "engine", "core", "session"])
def test_close_during_a_load_releases_what_was_loaded(
    during: str, folder: Path, made: list[fakes.ArithmeticBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, load, kept = streamfuse.load(folder, cost_cache=False), engines.engines_of, list[weakref.ref[Any]]()

    def closing(step: str, make: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            found = make(*arguments, **named)
            if step != "engine":  # `made` has engines
                kept.append(weakref.ref(found))
            if step == during:
                model.close()  # as another thread does
            return found

        return run

    monkeypatch.setattr(engines, "engines_of", closing("program", lambda *given: closing("engine", load(*given))))
    monkeypatch.setattr("streamfuse.runtime.core.CoreModel", closing("core", CoreModel))
    monkeypatch.setattr("streamfuse.runtime.session.Session", closing("session", Session))
    for _ in range(2):
        with pytest.raises(CoreError, match=r"^this model is closed; open its bundle again$"):
            model.generate("hello")
    assert [engine.closed for engine in made] == [True]
    gc.collect()
    assert [one() for one in kept] == [None] * len(kept), "the closed model keeps nothing"


def test_what_passes_cost_is_remembered_unless_it_must_not_be(
    folder: Path, made: list[fakes.ArithmeticBackend], tmp_path: Path
) -> None:
    with streamfuse.load(folder) as model:
        model.session(clock=time.perf_counter).prepare()
    assert not list((tmp_path / "home").rglob("*.costs")), "another clock, of cold caches for example"
    for cost_cache, files in ((False, 0), (True, 1), (True, 1)):
        with streamfuse.load(folder, cost_cache=cost_cache) as model:
            assert model.generate("hello").statistics.cost_ms.keys() == {"decode", "verify_4", "verify_8"}
        assert len(list((tmp_path / "home").rglob("*.costs"))) == files


def test_sessions_of_another_clock_measure_what_passes_cost_by_it(
    folder: Path, made: list[fakes.ArithmeticBackend]
) -> None:
    readings = [0]

    def slow() -> float:
        """A second between two readings."""
        readings[0] += 1
        return float(readings[0])

    with streamfuse.load(folder, cost_cache=False) as model:
        model.prepare()
        session = model.session(clock=slow)
        session.prepare()
        assert session.generate([1, 2, 3], model.config(max_new_tokens=4)).result.statistics.cost_ms["decode"] > 500
        other, before = model.session(clock=slow), readings[0]
        other.prepare()
        assert readings[0] <= before + 2, "sessions with one clock share costs: only the call itself is timed"
        assert model.generate("hello").statistics.cost_ms["decode"] < 500


def test_a_result_shows_its_text() -> None:
    assert repr(Result("hi", [1, 2], fakes.statistics_of(rounds=3))) == (
        "Result(text='hi', tokens=[1, 2], tool_calls=[])"
    )


@pytest.mark.alone
def test_importing_the_package_is_light() -> None:
    code = (
        "import sys, time; began = time.perf_counter(); import streamfuse; spent = time.perf_counter() - began;"
        "heavy = [name for name in ('torch', 'numpy', 'pydantic', 'tokenizers', 'typer') if name in sys.modules];"
        "streamfuse.load, streamfuse.Model, streamfuse.export_bundle, streamfuse.pull;"
        "print(spent, heavy, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, rest = done.stdout.split(maxsplit=1)
    assert float(seconds) < IMPORT_SECONDS
    assert rest == "[] False\n"


def test_a_name_that_the_package_does_not_have_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'close'"):
        streamfuse.close  # type: ignore[attr-defined]  # noqa: B018


def test_an_export_is_a_call_with_the_options_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import streamfuse.export.pipeline as exporter
    from streamfuse.export.config import ExportConfig

    configs: list[ExportConfig] = []

    def run_export(config: ExportConfig, progress: Any, answered: dict[str, str], sign_key: Any) -> str:
        configs.append(config)
        assert public_line(sign_key) == line
        assert answered == {"model": str(tmp_path), "adapter": "e2e-lossless"}
        return "report"

    line = write_keys(tmp_path / "a.key", tmp_path / "a.pub")
    monkeypatch.setattr(exporter, "run_export", run_export)
    monkeypatch.setattr("streamfuse.export.adapter.resolve_model", lambda name, **_: Path(name))
    found = streamfuse.export_bundle(
        tmp_path / "new", model=tmp_path, adapter="e2e-lossless", sign_key=tmp_path / "a.key", quantize="q8_0",
        schedule="fused", widths=[4, 8],
    )  # fmt: skip
    assert found == "report"
    (config,) = configs
    assert (config.model, config.adapter.stem, config.output_dir) == (tmp_path, "e2e-lossless", tmp_path / "new")
    assert (config.quantize, config.schedule, config.widths) == ("q8_0", "fused", (4, 8))


@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        ({"widht": 4}, TypeError, "there is no option widht; the options are target, backend, dtype,"),
        ({"output_dir": "x"}, TypeError, "multiple values"),
        ({"quantize": "8da3w"}, ValueError, "quantize must be one of q4_1, q8_0 with backend kernels, not 8da3w"),
        ({"top_k": 65}, ValueError, "top_k must be from 1 to 64, not 65"),
        ({"target": "onnx", "backend": "kernels"}, ValueError, "backend must be onnxruntime with target onnx"),
        ({"adapter": "nobody"}, FileNotFoundError, "nobody: no such file, and not an adapter that ships"),
    ],
)
def test_a_wrong_option_of_an_export_is_one_sentence_before_anything_is_loaded(
    options: dict[str, Any], kind: type[Exception], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamfuse.export.adapter.resolve_model", lambda name, offline: pytest.fail("pulled"))
    with pytest.raises(kind, match=sentence):
        streamfuse.export_bundle(tmp_path / "new", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "missing", "line"),
    [
        ({}, "executorch", "exporting needs executorch: pip install 'streamfuse[export]'"),
        ({"widht": 4}, "torch", "exporting needs torch: pip install 'streamfuse[export]'"),
        ({"target": "onnx"}, "onnx", "exporting to ONNX needs onnx: pip install 'streamfuse[export,onnx]'"),
        ({"backend": "coreml"}, "coremltools", "exporting for Core ML needs coremltools"),
    ],
)
def test_an_export_asks_first_for_what_it_needs(
    options: dict[str, Any], missing: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(MissingExtra) as caught:
        streamfuse.export_bundle(tmp_path / "new", **options)
    assert line in str(caught.value)
