"""Lowering to ExecuTorch with XNNPACK, one delegate per segment, in seconds instead of minutes.

Handing whole methods to the partitioner retraces graphs of a thousand nodes some twenty times, and each of 150 partitions another
seventeen times. But the segments of one kind differ in their weights only. So each kind is partitioned and transformed once (the
template), every other segment of the kind is the template with its own weights, and the methods are exported with the lowered segments
in place, a few hundred nodes each.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
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

from streamfuse.model.config import ModelConfig

from .graphs import Chain, Method, Segment, Weights, example_inputs
from .plan import ExportPlan

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
        state = {**dict(segment.named_parameters()), **dict(segment.named_buffers())}
        program = ExportedProgram(
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
        try:
            result = XnnpackBackend.preprocess(program, _SPECS)
        except (
            RuntimeError
        ) as error:  # an operator without an XNNPACK form: the graphs are written so that none is left
            raise LoweringError(f"XNNPACK cannot take a segment: {error}") from error
        return LoweredBackendModule(
            edge_program=template,
            backend_id=XnnpackBackend.__name__,
            processed_bytes=result.processed_bytes,
            compile_specs=_SPECS,
            named_data_store_output=result.data_store_output,
        )


def _kind(segment: Segment, inputs: tuple[Tensor, ...]) -> tuple[object, ...]:
    shapes = {**dict(segment.named_parameters()), **dict(segment.named_buffers())}
    return (*(tuple(t.shape) for t in inputs), *((name, tuple(t.shape), t.dtype) for name, t in shapes.items()))


def _template(segment: Segment, inputs: tuple[Tensor, ...]) -> ExportedProgram:
    program = torch.export.export(segment.eval(), inputs, strict=False)
    config = _edge_config(torch.ops.aten.linear.default)
    template = to_edge(program, compile_config=config).exported_program()
    shapes = [value.shape for value in segment(*inputs)]
    # ExecuTorch runs a lowered module's program whenever it needs the shapes of its outputs: a dozen times per delegate.
    template.module = lambda *args, **kwargs: lambda *tensors: [tensors[0].new_empty(s) for s in shapes]  # type: ignore[method-assign]
    return template


def lower_methods(
    weights: Weights,
    methods: dict[str, Method],
    constants: dict[str, Any],
    progress: Callable[[str], None] = lambda _: None,
) -> ExecutorchProgramManager:
    """All methods as one ExecuTorch program; inputs and outputs stay unplanned, so that an engine binds its own memory.

    Args:
        constants: constant methods, name to value.
        progress: called with a sentence before each step; one call per segment and two per method.
    """
    lower = SegmentLowering()
    programs = {}
    with torch.no_grad():
        for name, method in methods.items():
            inputs = example_inputs(weights, method.rows)
            method = copy.copy(method)
            method._modules = {**method._modules, "w": weights.without_layers()}
            for attribute, chain in list(method.named_children()):
                if isinstance(chain, Chain):
                    lowered = copy.copy(chain)
                    lowered._modules = {**chain._modules, "segments": nn.ModuleList()}
                    for i, segment in enumerate(chain.segments):
                        progress(f"{name}: segment {i + 1} of {len(chain)}")
                        lowered.segments.append(lower(segment, method.segment_inputs(segment)))
                    method._modules[attribute] = lowered
            progress(f"{name}: graph")
            programs[name] = torch.export.export(method.eval(), inputs, strict=False)
    progress("edge program")
    edge = to_edge(programs, compile_config=_edge_config(), constant_methods=constants)
    progress("ExecuTorch program")
    return edge.to_executorch(
        ExecutorchBackendConfig(
            memory_planning_pass=MemoryPlanningPass(alloc_graph_input=False, alloc_graph_output=False)
        )
    )


def count_steps(plan: ExportPlan) -> int:
    """How often `progress` is called for a plan, for a progress bar."""
    layers = ModelConfig.load(plan.model).num_layers
    return layers + (layers + 1) + len(plan.widths) * (layers + 2) + 2 + len(plan.widths) + 7
