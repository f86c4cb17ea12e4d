"""Token ids of answers that a data set has as text."""

from __future__ import annotations

import re
from itertools import zip_longest

from streamfuse.runtime.text import CUT, Message, TextError, Tokenizer

from .formats import DataError

_MARK = "\ufdd1"  # around an answer, to find it in a rendered chat; no text has this noncharacter of Unicode
_LOST = "\ufffd"  # `render_cut` writes it in place of a control token of one character
_QUESTION: Message = {"role": "user", "content": "."}


class AnswerEncoder:
    """Encodes answers in text as the tokens that the model would generate after their prompts.

    Special tokens that an answer spells are encoded as text, as in a message, so an answer can neither end its turn nor
    begin another one. Only the spaces that the chat template writes precede it. All of this depends on the chat
    template and the tokenizer, not on the prompt, so a chat of one short question stands for every prompt.

    Args:
        text: the model's tokenizer, with its chat template.
        eos_token_id: the token that ends an answer; one spelt in an answer is text.
        source: names the data in error messages.

    Raises:
        DataError: the model has no chat template.
    """

    def __init__(self, text: Tokenizer, eos_token_id: int, source: str) -> None:
        if not text.can_chat:
            raise DataError(
                f"{source}: text answers need a chat template, and the model has none; add one to its folder"
            )
        self._text, self._source = text, source
        self._ends = {eos_token_id, *text.encode("")}
        self._before = text.render([_QUESTION])
        self._opened = re.search(r"[<\[]\S+[>\]](?=\s*$)", self._before)  # the tag that a prompt ends with
        self._turns = self._render_answer(".", _QUESTION) or self._before
        self._tags: dict[int, str] = {}

    def encode(self, answer: str) -> list[int]:
        """The token ids of an answer, without an end-of-sequence token.

        Raises:
            DataError: the answer is not UTF-8 text, or the chat template changes it.
        """
        try:
            answer.encode()
        except UnicodeEncodeError as error:
            raise DataError(f"{self._source}: an answer is not UTF-8 text (character {error.start})") from None
        written = self._as_written(answer.replace(CUT, "").replace(_MARK, ""))
        cut = self._cut(written)
        if any(c not in (w, _LOST) for w, c in zip_longest(written, cut.replace(CUT, ""))):
            raise DataError(
                f"{self._source}: the chat template changes the text of a message, so the answer {answer:.40} cannot "
                "be encoded with it; let the model write the answers (`streamfuse data distill`)"
            )
        if CUT in cut:
            for token in set(self._text.encode_rendered(written, continues=True)):
                if tag := self._tag(token):
                    cut = re.sub(f"{CUT}?".join(map(re.escape, tag)), tag.replace("\\", r"\\"), cut)
        return self._text.encode_rendered(cut, continues=True)

    def _tag(self, token: int) -> str:
        """The text of a control token that a model writes within an answer, as the tags of its thoughts and calls; of
        others "". It is not special, neither begins nor ends a text, and is not around the turns of a chat."""
        if token not in self._tags:
            tag = "" if token in self._ends else self._text.decode([token])  # "" for a special token
            known = len(tag) > 1 and tag not in self._turns and CUT in self._cut(tag)
            self._tags[token] = tag if known else ""
        return self._tags[token]

    def _cut(self, words: str) -> str:
        """The words with their control tokens cut; "" if the chat template has no such message."""
        # As a user's message, since in the model's own some control tokens stay whole. The marks keep the spaces at its
        # ends, which templates may remove.
        parts = self._text.render_cut([{"role": "user", "content": f"{_MARK}{words}{_MARK}"}]).split(_MARK)
        return parts[1] if len(parts) > 2 else ""

    def _as_written(self, answer: str) -> str:
        """The answer with the space that the chat template writes in front of it, and without that which it removes;
        and without a tag that the prompt ends with, as where the template opens thoughts."""
        if self._opened and answer.lstrip().startswith(self._opened[0]):
            return answer.lstrip().removeprefix(self._opened[0]).lstrip()
        whole = self._render_answer(answer)
        if whole is not None and whole.startswith(self._before):
            behind = whole[len(self._before) :]
            for form in (answer, answer.strip()):
                space, found, _ = behind.partition(form) if form else ("", "", "")
                if found and not space.strip():
                    return space + form
        return answer

    def _render_answer(self, answer: str, *more: Message) -> str | None:
        """The question, an answer and what follows; None from templates that refuse such a chat."""
        try:
            return self._text.render([_QUESTION, {"role": "assistant", "content": answer}, *more])
        except TextError:
            return None
