"""The parts on ExecuTorch's own operators: 2-D products, slices, concatenations and element-wise arithmetic.

Those are what delegates take; docs/export.md says why norm weights are inputs of XNNPACK's delegates and why
projections that share an input are one matrix. Attention, top-k and gathers lie outside.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from streamfuse.model.transformer import RMSNorm

from .. import layers
from ..layers import linear_of
from ..schemes import Part


class Norm(nn.Module):
    """RMSNorm of rows [R, n]; of heads [R, H, n] as of so many rows."""

    def __init__(self, norm: RMSNorm) -> None:
        super().__init__()
        self.weight, self.epsilon = norm.weight, norm.eps

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 2:
            return self.rows(x)
        return self.rows(x.reshape(-1, x.shape[-1])).view(x.shape)

    def rows(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class Form(layers.Form):
    """Float32 weights. A delegate says in which form it takes norms."""

    NORM: ClassVar[type[Norm]]

    def norm(self, norm: RMSNorm, axis: int = 1) -> nn.Module:
        return self.NORM(norm)

    def vocabulary(self, part: Part, weight: Tensor) -> nn.Module:
        """A matrix of its own, also where the head is tied: table and head are quantized, each in its own way."""
        return self.linear(part, linear_of(weight.clone()))

    def gated(self, gate_up: Tensor, size: int) -> Tensor:
        # Slices, because chunk() is not delegated, and no silu().
        gate, up = gate_up[:, :size], gate_up[:, size:]
        return gate * torch.sigmoid(gate) * up
