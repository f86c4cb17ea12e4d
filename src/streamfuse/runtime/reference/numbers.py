"""Exponential and logarithm by operations that numpy and C++ repeat (tests/traces/README.md, core/numbers.h)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]

_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_FACTORIALS = (6227020800, 479001600, 39916800, 3628800, 362880, 40320, 5040, 720, 120, 24, 6, 2, 1, 1)
_ODD = (21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1)
_SHIFT = float.fromhex("0x1.8p52")  # its last bit is worth 1, so a sum with it is rounded to an integer


def _horner(x: Float64Array, divisors: tuple[int, ...]) -> Float64Array:
    """Sum of x^i / divisors[n - 1 - i], from the highest power down."""
    total = np.full(np.shape(x), 1.0 / divisors[0])
    for divisor in divisors[1:]:
        total = total * x + 1.0 / divisor
    return total


def exponential(x: Float64Array) -> Float64Array:
    """e^x for x float64 of at most 700, 0 below -700: 2^k by the exponent, a Taylor series for the remainder."""
    given, x = x, np.maximum(x, -700.0)
    shifted = x * 1.4426950408889634 + _SHIFT
    k = shifted - _SHIFT
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    series = _horner(r, _FACTORIALS)
    found: Float64Array = (np.atleast_1d(series).view(np.int64) + (np.atleast_1d(shifted).view(np.int64) << 52)).view(
        np.float64
    )
    return np.where(given < -700.0, 0.0, found.reshape(np.shape(x)))


def logarithm(x: Float64Array) -> Float64Array:
    """ln(x) for normal float64 x > 0: x = m 2^e, ln(m) = 2 artanh((m - 1) / (m + 1)) as a series."""
    bits = np.atleast_1d(np.asarray(x, np.float64)).view(np.int64)
    e = ((bits >> 52 & 0x7FF) - 1023).astype(np.float64)
    m = (bits & 0x000FFFFFFFFFFFFF | 0x3FF0000000000000).view(np.float64)
    large = m > 1.4142135623730951
    m, e = np.where(large, m * 0.5, m), np.where(large, e + 1.0, e)
    f = (m - 1.0) / (m + 1.0)
    s = f * f
    series = _horner(s, _ODD)
    found: Float64Array = e * _LN2_HIGH + (2.0 * f * series + e * _LN2_LOW)
    return found.reshape(np.shape(x))
