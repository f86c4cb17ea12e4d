"""native/streamfuse.h: a bundle, a chat, pieces of text. Tokens and texts are Python's, whatever the way to them.

Run: make native-mobile; python -m pytest tests/native/test_native.py
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from app_library import (
    BAD_ARGUMENT,
    BAD_FILE,
    BUILT,
    CONTEXT_FULL,
    DROP_OLDEST,
    AppModel,
    AppSession,
    LibraryFailure,
    needs_library,
)
from bundle_samples import edit_manifest
from pages import ROOT, samples
from tokenizer_samples import words_of

QUESTIONS = ["Who keeps the lamp?", "Why?"]
SHORT = {"max_new_tokens": 12}

pytestmark = needs_library


@pytest.fixture
def chat(model: AppModel) -> Iterator[AppSession]:
    made = model.chat()
    yield made
    made.free()


def python(*requests: dict[str, Any]) -> list[dict[str, Any]]:
    """What Python's API answers to requests of peer.py, in a process of its own: it loads another engine."""
    lines = "".join(json.dumps({"config": SHORT, **request}) + "\n" for request in requests)
    command = [sys.executable, str(ROOT / "tests" / "helpers" / "peer.py")]
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, input=lines, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first program of docs/core.md."""
    (sample,) = (one for one in samples("c") if one.page.name == "core.md" and "sf_chat_new" in one.text)
    folder = tmp_path_factory.mktemp("ask")
    (folder / "ask.c").write_text(sample.text, encoding="utf-8")
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-I", str(ROOT / "native"), "-I", str(ROOT / "core")]
    link = ["-L", str(BUILT.parent), "-lstreamfuse", f"-Wl,-rpath,{BUILT.parent}"]
    subprocess.run([os.environ.get("CC", "cc"), *flags, "ask.c", *link, "-o", "ask"], cwd=folder, check=True)
    return folder / "ask"


def test_the_program_of_the_docs_prints_python_s_answer(program: Path, chat_bundle: Path) -> None:
    (expected,) = python({"bundle": str(chat_bundle), "turns": QUESTIONS[:1], "config": {}})
    done = subprocess.run([program, chat_bundle, QUESTIONS[0]], capture_output=True, check=True)
    assert done.stdout.decode() == expected["turns"][0]["text"]


def test_the_program_of_the_docs_says_what_is_wrong(program: Path, tmp_path: Path) -> None:
    done = subprocess.run([program, tmp_path / "nothing", "?"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert str(tmp_path / "nothing") in done.stderr


SETTINGS = [{}, {"temperature": 1.2, "seed": 3}, {"temperature": 0.8, "top_p": 0.9, "seed": 11}]


def test_turns_are_python_s_with_speculation_and_without(model: AppModel, chat_bundle: Path) -> None:
    configs = [{**SHORT, **setting} for setting in SETTINGS]
    answers = python(
        *({"bundle": str(chat_bundle), "turns": QUESTIONS, "config": one, "system": "Be brief."} for one in configs)
    )
    for config, expected in zip(configs, answers, strict=True):
        for drafts in ({"speculative": 0}, {"width": 4}, {"width": 12}, {}):
            chat = model.chat(system="Be brief.")
            for question, turn in zip(QUESTIONS, expected["turns"], strict=True):
                chat.start(question, **config, **drafts)
                pieces = list(chat.pieces())
                assert "".join(piece.text for piece in pieces) == turn["text"]
                assert [piece.token for piece in pieces if piece.token is not None] == turn["tokens"]
                drafted = sum(piece.source != "model" for piece in pieces)
                assert chat.statistics["draft_tokens_accepted"] == drafted
                assert chat.statistics["finish_reason"] == turn["statistics"]["finish_reason"]
            assert chat.messages == expected["messages"]
            chat.free()


def test_the_most_probable_tokens_are_python_s(model: AppModel, chat_bundle: Path) -> None:
    config = {**SHORT, **SETTINGS[1], "top_log_probs": 3}
    (answer,) = python({"bundle": str(chat_bundle), "turns": QUESTIONS[:1], "config": config})
    chat = model.chat()
    chat.start(QUESTIONS[0], **config)
    assert chat.top() == [], "before the first piece"
    tops = [chat.top() for piece in chat.pieces() if piece.token is not None]
    assert tops == answer["turns"][0]["top_log_probs"]
    assert chat.top() == [], "after the end"
    assert model.chat().ask(QUESTIONS[0], **SHORT) == model.chat().ask(QUESTIONS[0], **SHORT, top_log_probs=20)
    with pytest.raises(LibraryFailure, match="top_log_probs must be between 0 and 20, not 21") as refused:
        chat.start(QUESTIONS[0], top_log_probs=21)
    assert refused.value.code == BAD_ARGUMENT
    chat.free()


ANSWERS = ["Anna.", "The keeper of the second lamp", "é日"]


def test_scores_of_given_answers_are_python_s_and_leave_the_conversation_as_it_was(
    model: AppModel, chat_bundle: Path, tmp_path: Path
) -> None:
    pairs = [[QUESTIONS[0], answer] for answer in ANSWERS]
    request: dict[str, Any] = {"bundle": str(chat_bundle), "turns": QUESTIONS, "system": "Be brief.", "scores": pairs}
    raw = {**request, "turns": [], "system": None, "raw": True, "scores": [["One lamp,", " two lamps"]]}
    expected, expected_raw = python(request, raw)
    chat = model.chat(system="Be brief.")
    assert [chat.score(*pair) for pair in pairs] == expected["scores"]
    for question, turn in zip(QUESTIONS, expected["turns"], strict=True):
        before = chat.statistics, chat.messages
        chat.score(question, "No.")
        assert (chat.statistics, chat.messages) == before
        chat.save(tmp_path / "chat")
        chat.restore(tmp_path / "chat")
        assert chat.ask(question, **SHORT) == turn["text"]
    assert chat.messages == expected["messages"]
    chat.reset()
    chat.start(QUESTIONS[0], **SHORT)
    chat.next()
    chat.score(QUESTIONS[1], "No.")  # ends the answer
    assert [message["role"] for message in chat.messages] == ["system", "user", "assistant"]
    completion = model.completion()
    assert completion.score("One lamp,", " two lamps") == expected_raw["scores"][0]
    for session in (chat, completion):
        for prompt, answer, sentence in (("Who?", "", "is empty"), ("Who?", "x " * 200, "128")):
            with pytest.raises(LibraryFailure, match=sentence):
                session.score(prompt, answer)
        session.free()


@pytest.mark.parametrize("drafts", [{"speculative": 0}, {"width": 4}, {}])
def test_a_chat_longer_than_the_context_is_python_s(
    model: AppModel, chat_bundle: Path, tmp_path: Path, drafts: dict[str, int]
) -> None:
    questions = [f"Who keeps lamp {number}?" for number in range(12)]
    config = {**SHORT, "temperature": 0.9, "seed": 4}
    policy = {"context_policy": "drop_oldest", "system": "Be brief."}
    (expected,) = python({"bundle": str(chat_bundle), "turns": questions, "config": config, **policy})
    chat = model.chat(system="Be brief.", context_policy=DROP_OLDEST)
    dropped = 0
    for question, turn in zip(questions, expected["turns"], strict=True):
        found = [chat.ask(question, **config, **drafts)]
        statistics = chat.statistics
        dropped += statistics["dropped_turns"]
        numbers = ["dropped_turns", "reread_tokens", "prompt_tokens"]
        found += [statistics[name] for name in numbers]
        assert found == [turn["text"], *(turn["statistics"][name] for name in numbers)]
        assert chat.used_and_remaining == (len(chat.tokens), 128 - len(chat.tokens))
        chat.save(tmp_path / "chat")
        chat.free()
        chat = model.chat(system="Be brief.", context_policy=DROP_OLDEST)
        chat.restore(tmp_path / "chat")
    assert dropped > 2
    assert chat.messages == expected["messages"]
    with pytest.raises(LibraryFailure, match=r"the question has .* context holds 128") as refused:
        chat.ask("lamp " * 200)
    assert refused.value.code == CONTEXT_FULL
    assert chat.messages == expected["messages"]
    chat.free()


def test_tokens_of_a_text_are_counted_as_in_a_message(model: AppModel) -> None:
    chat = model.chat()
    assert chat.used_and_remaining == (0, 128)
    lengths = []
    for text in ("", "Who keeps the lamp?", "<|im_end|>"):
        chat.start(text)
        lengths.append((chat.used_and_remaining[0], model.count_tokens(text.encode())))
        chat.reset()
    chat.free()
    assert lengths[0][1] == 0
    assert all(used - lengths[0][0] == count for used, count in lengths)
    with pytest.raises(LibraryFailure, match="UTF-8"):
        model.count_tokens(b"\xff")


def test_a_policy_that_does_not_exist_or_has_no_turns_is_refused(model: AppModel) -> None:
    with pytest.raises(LibraryFailure, match="no context policy 2"):
        model.chat(context_policy=2)
    with pytest.raises(LibraryFailure, match="context_policy is an option of a chat"):
        model.completion(context_policy=DROP_OLDEST)


def test_a_completion_is_python_s(model: AppModel, chat_bundle: Path) -> None:
    prompts = ["the keeper climbed", "the keeper climbed the steps", "a lamp"]
    (expected,) = python({"bundle": str(chat_bundle), "turns": prompts, "raw": True})
    completion = model.completion()
    assert [completion.ask(prompt, **SHORT) for prompt in prompts] == [turn["text"] for turn in expected["turns"]]
    assert completion.messages == []
    prompt = completion.tokens[: -SHORT["max_new_tokens"]]
    assert completion.ask(prompt, **SHORT) == expected["turns"][-1]["text"]
    with pytest.raises(LibraryFailure, match="empty"):
        completion.start([])
    with pytest.raises(LibraryFailure, match="completion takes token ids"):
        model.chat().start(prompt)
    completion.free()


def test_history_and_system_message_stay_through_a_reset(model: AppModel) -> None:
    history = [{"role": "user", "content": 'A "quote"'}, {"role": "assistant", "content": "é\n"}]
    system = {"role": "system", "content": 'Say "é".\t'}
    chat = model.chat(system["content"], json.dumps(history).encode())
    assert chat.messages == [system, *history]
    first = chat.ask(QUESTIONS[0], **SHORT)
    assert chat.messages[3:] == [
        {"role": "user", "content": QUESTIONS[0]}, {"role": "assistant", "content": first}
    ]  # fmt: skip
    chat.reset()
    assert chat.messages == [system, *history]
    assert chat.tokens == []
    assert chat.ask(QUESTIONS[0], **SHORT) == first
    chat.free()
    for empty in (b"[]", b" [ ] "):
        one = model.chat(system["content"], empty)
        assert one.messages == [system]
        one.free()


def test_the_first_word_after_token_ids_keeps_its_space(chat_bundle: Path, tmp_path: Path) -> None:
    bundle = shutil.copytree(chat_bundle, tmp_path / "bundle")
    file = bundle / "tokenizer.json"

    def replace_tokenizer(manifest: dict[str, Any]) -> None:
        words = [f"▁w{i}" for i in range(manifest["model"]["vocab_size"])]
        words_of(words, spaced=True).save(str(file))
        data = file.read_bytes()
        manifest["files"][file.name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    edit_manifest(bundle, replace_tokenizer)
    with AppModel(bundle) as model:
        completion = model.completion()
        continued = completion.ask("▁w5", **SHORT)
        assert continued.startswith(" w")
        assert completion.ask([5], **SHORT) == continued
        completion.free()


def test_a_stop_string_ends_the_answer_and_what_may_become_one_is_the_last_piece(chat: AppSession) -> None:
    whole = chat.ask(QUESTIONS[0], **SHORT)
    chat.reset()
    middle = whole[len(whole) // 2 :][:2]
    assert chat.ask(QUESTIONS[0], stops=[middle], **SHORT) == whole[: whole.index(middle)]
    assert chat.statistics["finish_reason"] == "stop"
    chat.reset()
    chat.start(QUESTIONS[0], stops=[whole[-1] + "?!"], **SHORT)
    *_, last = chat.pieces()
    assert last == (whole[-1], None, "model", "answer")
    assert chat.messages[-1]["content"] == whole


def test_text_that_was_held_back_goes_with_its_answer(chat: AppSession, tmp_path: Path) -> None:
    file = tmp_path / "chat.session"
    whole = chat.ask(QUESTIONS[0], **SHORT)
    chat.save(file)
    for drop in (chat.reset, partial(chat.restore, file)):
        chat.reset()
        chat.start(QUESTIONS[0], stops=[whole + "?!"], **SHORT)
        assert chat.next() is not None
        drop()
        assert chat.next() is None


def test_what_was_delivered_before_a_stop_counts(chat: AppSession) -> None:
    whole = chat.ask(QUESTIONS[0], **SHORT)
    for end in (chat.stop, chat.finish):
        chat.reset()
        chat.start(QUESTIONS[0], **SHORT)
        begun = [chat.next() for _ in range(4)]
        end()
        rest = list(chat.pieces())
        text = "".join(piece.text for piece in [*begun, *rest] if piece is not None)
        assert whole.startswith(text)
        assert [piece.token for piece in rest] in ([], [None])
        assert chat.statistics["finish_reason"] == "stopped"
        assert chat.statistics["generated_tokens"] == 4
        assert chat.messages[-1] == {"role": "assistant", "content": text}


def test_a_question_that_is_stopped_while_its_prompt_is_read_is_forgotten(model: AppModel) -> None:
    expected = [model.chat(), model.chat()]
    first, second = (expected[0].ask(QUESTIONS[i], **SHORT) for i in range(2))
    chat = expected[1]
    assert chat.ask(QUESTIONS[0], **SHORT) == first
    before = chat.messages
    for end in (chat.stop, chat.finish, partial(chat.start, QUESTIONS[1], **SHORT)):
        chat.start("A long question about nothing at all", **SHORT)
        assert chat.read()[0]
        end()
        if end in (chat.stop, chat.finish):
            assert list(chat.pieces()) == []
            assert chat.messages == before
    assert "".join(piece.text for piece in chat.pieces()) == second
    for one in expected:
        one.free()


def test_reading_in_parts_shows_progress_and_changes_no_token(chat: AppSession) -> None:
    whole = chat.ask(QUESTIONS[0], **SHORT)
    chat.reset()
    chat.start(QUESTIONS[0], **SHORT)
    steps = []
    while (step := chat.read())[0]:
        steps.append(step[1:])
    assert len(steps) > 3
    assert [read for read, _ in steps] == sorted({read for read, _ in steps})
    assert {total for _, total in steps} == {steps[-1][0]} == {len(chat.tokens) - 1}
    assert "".join(piece.text for piece in chat.pieces()) == whole
    assert chat.read() == (False, len(chat.tokens) - 1, len(chat.tokens) - 1)


def test_a_saved_chat_goes_on_elsewhere_and_in_python(
    chat: AppSession, model: AppModel, chat_bundle: Path, tmp_path: Path
) -> None:
    file = tmp_path / "chat.session"
    chat.ask(QUESTIONS[0], **SHORT)
    chat.save(file)
    turns = chat.messages
    expected = chat.ask(QUESTIONS[1], **SHORT)
    other = model.chat(system="Another one.")
    other.restore(file)
    assert other.messages == turns
    assert other.ask(QUESTIONS[1], **SHORT) == expected
    assert other.statistics["prefilled_tokens"] < other.statistics["prompt_tokens"] // 2
    (python_s,) = python({"bundle": str(chat_bundle), "turns": QUESTIONS[1:], "restore": str(file)})
    assert python_s["turns"][0]["text"] == expected
    other.reset()
    assert other.messages == [{"role": "system", "content": "Another one."}]

    completion = model.completion()
    completion.restore(file)
    assert len(completion.tokens) > 10
    completion.save(file.with_suffix(".text"))
    with pytest.raises(LibraryFailure, match="holds no conversation"):
        chat.restore(file.with_suffix(".text"))
    completion.free()

    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(LibraryFailure) as refused:
        chat.restore(file)
    assert refused.value.code == BAD_FILE
    assert len(chat.messages) == 4
    other.free()


def test_a_saved_text_has_nothing_of_the_one_before_it(model: AppModel, tmp_path: Path) -> None:
    """Its cache is saved in whole blocks of positions."""
    saved = []
    for earlier in ([], [list(range(5, 100))]):
        completion = model.completion()
        for prompt in (*earlier, [7, 5, 9]):
            completion.reset()
            completion.ask(prompt, speculative=0, **SHORT)
        completion.save(tmp_path / "text")
        completion.free()
        saved.append((tmp_path / "text").read_bytes())
    assert saved[0] == saved[1]


def test_a_stored_prefix_is_loaded_instead_of_prefilled(chat_bundle: Path, tmp_path: Path) -> None:
    folder, file = tmp_path / "bundle", tmp_path / "bundle" / "prefixes" / "system.cache"
    run: list[str | Path] = [sys.executable, "-m", "streamfuse", "bundle", "prefix", chat_bundle, "-o", folder]
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    subprocess.run(
        [*run, "--system", "Be brief."], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, check=True
    )
    length = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["prefixes"]["system"]["tokens"]
    answers = python(
        *({"bundle": str(one), "turns": QUESTIONS, "system": "Be brief."} for one in (chat_bundle, folder))
    )
    texts = [[turn["text"] for turn in answer["turns"]] for answer in answers]
    assert texts[0] == texts[1]
    with AppModel(folder) as model:
        chat = model.chat(system="Be brief.")
        settings: list[dict[str, int]] = [{"speculative": 0}, {"width": 4}, {"width": 12}, {}]
        for drafts in settings:
            for question, text, loaded in zip(QUESTIONS, texts[0], (length, 0), strict=True):
                chat.start(question, **SHORT, **drafts)
                statistics = chat.statistics
                assert (statistics["prefix_tokens"], statistics["prefix_refused"]) == (loaded, None)
                assert "".join(piece.text for piece in chat.pieces()) == text
            chat.reset()
        other = model.chat(system="Be brief")
        other.ask(QUESTIONS[0], **SHORT)
        assert (other.statistics["prefix_tokens"], other.statistics["prefix_refused"]) == (0, None)
        other.free()
        os.truncate(file, file.stat().st_size - 8)
        assert chat.ask(QUESTIONS[0], **SHORT) == texts[0][0]
        assert chat.statistics["prefix_refused"] == f"{file} is cut off or damaged"
        assert chat.statistics["prefilled_tokens"] == chat.statistics["prompt_tokens"] - 1
        chat.free()
    with pytest.raises(LibraryFailure, match=r"prefixes/system\.cache: files.bytes"):
        AppModel(folder)


def test_a_refused_request_changes_nothing(chat: AppSession) -> None:
    def seen() -> Any:
        return chat.messages, chat.tokens, chat.cached, chat.used_and_remaining, chat.statistics

    first = chat.ask(QUESTIONS[0], **SHORT)
    before = seen()
    for wrong, word in [
        ({"stops": "no list"}, "stops"), ({"top_p": 7.0}, "top_p"), ({"width": 5}, "width"), ({"stops": [""]}, "stop"),
    ]:  # fmt: skip
        with pytest.raises(LibraryFailure, match=word) as refused:
            chat.start(QUESTIONS[1], **wrong)
        assert refused.value.code == BAD_ARGUMENT
        assert seen() == before
    with pytest.raises(LibraryFailure, match="context holds"):
        chat.start("long " * 200)
    assert chat.next() is None
    assert seen() == before
    chat.reset()
    assert chat.ask(QUESTIONS[0], **SHORT) == first
