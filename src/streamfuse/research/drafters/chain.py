"""Chains: a model drafts one token after another, until a rule ends the chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from streamfuse.research.proposal import Float64Array, Grower, How, Proposal
from streamfuse.runtime.backend import FloatArray, PassOutput
from streamfuse.runtime.config import SamplingConfig
from streamfuse.runtime.reference.sampling import Sampler, distribution, penalise
from streamfuse.runtime.reference.tree import Tree

from .model import DraftModel


class Exit(Protocol):
    """Decides when a chain ends before its maximum length."""

    needs_probability: bool

    def ends(self, probability: float) -> bool:
        """Whether a token with this draft probability is the last of its chain."""
        ...

    def learn(self, drafted: int, accepted: int, whole: bool) -> None:
        """Called with the result of the last chain; `whole` if it had its maximum length."""
        ...


class Never:
    """Never ends a chain early (Leviathan et al., 2023, arXiv 2211.17192)."""

    needs_probability = False

    def ends(self, probability: float) -> bool:
        return False

    def learn(self, drafted: int, accepted: int, whole: bool) -> None:
        pass


@dataclass(slots=True)
class AdaptiveExit:
    """Draft & Verify's adaptive exit (2309.08168, section 4.3): a threshold that keeps the matched share near `target`.

    A chain ends after a token whose probability is below `threshold`. After each verification, the share of matched
    tokens is smoothed by `share_memory`; the threshold is raised by `step` if the share is too low, else lowered,
    unless the whole chain was drafted, and smoothed by `threshold_memory`. The constants are the authors'.
    """

    threshold: float = 0.8
    target: float = 0.9
    step: float = 0.01
    share_memory: float = 0.5
    threshold_memory: float = 0.9
    share: float = 1.0
    needs_probability: bool = field(default=True, init=False)

    def ends(self, probability: float) -> bool:
        return probability < self.threshold

    def learn(self, drafted: int, accepted: int, whole: bool) -> None:
        self.share = self.share_memory * self.share + (1 - self.share_memory) * accepted / drafted
        wanted = self.threshold
        if self.share < self.target:
            wanted += self.step
        elif not whole:
            wanted -= self.step
        self.threshold = self.threshold_memory * self.threshold + (1 - self.threshold_memory) * wanted


class ChainDrafter:
    """Drafts with a model, token by token: the most probable tokens for greedy decoding, else samples.

    Args:
        model: the draft model.
        sampling: the text's sampling settings, which also apply to the draft model's logits.
        exit_: when a chain ends early.
        length: maximum length of a chain; None: as many tokens as fit into the verify pass.
        how: how tokens are sampled; the acceptor requires one of the two ways.
    """

    def __init__(
        self,
        model: DraftModel,
        sampling: SamplingConfig | None = None,
        exit_: Exit | None = None,
        length: int | None = None,
        how: How = How.INDEPENDENT,
    ) -> None:
        self.model, self.exit, self.length, self.how = model, exit_ or Never(), length, how
        self.sampling = sampling or SamplingConfig()
        # Length of the last chain, length of the text before it, and whether the chain had its maximum length.
        self._drafted, self._at, self._whole = 0, 0, False

    def reset(self) -> None:
        self._drafted = 0

    def learn(self, output: PassOutput, index: int) -> None:
        """Does nothing: the number of accepted tokens follows from the text, at the next draft."""

    def draft(self, tokens: Sequence[int], width: int, depth: int) -> Tree:
        if self._drafted:
            accepted = min(len(tokens) - self._at - 1, self._drafted)
            self.exit.learn(self._drafted, accepted, self._whole)
        grower = Grower(tokens[-1], self.sampling.seed, len(tokens) - 1)
        most = min(width - 1, depth, self.length or width)
        self.model.begin(tokens)
        text, row = list(tokens), 0
        while len(grower) <= most:
            row, probability = self._next(grower, row, text)
            text.append(grower.tokens[row])
            if self.exit.ends(probability):
                break
        self.model.end()
        self._drafted, self._at, self._whole = len(grower) - 1, len(tokens), len(grower) > most
        return grower.done()

    def _next(self, grower: Grower, row: int, text: list[int]) -> tuple[int, float]:
        """Draft one token below `row`; returns its row, and its probability if it is needed."""
        greedy = self.sampling.greedy
        output = self.model.step(
            text[-1], not greedy or self.exit.needs_probability or Sampler(self.sampling).needs_logits
        )
        if greedy and output.logits is None:
            return grower.add(row, Proposal((int(output.best[0]),)))[0], 1.0
        assert output.logits is not None, "logits were asked for"
        probs = probabilities(output.logits[0], text, self.sampling)
        if greedy:
            token = int(np.argmax(probs))
            return grower.add(row, Proposal((token,)))[0], float(probs[token])
        (child,) = grower.propose(row, probs, 1, self.how)
        return child, float(probs[grower.tokens[child]])


def probabilities(logits: FloatArray, text: Sequence[int], sampling: SamplingConfig) -> Float64Array:
    """float64 [V], sum 1: a draft's distribution with the text's sampling settings; at temperature 1 if it is
    greedy."""
    scores = penalise(np.asarray(logits, np.float32), text, sampling.repetition_penalty)
    if sampling.greedy:
        weights = np.exp(scores.astype(np.float64) - scores.max())
        return np.asarray(weights / weights.sum(), np.float64)
    ids, _, weights = distribution(scores, sampling)
    probs = np.zeros(len(scores))
    probs[ids] = weights / weights.sum()
    return probs
