"""`--backend kernels`: graphs of this project's own operators, which the native engine runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import torch
from executorch.exir import EdgeProgramManager
from torch import nn

from streamfuse.model.low_rank import projection, projections_of
from streamfuse.model.streams import StreamFused
from streamfuse.runtime.backend import Backend, ModelSpec
from streamfuse.runtime.backends.executorch import ExecuTorchBackend, ExecuTorchProgram

from ..config import ExportConfig
from ..facts import num_top_caches
from ..graphs import Method, Weights, build_methods
from ..selftest import FLOORS
from ..target import TargetFacts
from . import native
from .lower import edge_program
from .target import GRAPH_FILE, PteTarget

if TYPE_CHECKING:
    from ..schemes import Schemes


class KernelsTarget(PteTarget):
    form: native.Form

    def prepare(self) -> None:
        int8, merges = self.config.adapter_dtype == "int8", self.config.merges_streams
        self.floor, self.form = FLOORS["kernels"], native.Form(cast("Schemes", self.config.grids), int8, merges)
        self._tasks: dict[str, _TaskTarget] = {}

    def quantize(self) -> dict[str, Method] | None:
        methods = super().quantize()
        merging = [task.model.streams_config for task in self._tasks.values() if task.config.merges_streams]
        _forget(self.model, max((streams.num_msa_layers for streams in merging), default=0))
        return methods

    def task(self, name: str, config: ExportConfig, model: StreamFused, spec: ModelSpec) -> PteTarget:
        self._tasks[name] = _TaskTarget(name, self, config, model, spec)
        return self._tasks[name]

    def edge(self, constants: dict[str, Any]) -> EdgeProgramManager:
        methods, examples = dict(self.methods), self.examples()
        for name, task in self._tasks.items():
            own = task.examples()
            methods |= {f"{name}.{method}": module for method, module in task.methods.items()}
            examples |= {f"{name}.{method}": inputs for method, inputs in own.items()}
            top = num_top_caches(task.model.base.config, task.model.streams_config.num_msa_layers)
            constants |= {f"{name}.get_n_msa_layers": top}
        return edge_program(methods, examples, constants, self.progress)

    def facts(self) -> TargetFacts:
        found = super().facts()
        grid = {part: report.to_dict() for part, report in self.form.report.items()}
        return replace(found, cache_dtype="int8", cache_layout="packed", report={**found.report, "grid": grid})


class _TaskTarget(PteTarget):
    """A task adapter: methods in the program of `whole`, which is quantized before it and lowers and writes both."""

    def __init__(
        self, name: str, whole: KernelsTarget, config: ExportConfig, model: StreamFused, spec: ModelSpec
    ) -> None:
        self.name, self._whole = name, whole
        super().__init__(config, model, spec, whole.folder, whole.progress)

    def prepare(self) -> None:
        self.floor = self._whole.floor
        self.form = self._whole.form.of_task(cast("Schemes", self.config.grids), self.config.merges_streams)

    def quantize(self) -> dict[str, Method]:
        self.weights = Weights(self.model, self.config.shapes, self.form, self._whole.weights).eval()
        self.methods = build_methods(self.weights)
        return self.methods

    def edge(self, constants: dict[str, Any]) -> EdgeProgramManager:
        raise NotImplementedError("a task's methods are lowered with those of its base model")

    def lower(self) -> None:
        self.operators, self.delegation = self._whole.operators, {}

    def open(self) -> Backend:
        with ExecuTorchProgram(self.folder / GRAPH_FILE) as program:
            return ExecuTorchBackend(program.adapter(self.name), self.spec)

    def facts(self) -> TargetFacts:
        return replace(super().facts(), cache_dtype="int8", cache_layout="packed")


def _forget(model: StreamFused, top: int) -> None:
    """Free the matrices of the layers, which have been packed: they are most of a large model's memory.

    Keeps the matrices of the `top` layers, which tasks merge their streams into. All shapes are kept. Embedding and
    head are not freed, since the drafting tables are computed from them.
    """
    for block in model.base.blocks[: model.base.config.num_layers - top]:
        for layer in [*(projection(block, name) for name in projections_of(block)), *block.gate_projections]:
            layer.weight = nn.Parameter(torch.empty_like(layer.weight, device="meta"), requires_grad=False)
