"""Heads of rival methods: rows that begin at the last layer, in the place of streams in the top layers.

Both read the state of one token after all layers: u [h], of root mean square 1, and n, the same after the base's final
norm, which scales it. Head j proposes the token at t + 1 + j, so to the rest of the system heads are streams without
layers of their own (`num_msa_layers` 0): the same training, graphs, trees and loops. The base is frozen, the residual
is u, and the base's final norm and the rows of its vocabulary head follow: a new head says what the base says of the
next token.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config import MEDUSA

_EPS = 1e-12


def unit(hidden: Tensor) -> Tensor:
    """States [..., h] scaled to a root mean square of 1; their direction is all that a norm after them sees."""
    wide = hidden.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + _EPS)).to(hidden.dtype)


class MedusaHeads(nn.Module):
    """Medusa-1 (Cai et al., 2024, arXiv 2401.10774, section 2.1): u + SiLU(W_j n + b_j), and rows of the vocabulary.

    W_j and b_j begin at zero, the head's rows at the base's. What a head adds to those is of a low rank, because whole
    copies would be larger than all other extra parameters together; rank 0 shares the base's rows.

    `forward`: a state before the final norm [..., h], and n [..., h] -> rows [..., G, h] before the final norm.
    """

    def __init__(self, hidden_size: int, num_heads: int, vocab_size: int, rank: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_heads, hidden_size, hidden_size))
        self.bias = nn.Parameter(torch.zeros(num_heads, hidden_size))
        self.down = nn.Parameter(torch.randn(num_heads, rank, hidden_size) / hidden_size**0.5)
        self.up = nn.Parameter(torch.zeros(num_heads, vocab_size, rank))

    def forward(self, hidden: Tensor, normed: Tensor) -> Tensor:
        weight, bias = self.weight.to(normed.dtype), self.bias.to(normed.dtype)
        return unit(hidden).unsqueeze(-2) + F.silu(torch.einsum("...h,goh->...go", normed, weight) + bias)

    def added_rows(self, stream: int) -> Tensor:
        """[S, h]: what head `stream` (from 0) adds to the rows of the vocabulary."""
        return self.up[stream] @ self.down[stream]

    def added_scores(self, rows: Tensor, stream: int) -> Tensor:
        """Normed rows [n, h] of head `stream` -> what those add to their logits [n, S]."""
        return rows @ self.down[stream].to(rows.dtype).T @ self.up[stream].to(rows.dtype).T


class BlockwiseHeads(nn.Module):
    """Blockwise parallel decoding (Stern et al., 2018, arXiv 1811.03115, section 6): u + B_j ReLU(A_j n + a_j) + b_j.

    A feed-forward block and a residual per head, before the vocabulary projection that all of them share with the base.
    `forward` as of MedusaHeads.
    """

    def __init__(self, hidden_size: int, num_heads: int, units: int) -> None:
        super().__init__()
        self.inner = nn.Parameter(torch.randn(num_heads, units, hidden_size) / hidden_size**0.5)
        self.inner_bias = nn.Parameter(torch.zeros(num_heads, units))
        self.outer = nn.Parameter(torch.zeros(num_heads, hidden_size, units))
        self.outer_bias = nn.Parameter(torch.zeros(num_heads, hidden_size))

    def forward(self, hidden: Tensor, normed: Tensor) -> Tensor:
        inner, inner_bias, outer, outer_bias = (
            parameter.to(normed.dtype) for parameter in (self.inner, self.inner_bias, self.outer, self.outer_bias)
        )
        units = F.relu(torch.einsum("...h,guh->...gu", normed, inner) + inner_bias)
        return unit(hidden).unsqueeze(-2) + torch.einsum("...gu,ghu->...gh", units, outer) + outer_bias


def make_heads(kind: str, hidden_size: int, num_heads: int, vocab_size: int, size: int) -> MedusaHeads | BlockwiseHeads:
    """New heads of a kind; `size` as StreamConfig.head_size says."""
    if kind == MEDUSA:
        return MedusaHeads(hidden_size, num_heads, vocab_size, size)
    return BlockwiseHeads(hidden_size, num_heads, size)
