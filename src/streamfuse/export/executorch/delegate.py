"""Shared code of the targets whose delegate takes whole methods: stock parts with the delegate's norms and weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torchao.quantization.quant_primitives as ao
from torch import Tensor, nn
from torch.nn import functional as F

from streamfuse.runtime.backend import Backend

from ..config import ExportConfig
from ..integers import Integers, to_integers
from ..pruning import HalfSurvivors, SigmoidEdges, SoftmaxEdges, Survivors
from ..reference import reference_backend
from ..schemes import PARTS, Part, PartScheme
from . import stock
from .target import PteTarget


class Form(stock.Form):
    """Quantizes by the scheme of each part. Adapters, pruner and norms stay floats: they are small.

    A subclass defines its norms and overrides what its delegate needs in another form.
    """

    def __init__(self, config: ExportConfig) -> None:
        self.config = config

    @property
    def is_half(self) -> bool:
        """Whether the delegate computes in float16."""
        return self.config.dtype == "float16"

    def survivors(
        self, edges: SigmoidEdges | SoftmaxEdges, rows: int, keep: int, ordered: bool, threshold: float
    ) -> Survivors:
        kind = HalfSurvivors if self.is_half else Survivors
        return kind(edges, rows, keep, ordered, threshold)

    def scheme(self, part: Part) -> PartScheme:
        """How a part's weights are stored; `resolve` has checked that the delegate supports it."""
        return self.config.part_scheme(part)

    def integers(self, linear: nn.Linear, scheme: PartScheme) -> nn.Module:
        return GroupedLinear(linear, scheme)

    def table(self, weight: Tensor, scheme: PartScheme) -> nn.Module:
        return GroupedTable(weight, scheme)

    def linear(self, part: Part, linear: nn.Linear) -> nn.Module:
        scheme = self.scheme(part)
        return linear if scheme.bits >= 16 else self.integers(linear, scheme)

    def embedding(self, weight: Tensor) -> nn.Module:
        scheme = self.scheme("embedding")
        return super().embedding(weight) if scheme.bits >= 16 else self.table(weight, scheme)


class DelegateTarget(PteTarget):
    form: Form

    def rounds(self) -> bool:
        return any(self.form.scheme(part).bits < 16 for part in PARTS)

    def run_by(self, methods: Mapping[str, Callable[..., tuple[Tensor, ...]]]) -> Backend:
        """A backend that calls these functions instead of the device's engine."""
        return reference_backend(methods, self.model, self.spec, self.weights)


class Grouped(nn.Module):
    """A matrix [N, K] of integers with one scale (and zero point) per group of K / G inputs, decoded by torchao."""

    values: Tensor  # int8 [N, K]
    scales: Tensor  # [N, G]
    zeros: Tensor | None  # int8 or float32 [N, G]; None: symmetric, unless `spelt_out` requires zeros

    def __init__(self, weight: Tensor, scheme: PartScheme, spelt_out: bool = False) -> None:
        super().__init__()
        found = to_integers(weight, scheme, _rounded).with_zeros(8)
        self.register_buffer("values", found.q)
        self.register_buffer("scales", found.d.float())
        self.register_buffer("zeros", None if scheme.symmetric and not spelt_out else found.z)
        self.block, (self.least, self.most) = (1, scheme.group_size or weight.shape[1]), _range(scheme)

    def dequantized(self) -> Tensor:
        floats: Tensor = ao.dequantize_affine(
            self.values, self.block, self.scales, self.zeros, torch.int8, self.least, self.most
        )
        return floats


def _rounded(weight: Tensor, scheme: PartScheme) -> Integers:
    """Quantized by torchao."""
    block, bounds = (1, scheme.group_size or weight.shape[1]), _range(scheme)
    mapping = ao.MappingType.SYMMETRIC if scheme.symmetric else ao.MappingType.ASYMMETRIC
    scales, zeros = ao.choose_qparams_affine(weight, mapping, block, torch.int8, *bounds, zero_point_dtype=torch.int8)
    return Integers(ao.quantize_affine(weight, block, scales, zeros, torch.int8, *bounds), scales, z=zeros)


def _range(scheme: PartScheme) -> tuple[int, int]:
    """The minimum and maximum integer."""
    return -(1 << (scheme.bits - 1)), (1 << (scheme.bits - 1)) - 1


class GroupedLinear(Grouped):
    """x [R, K] -> [R, N]."""

    bias: Tensor | None

    def __init__(self, linear: nn.Linear, scheme: PartScheme, spelt_out: bool = False) -> None:
        super().__init__(linear.weight, scheme, spelt_out)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.dequantized(), self.bias)


class GroupedTable(Grouped):
    """ids [R] -> [R, K]."""

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.dequantized())
