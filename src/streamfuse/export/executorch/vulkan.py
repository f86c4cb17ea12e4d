"""Vulkan: the delegate takes every operator that it supports, in as few partitions as possible.

Its integer formats are symmetric: four bits in groups, eight bits per output. Integer tables stay with ExecuTorch's
look-up, and so do top-k and the look-up of stream ids, which Vulkan does not support.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from executorch.backends.vulkan import vulkan_preprocess
from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner
from executorch.backends.vulkan.patterns import fusable_patterns
from executorch.exir import EdgeCompileConfig, EdgeProgramManager, to_edge_transform_and_lower
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch import Tensor, nn

from streamfuse.runtime.backend import Backend

from ..schemes import PartScheme
from ..selftest import FLOORS
from . import stock
from .decomposed import Int8Linear, QuantizedEmbedding
from .delegate import DelegateTarget, Form, GroupedLinear
from .lower import quick_graphs
from .modules import deduplicated

# Passes of the delegate that rewrite what our graphs do not have: batch norms, clamps, mixed dtypes, convolutions,
# quantized activations. Each would trace a graph of a thousand nodes again, eight times in total.
_IDLE_PASSES = (
    "FuseBatchNormPass",
    "InsertDtypePromotionPass",
    "FuseClampPass",
    "FoldQDQPass",
)


class Norm(stock.Norm):
    """In a form that the delegate fuses into one operator."""

    def rows(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.epsilon) * self.weight


class VulkanForm(Form):
    NORM = Norm

    def integers(self, linear: nn.Linear, scheme: PartScheme) -> nn.Module:
        return GroupedLinear(linear, scheme, spelt_out=True) if scheme.bits == 4 else Int8Linear(linear)

    def table(self, weight: Tensor, scheme: PartScheme) -> nn.Module:
        return QuantizedEmbedding(weight, scheme.group_size or weight.shape[1])


class VulkanTarget(DelegateTarget):
    """No Vulkan program can run here: the parity check runs the graphs that were delegated."""

    PROOF = "graph"

    def prepare(self) -> None:
        self.floor, self.form = FLOORS["float32"], VulkanForm(self.config)

    def edge(self, constants: dict[str, Any]) -> EdgeProgramManager:
        programs, inputs = {}, self.examples()
        with torch.no_grad(), quick_graphs(), _needed_passes_only():
            for name, method in self.methods.items():
                self.progress(f"{name}: graph")
                program = torch.export.export(method.eval(), inputs[name], strict=False)
                programs[name] = deduplicated(program)
            self.progress("delegates")
            options = {"force_fp16": self.config.dtype == "float16"}
            edge = to_edge_transform_and_lower(
                programs,
                partitioner={name: [VulkanPartitioner(options)] for name in programs},
                compile_config=EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True),
                constant_methods=constants,
            )
        self.graphs = _runnable(edge)  # copied now, because emitting the programs changes them
        return edge

    def open(self) -> Backend:
        return self.run_by(self.graphs)


def _runnable(edge: EdgeProgramManager) -> dict[str, Callable[..., tuple[Tensor, ...]]]:
    """The methods of lowered edge programs, runnable in PyTorch: each delegate is the graph it was made from."""
    for name in edge.methods:
        for _, child in edge.exported_program(name).graph_module.named_children():
            if isinstance(child, LoweredBackendModule):
                module = child.original_module.module()
                vars(child.original_module)["module"] = partial(_same, module)
    return {name: edge.exported_program(name).module() for name in edge.methods}


def _same(module: nn.Module, *_: object) -> nn.Module:
    """Replaces a program's `module()`, which creates a new module in every call."""
    return module


@contextmanager
def _needed_passes_only() -> Iterator[None]:
    """Skips work of the delegate that has no effect, and its partitioner's log of every operator.

    That is idle passes, and the patterns of rotary embeddings in Meta's and Hugging Face's code, which it exports and
    compares with every subgraph, twice per method.
    """
    root = logging.getLogger()
    level, passes = root.level, {name: vars(vulkan_preprocess)[name] for name in _IDLE_PASSES}
    patterns = {name: entry for name, entry in fusable_patterns.items() if entry.get_graphs_fn is not None}
    root.setLevel(logging.WARNING)
    for name in passes:
        setattr(vulkan_preprocess, name, lambda *_: lambda program: program)
    for name in patterns:
        del fusable_patterns[name]
    try:
        yield
    finally:
        root.setLevel(level)
        fusable_patterns.update(patterns)
        for name, kind in passes.items():
            setattr(vulkan_preprocess, name, kind)
