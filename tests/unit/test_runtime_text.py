"""Streaming text: whole characters, no beginnings of stop strings. Run: pytest tests/unit/test_runtime_text.py"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from streamfuse.runtime.text import Detokenized, TextStream


def decode_bytes(ids: Sequence[int]) -> str:
    """One token per byte, as byte-level tokenizers do in the worst case."""
    return bytes(ids).decode("utf-8", errors="replace")


def decode_words(ids: Sequence[int]) -> str:
    """Drops the space before the first word, as SentencePiece does."""
    return "".join(f" word{token}" for token in ids)[1:]


@pytest.mark.parametrize("text", ["plain", "naïve café", "日本語のテキスト", "😀👩‍👩‍👧 family", "a😀"])
def test_a_character_comes_whole_and_nothing_is_lost(text: str) -> None:
    stream = Detokenized(decode_bytes)
    pieces = [stream.push(byte) for byte in text.encode()]
    assert "".join(pieces) == text
    assert all(len(piece) <= 1 for piece in pieces)


def test_a_character_that_never_completes_is_dropped_and_text_before_it_is_not_held() -> None:
    stream = TextStream(decode_bytes)
    assert [stream.push(byte) for byte in "ab😀".encode()[:-1]] == ["a", "b", "", "", ""]
    assert stream.flush() == ""


def test_broken_bytes_in_the_middle_appear_once_text_goes_on() -> None:
    stream = Detokenized(decode_bytes)
    assert "".join(stream.push(byte) for byte in b"a\xff\xfeb") == "a\ufffd\ufffdb"


def test_spaces_between_words_survive_a_tokenizer_that_trims_the_first() -> None:
    stream = Detokenized(decode_words)
    assert "".join(stream.push(token) for token in range(6)) == decode_words(range(6))


def test_only_a_short_window_is_decoded_again() -> None:
    lengths: list[int] = []

    def decode(ids: Sequence[int]) -> str:
        lengths.append(len(ids))
        return decode_words(ids)

    stream = Detokenized(decode)
    for token in range(100):
        stream.push(token)
    assert max(lengths) <= 2


def test_a_stop_string_never_shows_however_it_is_split(rng: np.random.Generator) -> None:
    for _ in range(300):
        text = "".join(rng.choice(list("ab"), 12))
        stops = tuple("".join(rng.choice(list("ab"), int(rng.integers(1, 5)))) for _ in range(2))
        stream, shown = TextStream(decode_bytes, stops), ""
        for byte in text.encode():
            shown += stream.push(byte)
            assert not any(stop in shown for stop in stops)
            if stream.stopped:
                break
        shown += stream.flush()
        # The text ends with the first token that completes a stop string, and shows what comes before it.
        ends = [end for end in range(len(text) + 1) if any(stop in text[:end] for stop in stops)]
        seen = text[: ends[0]] if ends else text
        assert shown == seen[: min((seen.find(stop) for stop in stops if stop in seen), default=len(seen))]


def test_text_that_cannot_become_a_stop_string_is_not_held() -> None:
    stream = TextStream(decode_bytes, ("END",))
    assert [stream.push(byte) for byte in b"aEbENxEND"] == ["a", "", "Eb", "", "", "ENx", "", "", ""]
    assert stream.stopped
    assert stream.push(ord("z")) == ""


SPECIAL = {90: "<|end|>", 91: "<|sp|>"}


def decode_pieces(ids: Sequence[int]) -> str:
    """SentencePiece's way: a space before each word but the first of a text; special tokens are left out."""
    return decode_words([token for token in ids if token not in SPECIAL])


def spelt(token: int) -> str:
    return SPECIAL.get(token, "")


def streamed(stream: TextStream, ids: Sequence[int]) -> str:
    return "".join(stream.push(token) for token in ids) + stream.flush()


@pytest.mark.parametrize("ids", [[1, 91, 2], [91, 91, 1, 2], [1, 91, 90, 91, 2, 90], [90], [1, 2, 91]])
def test_a_special_token_takes_no_space_from_the_word_after_it(ids: list[int]) -> None:
    assert streamed(TextStream(decode_pieces, special=spelt), ids) == decode_pieces(ids)


@pytest.mark.parametrize("prompt", [[7], [7, 8], [7, 90], [91, 7, 91], list(range(60))])
def test_a_text_that_continues_a_prompt_keeps_its_first_space(prompt: list[int]) -> None:
    stream = TextStream(decode_pieces, special=spelt, before=prompt)
    assert decode_pieces(prompt) + streamed(stream, [1, 2]) == decode_pieces([*prompt, 1, 2])


def test_a_text_after_no_word_begins_like_a_text() -> None:
    assert streamed(TextStream(decode_pieces, special=spelt, before=[90, 91]), [1, 2]) == decode_pieces([1, 2])


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
    stream = TextStream(decode_pieces, (stop,), spelt)
    assert streamed(stream, [1, 91, 2, 90, 3]) == shown
    assert stream.stopped == (shown != "word1 word2 word3")


def test_stop_strings_with_special_tokens_stop_where_the_whole_text_has_them(rng: np.random.Generator) -> None:
    """The first stop string in the text with its special tokens, or in what is shown."""
    words = {0: "a", 1: "b", 2: "x", 3: "y"}  # the last two are special
    for _ in range(500):
        ids = [int(token) for token in rng.integers(0, 4, 12)]
        stops = tuple("".join(rng.choice(list("abxy"), int(rng.integers(1, 4)))) for _ in range(2))
        stream = TextStream(
            lambda window: "".join(words[token] for token in window if token < 2),
            stops,
            lambda token: words[token] if token > 1 else "",
        )
        shown = ""
        for count in range(1, len(ids) + 1):
            shown += stream.push(ids[count - 1])
            whole = "".join(words[token] for token in ids[:count])
            plain = "".join(words[token] for token in ids[:count] if token < 2)
            assert stream.stopped == any(stop in whole or stop in plain for stop in stops)
            if stream.stopped:
                break
        assert plain.startswith(shown + stream.flush())
