"""tokenizer.json of byte-level and SentencePiece BPE, in the format of Hugging Face tokenizers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Json = dict[str, Any]
_SPACE = "\u2581"  # how SentencePiece writes a space in its pieces


def byte_level(use_regex: bool, add_prefix_space: bool = False) -> Json:
    """As a pre-tokenizer or decoder; `use_regex` splits text into words as GPT-2 does."""
    return {
        "type": "ByteLevel",
        "add_prefix_space": add_prefix_space,
        "trim_offsets": True,
        "use_regex": use_regex,
    }


def byte_level_bpe(
    tokens: Sequence[str],
    merges: Sequence[Sequence[str]],
    pre_tokenizer: Json,
    *,
    ignore_merges: bool = False,
    normalizer: Json | None = None,
    added_tokens: Sequence[Json] = (),
    post_processor: Json | None = None,
) -> Json:
    """A token's id is its index in `tokens`. `ignore_merges`: a word that is a token needs no merges."""
    decoder = byte_level(use_regex=True, add_prefix_space=True)
    model = _bpe(tokens, merges, ignore_merges=ignore_merges)
    return _file(added_tokens, normalizer, pre_tokenizer, post_processor, decoder, model)


def sentencepiece_bpe(
    tokens: Sequence[str],
    merges: Sequence[Sequence[str]],
    *,
    byte_fallback: bool,
    unknown: str | None,
    space_prefix: bool,
    added_tokens: Sequence[Json] = (),
    post_processor: Json | None = None,
) -> Json:
    """A token's id is its index in `tokens`.

    Args:
        byte_fallback: characters without a token are written as tokens of bytes, `<0x0A>`.
        unknown: the token of characters that have no other.
        space_prefix: a space is put before a text, and before what follows an added token.
    """
    normalizers: list[Json] = [{"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}]
    decoders: list[Json] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if space_prefix:
        normalizers.insert(0, {"type": "Prepend", "prepend": _SPACE})
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    normalizer = {"type": "Sequence", "normalizers": normalizers}
    decoder = {"type": "Sequence", "decoders": decoders}
    model = _bpe(tokens, merges, unknown=unknown, byte_fallback=byte_fallback)
    return _file(added_tokens, normalizer, None, post_processor, decoder, model)


def merges_of(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """The merges of SentencePiece's pieces, each with its score: whatever two pieces make a third one, those that make
    the piece with the highest score first."""
    best_first = sorted(scores, key=lambda piece: -scores[piece])
    halves = ((piece[:i], piece[i:]) for piece in best_first for i in range(1, len(piece)))
    return [(left, right) for left, right in halves if left in scores and right in scores]


def vocabulary_size(tokenizer: Json) -> int:
    """One more than the highest id of a tokenizer's own vocabulary, without added tokens, which may be in it too; 0 if
    there is none that can be read, which the tokenizer's loader reports."""
    vocab, added = tokenizer["model"].get("vocab"), _added(tokenizer)
    ids = vocab.values() if isinstance(vocab, dict) else range(len(vocab)) if isinstance(vocab, list) else ()
    return max((i + 1 for i in ids if type(i) is int and i not in added), default=0)


def added_beyond(tokenizer: Json, rows: int) -> dict[int, str]:
    """The added tokens that an embedding of so many rows does not have, by id."""
    return {i: word for i, word in _added(tokenizer).items() if i >= rows}


def _added(tokenizer: Json) -> dict[int, str]:
    entries = tokenizer.get("added_tokens")
    found = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    return {entry["id"]: str(entry.get("content")) for entry in found if type(entry.get("id")) is int}


def _file(
    added_tokens: Sequence[Json],
    normalizer: Json | None,
    pre_tokenizer: Json | None,
    post_processor: Json | None,
    decoder: Json,
    model: Json,
) -> Json:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(added_tokens),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor,
        "decoder": decoder,
        "model": model,
    }


def _bpe(
    tokens: Sequence[str],
    merges: Sequence[Sequence[str]],
    *,
    ignore_merges: bool = False,
    unknown: str | None = None,
    byte_fallback: bool = False,
) -> Json:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": byte_fallback,
        "ignore_merges": ignore_merges,
        "vocab": {token: i for i, token in enumerate(tokens)},
        "merges": [list(merge) for merge in merges],
    }


def added_token(token_id: int, content: str, special: bool, rstrip: bool = False) -> Json:
    """A token that is matched before text is split into other tokens; `rstrip`: together with the spaces after it."""
    options = dict.fromkeys(("single_word", "lstrip", "normalized"), False)
    return {"id": token_id, "content": content, **options, "rstrip": rstrip, "special": special}


def around(before: Sequence[tuple[str, int]], after: Sequence[tuple[str, int]]) -> Json | None:
    """A post-processor that adds these tokens, each with its id, before and after a text; None if there are none."""
    if not before and not after:
        return None
    text, second = ({"Sequence": {"id": name, "type_id": i}} for i, name in enumerate("AB"))
    first, last = ([{"SpecialToken": {"id": token, "type_id": 0}} for token, _ in side] for side in (before, after))
    known = {token: {"id": token, "ids": [i], "tokens": [token]} for token, i in (*before, *after)}
    return {
        "type": "TemplateProcessing",
        "single": [*first, text, *last],
        "pair": [text, second],
        "special_tokens": known,
    }


def alphabet() -> list[str]:
    """The characters that represent the 256 bytes, in order of their code."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(code) for code in (*printable, *range(256, 512 - len(printable)))]
