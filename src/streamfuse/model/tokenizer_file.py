"""tokenizer.json of byte-level BPE, in the format of Hugging Face tokenizers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]


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
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": list(added_tokens),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor,
        "decoder": byte_level(use_regex=True, add_prefix_space=True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": ignore_merges,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [list(merge) for merge in merges],
        },
    }


def added_token(token_id: int, content: str, special: bool) -> Json:
    """A token that is matched before text is split into other tokens."""
    options = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": content, **options, "special": special}


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
