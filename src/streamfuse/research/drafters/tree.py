"""Trees from a draft model: each layer of the tree is one pass of the model over everything drafted so far."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streamfuse.research.growth import eagle2_tree
from streamfuse.research.trees import Path
from streamfuse.runtime.backend import FloatArray, IntArray, PassOutput
from streamfuse.runtime.config import SamplingConfig
from streamfuse.runtime.reference.tree import Tree

from .chain import probabilities
from .model import DraftModel


class TreeDrafter:
    """EAGLE-2's growth (arXiv 2406.16858) with a draft model: `depth` layers, the `per_layer` best nodes of each.

    Children are chosen, not sampled. The depth is limited by the rows of the draft model's widest verify method.
    """

    def __init__(
        self, model: DraftModel, sampling: SamplingConfig | None = None, depth: int = 4, per_layer: int = 3
    ) -> None:
        self.model, self.depth, self.per_layer = model, depth, per_layer
        self.sampling = sampling or SamplingConfig()

    def reset(self) -> None:
        """Does nothing: drafts depend on the text only."""

    def learn(self, output: PassOutput, index: int) -> None:
        """Does nothing: drafts depend on the text only."""

    def draft(self, tokens: Sequence[int], width: int, depth: int) -> Tree:
        self.model.begin(tokens)
        most = max(self.model.backend.spec.verify_widths)
        rows: dict[Path, int] = {(): 0}
        drafted, parents = [tokens[-1]], [-1]

        def expand(paths: Sequence[Path]) -> list[tuple[IntArray, FloatArray]]:
            for path in paths:
                if path not in rows and len(drafted) < most:
                    rows[path] = len(drafted)
                    drafted.append(path[-1])
                    parents.append(rows[path[:-1]])
            output = self.model.tree(Tree.of(drafted, parents))
            assert output.logits is not None, "logits were asked for"
            return [
                self._children(output.logits[rows[path]] if path in rows else None, [*tokens, *path]) for path in paths
            ]

        tree: Tree = eagle2_tree(tokens[-1], expand, width, min(depth, self.depth), self.per_layer)
        self.model.end()
        return tree

    def _children(self, logits: FloatArray | None, text: list[int]) -> tuple[IntArray, FloatArray]:
        """The most probable tokens after `text`, best first; none if the pass had no row for its last token."""
        if logits is None:
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        probs = probabilities(logits, text, self.sampling)
        best = np.argpartition(-probs, self.per_layer)[: self.per_layer]
        best = best[np.argsort(-probs[best], kind="stable")]
        with np.errstate(divide="ignore"):
            return best.astype(np.int64), np.log(probs[best]).astype(np.float32)
