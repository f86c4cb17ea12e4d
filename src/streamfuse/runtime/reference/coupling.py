"""The probabilities of drafted tokens in sampled text, given the noise that sampling adds to their scores.

The model chooses the token with the largest sum of score and noise, so a candidate with much noise is more likely to be
right (Gumbel coupling: Daliri, Musco, Suresh, arXiv 2408.07978). docs/contracts.md, section 8, defines it;
core/coupling.cpp is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from streamfuse.runtime.config import SamplingConfig
from streamfuse.runtime.reference.noise import gumbel
from streamfuse.runtime.reference.numbers import Float64Array, exponential, logarithm

# Fitted to texts that SmolLM2-135M sampled at temperatures 0.7 and 1, for all sources of drafts (LOG.md).
DOUBT = 0.5  # by how much candidates differ from the model, in temperatures
OTHER_TOKENS = 1.75  # how much the best noise of the other tokens adds, per squared temperature
MOST_TEMPERATURE = 4.0  # above it drafts are useless anyway
LEAST_REST = 1e-9


@dataclass(frozen=True, slots=True)
class Coupling:
    """Of one text; by default of a greedy one, where drafts need no noise."""

    temperature: float = 0.0
    seed: int = 0
    vocab_size: int = 0

    @classmethod
    def of(cls, sampling: SamplingConfig, vocab_size: int) -> Coupling:
        return cls(min(sampling.temperature, MOST_TEMPERATURE), sampling.seed, vocab_size)

    def apply(self, position: int, tokens: Sequence[int], log_probs: Float64Array) -> Float64Array:
        """float64 [..., n]: log-probabilities of the candidates [n] for `position`, given their noise; from log_probs
        [..., n] without it."""
        if self.temperature == 0:
            return log_probs
        scale = 1.0 / (1.0 + DOUBT * self.temperature)
        known = np.minimum(log_probs, 0.0)
        rest = np.maximum(1.0 - _sums(exponential(known)), LEAST_REST)
        others = exponential(logarithm(rest) * scale + OTHER_TOKENS * self.temperature * self.temperature)
        scores = (known + self.temperature * gumbel(self.seed, position, tokens, self.vocab_size)) * scale
        total = _sums(np.concatenate([others, exponential(scores)], axis=-1))
        coupled: Float64Array = np.minimum(scores - logarithm(total), 0.0)
        return coupled


def _sums(values: Float64Array) -> Float64Array:
    """float64 [..., 1]: sums of the last axis, computed in index order."""
    sums: Float64Array = np.cumsum(values, axis=-1)[..., -1:]
    return sums


@runtime_checkable
class Coupled(Protocol):
    """A drafter whose drafts are for text that is sampled with this noise."""

    coupling: Coupling


GREEDY = Coupling()
