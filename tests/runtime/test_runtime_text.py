"""Streaming text: whole characters, no beginnings of stop strings. Run: pytest tests/runtime/test_runtime_text.py"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pytest
from bundle_samples import byte_tokenizer
from tokenizer_samples import KINDS, joined, opened, words_of
from tokenizers import AddedToken

from streamfuse.runtime.text import TextError, TextStream, Tokenizer

SPECIAL = {90: "<|end|>", 91: "<|sp|>"}


@lru_cache
def in_bytes() -> Tokenizer:
    """A token per byte, as byte-level tokenizers have in the worst case."""
    return opened(byte_tokenizer())


def ids_of(data: bytes) -> list[int]:
    """Tokens of bytes, which need be no characters."""
    return [_token_of_byte()[byte] for byte in data]


@lru_cache
def _token_of_byte() -> dict[int, int]:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    vocabulary = byte_tokenizer().get_vocab()
    return {byte: vocabulary[letter] for byte, letter in letters.items()}


@lru_cache
def pieces() -> Tokenizer:
    """SentencePiece's way: a space before each word but the first of a text; special tokens are left out."""
    return opened(words_of([SPECIAL.get(i, f"▁word{i}") for i in range(100)], list(SPECIAL.values()), spaced=True))


def text_of(ids: Sequence[int]) -> str:
    """What `pieces` decodes."""
    return "".join(f" word{token}" for token in ids if token not in SPECIAL)[1:]


def streamed(stream: TextStream, ids: Sequence[int]) -> str:
    return "".join(pushed(stream, ids)) + joined(stream.end())


def pushed(stream: TextStream, ids: Sequence[int]) -> list[str]:
    """The text that each token completes."""
    return [joined(stream.push(token)) for token in ids]


@pytest.mark.parametrize("text", ["plain", "naïve café", "日本語のテキスト", "😀👩‍👩‍👧 family", "a😀"])
def test_a_character_comes_whole_and_nothing_is_lost(text: str) -> None:
    stream = in_bytes().stream()
    shown = pushed(stream, ids_of(text.encode()))
    assert "".join(shown) == text
    assert all(len(piece) <= 1 for piece in shown)


def test_a_character_that_never_completes_is_dropped_and_text_before_it_is_not_held() -> None:
    stream = in_bytes().stream()
    assert pushed(stream, ids_of("ab😀".encode()[:-1])) == ["a", "b", "", "", ""]
    assert stream.end() == []


def test_bytes_that_begin_no_character_are_replaced_at_once() -> None:
    assert pushed(in_bytes().stream(), ids_of(b"a\xff\xfeb")) == ["a", "\ufffd", "\ufffd", "b"]
    assert pushed(in_bytes().stream(), ids_of(b"\xe4\xe4\xe4\xb8\xade")) == ["", "\ufffd", "\ufffd", "", "中", "e"]
    assert pushed(in_bytes().stream(), ids_of(b"\xf0\x9fa")) == ["", "", "\ufffda"]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_replacement_character_is_text_like_any_other(kind: str) -> None:
    file = KINDS[kind]()
    file.add_tokens([AddedToken("\ufffd", normalized=False)])
    text = opened(file)
    (token,) = text.encode_rendered("\ufffd")
    stream = text.stream()
    assert [shown.strip() for shown in pushed(stream, [token] * 5)] == ["\ufffd"] * 5
    assert stream.end() == []


def test_a_replacement_character_in_bytes_is_text_like_any_other() -> None:
    assert pushed(in_bytes().stream(), ids_of("\ufffd".encode() * 2)) == ["", "", "\ufffd"] * 2


def test_spaces_between_words_survive_a_tokenizer_that_trims_the_first() -> None:
    assert streamed(pieces().stream(), range(6)) == text_of(range(6))


def test_a_stop_string_never_shows_however_it_is_split(rng: np.random.Generator) -> None:
    for _ in range(300):
        text = "".join(rng.choice(list("ab"), 12))
        stops = tuple("".join(rng.choice(list("ab"), int(rng.integers(1, 5)))) for _ in range(2))
        stream, shown = in_bytes().stream(stops), ""
        for token in ids_of(text.encode()):
            shown += joined(stream.push(token))
            assert not any(stop in shown for stop in stops)
            if stream.stopped:
                break
        shown += joined(stream.end())
        # The text ends with the first token that completes a stop string, and shows what comes before it.
        ends = [end for end in range(len(text) + 1) if any(stop in text[:end] for stop in stops)]
        seen = text[: ends[0]] if ends else text
        assert shown == seen[: min((seen.find(stop) for stop in stops if stop in seen), default=len(seen))]


def test_text_that_cannot_become_a_stop_string_is_not_held() -> None:
    stream = in_bytes().stream(("END",))
    assert pushed(stream, ids_of(b"aEbENxEND")) == ["a", "", "Eb", "", "", "ENx", "", "", ""]
    assert stream.stopped
    assert stream.push(*ids_of(b"z")) == []


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(TextError, match="must not be empty"):
        in_bytes().stream(("a", ""))


@pytest.mark.parametrize("ids", [[1, 91, 2], [91, 91, 1, 2], [1, 91, 90, 91, 2, 90], [90], [1, 2, 91]])
def test_a_special_token_takes_no_space_from_the_word_after_it(ids: list[int]) -> None:
    assert streamed(pieces().stream(), ids) == text_of(ids)


@pytest.mark.parametrize("prompt", [[7], [7, 8], [7, 90], [91, 7, 91], list(range(60))])
def test_a_text_that_continues_a_prompt_keeps_its_first_space(prompt: list[int]) -> None:
    stream = pieces().stream(before=prompt)
    assert text_of(prompt) + streamed(stream, [1, 2]) == text_of([*prompt, 1, 2])


def test_a_text_after_no_word_begins_like_a_text() -> None:
    assert streamed(pieces().stream(before=[90, 91]), [1, 2]) == text_of([1, 2])


@pytest.mark.parametrize(
    ("stop", "shown"),
    [
        ("<|sp|>", "word1"),
        ("1<|sp|>", "word"),
        ("<|sp|> word2<|end|> w", "word1"),
        ("<|sp|> word", "word1"),
        ("|sp|> word2", "word1 word2 word3"),  # a part of a special token is no text
        ("sp", "word1 word2 word3"),
        ("word1 word2", ""),  # what is shown never holds a stop string
        ("<|sp|> word3", "word1 word2 word3"),
        ("<|end|><|end|>", "word1 word2 word3"),
    ],
)
def test_a_stop_string_may_contain_special_tokens(stop: str, shown: str) -> None:
    stream = pieces().stream((stop,))
    assert streamed(stream, [1, 91, 2, 90, 3]) == shown
    assert stream.stopped == (shown != "word1 word2 word3")


def test_stop_strings_with_special_tokens_stop_where_the_whole_text_has_them(rng: np.random.Generator) -> None:
    """The first stop string in the text with its special tokens, or in what is shown."""
    words = ["a", "b", "x", "y"]  # the last two are special
    tokenizer = opened(words_of(words, words[2:]))
    for _ in range(500):
        ids = [int(token) for token in rng.integers(0, 4, 12)]
        stops = tuple("".join(rng.choice(list("abxy"), int(rng.integers(1, 4)))) for _ in range(2))
        stream, shown = tokenizer.stream(stops), ""
        for count in range(1, len(ids) + 1):
            shown += joined(stream.push(ids[count - 1]))
            whole = "".join(words[token] for token in ids[:count])
            plain = "".join(words[token] for token in ids[:count] if token < 2)
            assert stream.stopped == any(stop in whole or stop in plain for stop in stops)
            if stream.stopped:
                break
        assert plain.startswith(shown + joined(stream.end()))


def test_streams_of_one_tokenizer_run_side_by_side() -> None:
    first, second = pieces().stream(), pieces().stream(("word3",))
    shown = [(joined(first.push(token)), joined(second.push(token))) for token in (1, 2, 3, 4)]
    assert "".join(one for one, _ in shown) + joined(first.end()) == text_of([1, 2, 3, 4])
    assert "".join(two for _, two in shown) + joined(second.end()) == "word1 word2 "
