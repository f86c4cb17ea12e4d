"""The parts with ExecuTorch's own operators: 2-D products, slices, concatenations and element-wise arithmetic.

Delegates support these; docs/export.md explains why norm weights are inputs of XNNPACK's delegates and why projections
with the same input are one matrix. Attention, top-k and gathers are outside.
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
    """RMSNorm of rows [R, n], or of heads [R, H, n] as R * H rows."""

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
    """Float32 weights. A subclass defines the form of norms."""

    NORM: ClassVar[type[Norm]]

    def norm(self, norm: RMSNorm, axis: int = 1) -> nn.Module:
        return self.NORM(norm)

    def vocabulary(self, part: Part, weight: Tensor) -> nn.Module:
        """A separate matrix even if the head is tied, since table and head are quantized differently."""
        return self.linear(part, linear_of(weight.clone()))

    def gated(self, gate_up: Tensor, size: int) -> Tensor:
        # Slices, because chunk() is not delegated; and SiLU is written out.
        gate, up = gate_up[:, :size], gate_up[:, size:]
        return gate * torch.sigmoid(gate) * up
