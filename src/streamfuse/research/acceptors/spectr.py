"""SpecTr's k-sequential selection among independent draws (Sun et al. 2310.15141, algorithm 2)."""

from __future__ import annotations

import numpy as np

from streamfuse.research.acceptors.base import DrawAcceptor, Float64Array, Verdict
from streamfuse.research.acceptors.sequential import demand
from streamfuse.research.proposal import How, Proposal

_HALVINGS = 60  # bisection steps on [1, k], down to adjacent doubles


class SpecTrAcceptor(DrawAcceptor):
    """k draws from q, each accepted with probability min(1, p(x) / (rho q(x))) until one is. Lossless.

    With beta(rho) = sum_x min(q(x), p(x) / rho) and p_acc = 1 - (1 - beta)^k, rho in [1, k] is the root of
    p_acc = rho beta; a rejection of all draws from p(x) - min(q(x), p(x) / rho) p_acc / beta, normalised. It accepts at
    least 1 - (1 - 1/k)^k times what the optimal transport plan does (theorem 3). With one draw rho is 1, and this is
    speculative sampling. ValueError for several draws of a node that are not independent.
    """

    name = "SpecTr"

    def verdict(self, p: Float64Array, proposal: Proposal) -> Verdict:
        demand(proposal, How.INDEPENDENT, self.name)
        count = len(proposal.draws)
        q = proposal.conditional(0, len(p))
        rho = division_factor(p, q, count)
        shared = np.minimum(q, p / rho)
        beta = float(shared.sum())
        draws = list(proposal.draws)
        accept = shared[draws] / q[draws]
        if not beta:
            return Verdict(accept, p)
        residual = np.maximum(p - shared * (_accepted(beta, count) / beta), 0.0)
        total = float(residual.sum())
        return Verdict(accept, residual / total if total else p)


def division_factor(p: Float64Array, q: Float64Array, count: int) -> float:
    """rho, for p and q float64 [V] and `count` draws; 1 for one draw, or if p and q have no token in common.

    It is the upper end of a bisection, where the residual is nowhere negative.
    """
    low, high = 1.0, float(count)
    if not (np.minimum(p, q) > 0).any():
        return 1.0
    for _ in range(_HALVINGS):
        rho = (low + high) / 2
        beta = float(np.minimum(q, p / rho).sum())
        low, high = (rho, high) if _accepted(beta, count) > rho * beta else (low, rho)
    return high


def _accepted(beta: float, count: int) -> float:
    """1 - (1 - beta)^k."""
    return float(-np.expm1(count * np.log1p(-min(beta, 1.0)))) if beta < 1 else 1.0
