"""Trees of tokens that a draft model draws at random, for acceptors that ask how they were drawn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from streamfuse.research.proposal import Grower, How
from streamfuse.runtime.backend import PassOutput
from streamfuse.runtime.config import SamplingConfig
from streamfuse.runtime.reference.tree import Tree

from .chain import probabilities
from .model import DraftModel


class DrawnDrafter(ABC):
    """Grows a tree layer by layer: each node gets draws from the draft model's distribution at that node.

    How many draws a node has depends on its place and on the draws above it, never on those of its own layer. So the
    draws of a node are independent (or without replacement) given the path to it, which is all that a lossless
    acceptor needs.
    """

    def __init__(self, model: DraftModel, sampling: SamplingConfig, how: How, layers: Sequence[int]) -> None:
        """`layers`: the most nodes of each depth, from 1 on. ValueError if the draft model cannot read that many."""
        widest = max(model.backend.spec.verify_widths)
        read = 1 + sum(layers[:-1])  # the last layer is proposed and not read
        if read > widest:
            raise ValueError(f"the draft model reads {widest} nodes per pass, but this tree has {read} inner nodes")
        self.model, self.sampling, self.how, self.depth = model, sampling, how, len(layers)

    @abstractmethod
    def draws(self, grower: Grower, row: int) -> int:
        """How many tokens are drawn below `row`."""

    def reset(self) -> None:  # noqa: B027  # nothing is remembered between texts
        pass

    def learn(self, output: PassOutput, index: int) -> None:  # noqa: B027  # nothing is read from the target's passes
        pass

    def draft(self, tokens: Sequence[int], width: int, depth: int) -> Tree:
        self.model.begin(tokens)
        grower = Grower(tokens[-1], self.sampling.seed, len(tokens) - 1)
        layer = [0]
        for _ in range(min(depth, self.depth)):
            output = self.model.tree(grower.done())
            assert output.logits is not None, "logits were asked for"
            below: list[int] = []
            for row in layer:
                text = [*tokens[:-1], *_path(grower, row)]
                probs = probabilities(output.logits[row], text, self.sampling)
                below += grower.propose(row, probs, self.draws(grower, row), self.how)
            layer = below
        self.model.end()
        return grower.done().first(width)


class DrawnTreeDrafter(DrawnDrafter):
    """Every node of depth d has `branching[d]` draws: SpecInfer's expansion configuration (2305.09781, section 3).

    With draws without replacement, a tree of this shape for Sequoia's acceptance (2402.12374).
    """

    def __init__(
        self, model: DraftModel, sampling: SamplingConfig, how: How, branching: Sequence[int] = (2, 1, 1)
    ) -> None:
        super().__init__(model, sampling, how, list(accumulate(branching, mul)))
        self.branching = branching

    def draws(self, grower: Grower, row: int) -> int:
        return self.branching[grower.depths[row]]


class SequencesDrafter(DrawnDrafter):
    """`count` sequences of `length` tokens, drawn independently of one another: SpecTr (2310.15141, section 4).

    Sequences that begin alike share nodes, and a node has as many draws as there are sequences that reach it.
    """

    def __init__(self, model: DraftModel, sampling: SamplingConfig, count: int = 2, length: int = 3) -> None:
        super().__init__(model, sampling, How.INDEPENDENT, [count] * length)
        self.count = count

    def draws(self, grower: Grower, row: int) -> int:
        parent = grower.parents[row]
        return self.count if parent < 0 else grower.proposals[parent].draws.count(grower.tokens[row])


def _path(grower: Grower, row: int) -> list[int]:
    """Tokens from the root to a row."""
    path: list[int] = []
    while row >= 0:
        path.insert(0, grower.tokens[row])
        row = grower.parents[row]
    return path
