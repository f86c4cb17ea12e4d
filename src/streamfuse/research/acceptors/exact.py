"""An acceptor's behaviour at a node, integrated exactly over all draws and decisions; for small vocabularies.

All draws are enumerated and the verdicts are summed, so there is no sampling error. V tokens and k draws need V^k
verdicts.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from streamfuse.research.acceptors.base import Float64Array, Rule
from streamfuse.research.proposal import How, Proposal, propose, without


def all_draws(q: Float64Array, count: int, how: How) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every possible sequence of draws from q, float64 [V], with its probability; a single one for chosen draws."""
    if how is How.CHOSEN:
        yield propose(q, count, how, 0, 0).draws, 1.0
        return
    yield from _continued(q, (), 1.0, count if how is How.INDEPENDENT else min(count, len(q)), how)


def _continued(
    q: Float64Array, draws: tuple[int, ...], prob: float, count: int, how: How
) -> Iterator[tuple[tuple[int, ...], float]]:
    if len(draws) == count:
        yield draws, prob
        return
    step = q if how is How.INDEPENDENT else without(q, list(draws))
    for token in np.flatnonzero(step).tolist():
        yield from _continued(q, (*draws, token), prob * float(step[token]), count, how)


def outcome(rule: Rule, p: Float64Array, q: Float64Array, count: int, how: How) -> Float64Array:
    """float64 [V]: the distribution of a node's token, for target p, draft q and `count` draws."""
    total = np.zeros(len(p))
    for draws, prob in all_draws(q, count, how):
        total += prob * rule.verdict(p, Proposal(draws, how, None, q)).outcome(draws)
    return total


def acceptance(rule: Rule, p: Float64Array, q: Float64Array, count: int, how: How) -> float:
    """The probability that a node accepts one of its draws."""
    return sum(
        prob * (1 - rule.verdict(p, Proposal(draws, how, None, q)).rejected) for draws, prob in all_draws(q, count, how)
    )


def loss(rule: Rule, p: Float64Array, q: Float64Array, count: int, how: How) -> float:
    """Total variation between the node's distribution and that of plain decoding; from 0 (lossless) to 1."""
    return float(np.abs(outcome(rule, p, q, count, how) - rule.plain(p)).sum() / 2)
