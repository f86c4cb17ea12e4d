"""Operations that no PyTorch program leads to, or with settings that none asks for, written in MIL.

pytest tests/coreml/test_coreml_emulator_mil.py
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import coreml_samples as samples
import numpy as np
import pytest
import torch
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import types
from torch.nn import functional as F

_RNG = np.random.default_rng(6)
_X = _RNG.standard_normal((2, 6, 3, 4)).astype(np.float32)
_ALPHA = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], np.float32)
_SPOTS = np.array([[0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1]], np.float32)
_AT = np.array([[1, 0], [0, 2]], np.int32)


def _t(x: Any) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(x))


def _channels(x: np.ndarray) -> np.ndarray:
    return x[:, None, None]


def _scattered(mode: Callable[[np.ndarray, tuple[Any, ...], Any], None]) -> np.ndarray:
    y = _X[0, 0].copy()
    mode(y, (np.array([0, 2, 0]),), _X[0, 1])
    return y


# name -> (what to build on x [2, 6, 3, 4] and ids [2, 2], what must come out)
CASES: dict[str, tuple[Callable[[Any, Any], Any], Any]] = {
    "acos_asin": (
        lambda x, i: mb.acos(x=mb.asin(x=mb.clip(x=x, alpha=-0.1, beta=0.1))),
        np.arccos(np.arcsin(_X.clip(-0.1, 0.1))),
    ),
    "atanh": (lambda x, i: mb.atanh(x=mb.clip(x=x, alpha=-0.5, beta=0.5)), np.arctanh(_X.clip(-0.5, 0.5))),
    "hyperbolic": (lambda x, i: mb.sinh(x=mb.cosh(x=x)), np.sinh(np.cosh(_X))),
    "tan": (lambda x, i: mb.tan(x=mb.clip(x=x, alpha=-1.0, beta=1.0)), np.tan(_X.clip(-1, 1))),
    "log_epsilon": (lambda x, i: mb.log(x=mb.abs(x=x), epsilon=0.5), np.log(np.abs(_X) + 0.5)),
    "rsqrt_epsilon": (lambda x, i: mb.rsqrt(x=mb.abs(x=x), epsilon=0.5), 1 / np.sqrt(np.abs(_X) + 0.5)),
    "inverse_epsilon": (lambda x, i: mb.inverse(x=mb.abs(x=x), epsilon=0.5), 1 / (np.abs(_X) + 0.5)),
    "gelu_tanh": (lambda x, i: mb.gelu(x=x, mode="TANH_APPROXIMATION"), F.gelu(_t(_X), approximate="tanh")),
    "gelu_sigmoid": (lambda x, i: mb.gelu(x=x, mode="SIGMOID_APPROXIMATION"), _X / (1 + np.exp(-1.702 * _X))),
    "prelu": (lambda x, i: mb.prelu(x=x, alpha=_ALPHA), F.prelu(_t(_X), _t(_ALPHA))),
    "sigmoid_hard": (lambda x, i: mb.sigmoid_hard(x=x, alpha=0.3, beta=0.4), np.clip(0.3 * _X + 0.4, 0, 1)),
    "linear_activation": (lambda x, i: mb.linear_activation(x=x, alpha=0.3, beta=0.4), 0.3 * _X + 0.4),
    "scaled_tanh": (lambda x, i: mb.scaled_tanh(x=x, alpha=0.3, beta=0.4), 0.3 * np.tanh(0.4 * _X)),
    "threshold": (lambda x, i: mb.threshold(x=x, alpha=0.3), np.maximum(_X, 0.3)),
    "fill_like": (lambda x, i: mb.add(x=mb.fill_like(ref_tensor=x, value=2.0), y=x), _X + 2),
    "reduce_l1_norm": (lambda x, i: mb.reduce_l1_norm(x=x, axes=[1, 2]), np.abs(_X).sum((1, 2))),
    "reduce_log_sum": (lambda x, i: mb.reduce_log_sum(x=mb.exp(x=x), axes=[3]), np.log(np.exp(_X).sum(3))),
    "reduce_sum_square": (lambda x, i: mb.reduce_sum_square(x=x, axes=[-1]), np.square(_X).sum(-1)),
    "reduce_prod": (lambda x, i: mb.reduce_prod(x=x, axes=[2], keep_dims=True), _X.prod(2, keepdims=True)),
    "reduce_argmax": (lambda x, i: mb.reduce_argmax(x=x, axis=1, keep_dims=True), _X.argmax(1, keepdims=True)),
    "cumsum_exclusive": (lambda x, i: mb.cumsum(x=x, axis=2, exclusive=True), _X.cumsum(2) - _X),
    "cumsum_reverse": (lambda x, i: mb.cumsum(x=x, axis=2, reverse=True), np.flip(np.flip(_X, 2).cumsum(2), 2)),
    "l2_norm": (
        lambda x, i: mb.l2_norm(x=x, epsilon=1e-3),
        _X / np.sqrt(np.square(_X).sum((1, 2, 3), keepdims=True) + 1e-3),
    ),
    "instance_norm": (
        lambda x, i: mb.instance_norm(x=x, gamma=_ALPHA, beta=-_ALPHA, epsilon=1e-3),
        F.instance_norm(_t(_X), weight=_t(_ALPHA), bias=_t(-_ALPHA), eps=1e-3),
    ),
    "layer_norm_channels": (
        lambda x, i: mb.layer_norm(x=x, axes=[1], gamma=_ALPHA, epsilon=1e-3),
        F.layer_norm(_t(_X).movedim(1, -1), (6,), _t(_ALPHA), eps=1e-3).movedim(-1, 1),
    ),
    "einsum": (
        lambda x, i: mb.einsum(values=(x, mb.transpose(x=x, perm=[0, 3, 2, 1])), equation="nchw,nwhu->nchu"),
        np.einsum("nchw,nwhu->nchu", _X, _X.transpose(0, 3, 2, 1)),
    ),
    "matmul_x": (lambda x, i: mb.matmul(x=x, y=x, transpose_x=True), np.swapaxes(_X, -1, -2) @ _X),
    "conv_same_lower": (
        lambda x, i: mb.conv(x=x, weight=np.ones((2, 6, 2, 2), np.float32), pad_type="same_lower"),
        F.conv2d(F.pad(_t(_X), (1, 0, 1, 0)), torch.ones(2, 6, 2, 2)),
    ),
    "concat_interleave": (
        lambda x, i: mb.concat(values=(x, mb.mul(x=x, y=2.0)), axis=1, interleave=True),
        np.stack([_X, 2 * _X], 2).reshape(2, 12, 3, 4),
    ),
    "split_even": (lambda x, i: mb.split(x=x, num_splits=3, axis=1)[1], _X[:, 2:4]),
    "squeeze_all": (
        lambda x, i: mb.squeeze(x=mb.slice_by_size(x=x, begin=[0, 1, 0, 0], size=[1, 1, -1, 2])),
        _X[0, 1, :, :2],
    ),
    "slice_masks": (
        lambda x, i: mb.slice_by_index(
            x=x,
            begin=[-1, 4, 0, 3],
            end=[0, 0, 2, 0],
            stride=[1, -2, 1, -1],
            end_mask=[False, True, False, True],
            squeeze_mask=[True, False, False, False],
        ),
        _X[-1, 4::-2, :2, 3::-1],
    ),
    "slice_update": (
        lambda x, i: mb.slice_update(
            x=x,
            update=mb.slice_by_size(x=x, begin=[0, 0, 0, 0], size=[2, 6, 1, 4]),
            begin=[0, 0, 1, 0],
            end=[2, 6, 2, 4],
        ),
        np.concatenate([_X[:, :, :1], _X[:, :, :1], _X[:, :, 2:]], 2),
    ),
    "flatten2d": (lambda x, i: mb.flatten2d(x=x, axis=2), _X.reshape(12, 12)),
    "reverse_all": (lambda x, i: mb.reverse(x=x), np.flip(_X)),
    "band_part": (lambda x, i: mb.band_part(x=x, lower=1, upper=0), np.tril(_X) - np.tril(_X, -2)),
    "gather_batch": (
        lambda x, i: mb.gather(x=x, indices=i, axis=2, batch_dims=1),
        np.stack([np.take(one, at, 1) for one, at in zip(_X, _AT, strict=True)]),
    ),
    "gather_nd": (lambda x, i: mb.gather_nd(x=x, indices=i), _X[_AT[:, 0], _AT[:, 1]]),
    "gather_nd_batch": (
        lambda x, i: mb.gather_nd(x=x, indices=mb.expand_dims(x=i, axes=[1]), batch_dims=1),
        np.stack([one[at[0], at[1]] for one, at in zip(_X, _AT, strict=True)])[:, None],
    ),
    "scatter": (
        lambda x, i: mb.scatter(data=_first(x, 0), indices=[0, 2, 0], updates=_first(x, 1), mode="add"),
        _scattered(np.add.at),
    ),
    "scatter_max": (
        lambda x, i: mb.scatter(data=_first(x, 0), indices=[0, 2, 0], updates=_first(x, 1), mode="max"),
        _scattered(np.maximum.at),
    ),
    "scatter_nd": (
        lambda x, i: mb.scatter_nd(data=_first(x, 0), indices=[[0, 1], [2, 3]], updates=[7.0, 8.0], mode="update"),
        _X[0, 0] * (1 - _SPOTS) + np.array([7.0, 0, 8.0])[:, None] * _SPOTS,
    ),
    "topk_ascending": (lambda x, i: mb.topk(x=x, k=2, axis=1, ascending=True)[0], np.sort(_X, 1)[:, :2]),
    "quantize": (
        lambda x, i: mb.dequantize(
            input=mb.quantize(input=x, scale=_ALPHA, zero_point=np.full(6, 3, np.int8), axis=1, output_dtype="int8"),
            scale=_ALPHA,
            zero_point=np.full(6, 3, np.int8),
            axis=1,
        ),
        (np.clip(np.round(_X / _channels(_ALPHA)) + 3, -128, 127) - 3) * _channels(_ALPHA),
    ),
    "round_half_even": (lambda x, i: mb.round(x=mb.add(x=mb.mul(x=x, y=0.0), y=2.5)), np.full_like(_X, 2.0)),
    "floor_mod": (
        lambda x, i: mb.mod(x=mb.floor_div(x=mb.mul(x=x, y=8.0), y=3.0), y=4.0),
        np.mod(np.floor_divide(8 * _X, 3), 4),
    ),
    "softmax_saturated": (lambda x, i: mb.softmax(x=mb.mul(x=x, y=1e4), axis=1), F.softmax(_t(1e4 * _X), 1)),
}


def _first(x: Any, channel: int) -> Any:
    return mb.slice_by_index(x=x, begin=[0, channel, 0, 0], end=[1, 0, 3, 4], squeeze_mask=[True, True, False, False])


@pytest.fixture(scope="module", params=samples.ENGINES)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All cases in one float32 program."""
    specs = [mb.TensorSpec(_X.shape), mb.TensorSpec(_AT.shape, types.int32)]

    @mb.program(input_specs=specs, opset_version=samples.ct.target.iOS18)
    def program(x: Any, ids: Any) -> tuple[Any, ...]:
        return tuple(mb.identity(x=build(x, ids), name=f"out_{name}") for name, (build, _) in CASES.items())

    logging.disable(logging.WARNING)
    model = samples.ct.convert(
        program,
        convert_to="mlprogram",
        minimum_deployment_target=samples.ct.target.iOS18,
        compute_precision=samples.ct.precision.FLOAT32,
        skip_model_load=True,
    )
    logging.disable(logging.NOTSET)
    path = samples.save(model, tmp_path_factory.mktemp("mil"))
    return samples.predict(request.param, path, {"x": _X, "ids": _AT})


@pytest.mark.parametrize("case", CASES)
def test_an_operation_computes_what_mil_says(case: str, found: dict[str, Any]) -> None:
    want = np.asarray(CASES[case][1])
    assert found[f"out_{case}"].shape == want.shape
    np.testing.assert_allclose(found[f"out_{case}"], want, rtol=3e-5, atol=3e-6)
