"""RMSNorm as one operation over any axis, and how coremltools converts it.

Squares overflow float16 above 255, and coremltools' own conversion of `rms_norm` is inexact for small rows
(docs/targets.md). The layer norm of [x, -x] is the RMS norm of x: the mean is zero, the variance is the mean square.
Core ML computes layer_norm as one operation, with wide accumulators.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from coremltools.converters.mil.frontend.torch.ops import _get_inputs
from coremltools.converters.mil.frontend.torch.torch_op_registry import register_torch_op
from coremltools.converters.mil.mil import Builder as mb
from coremltools.converters.mil.mil import types
from torch import Tensor, nn

from streamfuse.model.transformer import RMSNorm

_NAME = "streamfuse_coreml::rms_norm"


@torch.library.custom_op(_NAME, mutates_args=())
def rms_norm(x: Tensor, weight: Tensor, eps: float, axis: int) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over `axis`, weight [size of the axis]; computed in float32, returned as x's
    dtype."""
    shape = [1] * x.ndim
    shape[axis] = -1
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(axis, keepdim=True) + eps)
    return (wide * weight.float().view(shape)).to(x.dtype)


@rms_norm.register_fake
def _(x: Tensor, weight: Tensor, eps: float, axis: int) -> Tensor:
    return torch.empty_like(x)


@register_torch_op(torch_alias=[_NAME])  # type: ignore[untyped-decorator]
def streamfuse_rms_norm(context: Any, node: Any) -> None:
    x, weight, eps, axis = _get_inputs(context, node, expected=4)
    floats, at = types.nptype_from_builtin(x.dtype), axis.val % x.rank
    mirrored = mb.concat(values=[x, mb.mul(x=x, y=floats(-1))], axis=at)
    normed = mb.layer_norm(x=mirrored, axes=[at], gamma=np.tile(weight.val, 2), epsilon=floats(eps.val))
    context.add(mb.slice_by_size(x=normed, begin=[0] * x.rank, size=list(x.shape), name=node.name))


class Norm(nn.Module):
    """RMSNorm of x over `axis`; its weight [size of the axis] is a copy of the model's."""

    def __init__(self, norm: RMSNorm, axis: int = -1) -> None:
        super().__init__()
        self.weight = nn.Parameter(norm.weight.detach().clone(), False)
        self.eps, self.axis = norm.eps, axis

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = rms_norm(x, self.weight, self.eps, self.axis)
        return normed
