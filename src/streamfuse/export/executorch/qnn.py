"""Qualcomm's Hexagon processor: each method is one graph of one context binary, which is stored once.

ExecuTorch's QNN delegate takes a method as a whole, and its multi-method compilation combines the graphs into one
context that stores equal weights once. The processor computes in float16 and does not support int64. Caches and new
rows are float16 in the graph's signature, so that an engine binds them once and no pass converts them; ids, masks and
the few numbers of a result are converted outside of the delegate. Products may use 16-bit integers (`qnn_integers`),
whose ranges are measured while the model answers questions in PyTorch.
"""

from __future__ import annotations

import copy
import operator
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from executorch.backends.qualcomm.partition.qnn_partitioner import QnnOperatorSupport, QnnPartitioner
from executorch.backends.qualcomm.qnn_preprocess import QnnBackend
from executorch.backends.qualcomm.serialization.qc_schema import QcomChipset
from executorch.backends.qualcomm.utils import utils as qnn
from executorch.exir import EdgeProgramManager, to_edge_transform_and_lower
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import PartitionResult
from torch import nn
from torch.export import ExportedProgram

from streamfuse.runtime.backend import Backend
from streamfuse.runtime.backends.executorch import ExecuTorchBackend

from ..calibrate import answer_all, texts_of
from ..draft import draft_arrays
from ..graphs import Method
from ..selftest import FLOORS
from ..target import TargetFacts
from .border import Border, BorderTarget, Narrow, narrowed, taken
from .lower import edge_program, to_program
from .modules import LoweringError, answers_with_shapes, deduplicated, delegate_module
from .qnn_form import FLOATS, Int8, QnnForm
from .qnn_integers import IntegerForm, Integers
from .qnn_sdk import load_compiler, quiet
from .target import GRAPH_FILE


def in_order_of_work(program: ExportedProgram) -> list[int]:
    """Reorder a program's outputs to the order in which it computes them; returns the original index of each.

    A context does not preserve any other order, and its outputs are bound by index.
    """
    graph = program.graph
    places = {node: i for i, node in enumerate(graph.nodes)}
    (output,) = (node for node in graph.nodes if node.op == "output")
    nodes, specs = list(output.args[0]), program.graph_signature.output_specs
    order = sorted(range(len(nodes)), key=lambda i: places[nodes[i]])
    output.args = (tuple(nodes[i] for i in order),)
    specs[:] = [specs[i] for i in order]
    program.graph_module.recompile()
    return order


class QnnTarget(BorderTarget):
    """The vendor's simulator runs the graphs that a phone's processor runs.

    It does not load contexts whose graphs share weights. If those in the file do, the same graphs are also compiled
    without sharing, and the parity check runs those.
    """

    PROOF = "simulator"

    def prepare(self) -> None:
        load_compiler()
        integers = self.config.integer_activations
        self.floor = FLOORS["16a8w" if integers else "float16"]
        self.form = IntegerForm(self.config) if integers else QnnForm(self.config)
        self.float_products: list[str] = []
        self.proof = self.folder / GRAPH_FILE
        self.scratch: tempfile.TemporaryDirectory[str] | None = None

    def quantize(self) -> dict[str, Method] | None:
        methods = super().quantize()
        if methods is not None and self.config.integer_activations:
            self._settle(methods)
        return methods

    def _settle(self, methods: dict[str, Method]) -> None:
        """Set the ranges of the products, measured while the methods run."""
        answer_all(self.run_by(methods), draft_arrays(self.model), texts_of(self.config, self.model))
        for name, module in self.weights.named_modules():
            if isinstance(module, Integers):
                if not module.seen:
                    raise LoweringError(f"calibration runs no row through {name}; give a longer --calibration-text")
                module.settle()
                if module.floats:
                    self.float_products.append(name)

    def edge(self, constants: dict[str, Any]) -> EdgeProgramManager:
        """Every method as one delegate; all of them are graphs of one context."""
        sharing = self.config.weight_sharing == "on"
        programs = self._programs(self._narrow())
        if sharing:
            self.scratch = tempfile.TemporaryDirectory()
            self.proof = Path(self.scratch.name) / GRAPH_FILE
            with self.proof.open("wb") as file:
                to_program(self._compiled(copy.deepcopy(programs), constants, sharing=False)).write_to_file(file)
        return self._compiled(programs, constants, sharing)

    def open(self) -> Backend:
        return ExecuTorchBackend(self.proof, self.spec)

    def facts(self) -> TargetFacts:
        found = super().facts()
        if self.scratch is not None:
            self.scratch.cleanup()
        compiled_for: dict[str, Any] = {"soc": self.config.soc, "weight_sharing": self.config.weight_sharing}
        if self.config.integer_activations:
            compiled_for["float_products"] = self.float_products
        return replace(found, report={**found.report, **compiled_for})

    def _narrow(self) -> dict[str, nn.Module]:
        """The methods with the processor's dtypes, sharing one copy of the weights."""
        inputs = self.examples()
        inners = nn.ModuleDict({name: Narrow(method, len(inputs[name])) for name, method in self.methods.items()})
        inners = copy.deepcopy(inners).half().eval()
        for module in inners.modules():
            for name, buffer in () if isinstance(module, Int8) else module.named_buffers(recurse=False):
                module.register_buffer(name, narrowed(buffer, FLOATS))
        return dict(inners.items())

    def _programs(self, inners: dict[str, nn.Module]) -> dict[str, ExportedProgram]:
        """The methods in ExecuTorch's edge dialect after the delegate's own passes, with every operator checked."""
        passes = qnn.get_qnn_pass_manager_cls(qnn.QnnExecuTorchBackendType.kHtpBackend)()
        specs = self._specs(sharing=False)
        exported, transforms = {}, {}
        for name, inner in inners.items():
            self.progress(f"{name}: graph")
            given = taken(self.methods[name], self.examples()[name])
            inputs = tuple(narrowed(tensor, FLOATS) for tensor in given)
            with quiet():
                program = deduplicated(torch.export.export(inner, inputs, strict=False))
                exported[name] = passes.transform_for_export_pipeline(program)
                transforms[name] = passes.get_to_edge_transform_passes(exported[name], compiler_specs=specs)
        with quiet(), qnn.QnnManagerContext({name: specs for name in inners}):
            edge = to_edge_transform_and_lower(
                exported,
                transform_passes=transforms,
                partitioner={name: [Whole(specs, name)] for name in exported},
                compile_config=qnn.qnn_edge_config(),
            )
        return {name: edge.exported_program(name) for name in exported}

    def _compiled(
        self, programs: dict[str, ExportedProgram], constants: dict[str, Any], sharing: bool
    ) -> EdgeProgramManager:
        specs = self._specs(sharing)
        self.progress("QNN context")
        orders = {name: in_order_of_work(program) for name, program in programs.items()}
        with quiet() as errors, qnn.QnnManagerContext({name: specs for name in programs}):
            try:
                results = QnnBackend.preprocess_multimethod(
                    {name: [program] for name, program in programs.items()}, {name: [specs] for name in programs}
                )
            except (AssertionError, RuntimeError) as error:
                why = errors() or error
                raise LoweringError(f"Qualcomm's compiler rejects the graphs for {self.config.soc}: {why}") from error
        made: dict[str, nn.Module] = {}
        for name, (result,) in results.items():
            module = delegate_module(answers_with_shapes(programs[name]), QnnBackend.__name__, result, specs)
            made[name] = Border(module, self.methods[name], self.model.stream_vocab, FLOATS, orders[name])
        return edge_program(made, self.examples(), constants)

    def _specs(self, sharing: bool) -> list[CompileSpec]:
        options = qnn.generate_htp_compiler_spec(use_fp16=True, use_weight_sharing=sharing)
        found: list[CompileSpec] = qnn.generate_qnn_executorch_compiler_spec(QcomChipset[self.config.soc], options)
        return found


class Whole(QnnPartitioner):  # type: ignore[misc]
    """Partitions nothing, but rejects a program with an operator that the processor does not support."""

    def __init__(self, specs: list[CompileSpec], method: str) -> None:
        super().__init__(specs)
        self.method, self.asked = method, False

    def ops_to_not_decompose(self, program: ExportedProgram) -> Any:
        """Empty after the check, since the operators are then compiled."""
        return ([], None) if self.asked else super().ops_to_not_decompose(program)

    def partition(self, program: ExportedProgram) -> PartitionResult:
        self.asked = True
        support = QnnOperatorSupport(program, self.compiler_specs_snapshot, set(), set())
        calls = [node for node in program.graph.nodes if node.op == "call_function"]
        refused = {str(node.target) for node in calls if not _supported(support, node)}
        if refused:
            raise LoweringError(f"{self.method}: the Hexagon processor does not support {', '.join(sorted(refused))}")
        return PartitionResult(tagged_exported_program=program, partition_tags={})


def _supported(support: QnnOperatorSupport, node: torch.fx.Node) -> bool:
    return node.target is operator.getitem or support.is_node_supported({}, node)
