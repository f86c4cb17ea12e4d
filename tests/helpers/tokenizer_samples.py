"""Small tokenizers of the kinds that models have, and bundles with them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from bundle_samples import CHAT_TEMPLATE, byte_tokenizer, manifest_fields
from text_samples import texts
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from streamfuse.bundle import BundleWriter
from streamfuse.runtime import text

THREE_LINES = " ".join(["one and two three"] * 50)


def llama_like() -> Tokenizer:
    """Byte-level BPE behind the regular expression of newer models, with a mark in front."""
    return Tokenizer.from_str(_llama_like())


@lru_cache(maxsize=1)
def _llama_like() -> str:
    """Its file: the training takes a second."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    pattern += r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|begin|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator([THREE_LINES, *texts(300, 3)], trainer)
    tokenizer.post_processor = processors.TemplateProcessing("<|begin|> $A", None, [("<|begin|>", 0)])
    return tokenizer.to_str()


def sentencepiece_like() -> Tokenizer:
    """Unigram with bytes for what it does not know, spaces as marks, and a normalizer."""
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), *((f"<0x{n:02X}>", -9.0) for n in range(256))]
    words = ["▁", "▁the", "▁a", "▁in", "▁th", "a", "b", "e", "th", "in", "er", "an", "on", "한", "日本"]
    pieces += [(word, -2.0 - i / 100) for i, word in enumerate(words)]
    pieces += [(chr(c), -6.0) for c in range(0x21, 0x7F) if chr(c) not in "abe"]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", None, [("<s>", 1), ("</s>", 2)])
    return tokenizer


def bundle_with(path: Path, tokenizer: Tokenizer, template: str | None = CHAT_TEMPLATE) -> Path:
    fields = manifest_fields()
    size = tokenizer.get_vocab_size()
    fields["model"].update(vocab_size=size, chat_template=template, bos_token_id=1, eos_token_ids=[2])
    fields["speculation"].update(stream_vocab_size=size)
    with BundleWriter(path) as writer:
        (writer.folder / "model.pte").write_bytes(b"no graph")
        tokenizer.save(str(writer.folder / "tokenizer.json"))
        writer.write_manifest(**fields)
    return path


def metaspace_like() -> Tokenizer:
    """BPE over spaces as marks, with bytes for what it does not know, as Llama 2 has it: a normalizer puts a space in
    front, and some added tokens are found after it."""
    letters = ["▁", *(chr(c) for c in range(0x21, 0x7F))]
    words = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256)), *letters, "he", "▁w", "wo", "▁he"]
    merges = [("h", "e"), ("▁", "w"), ("w", "o"), ("▁", "he")]
    vocab = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken("<unk>"), AddedToken("<s>", normalized=True)])
    tokenizer.add_tokens([AddedToken("</s>", rstrip=True, normalized=True), AddedToken("<|user|>", lstrip=True)])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", None, [("<s>", 1)])
    return tokenizer


def word_like() -> Tokenizer:
    """WordPiece in small letters: a normalizer drops accents and control characters."""
    letters = [chr(c) for c in range(0x21, 0x7F) if not chr(c).isupper()]
    words = ["[PAD]", "[UNK]", "hello", "world", *letters, *(f"##{letter}" for letter in letters)]
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[SEP]"])
    tokenizer.add_tokens([AddedToken("</s>", normalized=True), AddedToken("END", single_word=True, normalized=True)])
    return tokenizer


def qwen_like() -> Tokenizer:
    """Byte-level BPE with marks that are no special tokens, and added words that are no marks."""
    tokenizer = byte_tokenizer()
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    marks = ["<think>", "</think>", "<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>"]
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in (*marks, "covid", "  ", "\n\n")])
    return tokenizer


def words_of(words: Sequence[str], special: Sequence[str] = (), spaced: bool = False) -> Tokenizer:
    """A token per word, in order; `special` are some of them. Texts are the words without space between them; `spaced`:
    a `▁` in a word is a space, but for the first of a text, as SentencePiece has it."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always") if spaced else decoders.Fuse()
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def letters() -> text.Tokenizer:
    """What `fakes.decode_letters` decodes with."""
    return opened(words_of([chr(48 + token) for token in range(64)]))


def opened(
    tokenizer: Tokenizer, template: str | None = None, bos: int | None = None, eos: Sequence[int] = ()
) -> text.Tokenizer:
    """The runtime's tokenizer of one that a test made."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tokenizer.json")
        tokenizer.save(str(path))
        return text.Tokenizer(path, template, bos, eos)


KINDS = {
    "bytes": llama_like,
    "metaspace": metaspace_like,
    "unigram": sentencepiece_like,
    "words": word_like,
    "qwen": qwen_like,
}


def joined(parts: Sequence[tuple[str, str]]) -> str:
    """The text of a stream's parts."""
    return "".join(text for _, text in parts)
