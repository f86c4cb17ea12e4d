"""The small trained modules that extend a base model: low-rank adapters, the parent term, the pruner."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .transformer import Block

# Projections of a layer that can have low-rank adapters.
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def projections_of(block: Block) -> tuple[str, ...]:
    """Those of `PROJECTIONS` that a layer has. A layer that shares the keys and values of a lower one has no k_proj and
    no v_proj."""
    return tuple(name for name in PROJECTIONS if hasattr(block.mixer, name) or hasattr(block.mlp, name))


def projection(block: Block, name: str) -> nn.Linear:
    """One of the matrices of a layer."""
    owner: nn.Module = block.mixer if hasattr(block.mixer, name) else block.mlp
    layer: nn.Linear = getattr(owner, name)
    return layer


class LowRank(nn.Module):
    """x [..., n_in] -> scale * up(down(x)) [..., n_out]; zero at the start."""

    def __init__(self, n_in: int, n_out: int, rank: int, scale: float = 1.0) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(rank, n_in) / math.sqrt(n_in))
        self.up = nn.Parameter(torch.zeros(n_out, rank))
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        # Skips conversions and products without effect, because an exporter would write them into its graph.
        down, up = (m if m.dtype == x.dtype else m.to(x.dtype) for m in (self.down, self.up))
        inner = F.linear(x, down)
        return F.linear(inner if self.scale == 1.0 else inner * self.scale, up)  # scaling the inner rows is cheaper

    @torch.no_grad()
    def joined(self, other: LowRank) -> LowRank:
        """One adapter with the sum of both ranks whose result is the sum of both, float32."""
        both = LowRank(self.down.shape[1], self.up.shape[0], len(self.down) + len(other.down))
        both.down.copy_(torch.cat([self.down, other.down]))
        both.up.copy_(torch.cat([self.up * self.scale, other.up * other.scale], 1))
        return both


class StreamAdapters(nn.ModuleDict):
    """Low-rank adapters of one layer: for its stream rows (row-masked; paper, lossless mode) or for all rows
    (shared)."""

    def __init__(self, low_ranks: Mapping[str, LowRank]) -> None:
        super().__init__(low_ranks)

    @classmethod
    def of(cls, block: Block, rank: int, alpha: float) -> StreamAdapters:
        """New adapters for all projections of a layer."""
        shapes = {name: projection(block, name) for name in projections_of(block)}
        return cls({n: LowRank(p.in_features, p.out_features, rank, alpha / rank) for n, p in shapes.items()})

    def joined(self, other: StreamAdapters) -> StreamAdapters:
        """Adapters whose results are the sums of both, with one product of the combined rank."""
        mine, others = cast("dict[str, LowRank]", dict(self)), cast("dict[str, LowRank]", dict(other))
        return StreamAdapters({name: low_rank.joined(others[name]) for name, low_rank in mine.items()})

    def adapt(self, name: str, x: Tensor) -> Tensor:
        """The adapter's contribution to the output of projection `name` for its input x."""
        added: Tensor = self[name](x)
        return added

    @torch.no_grad()
    def merge_into(self, block: Block) -> None:
        """Add the adapters to the block's weights, in new tensors: other users of the old tensors are not affected."""
        for name in self:
            layer, low_rank = projection(block, name), cast("LowRank", self[name])
            added = (low_rank.up.float() @ low_rank.down.float()) * low_rank.scale
            layer.weight = nn.Parameter((layer.weight + added).to(layer.weight.dtype), requires_grad=False)


class ParentTerm(nn.Module):
    """Conditions a stream on the parent token, an addition to the paper: score += ((Ê_u U) * g_j) . (V E_c).

    A stream's distribution is marginal over the tokens between it and the last accepted one, but a tree proposes a
    particular parent u. Ê_u is u's embedding row scaled to unit length. Rank r: 2 h r + num_streams r parameters.
    """

    def __init__(self, hidden_size: int, num_streams: int, rank: int) -> None:
        super().__init__()
        self.left = nn.Parameter(torch.randn(hidden_size, rank))  # U
        self.right = nn.Parameter(torch.zeros(rank, hidden_size))  # V
        self.gate = nn.Parameter(torch.ones(num_streams, rank))  # g

    def left_rows(self, embedding: Tensor) -> Tensor:
        """[n, hidden_size] embedding rows of parents -> [n, rank]."""
        return F.normalize(embedding.float(), dim=-1) @ self.left

    def right_rows(self, head: Tensor) -> Tensor:
        """[S, hidden_size] head rows of candidates -> [S, rank]."""
        return head.float() @ self.right.T


class Pruner(nn.Module):
    """Early exit before the streams are inserted (paper, tree pruning): scores the edge parent -> child.

    z = o_theta(norm(m_parent)) . E_child with o_theta = identity + rank-r map. A score is never positive, so a path's
    score never exceeds its parent's.
    """

    def __init__(self, hidden_size: int, rank: int) -> None:
        super().__init__()
        self.low_rank = LowRank(hidden_size, hidden_size, rank)

    def early_exit(self, normed: Tensor) -> Tensor:
        """o_theta of main states [..., h] after the final norm -> [..., h]."""
        return normed + self.low_rank(normed)


class SoftmaxPruner(Pruner):
    """The score log softmax of z over the vocabulary (arXiv 2402.11131, tree pruning). It needs the whole vocabulary
    head for each parent."""


class SigmoidPruner(Pruner):
    """The score log sigmoid(a z + b), which needs the drafted tokens' head rows only."""

    def __init__(self, hidden_size: int, rank: int) -> None:
        super().__init__(hidden_size, rank)
        self.slope = nn.Parameter(torch.tensor(0.3))
        self.offset = nn.Parameter(torch.tensor(-3.0))

    def edge_logit(self, z: Tensor) -> Tensor:
        """a z + b, whose log sigmoid is the edge's score; z is the product of `early_exit` and a child's head row."""
        return self.slope * z + self.offset
