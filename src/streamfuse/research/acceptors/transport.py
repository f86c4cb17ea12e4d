"""The optimal transport plan from draws to tokens, as a linear program: what the selection rules approximate.

SpecTr 2310.15141, section 4, equations 3 to 5. The plan has V^k (draws) times V (tokens) variables, so it is only for
comparison on small vocabularies. It needs SciPy, the extra `research`.
"""

from __future__ import annotations

import numpy as np

from streamfuse.extras import need
from streamfuse.research.acceptors.base import DrawAcceptor, Float64Array, Verdict
from streamfuse.research.acceptors.exact import all_draws
from streamfuse.research.proposal import How, Proposal

MOST_VARIABLES = 100_000


def transport_plan(
    p: Float64Array, q: Float64Array, count: int, how: How
) -> tuple[list[tuple[int, ...]], Float64Array]:
    """All draws of positive probability, n of them, and float64 [n, V]: the joint probability of draws and next token.

    Its sums are the probabilities of the draws and p; among such plans it has the most mass on tokens that are drawn.
    p and q float64 [V]. MissingExtra without SciPy; ValueError for a program above MOST_VARIABLES.
    """
    need("transport")
    from scipy.optimize import linprog
    from scipy.sparse import eye_array, kron, vstack

    size = len(p)
    if size ** (count + 1) > MOST_VARIABLES:
        raise ValueError(f"{size} tokens and {count} draws are too many: at most {MOST_VARIABLES} variables")
    draws, probs = zip(*all_draws(q, count, how), strict=True)
    drawn = np.array([[token in tokens for token in range(size)] for tokens in draws], np.float64)
    rows, columns = kron(eye_array(len(draws)), np.ones((1, size))), kron(np.ones((1, len(draws))), eye_array(size))
    found = linprog(-drawn.ravel(), A_eq=vstack((rows, columns)), b_eq=np.concatenate((probs, p)), method="highs-ds")
    if not found.success:
        raise ValueError(f"no transport plan: {found.message}")
    plan: Float64Array = np.maximum(found.x, 0.0).reshape(drawn.shape)
    return list(draws), plan


class TransportAcceptor(DrawAcceptor):
    """Accepts by the optimal plan: no lossless rule accepts a draw more often. Lossless; small vocabularies only.

    ValueError for chosen draws, whose distribution is not known, and for a program above MOST_VARIABLES.
    """

    name = "optimal transport"

    def verdict(self, p: Float64Array, proposal: Proposal) -> Verdict:
        draws, plan = transport_plan(p, proposal.distribution(len(p)), len(proposal.draws), proposal.how)
        left = plan[draws.index(proposal.draws)]
        left = left / left.sum()
        accept, given = [], 1.0
        for token in proposal.draws:
            share = float(left[token])
            accept.append(min(1.0, share / given) if given else 0.0)
            given = max(0.0, given - share)
            left[token] = 0
        return Verdict(np.array(accept), left / left.sum() if left.any() else p)
