"""Element-wise operations: arithmetic, comparison, activation, selection."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from streamfuse.emulator.registry import RULES, Rule, operation
from streamfuse.emulator.values import Array

_BINARY: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "real_div": np.divide,
    "floor_div": np.floor_divide,
    "mod": np.mod,
    "pow": np.power,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
}
_UNARY: dict[str, Callable[..., Any]] = {
    "abs": np.abs,
    "acos": np.arccos,
    "asin": np.arcsin,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "ceil": np.ceil,
    "cos": np.cos,
    "cosh": np.cosh,
    "erf": np.vectorize(math.erf, otypes=[np.float32]),
    "exp": np.exp,
    "exp2": np.exp2,
    "floor": np.floor,
    "logical_not": np.logical_not,
    "round": np.round,
    "sign": np.sign,
    "sin": np.sin,
    "sinh": np.sinh,
    "softplus": lambda x: np.logaddexp(x, np.float32(0)),
    "softsign": lambda x: x / (1 + np.abs(x)),
    "sqrt": np.sqrt,
    "square": np.square,
    "tan": np.tan,
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
}


def _unary(function: Callable[..., Any]) -> Callable[[Array], Any]:
    return lambda x: function(x)


def _binary(function: Callable[..., Any]) -> Callable[[Array, Array], Any]:
    return lambda x, y: function(x, y)


RULES.update({kind: Rule(_binary(function), moves=False) for kind, function in _BINARY.items()})
RULES.update({kind: Rule(_unary(function), moves=False) for kind, function in _UNARY.items()})


@operation("sigmoid")
def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


@operation("silu")
def silu(x: Array) -> Array:
    return np.asarray(x * sigmoid(x))


@operation("gelu")
def gelu(x: Array, mode: str = "EXACT") -> Array:
    if mode == "TANH_APPROXIMATION":
        return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))
    if mode == "SIGMOID_APPROXIMATION":
        return np.asarray(x * sigmoid(1.702 * x))
    return np.asarray(0.5 * x * (1 + _UNARY["erf"](x / math.sqrt(2))))


@operation("leaky_relu")
def leaky_relu(x: Array, alpha: Array) -> Array:
    return np.where(x < 0, alpha * x, x)


@operation("elu")
def elu(x: Array, alpha: Array) -> Array:
    return np.where(x < 0, alpha * np.expm1(x), x)


@operation("prelu")
def prelu(x: Array, alpha: Array) -> Array:
    return np.where(x < 0, alpha.reshape(-1, *[1] * (x.ndim - 2)) * x, x)


@operation("linear_activation")
def linear_activation(x: Array, alpha: Array, beta: Array) -> Array:
    return np.asarray(alpha * x + beta)


@operation("sigmoid_hard")
def sigmoid_hard(x: Array, alpha: Array, beta: Array) -> Array:
    return np.asarray(np.clip(alpha * x + beta, 0, 1))


@operation("scaled_tanh")
def scaled_tanh(x: Array, alpha: Array, beta: Array) -> Array:
    return np.asarray(alpha * np.tanh(beta * x))


@operation("clip")
def clip(x: Array, alpha: Array, beta: Array) -> Array:
    return np.clip(x, alpha, beta)


@operation("threshold")
def threshold(x: Array, alpha: Array) -> Array:
    return np.maximum(x, alpha)


# MIL adds a small epsilon before the three functions that have a pole at zero.
@operation("inverse")
def inverse(x: Array, epsilon: Any = 1e-4) -> Array:
    return np.asarray(1 / (x + epsilon))


@operation("log")
def log(x: Array, epsilon: Any = 1e-45) -> Array:
    return np.asarray(np.log(x + epsilon))


@operation("rsqrt")
def rsqrt(x: Array, epsilon: Any = 1e-12) -> Array:
    return np.asarray(1 / np.sqrt(x + epsilon))


@operation("select", moves=True)
def select(cond: Array, a: Array, b: Array) -> Array:
    return np.where(cond, a, b)


@operation("cast")
def cast(x: Array, dtype: str) -> Array:
    """The interpreter converts to the declared dtype; only truncation to integers is done here."""
    return x


@operation("quantize")
def quantize(
    input: Array, scale: Array, output_dtype: str, zero_point: Array | None = None, axis: Array | None = None
) -> Array:
    steps = np.round(input / _along(scale, input, axis))
    if zero_point is not None:
        steps = steps + _along(zero_point, input, axis).astype(np.float32)
    limits = np.iinfo(output_dtype)
    return np.clip(steps, limits.min, limits.max)


@operation("dequantize")
def dequantize(input: Array, scale: Array, zero_point: Array | None = None, axis: Array | None = None) -> Array:
    values = input.astype(np.float32)
    if zero_point is not None:
        values = values - _along(zero_point, input, axis).astype(np.float32)
    return np.asarray(values * _along(scale, input, axis))


def _along(vector: Array, x: Array, axis: Array | None) -> Array:
    """A scalar is unchanged; a vector is reshaped so that it is along `axis` of x."""
    if vector.ndim == 0 or axis is None:
        return vector
    shape = [1] * x.ndim
    shape[int(axis)] = -1
    return vector.reshape(shape)
