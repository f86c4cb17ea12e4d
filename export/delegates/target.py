"""The target ExecuTorch with a delegate that takes whole methods: model.pte for Core ML or Vulkan."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from streamfuse.export import facts, selftest
from streamfuse.export.graphs import Method, Weights, build_methods
from streamfuse.export.lower import to_program
from streamfuse.export.plan import PARTS, ExportPlan
from streamfuse.export.sizes import manifest_parts, part_sizes
from streamfuse.export.target import Progress, TargetFacts
from streamfuse.model.streams import StreamFused
from streamfuse.runtime.backend import Backend, ModelSpec
from streamfuse.runtime.backends.reference import ReferenceBackend

from .form import Form
from .report import describe

GRAPH_FILE = "model.pte"


class DelegateTarget:
    """See target.Target. What can be run here: Core ML's program by the emulator, Vulkan's graph by PyTorch.

    Raises:
        PlanError: the backend's tools are missing.
    """

    def __init__(self, plan: ExportPlan, model: StreamFused, spec: ModelSpec, folder: Path, progress: Progress) -> None:
        self.plan, self.model, self.spec, self.folder, self.progress = plan, model, spec, folder, progress
        self.backend = import_module(f"{__package__}.{plan.backend}")
        self.form: Form = self.backend.DelegateForm(plan)
        self.report: dict[str, Any] = {}
        named = plan.dtype if plan.backend == "coreml" else "float32"
        self.floor = selftest.FLOORS[named]

    def quantize(self) -> dict[str, Method] | None:
        self.weights = Weights(self.model, self.plan.shapes, self.form).eval()
        self.methods = build_methods(self.weights)
        return None if all(self.form.scheme(part).bits >= 16 for part in PARTS) else self.methods

    def lower(self) -> None:
        config, streams = self.model.base.config, self.model.streams_config
        constants = facts.constant_methods(config, self.plan, streams.num_streams, streams.num_msa_layers)
        edge = self.backend.lower(self.plan, self.weights, self.methods, constants, self.progress)
        self.report = {"proof": self.backend.PROOF, "delegation": {k: v.to_dict() for k, v in describe(edge).items()}}
        if self.backend.PROOF == "graph":
            self.runnable = self.backend.runnable(edge)
        self.progress("ExecuTorch program")
        program = to_program(edge)
        with (self.folder / GRAPH_FILE).open("wb") as file:
            program.write_to_file(file)

    def open(self) -> Backend:
        if self.backend.PROOF == "emulator":
            self.runnable = self.backend.runnable(self.folder / GRAPH_FILE)
        config, top = self.model.base.config, self.model.streams_config.num_msa_layers
        return ReferenceBackend(self.runnable, self.spec, config.num_layers, top, config.num_kv_heads, config.head_dim)

    def facts(self) -> TargetFacts:
        sizes = part_sizes(self.model.base.config, self.model.streams_config, len(self.model.stream_vocab), self.plan)
        parts = manifest_parts(sizes, self.plan)
        for part in PARTS:
            scheme = self.form.scheme(part)
            parts[part].update(scheme=scheme.name, symmetric=scheme.symmetric)
        return TargetFacts(
            backend=self.plan.backend,
            kernels=False,
            required_operators=[],
            methods={name: facts.method_facts(method, self.weights) for name, method in self.methods.items()},
            cache_dtype="float32",
            quantization=parts,
            report=self.report,
        )
