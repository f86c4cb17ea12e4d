"""The parts of graphs for Qualcomm's processor: float16, with integer products."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..pruning import HalfSurvivors, SigmoidEdges, SoftmaxEdges, Survivors
from ..schemes import PartScheme
from . import stock
from .border import Columns
from .decomposed import Int8Linear, ops
from .delegate import Form

FLOATS = torch.float16


class Norm(stock.Norm):
    """RMSNorm as the delegate's own operator."""

    def rows(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[1],), self.weight, self.epsilon)


class Int8(Int8Linear):
    """int8 weights with one scale per output, which stays float32 when the rest of a module becomes float16."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.dequantized(x.dtype), self.bias)

    def dequantized(self, dtype: torch.dtype) -> Tensor:
        found: Tensor = ops.dequantize_per_channel(
            self.weight, self.scales, self.zeros, 0, -self.most, self.most, torch.int8, out_dtype=dtype
        )
        return found

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Int8:
        self.bias = None if self.bias is None else fn(self.bias)
        return self


class NarrowSurvivors(HalfSurvivors):
    """Without int64, which the processor does not support."""

    def best(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        values, rows = super().best(scores)
        return values, rows.to(torch.int32)


class QnnForm(Form):
    NORM, ROW_DTYPE = Norm, FLOATS

    def integers(self, linear: nn.Linear, scheme: PartScheme) -> nn.Module:
        return Int8(linear)

    def top_k(self, ids: Tensor, top_k: int) -> nn.Module:
        return Columns(top_k)

    def survivors(
        self, edges: SigmoidEdges | SoftmaxEdges, rows: int, keep: int, ordered: bool, threshold: float
    ) -> Survivors:
        return NarrowSurvivors(edges, rows, keep, ordered, threshold)
