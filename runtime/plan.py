"""Plan: which pass comes next. A plan changes speed and nothing else; any plan gives the same tokens.

`FixedPlan` drafts at one width always. `AdaptivePlan` (runtime/adaptive.py) takes what pays on this device and text.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from streamfuse.runtime.accept import Walk
from streamfuse.runtime.backend import DECODE, ModelSpec, PassOutput
from streamfuse.runtime.draft import Drafter
from streamfuse.runtime.tree import Tree


@dataclass(slots=True)
class Step:
    """One pass to run. `reason` says why a plain pass is plain; None where it is not a fall-back."""

    method: str
    tree: Tree
    reason: str | None = None
    looked_up: Collection[int] = ()  # rows that n-grams alone proposed


class Plan(Protocol):
    """Chooses passes and learns from them."""

    def begin(self, tokens: Sequence[int]) -> None:
        """A new generation after these tokens: forget what the last pass proposed."""
        ...

    def step(self, tokens: Sequence[int], room: int) -> Step:
        """The next pass. Its root is tokens[-1], and at most `room` tokens may still be delivered."""
        ...

    def learn(self, step: Step, output: PassOutput, walk: Walk, ms: float) -> bool:
        """What came of the pass, which took `ms`. True: ask the backend for deferred streams and hand them over."""
        ...

    def learn_streams(self, output: PassOutput, ms: float) -> None:
        """The deferred streams of the last accepted node, which took `ms`."""
        ...


class FixedPlan:
    """Drafts `width` nodes whenever more than one token may follow; width 1 is plain decoding."""

    def __init__(self, spec: ModelSpec, drafter: Drafter, width: int) -> None:
        self._spec = spec
        self._drafter = drafter
        self._width = width

    def begin(self, tokens: Sequence[int]) -> None:
        self._drafter.reset()

    def step(self, tokens: Sequence[int], room: int) -> Step:
        if self._width < 2 or room < 2:  # the last token's successor is of no use
            return Step(DECODE, Tree.root(tokens[-1]))
        tree = self._drafter.draft(tokens, self._width, room - 1)
        return Step(self._spec.verify_method(len(tree)), tree)

    def learn(self, step: Step, output: PassOutput, walk: Walk, ms: float) -> bool:
        self._drafter.learn(output, walk.last)
        return self._width > 1 and self._spec.deferred and not output.carries_streams(walk.last)

    def learn_streams(self, output: PassOutput, ms: float) -> None:
        self._drafter.learn(output, 0)
