"""Which operators of a method are in delegates, and which are ExecuTorch's own."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from executorch.exir import EdgeProgramManager
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.lowered_backend_module import LoweredBackendModule

# No work at run time: tuple elements and scalars of the trace.
_FREE = ("getitem", "_assert_scalar")


@dataclass
class MethodReport:
    """Operators by type, inside and outside of the delegates of one method, and the bytes of those delegates."""

    delegates: int = 0
    inside: Counter[str] = field(default_factory=Counter)
    outside: Counter[str] = field(default_factory=Counter)
    bytes: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "delegates": self.delegates,
            "operators_inside": self.inside.total(),
            "operators_outside": self.outside.total(),
            "delegate_bytes": self.bytes,
            "inside": dict(self.inside.most_common()),
            "outside": dict(self.outside.most_common()),
        }


def describe(edge: EdgeProgramManager) -> dict[str, MethodReport]:
    """One report per method of a lowered edge program; data that delegates share is not counted."""
    reports = {}
    for name in sorted(edge.methods):
        module = edge.exported_program(name).graph_module
        report = reports[name] = MethodReport()
        for node in module.graph.nodes:
            if node.op == "call_function" and node.target is executorch_call_delegate:
                lowered = getattr(module, node.args[0].target)
                assert isinstance(lowered, LoweredBackendModule)
                report.delegates += 1
                report.bytes += len(lowered.processed_bytes)
                report.inside += operators(lowered.original_module.graph)
        report.outside = operators(module.graph)
    return reports


def operators(graph: torch.fx.Graph) -> Counter[str]:
    """How often a graph calls each operator, without delegates and tuple elements."""
    targets = [node.target for node in graph.nodes if node.op == "call_function"]
    names = (_name(target) for target in targets if target is not executorch_call_delegate)
    return Counter(name for name in names if name not in _FREE)


def _name(target: Any) -> str:
    """For example `aten.view_copy`, for an operator of any dialect."""
    schema = getattr(target, "_schema", None)
    return getattr(target, "__name__", str(target)) if schema is None else schema.name.replace("::", ".")
