"""Text from a stream of tokens: never a broken character, never the beginning of a stop string."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Detokenizer = Callable[[Sequence[int]], str]

_BROKEN = "\ufffd"  # what a decoder writes for bytes that are not (yet) a character


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
        """The characters that this token completes."""
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
    """The text to show, cut before the first stop string. Bytes of a character that never completes are dropped."""

    def __init__(self, decode: Detokenizer, stop_strings: Sequence[str] = ()) -> None:
        self._detokenized = Detokenized(decode)
        self._stops = tuple(stop_strings)
        self._held = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """Text that may be shown now. Afterwards `stopped` says whether a stop string is complete."""
        if self.stopped:
            return ""
        self._held += self._detokenized.push(token)
        found = [self._held.find(stop) for stop in self._stops if stop in self._held]
        if found:
            self.stopped = True
            self._held, text = "", self._held[: min(found)]
            return text
        return self._release(self._hold_from())

    def flush(self) -> str:
        """The end: what was held back as the possible beginning of a stop string."""
        return self._release(len(self._held))

    def _release(self, end: int) -> str:
        text, self._held = self._held[:end], self._held[end:]
        return text

    def _hold_from(self) -> int:
        """Where the longest tail begins that could still become a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for start in range(max(0, len(self._held) - longest), len(self._held)):
            if any(stop.startswith(self._held[start:]) for stop in self._stops):
                return start
        return len(self._held)
