"""Every operation of the emulator against PyTorch, on programs that coremltools converted. On a Mac, Core ML too.

pytest tests/coreml/test_coreml_emulator_ops.py
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import coreml_samples as samples
import numpy as np
import pytest
import torch
from torch.nn import functional as F

HALF_ULP = 2.0**-10  # relative distance of neighbours in float16
_SEEDED = torch.Generator().manual_seed(6)


def _x(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=_SEEDED)


def _ids(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=_SEEDED)


_TREE = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]], dtype=torch.bool)
_SCALE, _SHIFT, _VARIANCE, _KERNEL = _x(8), _x(8), _x(8).abs(), _x(4, 3, 3, 3)

# name -> (function of torch, its example inputs)
CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "add": (lambda x, y: x + y, (_x(3, 4), _x(4))),
    "sub": (lambda x, y: x - y, (_x(3, 4), _x(3, 1))),
    "mul": (lambda x, y: x * y, (_x(3, 4), _x(3, 4))),
    "div": (lambda x, y: x / (y.abs() + 1), (_x(3, 4), _x(3, 4))),
    "floor_divide": (lambda x, y: x // y, (_ids(50, 3, 4), _ids(50, 3, 4) + 1)),
    "remainder": (lambda x: x % 7, (_ids(50, 3, 4) - 25,)),
    "pow": (lambda x: x.abs() ** 1.5, (_x(3, 4),)),
    "square": (lambda x: x.pow(2), (_x(3, 4),)),
    "maximum": (torch.maximum, (_x(3, 4), _x(3, 4))),
    "minimum": (torch.minimum, (_x(3, 4), _x(3, 4))),
    "compare": (lambda x, y: (x < y, x <= y, x > y, x >= y, x == y, x != y), (_ids(3, 9), _ids(3, 9))),
    "logical": (
        lambda x, y: (~x, torch.logical_and(x, y), torch.logical_or(x, y), torch.logical_xor(x, y)),
        (_x(9) > 0, _x(9) > 0),
    ),
    "neg_abs_sign": (lambda x: (-x, x.abs(), x.sign()), (_x(3, 4),)),
    "rounding": (lambda x: (x.ceil(), x.floor(), x.round()), (4 * _x(30),)),
    "exp_log": (lambda x: (x.exp(), (x.abs() + 0.5).log(), torch.exp2(x)), (_x(3, 4),)),
    "roots": (lambda x: ((x.abs() + 0.1).sqrt(), (x.abs() + 0.1).rsqrt()), (_x(3, 4),)),
    # Core ML adds 1e-4 before it inverts.
    "reciprocal": (lambda x: 1 / x.abs(), (_x(3, 4),)),
    "trigonometry": (lambda x: (x.sin(), x.cos(), x.tanh(), x.atan()), (_x(3, 4),)),
    "erf": (torch.erf, (_x(3, 4),)),
    "sigmoid": (torch.sigmoid, (20 * _x(9),)),
    "silu": (F.silu, (_x(9),)),
    "gelu": (F.gelu, (_x(9),)),
    "relu": (lambda x: (F.relu(x), F.relu6(4 * x), F.leaky_relu(x, 0.1), F.elu(x)), (_x(9),)),
    "softplus": (lambda x: (F.softplus(x), F.softsign(x)), (_x(9),)),
    "clamp": (lambda x: (x.clamp(-0.5, 0.5), x.clamp(min=0.1), x.clamp(max=0.1)), (_x(9),)),
    "where": (lambda c, x: torch.where(c, x, torch.full_like(x, -1e4)), (_TREE, _x(3, 3))),
    "masked_fill": (lambda c, x: x.masked_fill(~c, -1e4), (_TREE, _x(3, 3))),
    "cast": (lambda x: (x.long(), x > 0, (x > 0).float()), (4 * _x(9),)),
    "softmax": (lambda x: (x.softmax(-1), x.softmax(0)), (_x(3, 40),)),
    "log_softmax": (lambda x: x.log_softmax(-1), (_x(3, 40),)),
    "logsumexp": (lambda x: x.logsumexp(-1, keepdim=True), (_x(3, 40),)),
    "sums": (lambda x: (x.sum(), x.sum(-1), x.mean((0, 2))), (_x(2, 3, 5),)),
    "extremes": (lambda x: (x.amax(-1), x.amin(0), x.argmax(-1), x.argmin(0)), (_x(7, 5),)),
    "norms": (lambda x: (x.norm(dim=-1), x.abs().sum(-1)), (_x(7, 5),)),
    "cumsum": (lambda x: x.cumsum(1), (_x(3, 5),)),
    "topk": (lambda x: x.topk(4, -1), (_x(3, 200),)),
    "bottomk": (lambda x: x.topk(4, -1, largest=False), (_x(3, 200),)),
    "argsort": (lambda x: (x.argsort(-1), x.argsort(-1, descending=True)), (_x(3, 20),)),
    "layer_norm": (lambda x: F.layer_norm(x, (8,), _SCALE, _SHIFT), (_x(3, 8),)),
    "rms_norm": (lambda x: x * (x.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * _SCALE, (_x(3, 8),)),
    "group_norm": (lambda x: F.group_norm(x, 2), (_x(1, 4, 3, 3),)),
    "batch_norm": (lambda x: F.batch_norm(x, _SHIFT, _VARIANCE), (_x(2, 8, 3),)),
    "matmul": (lambda x, y: x @ y, (_x(2, 3, 4), _x(2, 4, 5))),
    "matmul_transposed": (lambda x, y: x @ y.transpose(-1, -2), (_x(2, 3, 4), _x(2, 5, 4))),
    "einsum_heads": (lambda x, y: torch.einsum("bchq,bkhc->bkhq", x, y), (_x(1, 4, 2, 5), _x(1, 6, 2, 4))),
    "einsum_plain": (lambda x, y: torch.einsum("nhd,mhd->hnm", x, y), (_x(3, 2, 4), _x(5, 2, 4))),
    "attention": (
        lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m),
        (_x(1, 2, 3, 8), _x(1, 2, 5, 8), _x(1, 2, 5, 8), _x(3, 5)),
    ),
    "attention_masked": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, _TREE),
        (_x(1, 2, 3, 8), _x(1, 2, 3, 8), _x(1, 2, 3, 8)),
    ),
    "conv_1x1": (lambda x, w: F.conv2d(x, w), (_x(1, 6, 1, 8), _x(10, 6, 1, 1))),
    "conv_grouped": (lambda x, w: F.conv2d(x, w, groups=2), (_x(2, 6, 1, 8), _x(10, 3, 1, 1))),
    "conv_strided": (
        lambda x: F.conv2d(x, _KERNEL, _SHIFT[:4], stride=2, padding=(1, 2), dilation=(1, 2)),
        (_x(1, 3, 9, 11),),
    ),
    "conv_1d": (lambda x, w: F.conv1d(x, w, padding="same"), (_x(1, 3, 9), _x(4, 3, 4))),
    "reshape": (lambda x: (x.reshape(6, 4), x.flatten(1), x.view(2, -1)), (_x(2, 3, 4),)),
    "transpose": (lambda x: (x.transpose(0, 2), x.permute(1, 2, 0)), (_x(2, 3, 4),)),
    "squeeze": (lambda x: (x.squeeze(1), x.unsqueeze(-1)), (_x(2, 1, 4),)),
    "join": (lambda x, y: (torch.cat([x, y], 1), torch.stack([x, y], 1)), (_x(2, 3), _x(2, 3))),
    "split": (lambda x: (*x.split([1, 2, 3], 1), *x.chunk(2, 1)), (_x(2, 6),)),
    "slices": (lambda x: (x[1:], x[:, -2:], x[::2], x[1], x[:, 1:3, ::3]), (_x(4, 5, 6),)),
    "slice_scatter": (lambda x, y: torch.slice_scatter(x, y, 1, 1, 3), (_x(4, 5), _x(4, 2))),
    "index_put": (lambda x, y: x.index_put((torch.tensor([0, 2]),), y), (_x(4, 5), _x(2, 5))),
    "expand": (lambda x: (x.expand(3, 2, 4), x.repeat(2, 1, 3), x.repeat_interleave(2, 1)), (_x(1, 2, 4),)),
    "flip_roll": (lambda x: (x.flip(1), x.roll(1, 0)), (_x(3, 4),)),
    "pad": (lambda x: (F.pad(x, (1, 2)), F.pad(x, (1, 1, 2, 0), value=-3.0)), (_x(3, 4),)),
    "pad_edges": (lambda x: (F.pad(x, (1, 2), "replicate"), F.pad(x, (1, 2), "reflect")), (_x(1, 3, 4),)),
    "triangle": (lambda x: (x.tril(), x.triu(1), x.tril(-1)), (_x(5, 5),)),
    "made": (lambda x: (torch.arange(6) + x, torch.full((2, 6), 3.0) + x, torch.ones_like(x)), (_x(6),)),
    "one_hot": (lambda x: F.one_hot(x, 7), (_ids(7, 5),)),
    "embedding": (lambda ids, table: F.embedding(ids, table), (_ids(9, 5), _x(9, 4))),
    "index_select": (lambda x, ids: x.index_select(1, ids), (_x(3, 9), _ids(9, 4))),
    "index_two": (lambda x, i, j: x[i, j], (_x(3, 9), _ids(3, 4), _ids(9, 4))),
    "gather": (lambda x, ids: x.gather(1, ids), (_x(3, 9), _ids(9, 3, 4))),
    "scatter": (lambda x, ids, y: x.scatter(1, ids, y), (_x(2, 9), torch.tensor([[0, 3], [5, 8]]), _x(2, 2))),
    "scatter_add": (lambda x, ids, y: x.scatter_add(1, ids, y), (_x(2, 9), torch.tensor([[3, 3], [5, 8]]), _x(2, 2))),
}


class _All(torch.nn.Module):
    """Every case in one program: a conversion costs more than what it converts."""

    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(result for name in CASES for result in _results(name, given))


def _results(case: str, given: tuple[torch.Tensor, ...]) -> Iterator[torch.Tensor]:
    """The results of a case as outputs that Core ML can give: no booleans, no scalars."""
    function, examples = CASES[case]
    start = next(at for at, (name, _) in enumerate(_INPUTS) if name == case)
    inputs = (x.to(one.dtype) for x, one in zip(given[start:], examples, strict=False))
    results = function(*inputs)
    for x in (results,) if isinstance(results, torch.Tensor) else results:
        x = x if x.is_floating_point() else x.to(torch.int32)
        yield x.reshape(1) if x.ndim == 0 else x


# Core ML takes no booleans. Float inputs hold float16 values, so that both precisions see the same numbers.
_INPUTS = [(name, x) for name, (_, examples) in CASES.items() for x in examples]
_GIVEN = tuple(x.half().float() if x.is_floating_point() else x.to(torch.int32) for _, x in _INPUTS)


@pytest.fixture(scope="module", params=samples.ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=["float32", "float16"])
def results(request: pytest.FixtureRequest, engine: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """case -> [(what the engine gives, what PyTorch gives in float32)], and the precision."""
    half = request.param == "float16"
    path = samples.save(samples.convert(_All(), _GIVEN, half=half), tmp_path_factory.mktemp(request.param))
    found = iter(samples.predict(engine, path, {f"x{at}": x.numpy() for at, x in enumerate(_GIVEN)}).values())
    pairs = {case: [(next(found), want.numpy()) for want in _results(case, _GIVEN)] for case in CASES}
    assert next(found, None) is None
    return {"half": half, **pairs}


@pytest.mark.parametrize("case", CASES)
def test_a_program_computes_what_pytorch_computes(case: str, results: dict[str, Any]) -> None:
    """To the last bits in float32; within a few roundings in float16."""
    close = 4 * HALF_ULP if results["half"] else 2e-6
    for found, want in results[case]:
        assert found.shape == want.shape
        floats = np.float16 if results["half"] else np.float32
        assert found.dtype == (floats if want.dtype.kind == "f" else np.int32)
        if case == "reciprocal":
            want = 1 / (1 / want + np.float32(1e-4))
        np.testing.assert_allclose(found.astype(np.float64), want, rtol=close, atol=close)


def test_every_result_of_a_float16_program_is_rounded_where_it_is_made(tmp_path: Path) -> None:
    """2048 + 1 is 2048 in float16, twice; computed in one go it would be 2050."""
    module = samples.Call(lambda x, y: (x + y) + y)
    path = samples.save(samples.convert(module, (torch.ones(1), torch.ones(1)), half=True), tmp_path)
    found = samples.predict("emulator", path, {"x0": np.array([2048.0]), "x1": np.array([1.0])})
    assert found.popitem()[1].tolist() == [2048.0]


def test_a_float16_result_beyond_its_range_is_infinite(tmp_path: Path) -> None:
    path = samples.save(samples.convert(samples.Call(lambda x: x * x), (torch.ones(2),), half=True), tmp_path)
    found = samples.predict("emulator", path, {"x0": np.array([300.0, 2.0])})
    assert found.popitem()[1].tolist() == [math.inf, 4.0]


def test_of_equal_candidates_the_smaller_index_comes_first(tmp_path: Path) -> None:
    path = samples.save(samples.convert(samples.Call(lambda x: x.topk(3)[1].int()), (_x(2, 6),)), tmp_path)
    found = samples.predict("emulator", path, {"x0": np.array([[1, 2, 2, 2, 2, 0], [0.0, -0.0, 0, -1, -1, -1]])})
    assert found.popitem()[1].tolist() == [[1, 2, 3], [0, 1, 2]]
