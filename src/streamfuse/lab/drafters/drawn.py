"""Trees of tokens that a draft model draws at random, for acceptors that ask how they were drawn."""

from __future__ import annotations

from collections.abc import Sequence

from streamfuse.lab.proposal import Grower, How
from streamfuse.runtime.backend import PassOutput
from streamfuse.runtime.config import SamplingConfig
from streamfuse.runtime.reference.tree import Tree

from .chain import probabilities
from .model import DraftModel


class DrawnTreeDrafter:
    """Layer by layer: `draws` tokens at the root and at the first child of each node, in the order of their draws.

    How many draws a node has depends on its place in the tree alone, never on what was drawn, so every acceptor that
    knows the draws keeps the text's distribution.
    """

    def __init__(self, model: DraftModel, sampling: SamplingConfig, how: How, draws: int = 2, depth: int = 3) -> None:
        self.model, self.sampling, self.how, self.draws, self.depth = model, sampling, how, draws, depth
        widest = max(model.backend.spec.verify_widths)
        if 1 + draws * (depth - 1) > widest:
            raise ValueError(f"a tree of {draws} draws and {depth} levels is wider than the draft model's {widest}")

    def reset(self) -> None:
        """The text says everything."""

    def learn(self, output: PassOutput, index: int) -> None:
        """The text says everything."""

    def draft(self, tokens: Sequence[int], width: int, depth: int) -> Tree:
        self.model.begin(tokens)
        grower = Grower(tokens[-1], self.sampling.seed, len(tokens) - 1)
        layer = [0]
        for _ in range(min(depth, self.depth)):
            output = self.model.tree(grower.done())
            assert output.logits is not None, "logits were asked for"
            below: list[int] = []
            for row in layer:
                text = [*tokens[:-1], *self._path(grower, row)]
                probs = probabilities(output.logits[row], text, self.sampling)
                below += grower.propose(row, probs, self.draws, self.how)[:1]
            layer = below
        self.model.end()
        return grower.done().first(width)

    @staticmethod
    def _path(grower: Grower, row: int) -> list[int]:
        """Tokens from the root to a row."""
        path: list[int] = []
        while row >= 0:
            path.insert(0, grower.tokens[row])
            row = grower.parents[row]
        return path
