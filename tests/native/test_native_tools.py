"""native/streamfuse.h: tools, constraints and channels of an answer, with a model of random weights.

Run: make native-mobile; python -m pytest tests/native/test_native_tools.py
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from app_library import BAD_ARGUMENT, AppModel, AppSession, LibraryFailure, needs_library
from automata import Automaton
from bundle_samples import CHAT_TEMPLATE, edit_manifest
from native_samples import WIDTHS, tiny_bundle
from pages import ROOT, samples

from streamfuse.bundle import open_bundle
from streamfuse.runtime.constraint import table_of
from streamfuse.runtime.text_library import BAD_GRAMMAR, CHANNELS

NOW = {"name": "now", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}
PICK = {
    "name": "pick",
    "parameters": {
        "type": "object",
        "properties": {"of": {"enum": ["a", "b"]}},
        "required": ["of"],
        "additionalProperties": False,
    },
}
TOOLS = [NOW, {"type": "function", "function": PICK}]
# Without the tools in the prompt, which is short; `note` and documents are variables.
TEMPLATE = (
    "{# <tool_call> #}{% if tools %}t{% endif %}{{ note }}{% for d in documents or [] %}{{ d.text }}{% endfor %}"
    + CHAT_TEMPLATE
)
THINKING = TEMPLATE + "<think>\n{# </think> #}"
PICKED = {
    "type": "object",
    "properties": {"of": {"enum": ["a", "b"]}},
    "required": ["of"],
    "additionalProperties": False,
}

pytestmark = needs_library


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tiny_bundle(tmp_path_factory.mktemp("tools"), max_context_len=512)
    edit_manifest(made, lambda manifest: manifest["model"].update(chat_template=TEMPLATE))
    return made


@pytest.fixture(scope="module")
def model(bundle: Path) -> Iterator[AppModel]:
    with AppModel(bundle) as opened:
        yield opened


@pytest.fixture
def chat(model: AppModel) -> Iterator[AppSession]:
    made = model.chat(tools=TOOLS)
    yield made
    made.free()


def test_the_sample_of_the_docs_compiles(tmp_path: Path) -> None:
    (sample,) = (one for one in samples("c") if "sf_chat_new" in one.text and one.page.name == "structured.md")
    given = "sf_model* model, const char* tools, const char* question, const char* results"
    known = "sf_session* chat; sf_piece piece; const char* calls; size_t bytes; int code;"
    source = f'#include <stdio.h>\n#include <string.h>\n#include "streamfuse.h"\nvoid f({given}) {{ {known}\n'
    (tmp_path / "tools.c").write_text(f"{source}{sample.text}}}\n", encoding="utf-8")
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    folders = ["-I", str(ROOT / "native"), "-I", str(ROOT / "core")]
    command = [os.environ.get("CC", "cc"), *flags, *folders, "tools.c"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_call_is_required_and_its_result_answered(chat: AppSession) -> None:
    chat.start("x", tool_choice="now", max_new_tokens=120, width=WIDTHS[0])
    pieces = list(chat.pieces())
    text = "".join(piece.text for piece in pieces)
    assert json.loads(text) == {"name": "now", "arguments": {}}
    assert {piece.channel for piece in pieces if piece.text} == {"tool_call"}
    assert chat.tool_calls == [{"id": "call00001", "name": "now", "arguments": {}}]
    assert chat.statistics["finish_reason"] == "stop"
    assert "grammar" in {piece.source for piece in pieces}

    chat.start([{"content": {"time": "12:00"}}], tool_choice="required", max_new_tokens=120)
    list(chat.pieces())
    (call,) = chat.tool_calls
    assert call["id"] == "call00002"
    assert [message["role"] for message in chat.messages] == ["user", "assistant", "tool", "assistant"]
    assert chat.messages[2] == {
        "role": "tool", "content": '{"time": "12:00"}', "name": "now", "tool_call_id": "call00001"
    }  # fmt: skip


@pytest.mark.parametrize("choice", ["required", "pick", "auto", "none"])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_choice_gives_the_same_answer_with_and_without_drafts(
    model: AppModel, choice: str, temperature: float
) -> None:
    answers = []
    for speculative in (1, 0):
        chat = model.chat(tools=TOOLS)
        text = chat.ask(
            "x", tool_choice=choice, speculative=speculative, temperature=temperature, seed=5, max_new_tokens=120
        )
        answers.append((text, chat.tokens, chat.tool_calls))
        if choice in ("required", "pick"):
            assert len(chat.tool_calls) == 1
        chat.free()
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("given", "fits"),
    [
        ({"schema": PICKED}, lambda text: json.loads(text) in ({"of": "a"}, {"of": "b"})),
        ({"schema": json.dumps(PICKED).encode()}, lambda text: json.loads(text) in ({"of": "a"}, {"of": "b"})),
        ({"regex": "[ab]{3}c"}, lambda text: len(text) == 4 and text[3] == "c" and set(text[:3]) <= {"a", "b"}),
        ({"grammar": 'start: "x" ("y" | "z") "!"'}, lambda text: text in ("xy!", "xz!")),
    ],
)
def test_an_answer_fits_its_grammar(model: AppModel, given: dict[str, Any], fits: Any) -> None:
    for session in (model.chat(), model.completion(), model.chat(tools=TOOLS)):
        text = session.ask("x", temperature=1.0, seed=2, max_new_tokens=100, **given)
        assert fits(text)
        session.free()


@pytest.mark.parametrize("given", [{"schema": PICKED}, {"regex": "[ab]{3}c"}, {"grammar": 'start: "x" ("y" | "z")'}])
def test_an_answer_fits_its_grammar_or_is_a_call(model: AppModel, given: dict[str, Any]) -> None:
    kinds = set()
    for seed in range(12):
        answers = []
        for speculative in (1, 0):
            chat = model.chat(tools=TOOLS)
            sampling: dict[str, Any] = {"temperature": 3.0, "seed": seed, "speculative": speculative}
            text = chat.ask("x", tool_choice="auto", max_new_tokens=120, **sampling, **given)
            answers.append((text, chat.tokens, chat.tool_calls))
            chat.free()
        assert answers[0] == answers[1]
        kinds.add(len(answers[0][2]))
    assert kinds == {0, 1}
    for session in (model.chat(), model.completion(), model.chat(tools=TOOLS)):
        assert not session.ask("x", tool_choice="none", max_new_tokens=120, **given).startswith("<")
        session.free()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"schema": PICKED, "regex": "a"}, "at most one of schema, regex, grammar"),
        ({"schema": PICKED, "tool_choice": "required"}, "tool_choice is auto or none"),
        ({"tool_choice": "other"}, "no tool has the name other"),
        ({"schema": {"not": {"pattern": "a"}}}, "not"),
        ({"regex": "("}, "regular expression"),
        ({"grammar": "nothing"}, "grammar"),
    ],
)
def test_what_cannot_constrain_is_refused_and_the_chat_goes_on(
    chat: AppSession, given: dict[str, Any], words: str
) -> None:
    with pytest.raises(LibraryFailure, match=words) as failure:
        chat.start("x", **given)
    assert failure.value.code in (BAD_ARGUMENT, BAD_GRAMMAR)
    assert chat.messages == []
    assert chat.ask("x", tool_choice="now", max_new_tokens=120)
    assert len(chat.messages) == 2


def test_a_completion_has_no_tools(model: AppModel) -> None:
    with pytest.raises(LibraryFailure, match="a completion has no chat template"):
        model.completion(tools=b"[]")
    session = model.completion()
    with pytest.raises(LibraryFailure, match="there are no tools"):
        session.start("x", tool_choice="required")
    session.start("x", tool_choice="auto")  # restricts nothing
    with pytest.raises(LibraryFailure, match="no tool was called"):
        session.start([{"content": "a"}])
    session.free()


def test_tools_and_variables_that_are_none_are_refused(model: AppModel) -> None:
    with pytest.raises(LibraryFailure, match="tools: item 1"):
        model.chat(tools=[{"description": "x"}])
    with pytest.raises(LibraryFailure, match="must be a JSON list"):
        model.chat(tools=NOW)
    with pytest.raises(LibraryFailure, match="must be a JSON object"):
        model.chat(variables=[1])


def test_template_variables_reach_the_prompt_and_stay(model: AppModel) -> None:
    chat = model.chat(variables={"note": "NOTE", "documents": [{"title": "a", "text": "DOC"}]})
    expected = [*b"NOTEDOC"]
    for _ in range(2):
        chat.start("x", max_new_tokens=1)
        list(chat.pieces())
        completion = model.completion()
        completion.start("NOTEDOC", max_new_tokens=1)
        list(completion.pieces())
        assert chat.tokens[: len(expected)] == completion.tokens[: len(expected)]
        completion.free()
        chat.reset()
    chat.free()


def test_a_conversation_with_calls_is_saved_and_restored(model: AppModel, chat: AppSession, tmp_path: Path) -> None:
    chat.ask("x", tool_choice="pick", max_new_tokens=120)
    chat.save(tmp_path / "chat")
    other = model.chat(tools=TOOLS)
    other.restore(tmp_path / "chat")
    assert other.tool_calls == chat.tool_calls
    assert other.messages == chat.messages
    results = [{"name": "pick", "content": "done"}]
    assert other.ask(results, max_new_tokens=20) == chat.ask(results, max_new_tokens=20)
    other.free()


def test_thinking_that_the_prompt_begins_is_a_channel(bundle: Path, tmp_path: Path) -> None:
    edit_manifest(bundle, lambda manifest: manifest["model"].update(chat_template=THINKING))
    try:
        with AppModel(bundle) as model:
            chat = model.chat()
            chat.start("x", regex="hm</think>\n\nfine[.]", max_new_tokens=60)
            pieces = list(chat.pieces())
            chat.start("x", schema=PICKED, max_new_tokens=60)
            restricted = list(chat.pieces())
            vocab_size = open_bundle(bundle).spec().vocab_size
            own = table_of(Automaton([{}], [0], vocab_size, trigger=vocab_size), vocab_size, [])
            chat.start("x", constraint=ctypes.pointer(own.struct), max_new_tokens=20)
            restricted_by_own = list(chat.pieces())
            chat.free()
    finally:
        edit_manifest(bundle, lambda manifest: manifest["model"].update(chat_template=TEMPLATE))
    by_channel = {one: "".join(piece.text for piece in pieces if piece.channel == one) for one in CHANNELS}
    assert by_channel == {"thinking": "hm", "answer": "fine.", "tool_call": ""}
    assert {piece.channel for piece in restricted if piece.text} == {"answer"}, "a schema has no thoughts"
    assert {piece.channel for piece in restricted_by_own if piece.text} == {"answer"}, "nor has a caller's constraint"


def test_an_answer_with_a_schema_is_no_call_though_it_looks_like_one(bundle: Path, tmp_path: Path) -> None:
    """Llama 3 writes calls as JSON that begins with a name."""
    made = shutil.copytree(bundle, tmp_path / "bundle")
    template = '{# ipython "parameters" #}{% if tools %}t{% endif %}' + CHAT_TEMPLATE
    edit_manifest(made, lambda manifest: manifest["model"].update(chat_template=template))
    given = {"properties": {"name": {"enum": ["now"]}, "parameters": {"const": {}}}, "required": ["name", "parameters"]}
    with AppModel(made) as model:
        chat = model.chat(tools=TOOLS)
        text = chat.ask("x", schema={"type": "object", "additionalProperties": False} | given, max_new_tokens=100)
        assert (json.loads(text), chat.tool_calls) == ({"name": "now", "parameters": {}}, [])
        assert chat.messages[-1] == {"role": "assistant", "content": text}
        chat.ask("x", tool_choice="now", max_new_tokens=100)
        assert [call["name"] for call in chat.tool_calls] == ["now"]
        chat.free()
