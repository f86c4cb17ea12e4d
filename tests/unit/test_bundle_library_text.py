"""The text library turns text into tokens and back as Python does: the same ids, texts, chats and streams.

Run: make native-mobile; python -m pytest tests/unit/test_bundle_library_text.py
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import decoders

from bundle_library import BAD_ARGUMENT, BAD_FILE, BROKEN, LIBRARY, LibraryBundle, LibraryFailure, LibraryText
from bundle_samples import CHAT_TEMPLATE, write_bundle
from hostile_templates import HOSTILE
from streamfuse.bundle import open_bundle
from streamfuse.runtime.text import TextStream
from streamfuse.text_io import Conversation, TextError, TextIO
from text_samples import TEMPLATES, chats, texts
from tokenizer_samples import bundle_with, llama_like, sentencepiece_like

DEMO = Path(__file__).parents[2] / "build" / "demo"

pytestmark = pytest.mark.skipif(not LIBRARY.is_file(), reason=f"{LIBRARY.name} is missing; run: make native-mobile")


def python_text(folder: Path) -> TextIO:
    bundle = open_bundle(folder)
    model = bundle.manifest.model
    return TextIO(bundle.tokenizer, model.chat_template, model.bos_token_id, model.eos_token_ids)


@pytest.fixture(scope="module", params=["demo", "bytes", "llama", "sentencepiece"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundles") / "bundle"
    if request.param == "demo":
        if not (DEMO / "manifest.json").is_file():
            pytest.skip("build/demo is missing; run: make bundle")
        return DEMO
    if request.param == "bytes":
        return write_bundle(path)
    return bundle_with(path, llama_like() if request.param == "llama" else sentencepiece_like())


@pytest.fixture(scope="module")
def both(folder: Path) -> Iterator[tuple[LibraryText, TextIO]]:
    with LibraryBundle(folder, check_hashes=False) as bundle:
        yield bundle.text(), python_text(folder)


def test_five_thousand_texts_have_the_same_ids_and_come_back_the_same(both: tuple[LibraryText, TextIO]) -> None:
    text, python = both
    for words in texts(5_200):
        assert text.encode(words, marks=True) == python.encode(words), repr(words)
        ids = text.encode(words)
        assert ids == python.encode_rendered(words), repr(words)
        assert text.decode(ids) == python.decode(ids), repr(words)


def vocabulary(python: TextIO) -> int:
    return next(size for size in range(1 << 20) if not python.has(size))


def test_any_ids_decode_the_same(both: tuple[LibraryText, TextIO]) -> None:
    text, python = both
    rng, size = random.Random(3), vocabulary(both[1])
    for _ in range(1_000):
        ids = [rng.randrange(size + 5) for _ in range(rng.randint(0, 40))]
        assert text.decode(ids) == python.decode(ids), ids


def test_a_stream_is_the_same_token_by_token(both: tuple[LibraryText, TextIO]) -> None:
    text, python = both
    rng, size, samples = random.Random(5), vocabulary(python), texts(400, 13)
    special = [token for token in range(size) if python.special(token)]
    text.reset()
    for words in samples:
        ids = python.encode_rendered(words)[:200]
        if rng.random() < 0.3:
            ids = [rng.randrange(size) for _ in range(60)]
        if rng.random() < 0.5:
            ids = [token for written in ids for token in (written, *rng.sample(special, rng.random() < 0.2))]
        whole = "".join(python.special(token) or python.decode([token]) for token in ids) or "x"
        stops = [whole[start : start + rng.randint(1, 6)] for start in (rng.randrange(len(whole)) for _ in range(2))]
        stops = [stop for stop in stops if stop] if rng.random() < 0.6 else []
        before = text.encode(rng.choice(samples)[:90], marks=True) if rng.random() < 0.5 else []
        stream = TextStream(python.decode, stops, python.special, before)
        text.begin(stops or None)
        for token in ids:
            assert text.push(token) == (stream.push(token), stream.stopped), (words, stops)
        assert text.end() == stream.flush()
        assert text.end() == ""


def test_a_stream_shows_what_the_whole_text_is(both: tuple[LibraryText, TextIO]) -> None:
    """Special tokens between words, and a prompt before them, change nothing of the words."""
    text, python = both
    rng = random.Random(6)
    special = [token for token in range(vocabulary(python)) if python.special(token)]
    text.reset()
    for words in ["Hello world, and on", "a  b", "x\n y", "naïve café"]:
        for prompt in ["", "Say", "The end ", "<unk>"]:
            before = text.encode(prompt, marks=True) if prompt else []
            ids = [token for written in python.encode_rendered(words) for token in (written, *rng.sample(special, 1))]
            text.begin()
            shown = "".join(text.push(token)[0] for token in ids) + text.end()
            assert python.decode(before) + shown == python.decode([*before, *ids])


def test_a_chat_answer_is_a_text_of_its_own(tmp_path: Path) -> None:
    with LibraryBundle(bundle_with(tmp_path / "bundle", sentencepiece_like())) as bundle:
        text = bundle.text()
        ids = text.encode("the on")
        text.encode("a prompt", marks=True)
        text.ask("a question")
        text.begin()
        assert "".join(text.push(token)[0] for token in ids) == "the on"


def rendered(write: Any, messages: list[dict[str, str]]) -> str | None:
    """None where the template refuses the messages."""
    try:
        return str(write(messages))
    except (LibraryFailure, TextError) as failure:
        if "the chat template refuses these messages" not in str(failure):
            raise
        return None


def test_two_hundred_chats_are_written_the_same(both: tuple[LibraryText, TextIO]) -> None:
    text, python = both
    for messages in chats(220):
        assert rendered(text.render, messages) == rendered(python.render, messages)
        if messages[-1]["role"] == "user":
            text.reset(messages[:-1])
            assert text.ask(messages[-1]["content"]) == python.encode_chat(messages)


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_of_other_families_write_the_same(name: str, tmp_path: Path) -> None:
    path = bundle_with(tmp_path / "bundle", sentencepiece_like(), TEMPLATES[name])
    python, written = python_text(path), 0
    with LibraryBundle(path) as bundle:
        text = bundle.text()
        for messages in chats(220):
            expected = rendered(python.render, messages)
            assert rendered(text.render, messages) == expected, messages
            written += expected is not None
    assert written > 60


def test_what_a_template_refuses_is_said_in_its_own_words(tmp_path: Path) -> None:
    path = bundle_with(tmp_path / "bundle", sentencepiece_like(), TEMPLATES["instructions"])
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    with pytest.raises(TextError) as expected:
        python_text(path).render(messages)
    with LibraryBundle(path) as bundle, pytest.raises(LibraryFailure) as found:
        bundle.text().render(messages)
    assert str(found.value) == str(expected.value)


def test_a_conversation_goes_on_after_a_template_that_works_without_end(tmp_path: Path) -> None:
    without_end = "{% if messages | length > 2 %}" + HOSTILE["loops without end"] + "{% endif %}" + CHAT_TEMPLATE
    path = bundle_with(tmp_path / "bundle", sentencepiece_like(), without_end)
    with LibraryBundle(path) as bundle:
        text = bundle.text()
        text.ask("one")
        text.take_back()
        text.reset([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
        with pytest.raises(LibraryFailure, match="the chat template refuses these messages") as failure:
            text.ask("two")
        assert failure.value.code == BAD_ARGUMENT
        assert [message["content"] for message in text.messages()] == ["a", "b"]
        text.reset()
        assert text.ask("one")


def test_a_conversation_keeps_the_tokens_that_the_model_wrote(both: tuple[LibraryText, TextIO]) -> None:
    text, python = both
    rng, size = random.Random(17), vocabulary(python)
    for system in (None, "Be brief. <|im_end|>"):
        conversation = Conversation(python, system)
        text.reset(None if system is None else [{"role": "system", "content": system}])
        for words in texts(60, 19):
            asked = conversation.ask(words)
            assert text.ask(words) == asked
            if rng.random() < 0.2:
                text.take_back()
                conversation.take_back()
                assert text.messages() == conversation.messages
                continue
            stops = ["e"] if rng.random() < 0.2 else []
            answer = python.encode_rendered(rng.choice(["Fine. ", "é😀", "<|im_end|> no"]) * 3)
            answer = [rng.randrange(size) for _ in range(9)] if rng.random() < 0.4 else answer
            stream, shown, taken = TextStream(python.decode, stops, python.special), "", []
            text.begin(stops or None)
            for token in answer:
                shown += stream.push(token)
                taken.append(token)
                assert text.push(token)[1] == stream.stopped
                if stream.stopped:
                    break
            text.end()
            conversation.answer(shown + stream.flush(), taken)
            assert text.messages() == conversation.messages
            note, copy = text.save(), Conversation(python)
            copy.take_note(note)
            assert copy.note() == conversation.note()
            text.reset()
            text.restore(conversation.note())
            if rng.random() < 0.1:
                conversation.reset()
                text.reset(None if system is None else [{"role": "system", "content": system}])


def test_a_question_is_closed_by_what_comes_next(tmp_path: Path) -> None:
    with LibraryBundle(write_bundle(tmp_path / "demo")) as bundle:
        text = bundle.text()
        text.ask("one")
        with pytest.raises(LibraryFailure, match="not answered"):
            text.ask("two")
        assert b"one" not in text.save()
        text.begin()
        text.push(text.encode("a")[0])
        text.ask("two")  # what was written counts, as far as it came
        assert [m["content"] for m in text.messages()] == ["one", "a", "two"]
        text.take_back()
        text.take_back()
        assert [m["content"] for m in text.messages()] == ["one", "a"]
        with pytest.raises(LibraryFailure, match="no stream runs"):
            text.push(1)


def test_a_conversation_outlives_a_tokenizer_that_breaks(tmp_path: Path) -> None:
    tokenizer = sentencepiece_like()
    tokenizer.decoder = decoders.Sequence([decoders.Fuse(), decoders.Strip("▁", 1, 1)])  # panics at one that is alone
    with LibraryBundle(bundle_with(tmp_path / "bundle", tokenizer)) as bundle:
        text = bundle.text()
        text.reset([{"role": "system", "content": "kept"}])
        first = text.ask("one")
        text.begin()
        with pytest.raises(LibraryFailure, match=r"an internal check failed \(\S+\.rs:\d+:\d+: .") as failure:
            text.push(tokenizer.token_to_id("▁"))
        assert failure.value.code == BROKEN
        assert [m["content"] for m in text.messages()] == ["kept", "one"]
        text.take_back()
        assert text.ask("one") == first
        with pytest.raises(TextError, match="the tokenizer refuses these tokens"):
            python_text(tmp_path / "bundle").decode([tokenizer.token_to_id("▁")])


BAD_NOTES = [
    b"", b"\xff", b"[]", b"{}", b"nonsense", b'{"messages": [], "read_text": "", "read_ids": [-1]}',
    b'{"messages": [], "read_text": "", "read_ids": [99999]}', b'{"messages": [], "read_text": 1, "read_ids": []}',
    b'{"messages": [{"role": "user"}], "read_text": "", "read_ids": []}', b"[" * 100_000,
    b'{"messages": [{"role": "user", "content": 3}], "read_text": "", "read_ids": []}',
    b'{"messages": [], "read_ids": []}',
]  # fmt: skip


def test_a_damaged_note_changes_nothing(tmp_path: Path) -> None:
    path = write_bundle(tmp_path / "demo")
    with LibraryBundle(path) as bundle:
        text = bundle.text()
        text.reset([{"role": "system", "content": "kept"}])
        for note in BAD_NOTES:
            with pytest.raises(LibraryFailure, match="holds no conversation") as failure:
                text.restore(note)
            assert failure.value.code == BAD_FILE
            with pytest.raises(TextError):
                Conversation(python_text(path)).take_note(note)
        assert text.messages() == [{"role": "system", "content": "kept"}]


def test_a_tokenizer_that_was_trained_with_dropout_gives_the_same_ids_each_time(tmp_path: Path) -> None:
    tokenizer = llama_like()
    tokenizer.model.dropout = 0.9
    with LibraryBundle(bundle_with(tmp_path / "bundle", tokenizer)) as bundle:
        text, python = bundle.text(), python_text(tmp_path / "bundle")
        for words in texts(40, 31):
            assert text.encode(words, marks=True) == text.encode(words, marks=True) == python.encode(words)


def test_huge_texts_are_read_in_time(both: tuple[LibraryText, TextIO], folder: Path) -> None:
    text, python = both
    million = ("The quick brown fox, 42 times. " * 40_000)[: 1 << 20]
    for words in (million[: 1 << 17], " " * 1_200_000 + "x", "\n" * 200_000 + "x"):
        assert text.encode(words) == python.encode_rendered(words)
    if folder == DEMO:
        assert text.encode(million) == python.encode_rendered(million)
        started = time.monotonic()
        assert len(text.encode(million * 10)) > 1 << 20
        assert time.monotonic() - started < 120  # a few seconds where nothing else runs


def test_texts_of_one_bundle_work_in_many_threads(both: tuple[LibraryText, TextIO], folder: Path) -> None:
    python, samples, wrong = both[1], texts(300, 29), []
    expected = [python.encode(words) for words in samples]
    with LibraryBundle(folder, check_hashes=False) as bundle:

        def work(text: LibraryText) -> None:
            wrong.extend(w for w, ids in zip(samples, expected, strict=True) if text.encode(w, marks=True) != ids)

        threads = [threading.Thread(target=work, args=(bundle.text(),)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
