"""The representation of a program's tensors in numpy.

A float16 tensor is represented in float32 (its carrier type) with float16 values, because numpy multiplies float32
matrices fast and float16 matrices slowly. `settle` converts a computed result to its declared dtype and is the only
place that rounds. Elements of fewer than 8 bits are represented in 8 bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]

BITS = {"uint1": 1, "uint2": 2, "uint3": 3, "int4": 4, "uint4": 4, "uint6": 6}  # types packed below a byte
_CARRIERS: dict[str, type[Any]] = {
    "bool": np.bool_,
    "string": np.str_,
    "fp16": np.float32,
    "fp32": np.float32,
    "fp64": np.float64,
    "int4": np.int8,
    **{name: np.uint8 for name in BITS if name.startswith("uint")},
    **{f"{kind}{bits}": getattr(np, f"{kind}{bits}") for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
}


@dataclass(frozen=True, slots=True)
class TensorType:
    """A MIL tensor type: `dtype` by its MIL name (fp16, int32, uint4, ...), `shape` with -1 for an unspecified size."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def carrier(self) -> type[Any]:
        """The numpy dtype that represents such a tensor while the program runs."""
        return _CARRIERS[self.dtype]

    @property
    def numpy(self) -> type[Any]:
        """The numpy dtype of inputs and outputs."""
        return np.float16 if self.dtype == "fp16" else self.carrier

    def fits(self, shape: tuple[int, ...]) -> bool:
        return len(shape) == len(self.shape) and all(
            want in (-1, got) for want, got in zip(self.shape, shape, strict=True)
        )

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


def round_half(x: Array) -> Array:
    """float32 with every element rounded to the nearest float16, ties to even; infinite above 65504."""
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(np.float32)


def settle(x: Any, kind: TensorType) -> Array:
    """A result of float32 arithmetic as a tensor of its declared element type."""
    result: Array = np.asarray(x)
    if kind.dtype == "fp16":
        return round_half(result)
    return result if result.dtype == kind.carrier else result.astype(kind.carrier)


def unpack_bits(packed: npt.NDArray[np.uint8], bits: int, count: int, signed: bool) -> Array:
    """`count` elements of `bits` bits each, the first in the lowest bits of the first byte; int8 or uint8."""
    if 8 % bits == 0:
        mask = np.uint8((1 << bits) - 1)
        values = np.stack([(packed >> np.uint8(shift)) & mask for shift in range(0, 8, bits)], axis=-1).ravel()[:count]
    else:
        planes = np.unpackbits(packed, count=count * bits, bitorder="little").reshape(count, bits)
        values = np.packbits(planes, axis=1, bitorder="little")[:, 0]
    if not signed:
        return values
    sign = np.int8(1 << (bits - 1))
    return np.asarray((values.view(np.int8) ^ sign) - sign)
