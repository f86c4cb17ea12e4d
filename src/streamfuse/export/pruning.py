"""Selects the nodes of a tree for the top layers, and those that have streams. Few operators, finite numbers."""

from __future__ import annotations

from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamfuse.model.low_rank import Pruner, SigmoidPruner, SoftmaxPruner
from streamfuse.model.transformer import RMSNorm

_PADDING = 1e4
_DEPTH_COST = 1e-3
_ROW_COST = 0.35  # subtracted from an edge's logit per preceding row: a draft's rows are best first


class EarlyExit(nn.Module):
    """States x [T, h] below the top layers -> o_theta of their norm (model/low_rank.py, Pruner), times `scale`."""

    weight: Tensor  # [h]
    down: Tensor  # [r, h]
    up: Tensor  # [h, r]

    def __init__(self, pruner: Pruner, norm: RMSNorm, scale: Tensor | float = 1.0) -> None:
        super().__init__()
        self.eps, low = norm.eps, pruner.low_rank
        self.register_buffer("weight", norm.weight * scale)
        self.register_buffer("down", low.down.detach().clone())
        self.register_buffer("up", low.up * low.scale)

    def forward(self, x: Tensor) -> Tensor:
        normed = x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + self.eps) * self.weight
        return normed + F.linear(F.linear(normed, self.down), self.up)


class SigmoidEdges(nn.Module):
    """Probability [child, parent] of each pair of nodes as an edge: the sigmoid of the child's early-exit logit minus
    the cost of its row. `candidates` [T, h] are the head rows of the nodes' tokens."""

    offset: Tensor  # [T, 1]: offset of the edge to each row

    def __init__(self, pruner: SigmoidPruner, norm: RMSNorm, rows: int) -> None:
        super().__init__()
        self.exit = EarlyExit(pruner, norm, pruner.slope)
        self.register_buffer("offset", pruner.offset.detach() - _ROW_COST * torch.arange(rows).unsqueeze(1))

    def forward(self, x: Tensor, candidates: Tensor) -> Tensor:
        return torch.sigmoid(torch.matmul(candidates, self.exit(x).transpose(0, 1)) + self.offset)


class SoftmaxEdges(nn.Module):
    """The same with the softmax of the early exit's logits over the vocabulary (the paper), for `tokens` int64 [T]."""

    def __init__(self, pruner: SoftmaxPruner, norm: RMSNorm, vocabulary: nn.Module) -> None:
        super().__init__()
        self.exit, self.vocabulary = EarlyExit(pruner, norm), vocabulary

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        probability = torch.softmax(self.vocabulary(self.exit(x)), dim=1)
        return probability.index_select(1, tokens).transpose(0, 1)


def edges_of(pruner: Pruner, norm: RMSNorm, rows: int, vocabulary: nn.Module) -> SigmoidEdges | SoftmaxEdges:
    """Scores the edges of a tree of `rows` nodes; `vocabulary` is the head's product."""
    if isinstance(pruner, SoftmaxPruner):
        return SoftmaxEdges(pruner, norm, vocabulary)
    return SigmoidEdges(cast("SigmoidPruner", pruner), norm, rows)


class Survivors(nn.Module):
    """Selects `keep` of `rows` nodes by path score; and orders them, if only some of them have streams.

    A path score is the sum of the log-probabilities of its edges. It is never positive, so the kept set is closed under
    ancestors, and best first is path order. With a threshold, a node is dropped if any edge of its path is less
    probable, even if fewer than `keep` nodes are left.
    """

    LEAST_PROBABILITY: ClassVar[float] = 1e-20  # lower bound for an edge

    root: Tensor  # [K]: sorts the first row before all others

    def __init__(
        self, edges: SigmoidEdges | SoftmaxEdges, rows: int, keep: int, ordered: bool, threshold: float
    ) -> None:
        super().__init__()
        self.edges, self.rows, self.keep, self.ordered, self.threshold = edges, rows, keep, ordered, threshold
        self.register_buffer("root", F.one_hot(torch.tensor(0), keep) * _PADDING)

    def falling(self, path: Tensor, depth: Tensor) -> Tensor:
        """Path scores [T] that strictly decrease along a path, so that ties never sort a child before its parent."""
        return path - depth * _DEPTH_COST

    def best(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """The `keep` largest of scores [T], and their rows."""
        return torch.topk(scores, self.keep)

    def forward(
        self, x: Tensor, drafted: Tensor, ancestors: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor, Tensor | None]:
        """x [T, h] states below the top layers, drafted: the input of `edges` for the nodes, ancestors [T, T].

        Returns kept int64 [K], rows in path order, dropped ones and padding last (None: all are kept); the same with an
        invalid row number for dropped nodes (None: no threshold); ancestors bool [K, K] of the kept nodes; and, if
        `ordered`, order int64 [K]: indices of the kept nodes, the root first, then by the probability of being the last
        accepted node, which is that of its path minus those of its children's.
        """
        seen, parent, depth = _relations(ancestors, x.dtype)
        probability = self.edges(x, drafted)  # [child, parent]
        edge = (parent * probability.clamp(min=self.LEAST_PROBABILITY).log()).sum(1)
        path = self.falling((seen * edge).sum(1), depth) - torch.relu(1.0 - depth) * _PADDING
        if self.threshold:
            improbable = (parent * (probability < self.threshold).to(x.dtype)).sum(1)
            path = path - (seen * improbable).sum(1) * _PADDING
        kept = named = dropped = None
        if self.keep < self.rows or self.threshold:
            path, kept = self.best(path)
            ancestors = ancestors.index_select(0, kept).index_select(1, kept)
            if self.threshold:
                dropped = path < -_PADDING / 2  # includes padding
                named = kept + dropped.to(kept.dtype) * self.rows
            if self.ordered:
                _, parent, depth = _relations(ancestors, x.dtype)
        if not self.ordered:
            return kept, named, ancestors, None
        reached = path.exp()
        last = reached - (reached.unsqueeze(1) * parent).sum(0) - torch.relu(1.0 - depth) * _PADDING
        if dropped is not None:
            last = last - dropped.to(x.dtype) * _PADDING
        return kept, named, ancestors, self.best(last + self.root)[1]


class HalfSurvivors(Survivors):
    """The same in float16, for a processor without wider floats.

    Scores below -24 count as equal; a row costs 1/16, which is four steps of float16 there. A child's row comes after
    its parent's, so scores still strictly decrease along a path.
    """

    LEAST_PROBABILITY = 2.0**-13  # float16's smallest normal number is 2**-14

    rows_before: Tensor  # [T]: 0 .. T - 1

    def __init__(
        self, edges: SigmoidEdges | SoftmaxEdges, rows: int, keep: int, ordered: bool, threshold: float
    ) -> None:
        super().__init__(edges, rows, keep, ordered, threshold)
        self.register_buffer("rows_before", torch.arange(rows).float())

    def falling(self, path: Tensor, depth: Tensor) -> Tensor:
        return path.clamp(min=-24.0) - self.rows_before * (1 / 16)


def _relations(ancestors: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """ancestors bool [T, T] -> the same as numbers, the matrix of parents [child, parent], and depths [T].

    The root's depth is 1, a padding row's 0.
    """
    seen = ancestors.to(dtype)
    depth = seen.sum(1)
    return seen, seen * (depth.unsqueeze(1) - 1.0 == depth).to(dtype), depth
