"""Quantized weights and products of `--backend xnnpack` against explicit arithmetic; sizes of parts.

Run: python -m pytest tests/export/test_export_quantize.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from export_samples import GROUP, STREAM_VOCAB, config_for, tiny_model
from torch import Tensor, nn

from streamfuse.export.config import ExportConfig
from streamfuse.export.executorch import native
from streamfuse.export.executorch.decomposed import QuantizedEmbedding, symmetric_int8
from streamfuse.export.executorch.xnnpack.form import Form, Int4Linear, Int8Linear, affine_int4
from streamfuse.export.schemes import Schemes
from streamfuse.export.sizes import Sizes, part_sizes, schemes
from streamfuse.export.weights import Weights
from streamfuse.model.streams import StreamFused


def snr_db(found: Tensor, exact: Tensor) -> float:
    return float(10 * torch.log10((exact**2).sum() / ((found - exact) ** 2).sum().clamp(min=1e-30)))


def test_weights_on_a_q4_1_grid_come_back() -> None:
    """d q + m with both extremes used: every q is found again, the values up to the bfloat16 of d."""
    q = torch.randint(0, 16, (24, 4, GROUP))
    q[..., 0], q[..., 1] = 0, 15
    d, m = torch.rand(24, 4, 1) * 0.02 + 0.001, torch.randn(24, 4, 1) * 0.1
    weight = (d * q + m).flatten(1)
    found = affine_int4(weight, GROUP)
    assert torch.equal(found.q.long(), (q - 8).flatten(1))
    assert torch.equal(found.d, found.d.to(torch.bfloat16).float())
    error = (found.dequantized() - weight).abs().unflatten(1, (4, GROUP))
    assert (error <= 15 * d * 2**-8).all()  # 15 steps between the extremes, each wrong by half a bfloat16 unit


def test_int4_offsets_take_up_what_the_scale_rounds_away() -> None:
    weight = torch.randn(16, 128)
    found = affine_int4(weight, GROUP)
    assert found.q.dtype == torch.int8
    assert (found.q >= -8).all() and (found.q <= 7).all()  # noqa: PT018
    assert 18 < snr_db(found.dequantized(), weight) < 30


@pytest.mark.parametrize("constant", [0.0, 0.37])
def test_a_group_of_one_value_stays(constant: float) -> None:
    weight = torch.full((2, GROUP), constant)
    torch.testing.assert_close(affine_int4(weight, GROUP).dequantized(), weight, atol=1e-6, rtol=0)


def test_weights_on_a_q8_0_grid_come_back() -> None:
    """127 used in each group: the same integers, and the same scales but for the division's last bit."""
    q = torch.randint(-127, 128, (24, 4, GROUP))
    q[..., 5] = 127
    d = (torch.rand(24, 4, 1) * 0.01 + 0.001).half().float()  # Q8_0 keeps scales as float16
    found = symmetric_int8((d * q).flatten(1), GROUP)
    assert torch.equal(found.q.long(), q.flatten(1))
    torch.testing.assert_close(found.d, d.squeeze(-1), rtol=2e-7, atol=0)


def test_a_group_size_that_does_not_divide_is_named() -> None:
    with pytest.raises(ValueError, match="group_size 64 does not divide the 96 inputs"):
        affine_int4(torch.zeros(4, 96), 64)


def int8_rows(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Asymmetric int8 per row over [min(x, 0), max(x, 0)], as integers with scale and zero point."""
    low, high = x.amin(1, keepdim=True).clamp(max=0), x.amax(1, keepdim=True).clamp(min=0)
    scale = (high - low) / 255
    zero = (-128 - low / scale).round().clamp(-128, 127)
    return ((x / scale).round() + zero).clamp(-128, 127).long(), scale, zero.long()


def test_the_int4_product_is_integer_arithmetic() -> None:
    """int8 x int4 sums in integers per group, scaled; plus the offset times the sum of the group's inputs."""
    linear = nn.Linear(96, 40).requires_grad_(False)
    x = torch.randn(7, 96)
    q, scale, zero = int8_rows(x)
    stored = affine_int4(linear.weight, GROUP)
    assert stored.m is not None
    sums = torch.einsum("rgk,ngk->rng", (q - zero).unflatten(1, (3, GROUP)), stored.q.long().unflatten(1, (3, GROUP)))
    expected = (sums.double() * stored.d.double()).sum(-1) * scale.double() + linear.bias.double()
    expected += x.double().unflatten(1, (3, GROUP)).sum(-1) @ stored.m.double().T
    found = Int4Linear(linear, GROUP)(x)
    assert snr_db(found.double(), expected) > 100
    assert snr_db(found, linear(x)) > 15


def test_the_int8_product_is_integer_arithmetic() -> None:
    linear = nn.Linear(96, 40, bias=False).requires_grad_(False)
    x = torch.randn(7, 96)
    q, scale, zero = int8_rows(x)
    stored = symmetric_int8(linear.weight, 96)
    expected = ((q - zero) @ stored.q.long().T).double() * scale.double() * stored.d[:, 0].double()
    found = Int8Linear(linear)(x)
    assert snr_db(found.double(), expected) > 100
    assert snr_db(found, linear(x)) > 35


@pytest.mark.parametrize("layer", [Int4Linear(nn.Linear(64, 32), GROUP), Int8Linear(nn.Linear(64, 32))])
def test_a_row_does_not_depend_on_its_neighbours(layer: nn.Module) -> None:
    x = torch.randn(5, 64) * torch.tensor([1.0, 100.0, 0.01, 1.0, 5.0])[:, None]
    torch.testing.assert_close(layer(x)[2:3], layer(x[2:3]), rtol=1e-5, atol=1e-7)


def test_an_embedding_gives_its_dequantized_rows() -> None:
    table = torch.randn(50, 64)
    ids = torch.tensor([3, 3, 49, 0])
    found = QuantizedEmbedding(table, GROUP)(ids)
    assert torch.equal(found, symmetric_int8(table, GROUP).dequantized()[ids])
    assert snr_db(found, table[ids]) > 40


def sizes_of(model: StreamFused, config: ExportConfig) -> Sizes:
    return part_sizes(model.base.config, model.streams_config, len(STREAM_VOCAB), config)


def stock_plan(folder: Path, quantize: str) -> ExportConfig:
    return config_for((folder, folder), folder, backend="xnnpack", quantize=quantize)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_sizes_of_parts_are_those_of_the_modules(tied: bool, architecture: str, tmp_path: Path) -> None:
    """The arithmetic of `--dry-run` counts what the graphs hold."""
    model = tiny_model({"eta_rank": 2}, tie_word_embeddings=tied, architectures=[architecture])
    config = stock_plan(tmp_path, "none")
    weights = Weights(model, config.shapes)
    sizes = sizes_of(model, config)
    assert set(sizes) == set(schemes(config))
    held = sum(parameter.numel() for parameter in weights.parameters())
    assert sum(part.bytes for part in sizes.values()) == 4 * held
    base = sum(parameter.numel() for parameter in model.base.parameters())
    parts = sum(sizes[name].parameters for name in ("embedding", "attention", "mlp", "head"))
    assert parts == base + (model.base.embed_tokens.weight.numel() if tied else 0)
    extra = sum(parameter.numel() for parameter in model.extra_parameters())
    parent = sum(parameter.numel() for parameter in model.parent.parameters())
    rows = model.head_rows().numel() + (0 if tied else model.base.lm_head.weight.numel())
    assert sizes["streams"].parameters == extra - parent + rows


def test_bytes_of_quantized_parts_are_those_of_the_modules(tmp_path: Path) -> None:
    model = tiny_model()
    config = stock_plan(tmp_path, "8da4w")
    weights = Weights(model, config.shapes, Form(GROUP))
    held = 4 * sum(parameter.numel() for parameter in weights.parameters())
    for module in weights.modules():
        if isinstance(module, Int4Linear):
            held += module.weight.numel() // 2 + 2 * module.scales.numel() + 4 * module.offsets.numel()
        if isinstance(module, (Int8Linear, QuantizedEmbedding)):
            held += module.weight.numel() + 4 * module.scales.numel()
    assert sum(part.bytes for part in sizes_of(model, config).values()) == held


@pytest.mark.parametrize(
    ("options", "streams"),
    [
        ({}, "q4_1"),
        ({"quantize": "q8_0"}, "q8_0"),  # or the bundle fails the parity floor of 8 bits
        ({"quantize": "q8_0", "scheme": {"mlp": "q4_1"}}, "q4_1"),
        ({"scheme": {"attention": "q8_0", "mlp": "q8_0"}}, "q8_0"),
        ({"quantize": "q8_0", "scheme": {"streams": "q4_1"}}, "q4_1"),
    ],
)
def test_rows_of_streams_have_the_bits_of_the_layers(options: dict[str, Any], streams: str, tmp_path: Path) -> None:
    grids = config_for((tmp_path, tmp_path), tmp_path, **options).grids
    assert grids is not None
    assert grids.streams == streams


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("changes", [{}, {"head": "q4_1"}, {"attention": "q8_0", "streams": "q8_0"}])
def test_bytes_of_packed_parts_are_those_of_the_tensors(tied: bool, changes: dict[str, str], tmp_path: Path) -> None:
    """But for what packing fills up to 16 rows: 258 tokens are 272 rows, 129 stream tokens 144."""
    model = tiny_model({"adapter_rank": 0}, tie_word_embeddings=tied)
    config = config_for((tmp_path, tmp_path), tmp_path, scheme=changes)
    assert config.grids == Schemes(**changes)
    form = native.Form(config.grids)
    weights = Weights(model, config.shapes, form)
    packed = {t.data_ptr(): t.numel() for t in weights.buffers() if t.dtype == torch.uint8}
    floats = sum(parameter.numel() for parameter in model.base.parameters() if parameter.ndim == 1)
    floats += model.stream_embeddings.numel() + sum(parameter.numel() for parameter in model.pruner.parameters())
    expected = sum(part.bytes for part in sizes_of(model, config).values()) - 4 * floats
    assert 0 <= sum(packed.values()) - expected < 64 * (3 * 14 + 15) * 34 / 32 + 4 * 64
    kept = [row for part, row in form.report.items() if part != "streams" and part not in changes]
    assert kept
    assert all(row.exact == row.groups for row in kept)
