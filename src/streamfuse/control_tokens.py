"""Control tokens that a message spells are read as text: what a template writes as a mark never comes out of a message.

text/src/control_tokens.rs is the same in Rust.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Set
from itertools import pairwise

from tokenizers import AddedToken, Tokenizer

# Where a control token that a message spells is cut in two, so that it is read as text. A noncharacter of Unicode: no
# text is meant to hold it. It is dropped from messages, and never reaches the tokenizer.
CUT = "\ufdd0"

_REPLACEMENT = "\ufffd"  # for a character that is a control token by itself
_RARE = "\U0010fffd\U00012000\ua66e"  # characters that a vocabulary without bytes does not know
_PLAIN_NAME = re.compile("[A-Za-z0-9 _-]*")


class ControlTokens:
    """The added tokens of a tokenizer that a message must not write.

    They are the special ones; those in brackets, such as `</s>` or `<tool_call>`; those that the chat template spells;
    and `ends`, the words for the beginning and the end of a text. Other added tokens (words that a vocabulary was
    extended with, runs of spaces) are text, and the tokenizer reads them as ever.
    """

    def __init__(self, tokenizer: Tokenizer, chat_template: str = "", ends: Iterable[str] = ()) -> None:
        self._tokenizer, ends = tokenizer, set(ends)
        added = tokenizer.get_added_tokens_decoder().items()
        self._words = {number: token.content for number, token in added if _is_control(token, chat_template, ends)}
        for number, _ in self._encoded(_RARE):  # what is not in the vocabulary is text
            self._words.pop(number, None)
        self._spelt = _any_of(self._words.values())
        forms = {form for word in self._words.values() for form in (word, self._normalized(word))}
        self._beginnings = {form[:end] for form in forms for end in range(1, len(form))}
        self._ends = {form[start:] for form in forms for start in range(1, len(form))}
        self._longest = max(map(len, forms), default=0)

    def in_text(self, text: str) -> list[str]:
        """The words of control tokens that occur in a text."""
        return sorted(word for word in set(self._words.values()) if word in text)

    def cut(self, text: str, kept: Set[str] = frozenset()) -> str:
        """Text with a `CUT` in each control token that it spells, but for those of `kept`."""
        spelt = _any_of(set(self._words.values()) - kept) if kept else self._spelt
        pieces = spelt.sub(lambda found: found.group() + CUT, text.replace(CUT, "")).split(CUT)
        return CUT.join(self._cut_as_read(piece, kept) for piece in pieces)

    def cut_edges(self, text: str) -> str:
        """A text that is cut, with a `CUT` also in front of the end of a control token that it begins with, and behind
        the beginning of one that it ends with: what a template writes there may complete it."""
        core = text.strip()
        if not core:
            return text
        forms, lengths = (core, self._normalized(core)), range(1, self._longest)
        before = any(form[:length] in self._ends for form in forms for length in lengths)
        behind = any(form[-length:] in self._beginnings for form in forms for length in lengths)
        start = len(text) - len(text.lstrip())
        end = start + len(core)
        return text[:start] + CUT * before + core + CUT * behind + text[end:]

    def cut_spanning(self, text: str, edged: str) -> str:
        """`text` with a `CUT` also where a control token spans one of those of `edged`, the same text with more."""
        cuts, edges, whole = _places(text), _places(edged), text.replace(CUT, "")
        while edges - cuts:
            bounds = [0, *sorted(cuts), len(whole)]
            spanned = {
                edge
                for first, last in pairwise(bounds)
                for start, stop in self._spans(whole[first:last], frozenset())
                for edge in edges
                if first + start < edge < first + stop
            }
            if not spanned:
                break
            cuts |= spanned
        return CUT.join(whole[first:last] for first, last in pairwise([0, *sorted(cuts), len(whole)]))

    def cut_role(self, role: str) -> str:
        """The same for a role. Plain words stay: the template compares them, and writes them as they are. Others are
        cut at both ends too, since templates write a role between brackets."""
        return role if _PLAIN_NAME.fullmatch(role) else f"{CUT}{self.cut(role)}{CUT}"

    def _cut_as_read(self, text: str, kept: Set[str]) -> str:
        """Cuts what the tokenizer still reads as a control token: a normalizer may make `</s>` of other characters."""
        done, left = [], [text]
        while left:
            piece, parts, end = left.pop(), [], 0
            for start, stop in self._spans(piece, kept):
                parts += [piece[end:start]] if end < start else []
                letters = piece[max(end, start) : stop]
                parts += [_REPLACEMENT if self._spans(letter, kept) else letter for letter in letters]
                end = max(end, stop)
            if parts:
                left += reversed([*parts, piece[end:]] if end < len(piece) else parts)
            else:
                done.append(piece)
        return CUT.join(done)

    def _spans(self, text: str, kept: Set[str]) -> list[tuple[int, int]]:
        """First and last place of each control token that the tokenizer reads in a text."""
        if text in ("", _REPLACEMENT):
            return []
        found, words = self._encoded(text), self._words
        return [span for number, span in found if number in words and words[number] not in kept and span[0] < span[1]]

    def _normalized(self, text: str) -> str:
        """As the tokenizer's normalizer leaves it, without the space that it may put in front."""
        if self._tokenizer.normalizer is None:
            return text
        return str(self._tokenizer.normalizer.normalize_str(text)).removeprefix("▁")

    def _encoded(self, text: str) -> list[tuple[int, tuple[int, int]]]:
        """Ids and places. A text that the tokenizer refuses has none; whoever encodes it for the model says so."""
        try:
            encoding = self._tokenizer.encode(text, add_special_tokens=False)
        except Exception:  # the library raises bare Exception
            return []
        return list(zip(encoding.ids, encoding.offsets, strict=True))


def _is_control(token: AddedToken, chat_template: str, ends: Set[str]) -> bool:
    word = token.content
    if token.special or word in ends:
        return True
    in_brackets = word.removeprefix("▁").startswith(("<", "[", "{", "|")) and word.endswith((">", "]", "}", "|"))
    return len(word) > 1 and bool(word.strip()) and (in_brackets or word in chat_template)


def _places(text: str) -> set[int]:
    """Where the cuts of a text are in the text without them."""
    found = [place for place, letter in enumerate(text) if letter == CUT]
    return {place - earlier for earlier, place in enumerate(found)}


def _any_of(words: Iterable[str]) -> re.Pattern[str]:
    """Finds the first character of each of these words, also of one inside another."""
    spelt = "|".join(re.escape(word) for word in words if len(word) > 1)
    return re.compile(f"(?=(?:{spelt}))." if spelt else "(?!)", re.DOTALL)
