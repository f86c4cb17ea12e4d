"""What whole-method delegates are given: their weights, their graphs, and what is refused early.

    pytest tests/export/test_export_delegates.py

The exports themselves are in test_export_delegates_bundle.py.
"""

from __future__ import annotations

import torch
from torch import nn

from streamfuse.export.executorch.delegate import GroupedLinear, GroupedTable
from streamfuse.export.executorch.modules import answers_with_shapes, deduplicated
from streamfuse.export.schemes import PartScheme


def test_eight_bits_are_closer_than_four_and_an_own_zero_is_closer_than_none() -> None:
    torch.manual_seed(0)
    linear, x = nn.Linear(64, 24, bias=False).requires_grad_(False), torch.randn(5, 64)
    linear.weight += 0.1  # off centre, as a gated MLP's weights are

    def error(*scheme: object) -> float:
        return float((GroupedLinear(linear, PartScheme(*scheme))(x) - linear(x)).abs().max())  # type: ignore[arg-type]

    assert error(8, None, True) < error(4, 32, False) < error(4, 32, True)


def test_a_quantized_table_looks_up_the_rows_of_its_matrix() -> None:
    table = GroupedTable(torch.randn(7, 32), PartScheme(8, 32, True))
    ids = torch.tensor([3, 0, 3])
    assert torch.equal(table(ids), table.dequantized()[ids])


def test_the_grids_of_a_gguf_are_carried_over() -> None:
    """Four bits rounded anew lose half a step; what lay on the grid comes back but for the rounding of m / d."""
    torch.manual_seed(0)
    d, m = torch.rand(24, 2, 1).mul(0.01).half().float(), torch.randn(24, 2, 1).mul(0.1).half().float()
    d[3] = 0  # a group of one value
    q = torch.randint(0, 16, (24, 2, 32))
    q[..., 0], q[..., 1] = 0, 15
    weight = (q * d + m).flatten(1)
    four = GroupedTable(weight, PartScheme(4, 32, False)).dequantized()
    torch.testing.assert_close(four, weight, rtol=1e-5, atol=1e-6)
    eight = (torch.randint(-127, 128, (24, 2, 32)) * d).flatten(1)
    eight[:, ::32] = (127 * d).squeeze(2).repeat(1, 1)
    assert torch.equal(GroupedTable(eight, PartScheme(8, 32, True)).dequantized(), eight)


def test_integers_stay_in_their_range() -> None:
    values = GroupedTable(torch.randn(16, 64), PartScheme(4, 64, False)).values
    assert (int(values.min()), int(values.max())) == (-8, 7)


class _Repeats(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x.exp() + 1).sin(), (x.exp() + 1) * 2


def test_what_is_computed_twice_is_computed_once() -> None:
    x = torch.randn(3)
    program = deduplicated(torch.export.export(_Repeats(), (x,)))
    names = [node.target.__name__ for node in program.graph.nodes if node.op == "call_function"]
    assert sorted(names) == ["add.Tensor", "exp.default", "mul.Tensor", "sin.default"]
    assert all(map(torch.equal, program.module()(x), _Repeats()(x)))


class _SameTwice(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + 1, x + 1


def test_results_keep_their_names() -> None:
    program = deduplicated(torch.export.export(_SameTwice(), (torch.ones(2),)))
    first, second = program.module()(torch.ones(2))
    assert torch.equal(first, second)


def test_a_delegates_program_tells_shapes_without_running() -> None:
    program = answers_with_shapes(torch.export.export(_Repeats(), (torch.ones(3),)))
    outputs = program.module()(torch.ones(3))
    assert [(tuple(t.shape), t.dtype) for t in outputs] == [((3,), torch.float32)] * 2
