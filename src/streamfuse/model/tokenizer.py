"""The tokenizer of a checkpoint folder, with the special tokens that its settings put around plain text.

In a chat the template writes every mark. A bundle carries tokenizer and template as they come from here, so whatever
runs it needs no rule of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .config import read_object, token_word

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_ADD_BOS = ("LlamaTokenizer", "LlamaTokenizerFast")  # transformers' classes that add one where nothing is said


def tokenizer_json(folder: Path) -> bytes:
    """The content of a checkpoint folder's tokenizer.json, with the marks around plain text that its settings ask for.

    `add_bos_token` and `add_eos_token` of tokenizer_config.json rule, as in transformers. Where they say nothing, or
    what the file does already, it is as it is. A file that is no tokenizer is too: who opens it says so.

    Raises:
        CheckpointError: tokenizer_config.json is no JSON object.
        OSError: there is no tokenizer.json.
    """
    content = (folder / "tokenizer.json").read_bytes()
    config = read_object(folder / "tokenizer_config.json")
    adds_bos, adds_eos = config.get("add_bos_token"), config.get("add_eos_token")
    if adds_bos is None and config.get("tokenizer_class") in _ADD_BOS:
        adds_bos = True
    if adds_bos is None and adds_eos is None:
        return content
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing

    try:
        tokenizer = Tokenizer.from_buffer(content)
    except Exception:  # the library raises bare Exception
        return content
    before, after = found = _marks(tokenizer)
    before = _wanted(tokenizer, adds_bos, token_word(config.get("bos_token")), before)
    after = _wanted(tokenizer, adds_eos, token_word(config.get("eos_token")), after)
    if (before, after) == found:
        return content
    known = [(word, tokenizer.token_to_id(word)) for word in dict.fromkeys(before + after)]
    tokenizer.post_processor = TemplateProcessing(single=[*before, "$A", *after], special_tokens=known)
    return str(tokenizer.to_str()).encode()


def _wanted(tokenizer: Tokenizer, adds: object, word: str | None, marks: list[str]) -> list[str]:
    """The marks on one side of a text, where `marks` are there now; a word that is no token cannot be added."""
    if adds is False:
        return []
    return [word] if adds is True and word is not None and tokenizer.token_to_id(word) is not None else marks


def _marks(tokenizer: Tokenizer) -> tuple[list[str], list[str]]:
    """The tokens that a tokenizer puts before and after a text."""
    bare, whole = (tokenizer.encode("a", add_special_tokens=marks).tokens for marks in (False, True))
    start = next((i for i in range(len(whole)) if whole[i : i + len(bare)] == bare), 0)
    return whole[:start], whole[start + len(bare) :]
