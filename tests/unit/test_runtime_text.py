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
