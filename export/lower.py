"""Lowering to ExecuTorch. Graphs of the kernels' operators need nothing but torch.export and emission.

Graphs of stock operators get one XNNPACK delegate per `stock.Part`. Handing whole methods to the partitioner retraces
graphs of a thousand nodes some twenty times, and each of 300 partitions another seventeen times. But the parts of one
kind differ in their weights only. So each kind is exported and transformed once (the template), every other part of the
kind is the template with its own weights, and the methods are exported with the delegates in place.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend
from executorch.exir import (
    EdgeCompileConfig,
    ExecutorchBackendConfig,
    ExecutorchProgramManager,
    to_edge,
)
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.passes import MemoryPlanningPass
from torch import Tensor, nn
from torch.export import ExportedProgram

from .graphs import Method, example_inputs
from .stock import Part
from .weights import Weights

# Of XNNPACK's seventeen graph passes this specification keeps the one that our operators need (products to linear).
_SPECS = [CompileSpec("dqlinear_partitioner", b"")]
_ALIGNMENT = 64  # bytes, of constants: packed weights are read by whole vectors


def _edge_config(*preserve_ops: torch._ops.OpOverload) -> EdgeCompileConfig:
    """A new one for every use: to_edge adds to the lists of the one it is given, and reads all of them again."""
    return EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True, preserve_ops=list(preserve_ops))


class LoweringError(RuntimeError):
    """A part or method could not be lowered; the message says what was left out."""


def lower_methods(
    weights: Weights,
    methods: Mapping[str, Method],
    constants: dict[str, Any],
    progress: Callable[[str], None] = lambda _: None,
) -> ExecutorchProgramManager:
    """All methods as one ExecuTorch program; inputs and outputs stay unplanned, so that an engine binds its own memory.

    Args:
        constants: constant methods, name to value.
        progress: called with a few words before each step: one call per delegate, one per method, and two at the end.

    Raises:
        LoweringError: XNNPACK cannot take a part.
    """
    delegates = _Delegates()
    programs = {}
    with torch.no_grad(), warnings.catch_warnings():
        # torch copies tree specifications of a form that it deprecates itself.
        warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)
        for name, method in methods.items():
            inputs = example_inputs(weights, method)
            calls = _calls_of_parts(method, inputs)
            lowered = _replaced(method, calls, delegates, lambda: progress(f"{name}: delegate"))  # noqa: B023
            progress(f"{name}: graph")
            programs[name] = torch.export.export(lowered.eval(), inputs, strict=False)
        progress("edge program")
        edge = to_edge(programs, compile_config=_edge_config(), constant_methods=constants)
        progress("ExecuTorch program")
        return edge.to_executorch(
            ExecutorchBackendConfig(
                memory_planning_pass=MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False),
                constant_tensor_alignment=_ALIGNMENT,
            )
        )


def required_operators(program: ExecutorchProgramManager) -> list[str]:
    """The operators of our own that a program calls, as the engine registers them."""
    plans = program.executorch_program.execution_plan
    names = {f"{op.name}.{op.overload}" if op.overload else op.name for plan in plans for op in plan.operators}
    return sorted(name for name in names if name.startswith("streamfuse::"))


Call = tuple[int, tuple[Tensor, ...]]  # first adapted row, inputs


def _calls_of_parts(method: nn.Module, inputs: tuple[Tensor, ...]) -> dict[Part, Call]:
    """What every part of a method is called with, found by running the method once. No parts, no run."""
    parts = [module for module in method.modules() if isinstance(module, Part)]
    calls: dict[Part, Call] = {}

    def remember(part: nn.Module, arguments: tuple[Any, ...]) -> None:
        assert isinstance(part, Part)
        calls[part] = (arguments[0], arguments[1:])

    hooks = [part.register_forward_pre_hook(remember) for part in parts]
    if parts:
        method(*inputs)
    for hook in hooks:
        hook.remove()
    return calls


def _replaced(
    module: nn.Module, calls: dict[Part, Call], delegates: _Delegates, progress: Callable[[], None]
) -> nn.Module:
    """A copy of `module` with a delegate in the place of every part; other submodules are shared."""
    if not any(isinstance(inner, Part) for inner in module.modules()):
        return module
    result = copy.copy(module)
    result._modules = {}
    for name, child in module._modules.items():
        if isinstance(child, Part):
            progress()
            result._modules[name] = delegates(child, *calls[child])
        else:
            result._modules[name] = None if child is None else _replaced(child, calls, delegates, progress)
    return result


class _Delegate(nn.Module):
    """Stands where a part stood."""

    def __init__(self, lowered: LoweredBackendModule, norms: list[Tensor]) -> None:
        super().__init__()
        self.lowered = lowered
        self.norms = nn.ParameterList(norms)

    def forward(self, first: int, *inputs: Tensor) -> tuple[Tensor, ...]:
        outputs: tuple[Tensor, ...] = self.lowered(*inputs, *self.norms)
        return outputs


class _Flat(nn.Module):
    """A part as a function of tensors, for export."""

    def __init__(self, part: Part, first: int, n_inputs: int) -> None:
        super().__init__()
        self.part, self.first, self.n_inputs = part, first, n_inputs

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return self.part.compute(self.first, tensors[: self.n_inputs], list(tensors[self.n_inputs :]))

    def tensors(self) -> dict[str, Tensor]:
        return {**dict(self.named_parameters()), **dict(self.named_buffers())}


class _Delegates:
    """Lowers parts, reusing what was done for an earlier one of the same kind."""

    def __init__(self) -> None:
        self._templates: dict[tuple[object, ...], ExportedProgram] = {}

    def __call__(self, part: Part, first: int, inputs: tuple[Tensor, ...]) -> _Delegate:
        flat, norms = _Flat(part, first, len(inputs)), part.norms()
        tensors = (*inputs, *(norm.detach() for norm in norms))
        kind = _kind(flat, tensors)
        if kind not in self._templates:
            self._templates[kind] = _template(flat, tensors)
        template = self._templates[kind]
        try:
            result = XnnpackBackend.preprocess(_with_weights(template, flat), _SPECS)
        except RuntimeError as error:  # an operator without an XNNPACK form; stock.py is written so that none is left
            raise LoweringError(f"XNNPACK cannot take a part: {error}") from error
        lowered = LoweredBackendModule(
            edge_program=template,
            backend_id=XnnpackBackend.__name__,
            processed_bytes=result.processed_bytes,
            compile_specs=_SPECS,
            named_data_store_output=result.data_store_output,
        )
        return _Delegate(lowered, norms)


def _kind(flat: _Flat, inputs: tuple[Tensor, ...]) -> tuple[object, ...]:
    """Parts of one kind differ in their numbers only."""
    shapes = ((name, tuple(tensor.shape), tensor.dtype) for name, tensor in flat.tensors().items())
    return (type(flat.part), flat.first, *(tuple(t.shape) for t in inputs), *shapes)


def _template(flat: _Flat, inputs: tuple[Tensor, ...]) -> ExportedProgram:
    program = torch.export.export(flat.eval(), inputs, strict=False)
    config = _edge_config(torch.ops.aten.linear.default)
    template: ExportedProgram = to_edge(program, compile_config=config).exported_program()
    shapes = [value.shape for value in flat(*inputs)]

    # ExecuTorch runs a lowered module's program whenever it needs the shapes of its outputs: a dozen times a delegate.
    def shapes_only(*_: object, **__: object) -> Callable[..., list[Tensor]]:
        return lambda *tensors: [tensors[0].new_empty(shape) for shape in shapes]

    vars(template)["module"] = shapes_only
    return template


def _with_weights(template: ExportedProgram, flat: _Flat) -> ExportedProgram:
    """A copy of the template that holds the tensors of `flat`; XNNPACK's preprocessing changes what it is given."""
    state = flat.tensors()
    return ExportedProgram(
        root=copy.deepcopy(template.graph_module),
        graph=template.graph_module.graph,
        graph_signature=template.graph_signature,
        state_dict={name: state.get(name, value) for name, value in template.state_dict.items()},
        range_constraints=template.range_constraints,
        module_call_graph=template.module_call_graph,
        example_inputs=template.example_inputs,
        constants={name: state.get(name, value) for name, value in template.constants.items()},
        verifiers=template.verifiers,
    )
