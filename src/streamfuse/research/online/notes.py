"""What is noted of an answer: the target's distributions along it, and where drafts were rejected."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from streamfuse.runtime.backend import FloatArray, IntArray
from streamfuse.runtime.reference.loop import Round

BEST = 32  # tokens of a distribution that are kept
GREEDY = (
    0.3  # temperature for greedy answers: only the best token is accepted, yet those close to it teach more than it
)


class Rejection(NamedTuple):
    """A pass whose tree the text left: places of the tree's root, and of the last token that was accepted."""

    root: int
    last: int


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Noted:
    """One answer as its passes saw it; a key of what is computed from it once.

    Attributes:
        tokens: the whole text.
        start: place of the answer's first token; the prompt's have no distributions.
        ids: int64 [n, 32]: the target's likeliest tokens at places start, start + 1, ...
        probs: float32 [n, 32]: their probabilities, normalised.
        rejections: in the text's order.
    """

    tokens: list[int]
    start: int
    ids: IntArray
    probs: FloatArray
    rejections: list[Rejection]


@dataclass(slots=True)
class Watch:
    """Notes one answer; `observe` of a loop whose acceptor asks for logits.

    `temperature` is that of the distributions, above 0.
    """

    temperature: float = GREEDY
    rejections: list[Rejection] = field(default_factory=list)
    _ids: list[IntArray] = field(default_factory=list)
    _scores: list[FloatArray] = field(default_factory=list)

    def __call__(self, one: Round) -> None:
        assert one.output.logits is not None, "an acceptor that needs logits asks for them"
        kept = one.output.kept.tolist()
        for row in one.walk.rows[: one.delivered]:  # the distribution after a row is that of the token it led to
            scores = one.output.logits[kept.index(row)]
            best = np.argpartition(-scores, BEST - 1)[:BEST] if len(scores) > BEST else np.arange(len(scores))
            best = best[np.lexsort((best, -scores[best]))]
            self._ids.append(best.astype(np.int64))
            self._scores.append(np.array(scores[best], np.float32))
        accepted = len(one.walk.rows) - 1
        if one.delivered == len(one.walk.tokens) and accepted < one.tree.depth:  # else the text ended, or all was right
            self.rejections.append(Rejection(one.length - one.delivered, one.length - 1))

    def noted(self, tokens: Sequence[int]) -> Noted:
        """All of it, of the text as it is now."""
        start = len(tokens) - len(self._ids)
        if not self._ids:
            return Noted(list(tokens), start, np.zeros((0, BEST), np.int64), np.zeros((0, BEST), np.float32), [])
        scores = np.stack(self._scores).astype(np.float64)
        weights = np.exp((scores - scores[:, :1]) / self.temperature)
        probs = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
        return Noted(list(tokens), start, np.stack(self._ids), probs, list(self.rejections))


class Buffer:
    """Notes of the last `size` answers, the oldest dropped first; those that came since the last lesson are fresh."""

    def __init__(self, size: int, seed: int = 0) -> None:
        self._notes: deque[Noted] = deque(maxlen=size)
        self._random = random.Random(seed)
        self.fresh = 0

    def __len__(self) -> int:
        return len(self._notes)

    def add(self, one: Noted) -> None:
        self._notes.append(one)
        self.fresh = min(self.fresh + 1, len(self._notes))

    def lesson(self, replayed: int) -> list[Noted]:
        """The fresh notes, and as many as `replayed` of the older ones, drawn anew each time."""
        notes = list(self._notes)
        older = notes[: len(notes) - self.fresh]
        return notes[len(older) :] + self._random.sample(older, min(replayed, len(older)))

    def learned(self) -> None:
        """Nothing is fresh any more."""
        self.fresh = 0
