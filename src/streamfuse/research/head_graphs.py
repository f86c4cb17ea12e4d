"""Heads of other methods (heads.py) as parts of a graph. Only the kernels' target exports them."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from streamfuse.export.layers import Form, linear_of
from streamfuse.model.streams import StreamFused

from .heads import BlockwiseHeads, MedusaHeads, unit


class MedusaRows(nn.Module):
    """States [R, h] after the last layer -> rows [R, G, h] before the final norm."""

    def __init__(self, form: Form, model: StreamFused) -> None:
        super().__init__()
        heads = cast("MedusaHeads", model.heads)
        self.num_heads, self.norm = heads.weight.shape[0], form.norm(model.base.norm)
        self.linear = form.linear(
            "streams", linear_of(heads.weight.detach().flatten(0, 1), heads.bias.detach().flatten())
        )

    def forward(self, hidden: Tensor) -> Tensor:
        rows = F.silu(self.linear(self.norm(hidden))).view(hidden.shape[0], self.num_heads, -1)
        return unit(hidden).unsqueeze(1) + rows


class BlockwiseRows(nn.Module):
    """Likewise for the heads of blockwise parallel decoding."""

    def __init__(self, form: Form, model: StreamFused) -> None:
        super().__init__()
        heads = cast("BlockwiseHeads", model.heads)
        self.norm, self.units = form.norm(model.base.norm), heads.inner.shape[1]
        inner = linear_of(heads.inner.detach().flatten(0, 1), heads.inner_bias.detach().flatten())
        self.inner = form.linear("streams", inner)
        pairs = zip(heads.outer.detach(), heads.outer_bias.detach(), strict=True)
        self.outer = nn.ModuleList(form.linear("streams", linear_of(weight, bias)) for weight, bias in pairs)

    def forward(self, hidden: Tensor) -> Tensor:
        units = F.relu(self.inner(self.norm(hidden)))
        rows = [outer(units[:, j * self.units : (j + 1) * self.units]) for j, outer in enumerate(self.outer)]
        return unit(hidden).unsqueeze(1) + torch.stack(rows, 1)


class HeadEach(nn.Module):
    """A vocabulary head for each of G streams: rows [R * G, h] in the order that one head for all takes them in."""

    def __init__(self, heads: list[nn.Module]) -> None:
        super().__init__()
        self.heads = nn.ModuleList(heads)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rows = x.view(-1, len(self.heads), x.shape[1])
        found = [head(rows[:, j]) for j, head in enumerate(self.heads)]
        ids, log_probs = (torch.stack([one[i] for one in found], 1) for i in range(2))
        return ids.flatten(0, 1), log_probs.flatten(0, 1)


def head_each(form: Form, model: StreamFused, top_k: int) -> nn.Module:
    """Their vocabulary head: one for all, or one each where they have rows of their own."""
    base, rows = model.base, model.head_rows()
    if not isinstance(model.heads, MedusaHeads) or not model.heads.down.shape[1]:
        return form.stream_head(base.norm, rows, model.stream_vocab, top_k)
    own = [(rows + model.heads.added_rows(j)).detach() for j in range(model.streams_config.num_streams)]
    return HeadEach([form.stream_head(base.norm, weight, model.stream_vocab, top_k) for weight in own])
