"""Text from a stream of tokens: never a broken character, never the beginning of a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Detokenizer = Callable[[Sequence[int]], str]  # without special tokens
Spelling = Callable[[int], str]  # of a special token; empty for any other

_BROKEN = "\ufffd"  # what a decoder writes for bytes that are not (yet) a character
_MOST_BEFORE = 32  # tokens of a prompt that tell how the first of a text is written


class Detokenized:
    """Decodes token by token, and holds back the bytes of a character that is not complete.

    Only a short window is decoded again: from the last clean boundary but one, because some tokenizers write the first
    token of a text differently (a leading space). The way of Hugging Face text-generation-inference.
    """

    def __init__(self, decode: Detokenizer) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._clean = 0  # tokens of the window before the last clean boundary
        self._shown = 0  # characters of the window's text that were returned

    def push(self, token: int) -> str:
        """The characters that this token completes. It is none that `decode` leaves out."""
        self._window.append(token)
        text = self._decode(self._window)
        ready = text.rstrip(_BROKEN)
        new = ready[self._shown :]
        self._shown = max(self._shown, len(ready))
        if ready == text:
            del self._window[: self._clean]
            self._clean = len(self._window)
            self._shown = len(self._decode(self._window))
        return new


class TextStream:
    """The text to show, cut before the first stop string. Bytes of a character that never completes are dropped.

    A stop string may contain whole special tokens, which are not shown. `before` are the tokens of a prompt that the
    text continues.
    """

    def __init__(
        self,
        decode: Detokenizer,
        stop_strings: Sequence[str] = (),
        special: Spelling = lambda token: "",
        before: Sequence[int] = (),
    ) -> None:
        self._detokenized = Detokenized(decode)
        self._special = special
        self._stops = tuple(stop_strings)
        self._held: list[tuple[str, bool]] = []  # characters, which are shown, and special tokens, which are not
        self.stopped = False
        for token in before[-_MOST_BEFORE:]:
            self._decoded(token)

    def push(self, token: int) -> str:
        """Text that may be shown now. Afterwards `stopped` says whether a stop string is complete."""
        if self.stopped:
            return ""
        new = self._decoded(token)
        if not self._stops:
            return new
        self._held += [(word, False)] if (word := self._special(token)) else [(character, True) for character in new]
        # Stop strings are looked for in what is shown, and in the same with special tokens.
        everything = [part for part, _ in self._held]
        places = [place for place, (_, shown) in enumerate(self._held) if shown]
        shown = [everything[place] for place in places]
        places.append(len(everything))
        found = [*self._find(everything), *(places[count] for count in self._find(shown))]
        if found:
            self.stopped = True
            del self._held[min(found) :]
            return self.flush()
        return self._release(min(self._hold_from(everything), places[self._hold_from(shown)]))

    def flush(self) -> str:
        """The end: what was held back as the possible beginning of a stop string."""
        return self._release(len(self._held))

    def _decoded(self, token: int) -> str:
        return "" if self._special(token) else self._detokenized.push(token)

    def _release(self, end: int) -> str:
        text = "".join(part for part, shown in self._held[:end] if shown)
        del self._held[:end]
        return text

    def _find(self, parts: Sequence[str]) -> list[int]:
        """Where the first stop string begins; empty where there is none."""
        starts = range(len(parts))
        return [start for start in starts if any(_after(stop, parts[start:]) for stop in self._stops)][:1]

    def _hold_from(self, parts: Sequence[str]) -> int:
        """Where the longest tail begins that could still become a stop string."""
        starts = range(len(parts))
        still = (start for start in starts if any(_after(stop, parts[start:]) is False for stop in self._stops))
        return next(still, len(parts))


def _after(stop: str, parts: Sequence[str]) -> bool | None:
    """True for parts that begin with a whole stop string, False where more of them may complete it, None otherwise."""
    read = 0
    for part in parts:
        if not stop.startswith(part, read):
            return None
        read += len(part)
        if read == len(stop):
            return True
    return False
