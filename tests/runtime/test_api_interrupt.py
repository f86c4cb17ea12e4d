"""Ctrl-C at every line between a question of a chat and its answer: the chat answers the next question.

Each case raises KeyboardInterrupt at one line, as the interpreter does if the signal arrives there. The engine is the
arithmetic model of fakes.py; everything else is real. Run: python -m pytest tests/runtime/test_api_interrupt.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import fakes
import pytest
from bundle_samples import SavingBackend, write_bundle
from engine_fixtures import made_engines

import streamfuse
from streamfuse.api import Chat, Result, chat
from streamfuse.runtime import session

made = made_engines(SavingBackend)
# The code that asks, and that ends an answer. In what it calls, a tracer could raise where no signal is handled.
FILES = {chat.__file__, session.__file__}


@pytest.fixture
def model(tmp_path: Path, made: list[fakes.ArithmeticBackend]) -> Iterator[streamfuse.Model]:
    with streamfuse.load(write_bundle(tmp_path / "demo")) as model:
        yield model


@contextmanager
def ctrl_c(place: int) -> Iterator[None]:
    """Raise KeyboardInterrupt once, at the line of this number among those that the block runs in FILES."""
    number = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal number
        if frame.f_code.co_filename not in FILES:
            return None
        if event == "line":
            number += 1
            if number == place:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def send(chat: Chat) -> Result:
    return chat.send("one")


def begin(chat: Chat) -> Result:
    """The answer is left at its first token, which the next question ends."""
    stream = chat.stream("one")
    next(stream)
    return stream.result


def questions(chat: Chat) -> list[str]:
    return [message["content"] for message in chat.messages if message["role"] == "user"]


@pytest.mark.parametrize("ask", [send, begin])
def test_a_chat_answers_the_next_question_wherever_ctrl_c_came(
    ask: Callable[[Chat], Result], model: streamfuse.Model
) -> None:
    outcomes = set[tuple[str, ...]]()
    for place in count(1):
        with model.chat(max_new_tokens=2) as chat:
            try:
                with ctrl_c(place):
                    ask(chat)
            except KeyboardInterrupt:
                pass
            else:
                break
            answer = chat.send("two")
            outcomes.add(tuple(questions(chat)))
            *before, last = chat.messages
            assert [message["role"] for message in before] == ["user", "assistant"] * (len(before) // 2) + ["user"]
            again = model.generate(messages=before, max_new_tokens=2)
            assert (answer.tokens, last["content"]) == (again.tokens, again.text), f"line {place}"
    assert place > 50
    # Before its first token the question is undone; afterwards it counts.
    assert outcomes == {("two",), ("one", "two")}
