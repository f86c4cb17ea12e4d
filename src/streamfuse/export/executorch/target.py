"""Shared code of the targets for .pte files: methods built from a form, the ExecuTorch program, parity, manifest
fields."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Literal

from executorch.exir import EdgeProgramManager
from torch import Tensor

from streamfuse.runtime.backend import Backend
from streamfuse.runtime.backends.executorch import ExecuTorchBackend

from .. import facts
from ..graphs import Method, Weights, build_methods, example_inputs
from ..layers import Form
from ..sizes import manifest_parts, sizes_of
from ..target import Target, TargetFacts
from .lower import required_operators, to_program
from .report import describe

GRAPH_FILE = "model.pte"


class PteTarget(Target):
    """A subclass provides the parts of its graphs (`form`, which `prepare` sets) and the delegates (`edge`).

    Attributes:
        PROOF: how the file's parity is measured: in this machine's engine, in Core ML's emulator, or on the graph in
            PyTorch.
    """

    PROOF: ClassVar[Literal["engine", "emulator", "simulator", "graph"]] = "engine"

    form: Form

    @abstractmethod
    def edge(self, constants: dict[str, Any]) -> EdgeProgramManager:
        """The methods with their delegates in the edge dialect; calls `progress` once per step.

        Args:
            constants: constant methods, name to value.

        Raises:
            LoweringError: a delegate does not support an operator.
        """

    def examples(self) -> dict[str, tuple[Tensor, ...]]:
        """Zero inputs of every method."""
        return {name: example_inputs(self.weights, method) for name, method in self.methods.items()}

    def rounds(self) -> bool:
        """Whether any weight is quantized to integers."""
        return self.config.quantized

    def quantize(self) -> dict[str, Method] | None:
        self.weights = Weights(self.model, self.config.shapes, self.form).eval()
        self.methods = build_methods(self.weights)
        return self.methods if self.rounds() else None

    def lower(self) -> None:
        config, streams = self.model.base.config, self.model.streams_config
        constants = facts.constant_methods(config, self.config, streams.num_streams, streams.num_msa_layers)
        if self.weights.ring_window is not None:
            constants["get_sliding_window"] = self.weights.ring_window
        edge = self.edge(constants)
        self.delegation = {name: report.to_dict() for name, report in describe(edge).items()}
        self.progress("ExecuTorch program")
        program = to_program(edge)
        self.operators = required_operators(program)
        with (self.folder / GRAPH_FILE).open("wb") as file:
            program.write_to_file(file)

    def open(self) -> Backend:
        return ExecuTorchBackend(self.folder / GRAPH_FILE, self.spec)

    def parts(self) -> dict[str, dict[str, Any]]:
        """The manifest's `quantization`."""
        return manifest_parts(sizes_of(self.model, self.config), self.config)

    def facts(self) -> TargetFacts:
        return TargetFacts(
            backend=self.config.backend,
            kernels=self.config.kernels,
            required_operators=self.operators,
            methods={
                name: facts.method_facts(method, self.weights)
                for name, method in self.methods.items()
                if name not in self.config.extra_methods
            },
            cache_dtype=str(self.form.ROW_DTYPE).removeprefix("torch."),
            quantization=self.parts(),
            report={"proof": self.PROOF, "delegation": self.delegation},
        )
