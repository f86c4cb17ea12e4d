"""A model that drafts token by token with an exported static graph: a separate small model, or the target without some
of its sub-layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from streamfuse.runtime.backend import DECODE, PREFILL, Backend, BoolArray, PassOutput
from streamfuse.runtime.reference.tree import Tree

DRAFT = "draft"  # the method of a program whose model drafts for itself (self_draft.py)
_ITSELF: BoolArray = np.ones((1, 1), np.bool_)


class DraftModel:
    """A causal model on its own backend, whose cache follows the text.

    Attributes:
        passes: how often each of its methods ran, to compute costs on another device.
        name: prefix of the methods' names there.
    """

    name = "draft model"

    def __init__(self, backend: Backend) -> None:
        self.backend, self.passes = backend, Counter[str]()
        self._tokens: list[int] = []  # tokens whose keys and values are in the cache

    def use(self, backend: Backend) -> None:
        """Use another engine from now on; the previous one is closed."""
        self.backend.close()
        self.backend, self._tokens = backend, []

    def read(self, prompt: Sequence[int]) -> None:
        """Prefill a prompt, except its last token, into an empty cache. Drafters may share this model, so a prefix that
        another one cached is not reused: every method pays for its own prefill."""
        self._tokens = []
        self.begin(prompt)

    def begin(self, tokens: Sequence[int]) -> None:
        """Fill the cache with all tokens except the last, which is the input of `step` or `tree`."""
        wanted = list(tokens[:-1])
        same = 0
        for known, token in zip(self._tokens, wanted, strict=False):
            if known != token:
                break
            same += 1
        if hasattr(self.backend, "truncatable"):
            same = self.backend.truncatable(same)
        self.backend.truncate(same)
        self._tokens = wanted
        while same < len(wanted):
            ids = np.array(wanted[same : same + self._rows(len(wanted) - same)], np.int64)
            method = self._pass(PREFILL if len(ids) > 1 else DECODE)
            self.backend.run(method, ids, np.arange(same, same + len(ids)), np.tri(len(ids), dtype=np.bool_))
            self.backend.commit(range(len(ids)))
            same += len(ids)

    def step(self, token: int, want_logits: bool) -> PassOutput:
        """The pass of one more draft token, which stays in the cache until `end`."""
        length = self.backend.length
        output = self.backend.run(self._pass(DECODE), np.array([token]), np.array([length]), _ITSELF, want_logits)
        self.backend.commit([0])
        return output

    def tree(self, tree: Tree) -> PassOutput:
        """A pass over a whole tree below the text, with logits for each row. Does not change the cache."""
        method = self._pass(self.backend.spec.verify_method(len(tree)))
        return self.backend.run(method, tree.tokens, tree.positions(self.backend.length), tree.ancestors(), True)

    def end(self) -> None:
        """Remove the draft from the cache."""
        self.backend.truncate(len(self._tokens))

    def _rows(self, missing: int) -> int:
        return min(missing, self.backend.spec.prefill_rows)

    def _pass(self, method: str) -> str:
        self.passes[f"{self.name}: {method}"] += 1
        return method


class SelfModel(DraftModel):
    """The target itself, by its method `draft`, on the backend that verifies (Zhang et al., 2023, arXiv 2309.08168).

    The cache contains the text already; the draft's tokens are removed before the tree is verified.
    """

    name = "itself"

    def begin(self, tokens: Sequence[int]) -> None:
        self._tokens = list(tokens[:-1])

    def step(self, token: int, want_logits: bool) -> PassOutput:
        length = self.backend.length
        output = self.backend.run(self._pass(DRAFT), np.array([token]), np.array([length]), _ITSELF, want_logits)
        self.backend.commit([0])
        return output

    def tree(self, tree: Tree) -> PassOutput:
        raise ValueError("the method `draft` takes one row, so it drafts chains")
