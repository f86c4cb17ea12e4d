"""Accept: walk the verified tree for as long as the model's own choice was drafted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from streamfuse.runtime.backend import FloatArray, PassOutput
from streamfuse.runtime.tree import Tree

# (logits float32 [V], all tokens before, position of the token to choose) -> token
Pick = Callable[[FloatArray, Sequence[int], int], int]


@dataclass(frozen=True, slots=True)
class Walk:
    """An accepted path: `tokens[i]` was chosen after `rows[i]`, and all but the last of them are on the path."""

    rows: list[int]  # tree rows, rows[0] = 0 is the root
    tokens: list[int]  # as many as rows; tokens[i] is the token of rows[i + 1], the last one is the bonus token
    last: int  # where rows[-1] stands among the surviving nodes of the pass


class Acceptor(Protocol):
    """Decides how much of a verified tree becomes text."""

    def accept(self, tree: Tree, output: PassOutput, history: Sequence[int], pick: Pick) -> Walk:
        """History holds every token up to and with the root of the tree."""
        ...


class MatchAcceptor:
    """Sample and match: draw the next token as plain decoding would; walk where a child carries it, else emit and stop.

    Lossless by construction, greedy or sampled: each token comes from the model's distribution at its node and from the
    uniform number of its position, neither of which depends on the tree. A pruned child simply is not there.
    """

    def accept(self, tree: Tree, output: PassOutput, history: Sequence[int], pick: Pick) -> Walk:
        if output.logits is None:
            raise ValueError("a pass without logits has nothing to accept")
        index_of = {row: index for index, row in enumerate(output.kept.tolist())}
        before = list(history)
        rows, tokens, row = [0], list[int](), 0
        while True:
            token = pick(output.logits[index_of[row]], before, len(before))
            tokens.append(token)
            child = tree.child(row, token)
            if child is None or child not in index_of:
                return Walk(rows, tokens, index_of[row])
            rows.append(child)
            before.append(token)
            row = child
