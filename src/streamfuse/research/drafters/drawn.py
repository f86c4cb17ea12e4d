"""Trees of tokens sampled from a draft model, for acceptors that need to know how they were sampled."""

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
    """Grows a tree layer by layer: the children of a node are sampled from the draft model's distribution at that node.

    The number of draws of a node depends on its position and on the draws above it, never on those of its own layer.
    So, given the path to a node, its draws are independent (or without replacement), which is all that a lossless
    acceptor requires.
    """

    def __init__(self, model: DraftModel, sampling: SamplingConfig, how: How, layers: Sequence[int]) -> None:
        """`layers`: maximum nodes per depth, from 1 on. ValueError if the draft model's pass has too few rows."""
        widest = max(model.backend.spec.verify_widths)
        read = 1 + sum(layers[:-1])  # the draft model does not run on the last layer
        if read > widest:
            raise ValueError(f"the draft model reads {widest} nodes per pass, but this tree has {read} inner nodes")
        self.model, self.sampling, self.how, self.depth = model, sampling, how, len(layers)

    @abstractmethod
    def draws(self, grower: Grower, row: int) -> int:
        """The number of tokens to sample as children of `row`."""

    def reset(self) -> None:  # noqa: B027  # there is no state to reset
        pass

    def learn(self, output: PassOutput, index: int) -> None:  # noqa: B027  # does not use the target's passes
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

    With draws without replacement it is a tree for Sequoia's acceptance (2402.12374).
    """

    def __init__(
        self, model: DraftModel, sampling: SamplingConfig, how: How, branching: Sequence[int] = (2, 1, 1)
    ) -> None:
        super().__init__(model, sampling, how, list(accumulate(branching, mul)))
        self.branching = branching

    def draws(self, grower: Grower, row: int) -> int:
        return self.branching[grower.depths[row]]


class SequencesDrafter(DrawnDrafter):
    """`count` independently sampled sequences of `length` tokens: SpecTr (2310.15141, section 4).

    Sequences with a common prefix share its nodes, and a node has one draw per sequence that reaches it.
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
