"""What the targets share whose delegate takes whole methods: stock parts, with a delegate's own norms and weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
import torchao.quantization.quant_primitives as ao
from torch import Tensor, nn
from torch.nn import functional as F

from streamfuse.model.streams import StreamAdapters
from streamfuse.model.transformer import Block, RMSNorm
from streamfuse.runtime.backend import Backend
from streamfuse.runtime.backends.reference import ReferenceBackend

from .. import stock
from ..grid import GROUP, to_q4_1, to_q8_0
from ..plan import PARTS, ExportPlan, Part, PartScheme
from .target import PteTarget

_LARGEST_ZERO = 2.0**14  # in steps of the grid; beyond it a group's spread is below float16's rounding of its minimum


class Form(stock.Form):
    """Quantizes by the plan's scheme of each part. Adapters, pruner and norms stay floats: they are small.

    A delegate overrides what it takes in another form.
    """

    def __init__(self, plan: ExportPlan) -> None:
        self.plan = plan

    def scheme(self, part: Part) -> PartScheme:
        """How a part's weights are stored; the plan has refused what a delegate cannot store."""
        return self.plan.part_scheme(part)

    def norm(self, norm: stock.Norm) -> nn.Module:
        """A module with `norm`'s signature: x [R, h], weight [h] -> [R, h]."""
        return norm

    def linear(self, linear: nn.Linear, scheme: PartScheme) -> nn.Module:
        return GroupedLinear(linear, scheme)

    def table(self, weight: Tensor, scheme: PartScheme) -> nn.Module:
        return GroupedTable(weight, scheme)

    def embedding(self, weight: Tensor) -> nn.Module:
        scheme = self.scheme("embedding")
        return super().embedding(weight) if scheme.bits >= 16 else self.table(weight, scheme)

    def opening(self, block: Block, adapters: StreamAdapters | None) -> nn.Module:
        opening = cast("stock.Opening", super().opening(block, adapters))
        self._quantize("attention", opening.part.qkv_proj)
        return self._with_norms(opening)

    def closing(self, block: Block, adapters: StreamAdapters | None) -> nn.Module:
        closing = cast("stock.Closing", super().closing(block, adapters))
        self._quantize("attention", closing.part.o_proj)
        self._quantize("mlp", closing.part.gate_up_proj, closing.part.down_proj)
        return self._with_norms(closing)

    def head(self, norm: RMSNorm, weight: Tensor) -> nn.Module:
        head = cast("stock.Head", super().head(norm, weight))
        self._quantize("head", head.part)
        return self._with_norms(head)

    def stream_head(self, norm: RMSNorm, weight: Tensor, ids: Tensor, top_k: int) -> nn.Module:
        head = cast("stock.StreamHead", super().stream_head(norm, weight, ids, top_k))
        self._quantize("streams", head.part)
        return self._with_norms(head)

    def _quantize(self, part: Part, *owners: stock.Adapted | stock.HeadPart) -> None:
        scheme = self.scheme(part)
        for owner in owners:
            if scheme.bits < 16:
                owner.product = self.linear(cast("nn.Linear", owner.product), scheme)

    def _with_norms(self, module: nn.Module) -> nn.Module:
        for parent in list(module.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, stock.Norm):
                    setattr(parent, name, self.norm(child))
        return module


class DelegateTarget(PteTarget):
    form: Form

    def rounds(self) -> bool:
        return any(self.form.scheme(part).bits < 16 for part in PARTS)

    def parts(self) -> dict[str, dict[str, Any]]:
        found = super().parts()
        for part in PARTS:
            scheme = self.form.scheme(part)
            found[part].update(scheme=scheme.name, symmetric=scheme.symmetric)
        return found

    def run_by(self, methods: Mapping[str, Callable[..., tuple[Tensor, ...]]]) -> Backend:
        """A backend over what runs the methods here, in the place of the device's engine."""
        config, top = self.model.base.config, self.model.streams_config.num_msa_layers
        return ReferenceBackend(methods, self.spec, config.num_layers, top, config.num_kv_heads, config.head_dim)


class Grouped(nn.Module):
    """A matrix [N, K] in integers, with one scale (and zero) per group of K / G inputs, by torchao.

    The schemes that are a GGUF's Q4_1 and Q8_0 carry its own integers over, with zeros that are no integers.
    """

    values: Tensor  # int8 [N, K]
    scales: Tensor  # [N, G]
    zeros: Tensor | None  # int8 or float32 [N, G]; None: symmetric, where `spelt_out` does not ask for noughts

    def __init__(self, weight: Tensor, scheme: PartScheme, spelt_out: bool = False) -> None:
        super().__init__()
        for name in ("values", "scales", "zeros"):
            self.register_buffer(name, None)
        self.block, self.least = (1, scheme.group_size or weight.shape[1]), -(1 << (scheme.bits - 1))
        self.most = -self.least - 1
        weight = weight.detach().float()
        if scheme == PartScheme(4, GROUP, symmetric=False):
            self.values, self.scales, self.zeros = _q4_1(weight)
        elif scheme == PartScheme(8, GROUP, symmetric=True) and not spelt_out:
            q8_0 = to_q8_0(weight)
            self.values, self.scales, self.zeros = q8_0.q, q8_0.d.float(), None
        else:
            mapping = ao.MappingType.SYMMETRIC if scheme.symmetric else ao.MappingType.ASYMMETRIC
            self.scales, zeros = ao.choose_qparams_affine(
                weight, mapping, self.block, torch.int8, self.least, self.most, zero_point_dtype=torch.int8
            )
            self.values = ao.quantize_affine(weight, self.block, self.scales, zeros, torch.int8, self.least, self.most)
            self.zeros = None if scheme.symmetric and not spelt_out else zeros

    def dequantized(self) -> Tensor:
        floats: Tensor = ao.dequantize_affine(
            self.values, self.block, self.scales, self.zeros, torch.int8, self.least, self.most
        )
        return floats


def _q4_1(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """values, scales and zeros of d q + m as d (v - z), v = q - 8. A group without spread is m (0 - (-1))."""
    grid = to_q4_1(weight)
    d, m = grid.d.float(), grid.m.float()
    flat = m.abs() >= _LARGEST_ZERO * d  # also d = 0
    values = (grid.q.to(torch.int8) - 8).unflatten(1, (-1, GROUP)).masked_fill(flat.unsqueeze(2), 0).flatten(1)
    return values, torch.where(flat, m, d), torch.where(flat, -1.0, -8 - m / torch.where(flat, 1.0, d))


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
