"""Lowering to one ExecuTorch program: torch.export, edge dialect, emission.

Graphs of the kernels' operators need nothing else; graphs of stock operators get their delegates first.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeAlias

import torch
from executorch.exir import (
    EdgeCompileConfig,
    EdgeProgramManager,
    ExecutorchBackendConfig,
    ExecutorchProgramManager,
)
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.passes.normalize_transpose_pass import NormalizeTransposePass
from executorch.exir.passes.remove_mixed_type_operators import RemoveMixedTypeOperators
from executorch.exir.passes.replace_broken_ops_with_function_ops_pass import ReplaceBrokenOpsWithFunctionalOpsPass
from executorch.exir.passes.sym_to_tensor_pass import SymToTensorPass
from executorch.exir.program import _program
from executorch.exir.program._program import _default_decomposition_table, _generate_edge_program
from torch import SymBool, SymFloat, SymInt, Tensor, fx, nn
from torch._export import utils as export_utils
from torch._ops import OpOverload
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputSpec, OutputSpec
from torch.fx import GraphModule, Node
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.passes.infra.pass_base import PassResult

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


_Pass: TypeAlias = Callable[[GraphModule], PassResult]

# Operators whose operands RemoveMixedTypeOperators converts to one type.
_PROMOTING = {
    torch.ops.aten.add.Tensor,
    torch.ops.aten.mul.Tensor,
    torch.ops.aten.sub.Tensor,
    torch.ops.aten.div.Tensor,
    torch.ops.aten.div.Tensor_mode,
    torch.ops.aten.minimum.default,
}

# Which nodes a pass of the edge dialect changes; passes that are not named here always run.
CHANGED: dict[type, Callable[[Node], bool]] = {
    NormalizeTransposePass: lambda node: node.target == torch.ops.aten.t.default,
    ReplaceBrokenOpsWithFunctionalOpsPass: lambda node: isinstance(node.target, OpOverload) and node.target.is_view,
    SymToTensorPass: lambda node: isinstance(node.meta.get("val"), (SymInt, SymFloat, SymBool)),
    RemoveMixedTypeOperators: lambda node: node.target in _PROMOTING and not _is_float32(node),
}


def _is_float32(node: Node) -> bool:
    """Whether result and operands are float32 tensors, so that no operand is converted."""
    found = [one.meta.get("val") if isinstance(one, Node) else None for one in (node, *node.args)]
    return all(isinstance(value, Tensor) and value.dtype == torch.float32 for value in found)


def _where_needed(graph_pass: _Pass) -> _Pass:
    """The pass, but a graph that it would not change is returned as it is, not traced again."""
    changes = CHANGED.get(type(inspect.unwrap(graph_pass)))
    if changes is None:
        return graph_pass

    def run(graph: GraphModule) -> PassResult:
        graphs = [module.graph for module in graph.modules() if isinstance(module, GraphModule)]
        needed = any(changes(node) for one in graphs for node in one.nodes)
        return graph_pass(graph) if needed else PassResult(graph, False)

    return run


_MAPS = ("inputs_to_parameters", "inputs_to_buffers", "inputs_to_lifted_tensor_constants", "buffers_to_mutate")


@contextmanager
def quick_graphs() -> Iterator[None]:
    """Skips repeated work in lowering.

    Every graph pass generates the Python code of the graph, some sixty times per method; here it is generated on
    demand, which never happens. For each node, passes request maps that a graph signature recomputes from all its
    inputs; here they are cached while the inputs stay the same. And each table of decompositions loads all operators of
    the dispatcher, once per namespace; here they are loaded once. Passes of the edge dialect trace the graph again even
    if they change nothing; here those in `CHANGED` run only if they change something. And nodes do not record the
    Python stack of the code that created them.
    """
    load_operators, edge_passes = export_utils._materialize_cpp_cia_ops, _program._get_aten_to_edge_passes

    def needed_passes(config: EdgeCompileConfig) -> tuple[list[_Pass], list[_Pass]]:
        before, after = edge_passes(config)
        return [_where_needed(one) for one in before], after

    stacks_left_out = fx.config.do_not_emit_stack_traces
    properties = {name: vars(ExportGraphSignature)[name] for name in _MAPS}
    try:
        fx.config.do_not_emit_stack_traces = True
        export_utils._materialize_cpp_cia_ops = cache(load_operators)
        _program._get_aten_to_edge_passes = needed_passes
        for name, made in properties.items():
            setattr(ExportGraphSignature, name, property(_remembered(made.fget)))
        with _use_lazy_graph_module(True), warnings.catch_warnings():
            # torch copies tree specifications in a form that it has deprecated.
            warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)
            yield
    finally:
        fx.config.do_not_emit_stack_traces = stacks_left_out
        export_utils._materialize_cpp_cia_ops, _program._get_aten_to_edge_passes = load_operators, edge_passes
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
