"""The n-gram table of a bundle as a drafter by itself."""

from __future__ import annotations

from collections.abc import Sequence

from streamfuse.runtime.backend import PassOutput
from streamfuse.runtime.reference.ngram_table import NgramTable
from streamfuse.runtime.reference.tree import Tree


class TableDrafter:
    """Drafts the model's most frequent continuations of the last tokens (runtime/reference/ngram_table.py)."""

    def __init__(self, table: NgramTable) -> None:
        self.table = table

    def reset(self) -> None:
        """Nothing is kept between texts."""

    def learn(self, output: PassOutput, index: int) -> None:
        """Nothing to learn: the drafts depend only on the text."""

    def draft(self, tokens: Sequence[int], width: int, depth: int) -> Tree:
        return self.table.grow(tokens, width, depth)
