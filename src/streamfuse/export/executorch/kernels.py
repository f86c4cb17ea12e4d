"""`--backend kernels`: graphs of this project's own operators, which the native engine runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
from executorch.exir import EdgeProgramManager
from torch import nn

from streamfuse.model.low_rank import PROJECTIONS, projection
from streamfuse.model.streams import StreamFused

from ..graphs import Method
from ..selftest import FLOORS
from ..target import TargetFacts
from . import native
from .lower import edge_program
from .target import PteTarget

if TYPE_CHECKING:
    from ..schemes import Schemes


class KernelsTarget(PteTarget):
    form: native.Form

    def prepare(self) -> None:
        self.floor, self.form = FLOORS["kernels"], native.Form(cast("Schemes", self.config.grids))

    def quantize(self) -> dict[str, Method] | None:
        methods = super().quantize()
        _forget(self.model)
        return methods

    def edge(self, constants: dict[str, Any]) -> EdgeProgramManager:
        return edge_program(self.methods, self.examples(), constants, self.progress)

    def facts(self) -> TargetFacts:
        found = super().facts()
        grid = {part: report.to_dict() for part, report in self.form.report.items()}
        return replace(found, cache_dtype="int8", cache_layout="packed", report={**found.report, "grid": grid})


def _forget(model: StreamFused) -> None:
    """Free the matrices of the layers, which have been packed: they are most of a large model's memory.

    Their shapes are kept. Embedding and head are not freed, since the drafting tables are computed from them.
    """
    for block in model.base.blocks:
        for name in PROJECTIONS:
            layer = projection(block, name)
            layer.weight = nn.Parameter(torch.empty_like(layer.weight, device="meta"), requires_grad=False)
