"""Compressed weights: what the emulator decodes, against coremltools' own decompression, bit for bit.

pytest tests/coreml/test_coreml_emulator_weights.py
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import coreml_samples as samples
import numpy as np
import pytest
import torch

from streamfuse.emulator import CoreMLEmulator
from streamfuse.emulator.compressed import constexpr_lut_to_dense, constexpr_lut_to_sparse
from streamfuse.emulator.values import unpack_bits

cto = samples.ct.optimize.coreml
Step = Callable[[Any, bool], Any]  # (model, whether it is compressed already) -> the model compressed
OUTPUTS, INPUTS = 96, 64


def _quantized(**settings: Any) -> Step:
    config = cto.OptimizationConfig(global_config=cto.OpLinearQuantizerConfig(weight_threshold=0, **settings))
    return lambda model, joint: cto.linear_quantize_weights(model, config, joint_compression=joint)


def _palettized(**settings: Any) -> Step:
    config = cto.OptimizationConfig(global_config=cto.OpPalettizerConfig(weight_threshold=0, **settings))
    return lambda model, joint: cto.palettize_weights(model, config, joint_compression=joint)


def _pruned(model: Any, joint: bool) -> Any:
    config = cto.OpThresholdPrunerConfig(threshold=0.05, minimum_sparsity_percentile=0.1, weight_threshold=0)
    return cto.prune_weights(model, cto.OptimizationConfig(global_config=config), joint_compression=joint)


_BLOCKS = {"granularity": "per_block", "block_size": 32}
_IOS16 = samples.ct.target.iOS16
# name -> (compressions in order, the operation that must decode, deployment target)
CASES: dict[str, tuple[list[Step], str, Any]] = {
    "int8_symmetric": ([_quantized(mode="linear_symmetric")], "constexpr_blockwise_shift_scale", None),
    "uint8_offset": ([_quantized(mode="linear", dtype="uint8")], "constexpr_blockwise_shift_scale", None),
    "int4_blocks": (
        [_quantized(mode="linear_symmetric", dtype="int4", **_BLOCKS)],
        "constexpr_blockwise_shift_scale",
        None,
    ),
    "uint4_blocks_offset": (
        [_quantized(mode="linear", dtype="uint4", **_BLOCKS)],
        "constexpr_blockwise_shift_scale",
        None,
    ),
    "int4_tensor": ([_quantized(dtype="int4", granularity="per_tensor")], "constexpr_blockwise_shift_scale", None),
    **{
        f"palette_{bits}": ([_palettized(mode="uniform", nbits=bits)], "constexpr_lut_to_dense", None)
        for bits in (1, 2, 3, 4, 6, 8)
    },
    "palette_groups": (
        [_palettized(mode="uniform", nbits=4, granularity="per_grouped_channel", group_size=16)],
        "constexpr_lut_to_dense",
        None,
    ),
    "palette_quantized": (
        [_palettized(mode="uniform", nbits=4), _quantized(mode="linear_symmetric", granularity="per_tensor")],
        "constexpr_blockwise_shift_scale",
        None,
    ),
    "sparse": ([_pruned], "constexpr_sparse_to_dense", None),
    "sparse_quantized": (
        [_pruned, _quantized(mode="linear_symmetric")],
        "constexpr_sparse_blockwise_shift_scale",
        None,
    ),
    "sparse_palette": ([_pruned, _palettized(mode="uniform", nbits=4)], "constexpr_lut_to_sparse", None),
    "old_int8": ([_quantized(mode="linear")], "constexpr_affine_dequantize", _IOS16),
    "old_palette": ([_palettized(mode="uniform", nbits=6)], "constexpr_lut_to_dense", _IOS16),
    "old_sparse": ([_pruned], "constexpr_sparse_to_dense", _IOS16),
}


@functools.cache
def _base(half: bool, target: Any) -> tuple[Any, np.ndarray]:
    """A linear layer as a package, and its matrix."""
    linear = torch.nn.Linear(INPUTS, OUTPUTS, bias=False)
    return samples.convert(linear, (torch.eye(INPUTS),), half=half, target=target), linear.weight.detach().numpy()


@pytest.fixture(scope="module", params=["float32", "float16"])
def half(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "float16")


@pytest.mark.parametrize("engine", samples.ENGINES)
@pytest.mark.parametrize("case", CASES)
def test_compressed_weights_decode_to_the_numbers_of_coremltools(
    case: str, engine: str, half: bool, tmp_path: Path
) -> None:
    steps, decoder, target = CASES[case]
    logging.disable(logging.WARNING)
    model, original = _base(half, target)
    for number, step in enumerate(steps):
        model = step(model, number > 0)
    plain = cto.decompress_weights(model)
    logging.disable(logging.NOTSET)

    compressed = samples.save(model, tmp_path, "compressed")
    found, want = (  # a product with the identity is the matrix itself
        samples.predict(engine, path, {"x0": np.eye(INPUTS)}).popitem()[1].T
        for path in (compressed, samples.save(plain, tmp_path, "plain"))
    )
    np.testing.assert_array_equal(found, want)
    assert decoder in CoreMLEmulator(compressed).operation_counts()
    assert np.corrcoef(found.ravel(), original.ravel())[0, 1] > 0.75  # one bit per weight already gives this much


def test_a_table_of_vectors_fills_its_axis() -> None:
    """The example of coremltools' own documentation."""
    indices = np.array([[[0, 0], [1, 0]], [[1, 1], [0, 0]]], np.uint8)
    table = np.arange(6, dtype=np.float32).reshape(1, 1, 1, 2, 3)
    first, second = ([0, 1, 2], [3, 4, 5])
    found = constexpr_lut_to_dense(indices, table, np.array(2))
    assert found.tolist() == [[first + first, second + first], [second + second, first + first]]
    across = constexpr_lut_to_dense(indices, table, np.array(1))
    assert across[0].T.tolist() == [first + second, first + first]
    mask = np.array([[[1, 0], [1, 1]], [[0, 1], [1, 0]]], np.uint8)
    wide, values = constexpr_lut_to_sparse(mask, indices[mask != 0], table, np.array(2))
    assert wide.tolist() == np.repeat(mask, 3, 2).tolist()
    assert values.tolist() == found[wide != 0].tolist()


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 6])
def test_packed_elements_unpack_from_the_lowest_bit(bits: int, rng: np.random.Generator) -> None:
    values = rng.integers(0, 1 << bits, 13)
    planes = ((values[:, None] >> np.arange(bits)) & 1).astype(np.uint8)
    packed = np.packbits(planes.ravel(), bitorder="little")
    assert unpack_bits(packed, bits, 13, signed=False).tolist() == values.tolist()
    half = 1 << (bits - 1)
    assert unpack_bits(packed, bits, 13, signed=True).tolist() == ((values + half) % (2 * half) - half).tolist()


def test_constants_of_equal_weights_are_decoded_once(tmp_path: Path) -> None:
    linear = torch.nn.Linear(INPUTS, OUTPUTS, bias=False)
    parts = []
    for rows in (1, 4):
        part = samples.convert(linear, (torch.ones(rows, INPUTS),), half=True)
        parts.append((samples.save(part, tmp_path, f"rows_{rows}"), f"rows_{rows}"))
    merged = samples.ct.utils.MultiFunctionDescriptor()
    for path, name in parts:
        merged.add_function(str(path), "main", name)
    merged.default_function_name = "rows_1"
    samples.ct.utils.save_multifunction(merged, str(tmp_path / "both.mlpackage"))

    emulator = CoreMLEmulator(tmp_path / "both.mlpackage")
    assert emulator.functions == ("rows_1", "rows_4")
    one = emulator.predict({"x0": np.ones((1, INPUTS))})
    four = emulator.predict({"x0": np.ones((4, INPUTS))}, "rows_4")
    np.testing.assert_allclose(np.broadcast_to(one.popitem()[1], (4, OUTPUTS)), four.popitem()[1], atol=2e-3)
    assert emulator.constants_bytes < 1.5 * linear.weight.numel() * 4
