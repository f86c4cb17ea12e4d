"""Weights as a Core ML package stores them: the GGUF's grids, coremltools' schemes, and what is lost.

Run: python -m pytest tests/export/test_export_coreml_weights.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from streamfuse.export.config import ExportConfig
from streamfuse.export.integers import to_q4_1, to_q8_0
from streamfuse.export.resolve import resolve

pytest.importorskip("coremltools", reason="coremltools is not installed: pip install 'streamfuse[coreml]'")

from streamfuse.emulator.compressed import constexpr_blockwise_shift_scale
from streamfuse.export.coreml.stored import Store


def store(scheme: str, dtype: str = "float16") -> Store:
    nowhere = Path("nowhere")
    return Store(resolve(ExportConfig(nowhere, nowhere, nowhere, target="coreml", dtype=dtype, scheme={"mlp": scheme})))


def weight(rows: int = 48, columns: int = 96) -> torch.Tensor:
    return torch.randn(rows, columns) * 0.1


def error(found: torch.Tensor, want: torch.Tensor) -> float:
    return float((found - want).norm() / want.norm())


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_q4_1_grid_is_carried_over_and_not_quantized_again(dtype: str) -> None:
    want = to_q4_1(weight()).dequantized()
    made = store("int4:32:affine", dtype)
    stored = made.of("mlp", want)
    assert made.grid["mlp"].exact == made.grid["mlp"].groups
    np.testing.assert_array_equal(stored.data, to_q4_1(want).q.numpy())
    # What is lost is the rounding of the offset -m / d, and of the weight itself, to the package's floats.
    step = np.repeat(to_q4_1(want).d.float().numpy(), 32, axis=1)
    size = want.abs().numpy()
    limit = {"float16": 2.0**-8 * step + 2.0**-11 * size, "float32": 2.0**-20 * (step + size)}
    assert (np.abs(stored.dense().numpy() - want.numpy()) <= limit[dtype]).all()


def test_a_q8_0_grid_loses_only_the_rounding_to_float16() -> None:
    want = to_q8_0(weight()).dequantized()
    found = store("int8:32:symmetric").of("mlp", want).dense()
    assert torch.equal(found, want.half().float())
    assert torch.equal(store("int8:32:symmetric", "float32").of("mlp", want).dense(), want)


def test_pieces_of_one_weight_may_have_several_sizes() -> None:
    made, want = store("int8:32:symmetric"), weight()
    for most_rows, sizes in ((32, [32, 16]), (20, [20, 20, 8]), (32, [32, 16])):
        pieces = made.pieces("mlp", most_rows, want)
        assert [len(piece.data) for piece in pieces] == sizes
        assert pieces is made.pieces("mlp", most_rows, want), "made once"


def test_groups_of_one_value_keep_it() -> None:
    want = torch.cat([torch.zeros(1, 32), torch.full((1, 32), -0.25), 3.0 + 1e-4 * torch.randn(1, 32)])
    found = store("int4:32:affine").of("mlp", want).dense()
    assert torch.equal(found[:2], want[:2])
    torch.testing.assert_close(found[2], want[2], atol=2e-3, rtol=0)


@pytest.mark.parametrize(
    ("scheme", "limit"),
    [
        ("int8:channel:symmetric", 0.01),
        ("int8:channel:affine", 0.01),
        ("int8:32:affine", 0.007),
        ("int4:32:symmetric", 0.12),
        ("int4:32:affine", 0.08),
        ("int4:channel:symmetric", 0.2),
    ],
)
def test_every_scheme_is_decoded_as_core_ml_does_it(scheme: str, limit: float) -> None:
    want = weight()
    want[5] = 0
    stored = store(scheme).of("mlp", want)
    assert stored.scale is not None
    offset: Any = None if stored.offset is None else stored.offset.astype(np.float32)
    emulated = constexpr_blockwise_shift_scale(stored.data.astype(np.int16), stored.scale.astype(np.float32), offset)
    np.testing.assert_array_equal(stored.dense().numpy(), emulated.astype(np.float16).astype(np.float32))
    assert error(stored.dense(), want) < limit
    assert not stored.dense()[5].any()


def test_sizes_are_those_of_packed_weights() -> None:
    assert store("int4:32:affine").of("mlp", weight()).size_bytes == 48 * 96 // 2 + 48 * 3 * 4
    assert store("int8:channel:symmetric").of("mlp", weight()).size_bytes == 48 * 96 + 48 * 2
    assert store("float").of("mlp", weight()).size_bytes == 48 * 96 * 2


def test_a_weight_is_made_once_and_joined_weights_are_one() -> None:
    made, first, second = store("int8"), weight(), weight(16)
    assert made.of("mlp", first) is made.of("mlp", first)
    joined = made.of("mlp", first, second)
    np.testing.assert_array_equal(joined.data, np.concatenate([made.of("mlp", w).data for w in (first, second)]))


def test_a_group_must_divide_the_inputs() -> None:
    with pytest.raises(ValueError, match="group_size 64 does not divide the 96 inputs of a weight"):
        store("int4:64:affine").of("mlp", weight())
