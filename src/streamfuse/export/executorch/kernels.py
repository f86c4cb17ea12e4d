"""`--backend kernels`: graphs of streamfuse's own operators, which the native engine runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
from executorch.exir import EdgeProgramManager
from torch import Tensor, nn

from streamfuse.kernels.layout import cache_shapes
from streamfuse.model.low_rank import PROJECTIONS, projection
from streamfuse.model.streams import StreamFused

from ..graphs import Method
from ..selftest import FLOORS
from ..target import TargetFacts
from . import native
from .lower import edge_program
from .target import PteTarget

if TYPE_CHECKING:
    from ..plan import Schemes


class KernelsTarget(PteTarget):
    form: native.Form

    def prepare(self) -> None:
        self.floor, self.form = FLOORS["kernels"], native.Form(cast("Schemes", self.plan.grids))

    def quantize(self) -> dict[str, Method] | None:
        methods = super().quantize()
        _forget(self.model)
        return methods

    def examples(self) -> dict[str, tuple[Tensor, ...]]:
        """The caches in int8, as the operators take them; in PyTorch, where nothing is exported, they are float32."""
        config, capacity = self.model.base.config, self.plan.max_context_len
        packed = cache_shapes(capacity, config.num_kv_heads, config.head_dim)
        float32 = (capacity, config.num_kv_heads, config.head_dim)

        def in_int8(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            first = next((i for i, value in enumerate(inputs) if value.shape == float32), len(inputs))
            caches = (torch.zeros(packed[i % 2], dtype=torch.uint8) for i in range(len(inputs) - first))
            return (*inputs[:first], *caches)

        return {name: in_int8(inputs) for name, inputs in super().examples().items()}

    def edge(self, constants: dict[str, Any]) -> EdgeProgramManager:
        return edge_program(self.methods, self.examples(), constants, self.progress)

    def facts(self) -> TargetFacts:
        found = super().facts()
        grid = {part: report.to_dict() for part, report in self.form.report.items()}
        return replace(
            found, cache_dtype="int8", cache_layout="packed", report={**found.report, "grid": grid}
        )


def _forget(model: StreamFused) -> None:
    """Free the matrices of the layers, which are packed by now: of a large model they are most of the memory.

    Their shapes stay. Embedding and head stay as they are: the host's drafting data is made of them.
    """
    for block in model.base.blocks:
        for name in PROJECTIONS:
            layer = projection(block, name)
            layer.weight = nn.Parameter(torch.empty_like(layer.weight, device="meta"), requires_grad=False)
