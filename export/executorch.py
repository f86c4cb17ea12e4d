"""The target ExecuTorch on the kernels' operators or XNNPACK: one model.pte with all methods, weights stored once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from streamfuse.model.low_rank import PROJECTIONS, projection
from streamfuse.model.streams import StreamFused
from streamfuse.runtime.backend import Backend, ModelSpec
from streamfuse.runtime.backends.executorch import ExecuTorchBackend

from . import facts, native, selftest
from .delegates.report import describe
from .graphs import Method, Weights, build_methods
from .lower import lower_methods, required_operators, to_program
from .plan import ExportPlan, Quantize
from .quantize import quantize_weights
from .sizes import manifest_parts, part_sizes
from .target import Progress, TargetFacts

GRAPH_FILE = "model.pte"


class ExecuTorchTarget:
    """See target.Target."""

    def __init__(self, plan: ExportPlan, model: StreamFused, spec: ModelSpec, folder: Path, progress: Progress) -> None:
        self.plan, self.model, self.spec, self.folder, self.progress = plan, model, spec, folder, progress
        named = plan.quantize.value if plan.quantize is not Quantize.NONE else "float32"
        self.floor = selftest.FLOORS["kernels" if plan.kernels else named]
        self.form = None if plan.grids is None else native.Form(plan.grids)
        self.operators: list[str] = []
        self.delegation: dict[str, Any] = {}

    def quantize(self) -> dict[str, Method] | None:
        self.weights = Weights(self.model, self.plan.shapes, self.form).eval()
        if self.form is None and self.plan.quantize is not Quantize.NONE:
            quantize_weights(self.weights, self.plan.group_size)
        if self.form is not None:
            _forget(self.model)
        self.methods = build_methods(self.weights)
        return None if self.plan.quantize is Quantize.NONE else self.methods

    def lower(self) -> None:
        config, streams = self.model.base.config, self.model.streams_config
        constants = facts.constant_methods(config, self.plan, streams.num_streams, streams.num_msa_layers)
        edge = lower_methods(self.weights, self.methods, constants, self.progress)
        self.delegation = {name: report.to_dict() for name, report in describe(edge).items()}
        self.progress("ExecuTorch program")
        program = to_program(edge)
        self.operators = required_operators(program)
        with (self.folder / GRAPH_FILE).open("wb") as file:
            program.write_to_file(file)

    def open(self) -> Backend:
        return ExecuTorchBackend(self.folder / GRAPH_FILE, self.spec)

    def facts(self) -> TargetFacts:
        sizes = part_sizes(self.model.base.config, self.model.streams_config, len(self.model.stream_vocab), self.plan)
        grid = {} if self.form is None else {part: grid.to_dict() for part, grid in self.form.report.items()}
        return TargetFacts(
            backend=self.plan.backend,
            kernels=self.plan.kernels,
            required_operators=self.operators,
            methods={name: facts.method_facts(method, self.weights) for name, method in self.methods.items()},
            cache_dtype="float32",
            quantization=manifest_parts(sizes, self.plan),
            report={"proof": "engine", "delegation": self.delegation, **({"grid": grid} if grid else {})},
        )


def _forget(model: StreamFused) -> None:
    """Free the matrices of the layers, which are packed by now: of a large model they are most of the memory.

    Their shapes stay. Embedding and head stay as they are: the host's drafting data is made of them.
    """
    for block in model.base.blocks:
        for name in PROJECTIONS:
            layer = projection(block, name)
            layer.weight = nn.Parameter(torch.empty_like(layer.weight, device="meta"), requires_grad=False)
