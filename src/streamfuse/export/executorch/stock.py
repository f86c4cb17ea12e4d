"""The parts with ExecuTorch's own operators: 2-D products, slices, concatenations and element-wise arithmetic.

Delegates support these; docs/export.md explains why norm weights are inputs of XNNPACK's delegates and why projections
with the same input are one matrix. Attention, top-k and gathers are outside.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from streamfuse.model.families import Activation
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


class Silu(nn.Module):
    """Written out, as delegates need it."""

    def forward(self, gate: Tensor) -> Tensor:
        return gate * torch.sigmoid(gate)


class Factor(nn.Module):
    """A number as a tensor [1, 1], which XNNPACK's delegates have as an input, like the weights of norms."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((1, 1), value), False)


class Gelu(nn.Module):
    """The approximation with tanh, as a sigmoid."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.cubic = (Factor(value) for value in layers.GELU)

    def forward(self, gate: Tensor) -> Tensor:
        return gate * torch.sigmoid(gate * (self.linear.weight + gate * gate * self.cubic.weight))


class Form(layers.Form):
    """Float32 weights. A subclass defines the form of norms."""

    NORM: ClassVar[type[Norm]]

    def norm(self, norm: RMSNorm, axis: int = 1) -> nn.Module:
        return self.NORM(norm)

    def vocabulary(self, part: Part, weight: Tensor) -> nn.Module:
        """A separate matrix even if the head is tied, since table and head are quantized differently."""
        return self.linear(part, linear_of(weight.clone()))

    def activation(self, kind: Activation) -> nn.Module:
        return Silu() if kind == "silu" else Gelu()
