"""A terminal's screen, as far as rich's live display uses one: lines, erasing, colours, where the cursor is."""

from __future__ import annotations

import re

_TOKEN = re.compile(r"\x1b\[(\??)([\d;]*)([A-Za-z])|([^\x1b])", re.DOTALL)


class Screen:
    """What a terminal of unlimited height shows after `feed`. AssertionError for a code that it does not know."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.cells: list[list[tuple[str, str]]] = [[]]  # (character, colour)
        self.row = self.column = 0
        self.colour = ""
        self.cursor_shown = True

    def feed(self, text: str) -> Screen:
        end = 0
        for found in _TOKEN.finditer(text):
            assert found.start() == end, repr(text[end : end + 20])
            end = found.end()
            private, numbers, code, character = found.groups()
            if character is not None:
                self._put(character)
            elif private:
                assert (numbers, code) in (("25", "h"), ("25", "l"))
                self.cursor_shown = code == "h"
            elif code == "m":
                self.colour = "" if numbers in ("", "0") else numbers
            elif code == "A":
                self.row -= int(numbers or 1)
                assert self.row >= 0
            elif code == "K":
                assert numbers == "2"
                self.cells[self.row] = []
            else:
                raise AssertionError(f"unknown code {found[0]!r}")
        assert end == len(text)
        return self

    def _put(self, character: str) -> None:
        if character == "\r":
            self.column = 0
        elif character == "\n":
            self.row, self.column = self.row + 1, 0
            self.cells += [[] for _ in range(self.row + 1 - len(self.cells))]
        else:
            assert self.column < self.width, f"a line is longer than {self.width}: {self.lines[self.row]!r}"
            line = self.cells[self.row]
            line += [(" ", "")] * (self.column + 1 - len(line))
            line[self.column] = (character, self.colour)
            self.column += 1

    @property
    def lines(self) -> list[str]:
        return ["".join(character for character, _ in line) for line in self.cells]

    def coloured(self, colour: str) -> str:
        """All that stands in this colour, from top to bottom."""
        return "".join(character for line in self.cells for character, own in line if own == colour)
