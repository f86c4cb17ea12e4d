"""Integer weights: a scheme produces integers, scales and offsets, which each target encodes in its own format.

The schemes of GGUF files (q4_1, q8_0) recover a GGUF's own numbers (grid.py), so nothing is quantized twice. Other
schemes use the target's own library, since its engine is tuned for that library's choice of scales.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from streamfuse.options import OptionError

from . import grid
from .schemes import Q4_1, Q8_0, PartScheme

_LARGEST_ZERO = 2.0**14  # in steps of the grid; beyond it a group's spread is below float16's rounding of its minimum


@dataclass(frozen=True, slots=True)
class Integers:
    """A matrix [N, K]: w = d (q - z) + m, one d, z and m for a group of K / G inputs.

    Attributes:
        q: uint8 or int8 [N, K].
        d: floats [N, G].
        m: floats [N, G]; None: zeros.
        z: zero points [N, G], of any dtype; None: zeros.
        exact: bool [N, G], whether a group is reproduced bit for bit; None: unknown.
    """

    q: Tensor
    d: Tensor
    m: Tensor | None = None
    z: Tensor | None = None
    exact: Tensor | None = None

    def dequantized(self) -> Tensor:
        """float32 [N, K], computed in the same way as by a GGUF reader."""
        groups: Tensor = self.q.float().unflatten(1, (self.d.shape[1], -1))
        if self.z is not None:
            groups = groups - self.z.float().unsqueeze(-1)
        groups = groups * self.d.float().unsqueeze(-1)
        return (groups if self.m is None else groups + self.m.float().unsqueeze(-1)).flatten(1)

    def with_zeros(self, shift: int = 0) -> Integers:
        """d q + m as d (v - z), v = q - shift and z = -m / d - shift, for engines without offsets.

        A group with equal weights is m (0 - (-1)).
        """
        if self.m is None:
            return self
        d, m = self.d.float(), self.m.float()
        flat = m.abs() >= _LARGEST_ZERO * d  # also d = 0
        q = self.q if shift == 0 else self.q.to(torch.int8) - shift
        q = q.unflatten(1, (d.shape[1], -1)).masked_fill(flat.unsqueeze(2), 0).flatten(1)
        zeros = torch.where(flat, -1.0, -m / torch.where(flat, 1.0, d) - shift)
        return Integers(q, torch.where(flat, m, d), None, zeros, self.exact)


@dataclass
class GridReport:
    """How many groups of a part are bit-identical to the checkpoint's grid."""

    groups: int = 0
    exact: int = 0

    def add(self, exact: Tensor) -> None:
        self.groups += exact.numel()
        self.exact += int(exact.sum())

    def to_dict(self) -> dict[str, float]:
        return {"groups": self.groups, "exact": self.exact, "exact_share": self.exact / self.groups}


def to_integers(
    weight: Tensor, scheme: PartScheme, otherwise: Callable[[Tensor, PartScheme], Integers] | None = None
) -> Integers:
    """weight [N, K] in this scheme; `otherwise` quantizes schemes that are not those of GGUF files.

    Raises:
        ValueError: the group size does not divide K, or a weight is beyond the range of float16 scales.
    """
    weight = weight.detach().float()
    groups_of(weight, scheme.group_size or weight.shape[1])
    if scheme == Q4_1:
        return to_q4_1(weight)
    if scheme == Q8_0:
        return to_q8_0(weight)
    if otherwise is None:
        raise ValueError(f"{scheme.name} is not a format of GGUF files")
    return otherwise(weight, scheme)


def to_q4_1(weight: Tensor) -> Integers:
    """weight [N, K] on its own Q4_1 grid if it has one, otherwise on the best one found.

    q uint8 in 0..15; d and m float16 [N, K / 32].

    Raises:
        ValueError: 32 does not divide K, or a weight is beyond the range of float16 scales.
    """
    q, d, m, exact = grid.q4_1(weight)
    return Integers(q, d, m, exact=exact)


def to_q8_0(weight: Tensor) -> Integers:
    """weight [N, K] on its own Q8_0 grid if it has one; otherwise the largest magnitude is at 127.

    q int8; d float16 [N, K / 32].

    Raises:
        ValueError: 32 does not divide K, or a weight is beyond the range of float16 scales.
    """
    q, d, exact = grid.q8_0(weight)
    return Integers(q, d, exact=exact)


def symmetric_int8(weight: Tensor, group_size: int, bits: int = 8) -> Integers:
    """weight [N, K]: q int8 with `bits` used bits, d float32 [N, K / group_size]; a group's largest magnitude is at
    127, or at 7 for 4 bits."""
    groups = groups_of(weight, group_size)
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-9) / ((1 << (bits - 1)) - 1)
    return Integers((groups / scale).round().flatten(1).to(torch.int8), scale.squeeze(-1))


def groups_of(weight: Tensor, group_size: int) -> Tensor:
    """weight [N, K] -> float32 [N, K / group_size, group_size]."""
    if weight.shape[1] % group_size:
        raise OptionError(f"--group-size {group_size} does not divide the {weight.shape[1]} inputs of a weight")
    groups: Tensor = weight.float().unflatten(1, (-1, group_size))
    return groups
