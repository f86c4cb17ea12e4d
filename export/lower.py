"""Lowering to ExecuTorch with XNNPACK, one delegate per segment, in seconds instead of minutes.

Handing whole methods to the partitioner retraces graphs of a thousand nodes some twenty times, and each of 150
partitions another seventeen times. But the segments of one kind differ in their weights only. So each kind is exported
and transformed once (the template), every other segment of the kind is the template with its own weights, and the
methods are exported with the lowered segments in place, a few hundred nodes each. docs/export.md has the times.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any, cast

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

from .blocks import Chain, Segment
from .graphs import Method, example_inputs
from .weights import Weights

# Of XNNPACK's seventeen graph passes this specification keeps the one that our operators need (products to linear).
_SPECS = [CompileSpec("dqlinear_partitioner", b"")]


def _edge_config(*preserve_ops: torch._ops.OpOverload) -> EdgeCompileConfig:
    """A new one for every use: to_edge adds to the lists of the one it is given, and reads all of them again."""
    return EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True, preserve_ops=list(preserve_ops))


class LoweringError(RuntimeError):
    """A segment or method could not be lowered; the message says what was left out."""


class SegmentLowering:
    """Lowers segments, reusing what was done for an earlier one of the same kind."""

    def __init__(self) -> None:
        self._templates: dict[tuple[object, ...], ExportedProgram] = {}

    def __call__(self, segment: Segment, inputs: tuple[Tensor, ...]) -> LoweredBackendModule:
        kind = _kind(segment, inputs)
        if kind not in self._templates:
            self._templates[kind] = _template(segment, inputs)
        template = self._templates[kind]
        try:
            result = XnnpackBackend.preprocess(_with_weights(template, segment), _SPECS)
        except RuntimeError as error:  # an operator without an XNNPACK form; blocks.py is written so that none is left
            raise LoweringError(f"XNNPACK cannot take a segment: {error}") from error
        return LoweredBackendModule(
            edge_program=template,
            backend_id=XnnpackBackend.__name__,
            processed_bytes=result.processed_bytes,
            compile_specs=_SPECS,
            named_data_store_output=result.data_store_output,
        )


def _tensors(segment: Segment) -> dict[str, Tensor]:
    return {**dict(segment.named_parameters()), **dict(segment.named_buffers())}


def _kind(segment: Segment, inputs: tuple[Tensor, ...]) -> tuple[object, ...]:
    """Segments of one kind differ in their numbers only."""
    shapes = _tensors(segment)
    return (*(tuple(t.shape) for t in inputs), *((name, tuple(t.shape), t.dtype) for name, t in shapes.items()))


def _template(segment: Segment, inputs: tuple[Tensor, ...]) -> ExportedProgram:
    program = torch.export.export(segment.eval(), inputs, strict=False)
    config = _edge_config(torch.ops.aten.linear.default)
    template: ExportedProgram = to_edge(program, compile_config=config).exported_program()
    shapes = [value.shape for value in segment(*inputs)]

    # ExecuTorch runs a lowered module's program whenever it needs the shapes of its outputs: a dozen times a delegate.
    def shapes_only(*_: object, **__: object) -> Callable[..., list[Tensor]]:
        return lambda *tensors: [tensors[0].new_empty(shape) for shape in shapes]

    vars(template)["module"] = shapes_only
    return template


def _with_weights(template: ExportedProgram, segment: Segment) -> ExportedProgram:
    """A copy of the template that holds the tensors of `segment`; XNNPACK's preprocessing changes what it is given."""
    state = _tensors(segment)
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


def lower_methods(
    weights: Weights,
    methods: dict[str, Method],
    constants: dict[str, Any],
    progress: Callable[[str], None] = lambda _: None,
) -> ExecutorchProgramManager:
    """All methods as one ExecuTorch program; inputs and outputs stay unplanned, so that an engine binds its own memory.

    Args:
        constants: constant methods, name to value.
        progress: called with a few words before each step; one call per segment, one per method, and two at the end.

    Raises:
        LoweringError: XNNPACK cannot take a segment.
    """
    lower = SegmentLowering()
    programs = {}
    with torch.no_grad(), warnings.catch_warnings():
        # torch copies tree specifications of a form that it deprecates itself.
        warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)
        for name, method in methods.items():
            lowered = copy.copy(method)
            lowered._modules = {**method._modules, "w": weights.without_layers()}
            for attribute, chain in method.named_children():
                if isinstance(chain, Chain):
                    words = f"{name}: segment {{}} of {len(chain)}"
                    lowered._modules[attribute] = _lower_chain(lower, method, chain, words, progress)
            progress(f"{name}: graph")
            programs[name] = torch.export.export(lowered.eval(), example_inputs(weights, method.rows), strict=False)
        progress("edge program")
        edge = to_edge(programs, compile_config=_edge_config(), constant_methods=constants)
        progress("ExecuTorch program")
        return edge.to_executorch(
            ExecutorchBackendConfig(
                memory_planning_pass=MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False)
            )
        )


def _lower_chain(
    lower: SegmentLowering, method: Method, chain: Chain, words: str, progress: Callable[[str], None]
) -> Chain:
    """A copy of `chain` with a delegate in the place of every segment."""
    lowered = copy.copy(chain)
    delegates = nn.ModuleList()
    lowered._modules = {**chain._modules, "segments": delegates}
    for i, segment in enumerate(cast("list[Segment]", list(chain.segments))):
        progress(words.format(i + 1))
        delegates.append(lower(segment, method.segment_inputs(segment)))
    return lowered
