"""Typical acceptance (Medusa, Cai et al. 2401.10774, section 2.3.1). It changes the distribution of the text."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from streamfuse.research.acceptors.base import Float64Array
from streamfuse.research.acceptors.longest import LongestAcceptor
from streamfuse.runtime.backend import PassOutput
from streamfuse.runtime.reference.accept import MatchAcceptor, Target, Walk
from streamfuse.runtime.reference.tree import Tree


class TypicalAcceptor(LongestAcceptor):
    """A drafted token x passes if p(x) > min(epsilon, delta exp(-H(p))), with H the entropy of p in nats. Lossy.

    The paper accepts the first token greedily and unconditionally; here that is the token after the accepted path, the
    root of the next tree. p is plain decoding's distribution after all filters. With greedy decoding, the text is plain
    decoding's.
    The defaults are those of `generate` in the paper's code (posterior_threshold, posterior_alpha).
    ValueError unless 0 < epsilon < 1 and delta > 0.
    """

    name = "typical"
    lossless = False
    needs_logits = False

    def __init__(self, epsilon: float = 0.09, delta: float = 0.3) -> None:
        if not (0 < epsilon < 1 and 0 < delta < math.inf):
            raise ValueError(f"epsilon must be above 0 and below 1, and delta above 0, not {epsilon} and {delta}")
        self.epsilon = epsilon
        self.delta = delta

    def passes(self, p: Float64Array, tokens: Sequence[int], depth: int) -> npt.NDArray[np.bool_]:
        probable = p[p > 0]
        entropy = float(-(probable * np.log(probable)).sum())
        passed: npt.NDArray[np.bool_] = p[list(tokens)] > min(self.epsilon, self.delta * math.exp(-entropy))
        return passed

    def distribution(self, index: int, history: Sequence[int], pick: Target) -> Float64Array:
        return pick.distribution(index, history)

    def plain(self, p: Float64Array) -> Float64Array:
        return p

    def accept(self, tree: Tree, output: PassOutput, history: Sequence[int], pick: Target) -> Walk:
        if pick.greedy:
            return MatchAcceptor().accept(tree, output, history, pick)
        return super().accept(tree, output, history, pick)
