"""Integer weights: grids of GGUF files found again, fits where there is none, offsets as zero points.

Run: python -m pytest tests/export/test_export_integers.py
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from streamfuse.export.integers import GridReport, to_integers, to_q4_1, to_q8_0
from streamfuse.export.schemes import GROUP, Q4_1, PartScheme

ROWS, GROUPS = 24, 6


def scales(low: float, high: float) -> Tensor:
    return (torch.rand(ROWS, GROUPS) * (high - low) + low).half()


def q4_1_weights(q: Tensor, d: Tensor, m: Tensor) -> Tensor:
    """As a GGUF reader computes them: float32 [ROWS, GROUPS * 32]."""
    return (q.float().view(ROWS, GROUPS, GROUP) * d.float()[..., None] + m.float()[..., None]).flatten(1)


def squared_error(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).pow(2).sum() / exact.pow(2).sum())


def test_q4_1_weights_come_back_with_their_own_numbers() -> None:
    q = torch.randint(0, 16, (ROWS, GROUPS, GROUP), dtype=torch.uint8)
    q[..., 3], q[..., 7] = 0, 15
    d, m = scales(0.001, 0.05), scales(-0.3, 0.1)
    weight = q4_1_weights(q, d, m)
    found = to_q4_1(weight)
    assert bool(found.exact.all())
    assert torch.equal(found.q, q.flatten(1))
    assert torch.equal(found.d, d)
    assert torch.equal(found.m, m)
    assert torch.equal(found.dequantized(), weight)


@pytest.mark.parametrize("span", [1, 5, 14])
def test_a_group_that_does_not_use_its_greatest_q_comes_back(span: int) -> None:
    q = torch.randint(0, 16, (ROWS, GROUPS, GROUP), dtype=torch.uint8)
    q[..., 3], q[..., 7] = 0, 15
    q[5, 2] = q[5, 2].clamp(max=span)
    q[5, 2, 7] = span
    weight = q4_1_weights(q, scales(0.001, 0.05), scales(-0.3, 0.1))
    found = to_q4_1(weight)
    assert bool(found.exact.all())
    assert torch.equal(found.dequantized(), weight)


@pytest.mark.parametrize("constant", [0.0, -0.25, 0.375])
def test_a_group_of_one_float16_value_is_exact(constant: float) -> None:
    weight = torch.full((2, GROUP), constant)
    for found in (to_q4_1(weight), to_q8_0(weight)):
        assert torch.allclose(found.dequantized(), weight, rtol=1e-3)
    assert torch.equal(to_q4_1(weight).dequantized(), weight)


def test_q8_0_weights_come_back_with_their_own_numbers() -> None:
    q = torch.randint(-127, 128, (ROWS, GROUPS, GROUP), dtype=torch.int8)
    q[..., 5] = 127
    d = scales(0.0005, 0.02)
    weight = (q.float() * d.float()[..., None]).flatten(1)
    found = to_q8_0(weight)
    assert bool(found.exact.all())
    assert torch.equal(found.q, q.flatten(1))
    assert torch.equal(found.d, d)
    assert torch.equal(found.dequantized(), weight)


def test_the_fit_beats_the_extremes_as_grid() -> None:
    weight = torch.randn(64, 256)
    found = to_q4_1(weight)
    assert not found.exact.any()
    groups = weight.unflatten(1, (-1, GROUP))
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    d = (high - low) / 15
    plain = (((groups - low) / d).round() * d + low).flatten(1)
    assert squared_error(found.dequantized(), weight) < 0.85 * squared_error(plain, weight)
    assert squared_error(to_q8_0(weight).dequantized(), weight) < 1e-4


def test_most_groups_stay_exact_where_a_few_were_changed() -> None:
    q = torch.randint(0, 16, (ROWS, GROUPS, GROUP), dtype=torch.uint8)
    q[..., 3], q[..., 7] = 0, 15
    weight = q4_1_weights(q, scales(0.001, 0.05), scales(-0.3, 0.1))
    weight[4, :GROUP] += torch.randn(GROUP) * 0.01
    found = to_q4_1(weight)
    assert found.exact.logical_not().nonzero().tolist() == [[4, 0]]
    assert squared_error(found.dequantized(), weight) < 1e-4


@pytest.mark.parametrize("shift", [0, 8])
def test_offsets_become_zero_points_and_the_weights_stay(shift: int) -> None:
    q = torch.randint(0, 16, (ROWS, GROUPS, GROUP), dtype=torch.uint8)
    q[..., 3], q[..., 7] = 0, 15
    d = scales(0.001, 0.05)
    d[3] = 0  # groups of one value, which no step leads to
    weight = q4_1_weights(q, d, scales(-0.3, -0.1))
    found = to_q4_1(weight).with_zeros(shift)
    assert found.m is None
    assert (int(found.q.min()), int(found.q.max())) == (-shift, 15 - shift)
    torch.testing.assert_close(found.dequantized(), weight, rtol=1e-5, atol=1e-6)


def test_a_scheme_of_gguf_files_is_found_again_and_any_other_is_rounded_by_the_target() -> None:
    weight, given = to_q4_1(torch.randn(4, 64)).dequantized(), to_q8_0(torch.zeros(4, 64))
    assert torch.equal(to_integers(weight, Q4_1).dequantized(), weight)
    assert to_integers(weight, PartScheme(4, 64, True), lambda *_: given) is given
    with pytest.raises(ValueError, match="int4:64:symmetric is not a format of GGUF files"):
        to_integers(weight, PartScheme(4, 64, True))
    with pytest.raises(ValueError, match="group_size 64 does not divide the 32 inputs"):
        to_integers(weight[:, :32], PartScheme(4, 64, True))


@pytest.mark.parametrize("quantize", [to_q4_1, to_q8_0])
def test_what_does_not_fit_the_format_is_refused(quantize: object) -> None:
    with pytest.raises(ValueError, match="a row of 48 weights is not a multiple of the group size 32"):
        quantize(torch.zeros(2, 48))  # type: ignore[operator]
    for bad in (float("nan"), float("inf"), 1e6):
        with pytest.raises(ValueError, match="not finite, or too large"):
            quantize(torch.full((2, GROUP), bad))  # type: ignore[operator]


def test_a_report_counts_groups() -> None:
    report = GridReport()
    report.add(torch.tensor([[True, True], [False, True]]))
    report.add(torch.ones(1, 4, dtype=torch.bool))
    assert report.to_dict() == {"groups": 8, "exact": 7, "exact_share": 0.875}
