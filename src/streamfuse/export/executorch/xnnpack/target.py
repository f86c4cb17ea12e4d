"""The target that XNNPACK runs, in ExecuTorch's own runtime or in the native engine."""

from __future__ import annotations

from typing import Any

import torch
from executorch.exir import EdgeProgramManager

from ...selftest import FLOORS
from ..lower import edge_program, quick_graphs
from ..target import PteTarget
from .delegates import with_delegates
from .form import Form


class XnnpackTarget(PteTarget):
    def prepare(self) -> None:
        self.floor = FLOORS[self.config.quantize if self.rounds() else "float32"]
        self.form = Form(self.config.group_size if self.rounds() else None)

    def edge(self, constants: dict[str, Any]) -> EdgeProgramManager:
        inputs = self.examples()
        with torch.no_grad(), quick_graphs():
            modules = with_delegates(self.methods, inputs, self.progress)
        return edge_program(modules, inputs, constants, self.progress)
