"""Text becomes the tokens that transformers' tokenizers give, and comes back the same: ids, streams, conversations.

Run: python -m pytest tests/text/test_text_tokens.py
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest
import tokenizers
from bundle_samples import CHAT_TEMPLATE, byte_tokenizer
from heap import heap_bytes
from hostile_templates import HOSTILE
from text_samples import TEMPLATES, texts
from tiers import cases
from tokenizer_samples import joined, llama_like, opened, sentencepiece_like
from tokenizers import decoders

from streamfuse.bundle import open_bundle
from streamfuse.runtime.text import Conversation, TextError, Tokenizer

DEMO = Path(__file__).parents[2] / "build" / "demo"
Both = tuple[Tokenizer, tokenizers.Tokenizer]


@pytest.fixture(scope="module", params=["demo", "bytes", "llama", "sentencepiece"])
def both(request: pytest.FixtureRequest) -> Both:
    """The runtime's tokenizer, and the library's of the same file."""
    if request.param == "demo":
        if not (DEMO / "manifest.json").is_file():
            pytest.skip("build/demo is missing; run: make bundle")
        expected = tokenizers.Tokenizer.from_file(str(DEMO / "tokenizer.json"))
        return open_bundle(DEMO).tokenizer, expected
    expected = {"bytes": byte_tokenizer, "llama": llama_like, "sentencepiece": sentencepiece_like}[request.param]()
    return opened(expected, CHAT_TEMPLATE, 1, [2]), expected


def special_of(tokenizer: tokenizers.Tokenizer) -> dict[int, str]:
    return {token: word.content for token, word in tokenizer.get_added_tokens_decoder().items() if word.special}


def plain(tokenizer: tokenizers.Tokenizer, words: str) -> list[int]:
    return tokenizer.encode(words, add_special_tokens=False).ids


def behind(tokenizer: tokenizers.Tokenizer, words: str) -> list[int]:
    """A text that begins no text: no space is written in front of it."""
    return plain(tokenizer, f"\x02{words}")[len(plain(tokenizer, "\x02")) :] if words else []


def test_five_thousand_texts_have_the_same_ids_and_come_back_the_same(both: Both) -> None:
    text, expected = both
    for words in texts(cases(1_300, 5_200)):
        assert text.encode(words) == expected.encode(words).ids, repr(words)
        ids = text.encode_rendered(words)
        first, *others = words.split("\ufdd0")
        continued = [token for part in others for token in behind(expected, part)]
        assert ids == [*plain(expected, first), *continued], repr(words)
        assert text.decode(ids) == expected.decode(ids), repr(words)


def test_any_ids_decode_the_same(both: Both) -> None:
    text, expected = both
    rng, size = random.Random(3), expected.get_vocab_size()
    for _ in range(1_000):
        ids = [rng.randrange(size + 5) for _ in range(rng.randint(0, 40))]
        assert text.decode(ids) == expected.decode(ids), ids


def test_a_stream_shows_what_the_whole_text_is(both: Both) -> None:
    """Special tokens between words, and a prompt before them, change nothing of the words."""
    text, expected = both
    rng, special = random.Random(6), list(special_of(expected))
    for words in ["Hello world, and on", "a  b", "x\n y", "naïve café", *texts(60, 13)]:
        for prompt in ["", "Say", "The end ", "<unk>"]:
            before = text.encode(prompt) if prompt else []
            ids = [token for written in text.encode_rendered(words) for token in (written, *rng.sample(special, 1))]
            stream = text.stream(before=before)
            shown = "".join(joined(stream.push(token)) for token in ids) + joined(stream.end())
            whole = expected.decode([*before, *ids])
            assert whole.startswith(expected.decode(before) + shown)
            assert set(whole[len(expected.decode(before) + shown) :]) <= {
                "\ufffd"
            }  # of a character that never completes


def test_a_chat_answer_is_a_text_of_its_own() -> None:
    text = opened(sentencepiece_like(), CHAT_TEMPLATE, 1, [2])
    stream = text.stream()
    assert "".join(joined(stream.push(token)) for token in text.encode_rendered("the on")) == "the on"


def test_what_a_template_refuses_is_said_in_its_own_words() -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    with pytest.raises(TextError, match=r"the chat template refuses these messages \(.*alternate"):
        opened(sentencepiece_like(), TEMPLATES["instructions"], 1, [2]).render(messages)


def test_a_conversation_goes_on_after_a_template_that_works_without_end() -> None:
    without_end = "{% if messages | length > 2 %}" + HOSTILE["loops without end"] + "{% endif %}" + CHAT_TEMPLATE
    text = opened(sentencepiece_like(), without_end, 1, [2])
    conversation = Conversation(text)
    conversation.ask("one")
    conversation.take_back()
    history = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    conversation = Conversation(text, history=history)
    with pytest.raises(TextError, match="the chat template needs more than"):
        conversation.ask("two")
    assert conversation.messages == history
    assert Conversation(text).ask("one")


def test_a_conversation_keeps_the_tokens_that_the_model_wrote(both: Both) -> None:
    """Its prompts are those of the whole chat, but for the tokens of answers, which are the very ones written."""
    text, expected = both
    rng, size = random.Random(17), expected.get_vocab_size()
    for system in (None, "Be brief. <|im_end|>"):
        conversation, last, written = Conversation(text, system), [], []
        for words in texts(60, 19):
            chat = [*conversation.messages, {"role": "user", "content": words}]
            asked = conversation.ask(words)
            assert conversation.messages == chat
            if written:
                assert asked[: len(last) + len(written)] == [*last, *written]
            else:
                assert asked == text.encode_chat(chat)
            if rng.random() < 0.2:
                conversation.take_back()
                assert conversation.messages == chat[:-1]
                continue
            stops = ["e"] if rng.random() < 0.2 else []
            answer = text.encode_rendered(rng.choice(["Fine. ", "é😀", "<|im_end|> no"]) * 3)
            answer = [rng.randrange(size) for _ in range(9)] if rng.random() < 0.4 else answer
            stream, shown, taken = conversation.stream(stops), "", []
            for token in answer:
                shown += joined(stream.push(token))
                taken.append(token)
                if stream.stopped:
                    break
            shown += joined(stream.end())
            last, written = (asked, taken) if text.decode(taken) == shown else ([], [])
            assert conversation.messages == [*chat, {"role": "assistant", "content": shown}]
            copy = Conversation(text)
            copy.take_note(conversation.note())
            assert copy.note() == conversation.note()
            assert copy.messages == conversation.messages
            if rng.random() < 0.1:
                conversation.reset()
                last, written = [], []


def test_a_question_waits_for_its_answer_and_an_answer_without_a_question_is_no_turn() -> None:
    conversation = Conversation(opened(byte_tokenizer(), CHAT_TEMPLATE))
    conversation.answer([1])
    assert conversation.messages == []
    conversation.ask("one")
    with pytest.raises(TextError, match="not answered"):
        conversation.ask("two")
    assert b"one" not in conversation.note()
    conversation.take_back()
    assert conversation.messages == []


@pytest.mark.parametrize("token", [-1, 1 << 40, 1 << 63, (1 << 64) + 5])
def test_a_number_that_is_no_token_is_named(token: int) -> None:
    with pytest.raises(TextError, match=f"^{token} is not a token id$"):
        opened(sentencepiece_like(), CHAT_TEMPLATE, 1, [2]).decode([token])


def test_a_tokenizer_that_breaks_is_a_sentence_and_a_conversation_outlives_it() -> None:
    tokenizer = sentencepiece_like()
    tokenizer.decoder = decoders.Sequence([decoders.Fuse(), decoders.Strip("▁", 1, 1)])  # panics at one that is alone
    text, breaking = opened(tokenizer, CHAT_TEMPLATE, 1, [2]), tokenizer.token_to_id("▁")
    conversation = Conversation(text, "kept")
    first = conversation.ask("one")
    for decode in (lambda: text.decode([breaking]), lambda: text.stream().push(breaking)):
        with pytest.raises(TextError, match=r"an internal check failed \(\S+\.rs:\d+:\d+: ."):
            decode()
    with pytest.raises(TextError, match="an internal check failed"):
        conversation.stream().push(breaking)
    assert conversation.ask("one") == first  # the question was dropped with its answer


def test_an_answer_that_is_stopped_before_its_first_token_takes_its_question_back() -> None:
    text = opened(byte_tokenizer(), CHAT_TEMPLATE)
    conversation = Conversation(text, "kept")
    for answer, turns in (("", 1), ("a", 3)):
        conversation.ask("one")
        stream = conversation.stream()
        for token in text.encode(answer):
            stream.push(token)
        stream.end(stopped=True)
        assert len(conversation.messages) == turns
    conversation.ask("one")
    conversation.stream().end()  # the model ended it
    assert conversation.messages[-1] == {"role": "assistant", "content": ""}


def test_an_answer_with_an_id_that_is_no_token_is_restored_with_its_conversation() -> None:
    """A model may have more logits than its tokenizer has tokens."""
    text = opened(byte_tokenizer(), CHAT_TEMPLATE)
    conversation, other = Conversation(text), Conversation(text)
    conversation.ask("one")
    conversation.answer([*text.encode("a"), 99_999])
    other.take_note(conversation.note())
    assert other.messages == conversation.messages
    assert other.ask("two") == conversation.ask("two") == text.encode_chat(conversation.messages)


BAD_NOTES = [
    b"", b"\xff", b"[]", b"{}", b"nonsense", b'{"messages": [], "read_text": "", "read_ids": [-1]}',
    b'{"messages": [], "read_text": "", "read_ids": [99999]}', b'{"messages": [], "read_text": 1, "read_ids": []}',
    b'{"messages": [{"role": "user"}], "read_text": "", "read_ids": []}', b"[" * 100_000,
    b'{"messages": [{"role": "user", "content": 3}], "read_text": "", "read_ids": []}',
    b'{"messages": [], "read_ids": []}',
]  # fmt: skip


def test_a_damaged_note_changes_nothing() -> None:
    conversation = Conversation(opened(byte_tokenizer(), CHAT_TEMPLATE), "kept")
    for note in BAD_NOTES:
        with pytest.raises(TextError, match="holds no conversation"):
            conversation.take_note(note)
    assert conversation.messages == [{"role": "system", "content": "kept"}]


def test_a_tokenizer_that_was_trained_with_dropout_gives_the_same_ids_each_time() -> None:
    tokenizer = llama_like()
    tokenizer.model.dropout = 0.9
    text, plain = opened(tokenizer), opened(llama_like())
    for words in texts(40, 31):
        assert text.encode(words) == text.encode(words) == plain.encode(words)


@pytest.mark.skipif(heap_bytes() is None, reason="only glibc says what its heap holds")
def test_words_that_were_read_stay_in_no_memory() -> None:
    """The library would keep 10,000 of each tokenizer for each thread, also after the tokenizer is closed."""
    rng, text = random.Random(8), opened(byte_tokenizer())
    before = heap_bytes() or 0
    for _ in range(4_000):
        text.encode("".join(rng.choices("abcdefgh", k=200)))
    assert (heap_bytes() or 0) - before < 1 << 20


def test_huge_texts_are_read_in_time(both: Both) -> None:
    text, expected = both
    million = ("The quick brown fox, 42 times. " * 40_000)[: 1 << 20]
    for words in (million[: 1 << 17], " " * 1_200_000 + "x", "\n" * 200_000 + "x"):
        assert text.encode_rendered(words) == expected.encode(words, add_special_tokens=False).ids
    started = time.monotonic()
    assert len(text.encode(million)) > 100_000
    assert time.monotonic() - started < 120  # a second where nothing else runs


def test_one_tokenizer_works_in_many_threads(both: Both) -> None:
    text, expected = both
    samples, wrong = texts(300, 29), []
    ids = [expected.encode(words).ids for words in samples]

    def work() -> None:
        wrong.extend(words for words, right in zip(samples, ids, strict=True) if text.encode(words) != right)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
