"""A program that a backend has preprocessed, as a module that ExecuTorch exports and emits."""

from __future__ import annotations

from collections.abc import Callable

from executorch.exir.backend.backend_details import PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node


class LoweringError(RuntimeError):
    """A part or method could not be lowered; the message says which."""


def delegate_module(
    program: ExportedProgram, backend_id: str, result: PreprocessResult, specs: list[CompileSpec]
) -> LoweredBackendModule:
    """A module that calls the delegate `result`, which was preprocessed from `program`."""
    return LoweredBackendModule(
        edge_program=program,
        backend_id=backend_id,
        processed_bytes=result.processed_bytes,
        compile_specs=specs,
        named_data_store_output=result.data_store_output,
    )


def answers_with_shapes(program: ExportedProgram) -> ExportedProgram:
    """Make `program`, run as a module, return empty tensors of its outputs' shapes and dtypes.

    ExecuTorch runs a delegate's program whenever it needs the shapes of its outputs, about a dozen times per delegate.
    """
    (output,) = (node for node in program.graph.nodes if node.op == "output")
    facts = [(node.meta["val"].shape, node.meta["val"].dtype) for node in output.args[0]]

    def shapes_only(*_: object, **__: object) -> Callable[..., list[Tensor]]:
        return lambda *tensors: [tensors[0].new_empty(shape, dtype=dtype) for shape, dtype in facts]

    vars(program)["module"] = shapes_only
    return program


def deduplicated(program: ExportedProgram) -> ExportedProgram:
    """`program` with values that every layer recomputes (masks, broadcast rotary tables) computed once.

    For graphs without side effects. Outputs of the program keep their own names.
    """
    seen: dict[tuple[object, str, str], Node] = {}
    graph = program.graph_module.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or any(user.op == "output" for user in node.users):
            continue
        first = seen.setdefault((node.target, str(node.args), str(node.kwargs)), node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)
    graph.eliminate_dead_code()
    program.graph_module.recompile()
    return program
