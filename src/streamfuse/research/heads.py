"""Heads of other methods: rows that begin at the last layer, in place of streams in the top layers (model/heads.py).

Both read the state of one token after all layers: u [h], of root mean square 1, and n, the same after the base's final
norm, which scales it. The residual is u, and the base's final norm and the rows of its vocabulary head follow: a new
head says what the base says of the next token. Importing this module adds both kinds to `config.HEADS`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamfuse.model.config import HEADS
from streamfuse.model.heads import Heads
from streamfuse.model.streams import StreamFused

MEDUSA, BLOCKWISE = "medusa", "blockwise"
_EPS = 1e-12


def unit(hidden: Tensor) -> Tensor:
    """States [..., h] scaled to a root mean square of 1; their direction is all that a norm after them sees."""
    wide = hidden.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + _EPS)).to(hidden.dtype)


class MedusaHeads(Heads):
    """Medusa-1 (Cai et al., 2024, arXiv 2401.10774, section 2.1): u + SiLU(W_j n + b_j), and rows of the vocabulary.

    W_j and b_j begin at zero, the head's rows at the base's. What a head adds to those is of a low rank, because whole
    copies would be larger than all other extra parameters together; rank 0 shares the base's rows. `size` is that rank.
    """

    LEAST_SIZE = 0

    def __init__(self, hidden_size: int, num_heads: int, vocab_size: int, size: int) -> None:
        super().__init__(hidden_size, num_heads, vocab_size, size)
        self.weight = nn.Parameter(torch.zeros(num_heads, hidden_size, hidden_size))
        self.bias = nn.Parameter(torch.zeros(num_heads, hidden_size))
        self.down = nn.Parameter(torch.randn(num_heads, size, hidden_size) / hidden_size**0.5)
        self.up = nn.Parameter(torch.zeros(num_heads, vocab_size, size))

    def forward(self, hidden: Tensor, normed: Tensor) -> Tensor:
        weight, bias = self.weight.to(normed.dtype), self.bias.to(normed.dtype)
        return unit(hidden).unsqueeze(-2) + F.silu(torch.einsum("...h,goh->...go", normed, weight) + bias)

    def added_rows(self, stream: int) -> Tensor:
        """[S, h]: what head `stream` (from 0) adds to the rows of the vocabulary."""
        return self.up[stream] @ self.down[stream]

    def with_own_scores(self, logits: Tensor, states: Tensor, stream: Tensor) -> Tensor:
        of_head = [(stream == j).nonzero()[:, 0] for j in range(len(self.weight))]
        for j, which in enumerate(of_head):
            logits = logits.index_add(0, which, self._added_scores(states[which], j))
        return logits

    def _added_scores(self, rows: Tensor, stream: int) -> Tensor:
        """Normed rows [n, h] of head `stream` -> what `added_rows` add to their logits [n, S]."""
        return rows @ self.down[stream].to(rows.dtype).T @ self.up[stream].to(rows.dtype).T

    @staticmethod
    def count(hidden_size: int, num_heads: int, vocab_size: int, size: int) -> tuple[int, int]:
        """The vocabulary rows that these heads add to are stored once for each."""
        h, rows = hidden_size, (num_heads - 1) * vocab_size * hidden_size if size else 0
        return num_heads * (h * h + h + size * (h + vocab_size)), num_heads * h * h + rows

    @staticmethod
    def graph(form: Any, model: StreamFused, top_k: int) -> tuple[nn.Module, nn.Module]:
        from .head_graphs import MedusaRows, head_each

        return MedusaRows(form, model), head_each(form, model, top_k)


class BlockwiseHeads(Heads):
    """Blockwise parallel decoding (Stern et al., 2018, arXiv 1811.03115, section 6): u + B_j ReLU(A_j n + a_j) + b_j.

    A feed-forward block of `size` units and a residual per head, before the vocabulary projection that all of them
    share with the base.
    """

    LEAST_SIZE = 1

    def __init__(self, hidden_size: int, num_heads: int, vocab_size: int, size: int) -> None:
        super().__init__(hidden_size, num_heads, vocab_size, size)
        self.inner = nn.Parameter(torch.randn(num_heads, size, hidden_size) / hidden_size**0.5)
        self.inner_bias = nn.Parameter(torch.zeros(num_heads, size))
        self.outer = nn.Parameter(torch.zeros(num_heads, hidden_size, size))
        self.outer_bias = nn.Parameter(torch.zeros(num_heads, hidden_size))

    def forward(self, hidden: Tensor, normed: Tensor) -> Tensor:
        inner, inner_bias, outer, outer_bias = (
            parameter.to(normed.dtype) for parameter in (self.inner, self.inner_bias, self.outer, self.outer_bias)
        )
        units = F.relu(torch.einsum("...h,guh->...gu", normed, inner) + inner_bias)
        return unit(hidden).unsqueeze(-2) + torch.einsum("...gu,ghu->...gh", units, outer) + outer_bias

    @staticmethod
    def count(hidden_size: int, num_heads: int, vocab_size: int, size: int) -> tuple[int, int]:
        h = hidden_size
        return num_heads * (2 * size * h + size + h), 2 * num_heads * size * h

    @staticmethod
    def graph(form: Any, model: StreamFused, top_k: int) -> tuple[nn.Module, nn.Module]:
        from .head_graphs import BlockwiseRows, head_each

        return BlockwiseRows(form, model), head_each(form, model, top_k)


HEADS.update({MEDUSA: MedusaHeads, BLOCKWISE: BlockwiseHeads})
