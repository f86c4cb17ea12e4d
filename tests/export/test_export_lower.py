"""Work that lowering skips changes no graph."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from executorch.exir import EdgeCompileConfig
from executorch.exir.pass_base import ExportPass
from torch import Tensor, nn
from torch.export import Dim

from streamfuse.export.executorch.lower import CHANGED, edge_dialect, quick_graphs

CONFIG = EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True)


class Plain(nn.Module):
    """What no skipped pass changes."""

    def forward(self, x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        return x * x + torch.sigmoid(x), n.clone()


class Turned(nn.Module):
    def forward(self, x: Tensor, n: Tensor) -> tuple[Tensor, Tensor]:
        return x.t() * 2, n.view(-1, 1)


class Mixed(nn.Module):
    """Operands of two types, quotients of integers, Python numbers."""

    def forward(self, x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
        return x + n, n / 2, n / n, torch.div(n, 2, rounding_mode="floor"), torch.minimum(x, n), x.double() - x


class Sized(nn.Module):
    """A number that is known when the program runs, as an operand."""

    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        return x * x.shape[0] + n


def _edge(module: nn.Module, skip: bool, dynamic: bool) -> list[tuple[Any, ...]]:
    """The nodes of the edge dialect: what they call, with what, and the type of the result."""
    inputs = torch.ones(4, 4), torch.arange(4)
    shapes = {"x": {0: Dim("rows", min=2, max=8)}, "n": None} if dynamic else None
    with torch.no_grad(), quick_graphs() if skip else nullcontext():
        program = torch.export.export(module, inputs, dynamic_shapes=shapes, strict=False)
        edge = edge_dialect(program, CONFIG)
    return [
        (node.name, str(node.target), str(node.args), str(node.kwargs), str(node.meta.get("val")))
        for node in edge.graph.nodes
    ]


@pytest.mark.parametrize("module", [Plain, Turned, Mixed, Sized])
def test_a_graph_is_the_same_where_idle_passes_are_skipped(module: type[nn.Module]) -> None:
    dynamic = module is Sized
    assert _edge(module(), True, dynamic) == _edge(module(), False, dynamic)


def test_idle_passes_do_not_trace_the_graph_again(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: Counter[type] = Counter()
    call = ExportPass.call
    monkeypatch.setattr(ExportPass, "call", lambda self, graph: runs.update([type(self)]) or call(self, graph))
    _edge(Plain(), True, False)
    assert not runs.keys() & CHANGED.keys()
    _edge(Plain(), False, False)
    assert runs.keys() >= CHANGED.keys()
