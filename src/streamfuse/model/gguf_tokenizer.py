"""Builds tokenizer.json from a GGUF's vocabulary: byte-level BPE (`gpt2`) and SentencePiece BPE (`llama`).

Texts are split as in llama.cpp, except with `tekken` and `gpt-4o`: these use the regular expression of the model's
tokenizer.json, which llama.cpp approximates for letters that are not ASCII (case, combining marks).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .fields import CheckpointError
from .gguf_settings import CONTROL, NORMAL, Metadata
from .tokenizer_file import added_token, around, byte_level, byte_level_bpe, merges_of, sentencepiece_bpe

# Pre-tokenizers by the GGUF's own key; each splits text before byte-level BPE.
_DIGITS_THEN_BYTES = ("smollm", "starcoder", "refact", "command-r")
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER, _ENDING = (
    r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]",
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]",
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
)
_CASED_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDING}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDING}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_THREE_DIGITS, _ONE_DIGIT = _WORDS.replace("DIGITS", r"\p{N}{1,3}"), _WORDS.replace("DIGITS", r"\p{N}")
_TEKKEN = (  # Mistral's
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA_3 = ("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "lfm2")
_ADD_BOS = (*_LLAMA_3, "tekken")  # add BOS unless the file has add_bos_token
_IGNORE_MERGES = (*_LLAMA_3, "tekken", "minicpm5")  # as in llama.cpp
_HUNYUAN = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT_2 = ("gpt-2", "olmo", "exaone4")
_SPLIT_PATTERNS = {
    **dict.fromkeys(_LLAMA_3, _THREE_DIGITS),
    "dbrx": _THREE_DIGITS,
    "smaug-bpe": _THREE_DIGITS,  # SmolLM3
    "qwen2": _ONE_DIGIT,
    "hunyuan": _ONE_DIGIT,
    "deepseek-r1-qwen": _ONE_DIGIT,
    "qwen35": _ONE_DIGIT.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]"),
    "gpt-4o": _CASED_WORDS,
    "tekken": _TEKKEN,
}
# Tokens of phi3 that do not remove the spaces after them; all other added ones do.
_PHI_KEEPS_SPACES = ("<unk>", "<s>", "<|endoftext|>")
_UNKNOWN, _USER_DEFINED, _UNUSED, _BYTE = 2, 4, 5, 6  # token types


def tokenizer_of(fields: Metadata) -> dict[str, Any]:
    """The `tokenizer.json` of a GGUF.

    Raises:
        CheckpointError: a field is missing, or the tokenizer is of another kind.
    """
    kind = fields.get("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama", "gemma4"):
        raise CheckpointError(
            f"{fields.path}: tokenizer.ggml.model {kind!r} is not supported; supported are gpt2 (byte-level BPE), "
            "llama and gemma4 (SentencePiece BPE); use the model's safetensors folder with its tokenizer.json"
        )
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    strips = kind == "llama" and fields["general.architecture"] == "phi3"
    added = [
        added_token(i, token, its == CONTROL, rstrip=strips and token not in _PHI_KEEPS_SPACES)
        for i, (token, its) in enumerate(zip(tokens, types, strict=True))
        if its in (CONTROL, _USER_DEFINED)
    ]
    pre = fields.get("tokenizer.ggml.pre", "default")
    begins = _around(fields, "bos", kind != "gpt2" or pre in _ADD_BOS)
    post_processor = around(begins, _around(fields, "eos", False))
    if kind != "gpt2":
        return _sentencepiece(fields, tokens, types, added, post_processor)
    return byte_level_bpe(
        tokens,
        [merge.split(" ", 1) for merge in fields["tokenizer.ggml.merges"]],
        _pre_tokenizer(pre, fields.path),
        ignore_merges=pre in _IGNORE_MERGES,
        normalizer={"type": "NFC"} if pre in ("qwen2", "qwen35") else None,
        added_tokens=added,
        post_processor=post_processor,
    )


def _sentencepiece(
    fields: Metadata, tokens: list[str], types: list[int], added: list[dict[str, Any]], post_processor: Any
) -> dict[str, Any]:
    """A GGUF of Gemma 4 has a list of merges. In others, pieces are merged by score."""
    if fields["general.architecture"] == "gemma4":
        # A space separates the two pieces; the first piece may be a space.
        merges = [
            (merge[:at], merge[at + 1 :]) for merge in fields["tokenizer.ggml.merges"] if (at := merge.find(" ", 1)) > 0
        ]
    else:
        scores = fields["tokenizer.ggml.scores"]
        merges = merges_of(
            {
                token: score
                for token, its, score in zip(tokens, types, scores, strict=True)
                if its in (NORMAL, _UNUSED)  # others are never the result of merges
            }
        )
    unknown = fields.token("unknown")
    if unknown is None and _UNKNOWN in types:
        unknown = types.index(_UNKNOWN)
    return sentencepiece_bpe(
        tokens,
        merges,
        byte_fallback=types.count(_BYTE) == 256,
        unknown=None if unknown is None else tokens[unknown],
        space_prefix=fields.get("tokenizer.ggml.add_space_prefix", True),
        added_tokens=added,
        post_processor=post_processor,
    )


def _around(fields: Metadata, name: str, by_default: bool) -> list[tuple[str, int]]:
    """The token that plain text begins or ends with, if the file requests one; `by_default` is llama.cpp's default."""
    token = fields.token(name)
    asked = fields.get(f"tokenizer.ggml.add_{name}_token", by_default)
    return [(fields["tokenizer.ggml.tokens"][token], token)] if asked and token is not None else []


def _pre_tokenizer(pre: str, path: Path) -> dict[str, Any]:
    if pre in _DIGITS_THEN_BYTES:
        parts = [{"type": "Digits", "individual_digits": True}, byte_level(use_regex=True)]
    elif pre in _GPT_2:
        parts = [byte_level(use_regex=True)]
    elif pre == "minicpm5":
        parts = [_split(r"\p{N}{1,3}"), _split(_WORDS.replace("DIGITS", r"\p{N}+")), byte_level(use_regex=False)]
    elif pre == "hunyuan-dense":
        patterns = (r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _HUNYUAN)
        parts = [*map(_split, patterns), byte_level(use_regex=False)]
    elif pre in _SPLIT_PATTERNS:
        parts = [_split(_SPLIT_PATTERNS[pre]), byte_level(use_regex=False)]
    else:
        raise CheckpointError(
            f"{path}: tokenizer.ggml.pre {pre!r} is not supported; use the model's safetensors folder"
        )
    return {"type": "Sequence", "pretokenizers": parts}


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
