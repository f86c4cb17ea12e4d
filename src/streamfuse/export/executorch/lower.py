"""Lowering to one ExecuTorch program: torch.export, edge dialect, emission.

Graphs of the kernels' operators need nothing else; graphs of stock operators get their delegates first.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from executorch.exir import (
    EdgeCompileConfig,
    EdgeProgramManager,
    ExecutorchBackendConfig,
    ExecutorchProgramManager,
)
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.program._program import _default_decomposition_table, _generate_edge_program
from torch import Tensor, nn
from torch._export import utils as export_utils
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputSpec, OutputSpec
from torch.fx._lazy_graph_module import _use_lazy_graph_module

from .modules import deduplicated

_ALIGNMENT = 64  # of constants, in bytes: packed weights are read in whole vectors


def edge_program(
    modules: Mapping[str, nn.Module],
    inputs: Mapping[str, tuple[Tensor, ...]],
    constants: dict[str, Any],
    progress: Callable[[str], None] = lambda _: None,
) -> EdgeProgramManager:
    """The modules by method, including their delegates, in ExecuTorch's edge dialect."""
    config = EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True)
    edge = {}
    with torch.no_grad(), quick_graphs():
        for name, module in modules.items():
            progress(f"{name}: graph")
            program = deduplicated(torch.export.export(module.eval(), inputs[name], strict=False))
            edge[name] = edge_dialect(program, config)
        return EdgeProgramManager(edge, constants, config)


def edge_dialect(program: ExportedProgram, config: EdgeCompileConfig) -> ExportedProgram:
    """The program in ExecuTorch's edge dialect, with the operators of `config.preserve_ops` as they are.

    As `to_edge` returns it, but operators are decomposed only if one of them needs it, because that traces the graph
    again. The kernels' operators and XNNPACK's delegates need none.
    """
    decompositions = _default_decomposition_table()
    for kept in config.preserve_ops:
        decompositions.pop(kept, None)
    operators = {node.target for node in program.graph.nodes if isinstance(node.target, OpOverload)}
    if any(one in decompositions or one._can_decompose() for one in operators.difference(config.preserve_ops)):
        program = program.run_decompositions(decompositions)
    edge: ExportedProgram = _generate_edge_program(config, program, preserve_ops=config.preserve_ops)
    return edge


def to_program(edge: EdgeProgramManager) -> ExecutorchProgramManager:
    """Emit the program. Inputs and outputs are not memory-planned, so that an engine binds its own memory."""
    config = ExecutorchBackendConfig(
        memory_planning_pass=MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False),
        constant_tensor_alignment=_ALIGNMENT,
    )
    with torch.no_grad(), quick_graphs():
        return edge.to_executorch(config)


def required_operators(program: ExecutorchProgramManager) -> list[str]:
    """This project's operators that a program calls, by their registered names."""
    plans = program.executorch_program.execution_plan
    names = {f"{op.name}.{op.overload}" if op.overload else op.name for plan in plans for op in plan.operators}
    return sorted(name for name in names if name.startswith("streamfuse::"))


_MAPS = ("inputs_to_parameters", "inputs_to_buffers", "inputs_to_lifted_tensor_constants", "buffers_to_mutate")


@contextmanager
def quick_graphs() -> Iterator[None]:
    """Skips repeated work in lowering.

    Every graph pass generates the Python code of the graph, some sixty times per method; here it is generated on
    demand, which never happens. For each node, passes request maps that a graph signature recomputes from all its
    inputs; here they are cached while the inputs stay the same. And each table of decompositions loads all operators of
    the dispatcher, once per namespace; here they are loaded once.
    """
    load_operators = export_utils._materialize_cpp_cia_ops
    properties = {name: vars(ExportGraphSignature)[name] for name in _MAPS}
    try:
        export_utils._materialize_cpp_cia_ops = cache(load_operators)
        for name, made in properties.items():
            setattr(ExportGraphSignature, name, property(_remembered(made.fget)))
        with _use_lazy_graph_module(True), warnings.catch_warnings():
            # torch copies tree specifications in a form that it has deprecated.
            warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)
            yield
    finally:
        export_utils._materialize_cpp_cia_ops = load_operators
        for name, made in properties.items():
            setattr(ExportGraphSignature, name, made)


def _remembered(make: Callable[[ExportGraphSignature], Any]) -> Callable[[ExportGraphSignature], Any]:
    made: dict[int, tuple[object, Any]] = {}  # by the signature's id; the cached entry has what it was computed from

    def get(signature: ExportGraphSignature) -> Any:
        specs: list[InputSpec | OutputSpec] = [*signature.input_specs, *signature.output_specs]
        source = [(spec.kind, getattr(spec.arg, "name", None), spec.target) for spec in specs]
        if id(signature) not in made or made[id(signature)][0] != source:
            made[id(signature)] = source, make(signature)
        return made[id(signature)][1]

    return get
