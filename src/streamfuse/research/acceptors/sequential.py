"""Draws tried in order, each against the residual of p after the earlier ones: recursive rejection sampling.

One rule covers four methods of the literature, which differ in how the draws are made. Let d_i be the distribution of
draw i given the earlier ones, and r_1 = p. Draw x_i is accepted with probability min(1, r_i(x_i) / d_i(x_i)); otherwise
r_{i+1} = norm(max(r_i - d_i, 0)). If all are rejected, the token is drawn from the last r. Each step preserves r_i
exactly (Leviathan et al., appendix A.1), so by induction the whole preserves p.
"""

from __future__ import annotations

import numpy as np

from streamfuse.research.acceptors.base import DrawAcceptor, Float64Array, Verdict
from streamfuse.research.proposal import How, Proposal


def sequential(p: Float64Array, proposal: Proposal) -> Verdict:
    """The verdict of recursive rejection sampling for p, float64 [V], sum 1, and any draws."""
    left, accept = p, []
    for index, token in enumerate(proposal.draws):
        drawn_from = proposal.conditional(index, len(p))
        accept.append(min(1.0, float(left[token]) / float(drawn_from[token])))
        excess = np.maximum(left - drawn_from, 0.0)
        total = float(excess.sum())
        if not total:  # both distributions are equal, and the draw is accepted
            break
        left = excess / total
    accept += [0.0] * (len(proposal.draws) - len(accept))
    return Verdict(np.array(accept), left)


class SpeculativeAcceptor(DrawAcceptor):
    """Speculative sampling: Leviathan et al. 2211.17192, algorithm 1; Chen et al. 2302.01318, algorithm 2. A chain.

    A node's draw x from q is accepted with probability min(1, p(x) / q(x)), so with probability sum_x min(p, q) in
    total; the first rejection draws from norm(max(p - q, 0)), and after the last draft a token is drawn from p.
    Lossless. ValueError if a node has several draws.
    """

    name = "speculative sampling"

    def verdict(self, p: Float64Array, proposal: Proposal) -> Verdict:
        if len(proposal.draws) > 1:
            raise ValueError(f"speculative sampling takes one draw per node, not {len(proposal.draws)}")
        return sequential(p, proposal)


class SpecInferAcceptor(DrawAcceptor):
    """Multi-step speculative sampling: SpecInfer 2305.09781, algorithm 2, for children that are independent draws.

    Lossless. ValueError for several draws of a node that are not independent.
    """

    name = "SpecInfer"

    def verdict(self, p: Float64Array, proposal: Proposal) -> Verdict:
        demand(proposal, How.INDEPENDENT, self.name)
        return sequential(p, proposal)


class SequoiaAcceptor(DrawAcceptor):
    """Sequential draws without replacement: Sequoia 2402.12374, algorithm 2. Trees.

    A rejected token is never proposed again: it is removed from q, and once q is empty, its other candidates are
    equally probable. With q over the whole vocabulary V and k = V draws every token is accepted (the cover property).
    Lossless. ValueError for several draws of a node that were made differently.
    """

    name = "Sequoia"

    def verdict(self, p: Float64Array, proposal: Proposal) -> Verdict:
        demand(proposal, How.WITHOUT_REPLACEMENT, self.name)
        return sequential(p, proposal)


class CertainAcceptor(DrawAcceptor):
    """EAGLE-2's rule for deterministic children (2406.16858 and its code): each is tried as if q were certain of it.

    A child x is accepted with probability p(x); else p(x) = 0 and p is normalised. A node then accepts with the sum of
    p over its children. Lossless for every tree, also for drawn children, whose q it does not use; repeats count once.
    """

    name = "EAGLE-2"

    def verdict(self, p: Float64Array, proposal: Proposal) -> Verdict:
        children = tuple(dict.fromkeys(proposal.draws))
        certain = sequential(p, Proposal(children))
        first = dict(zip(children, certain.accept.tolist(), strict=True))
        return Verdict(np.array([first.pop(token, 0.0) for token in proposal.draws]), certain.otherwise)


def demand(proposal: Proposal, how: How, name: str) -> None:
    """ValueError unless the draws were made in this way; a single draw is the same in every way."""
    if len(proposal.draws) > 1 and proposal.how is not how:
        raise ValueError(f"{name} takes draws that are {how.value}, not {proposal.how.value}")
