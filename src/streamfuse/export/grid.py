"""Weights on the grids of GGUF files: Q4_1 (w = d q + m) and Q8_0 (w = d q), 32 weights per group, d and m float16.

A checkpoint that was a GGUF is on such a grid already; then its own d, m and q are found again, and every weight is
reproduced bit for bit. A group that is on no grid (another model, merged adapters) gets the best grid that a search
finds.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .schemes import GROUP

_STEPS = 20  # scales tried per group, as in llama.cpp's make_qkx2_quants
_TURN = 2**22  # weights per chunk: copies of 16 MB, which the allocator reuses; larger ones are mapped each time
_SAMPLE = 256  # groups that say whether to search among all
_FIT_GROUPS = 4096  # groups per chunk: 0.5 MB of weights
HALF_MAX = 65504.0


def q4_1(weight: Tensor) -> tuple[Tensor, ...]:
    """weight [N, K] -> q uint8 [N, K] in 0..15, d and m float16 [N, K / 32], exact bool [N, K / 32].

    Raises:
        ValueError: 32 does not divide K, or a weight is beyond the range of float16 scales.
    """
    return tuple(map(torch.cat, zip(*map(_some_to_q4_1, _in_turns(weight)), strict=True)))


def _some_to_q4_1(weight: Tensor) -> tuple[Tensor, ...]:
    groups = _grouped(weight)
    flat = groups.flatten(0, 1)
    low, high = flat.aminmax(dim=1)
    d, m = torch.zeros_like(low, dtype=torch.float16), low.half()
    # The writer maps the minimum to q = 0 and the maximum to 15; in a few groups the largest q is smaller.
    rest = _search(flat, d, m, 15, [(high - low) / 15])
    if len(rest) < len(flat) // 2:  # otherwise the weights are on no grid at all
        rest = _search(flat, d, m, 15, [(high - low) / span for span in range(14, 0, -1)], rest)
    if len(rest):
        rest = _search_symmetric(flat, d, m, rest)
    if len(rest):
        d[rest], m[rest] = _fit(flat[rest])
    exact = torch.ones_like(low, dtype=torch.bool)
    exact[rest] = False
    q = _nearest(flat, d, m, 15)
    shape = groups.shape[:2]
    return q.to(torch.uint8).view(weight.shape), d.view(shape), m.view(shape), exact.view(shape)


def q8_0(weight: Tensor) -> tuple[Tensor, ...]:
    """weight [N, K] -> q int8 [N, K], d float16 [N, K / 32], exact bool [N, K / 32]. ValueError as q4_1."""
    return tuple(map(torch.cat, zip(*map(_some_to_q8_0, _in_turns(weight)), strict=True)))


def _some_to_q8_0(weight: Tensor) -> tuple[Tensor, ...]:
    groups = _grouped(weight)
    flat = groups.flatten(0, 1)
    zero = torch.zeros(len(flat), dtype=torch.float16)
    scale = flat.abs().amax(1) / 127
    d = scale.half()
    rest = _search(flat, d, zero, 127, [scale])
    d[rest] = scale[rest].half()
    exact = torch.ones_like(scale, dtype=torch.bool)
    exact[rest] = False
    q = _nearest(flat, d, zero, 127)
    shape = groups.shape[:2]
    return q.to(torch.int8).view(weight.shape), d.view(shape), exact.view(shape)


def _in_turns(weight: Tensor) -> Sequence[Tensor]:
    """Chunks of rows: the search makes several copies, which would be too large for a whole table."""
    turns: Sequence[Tensor] = weight.split(max(1, _TURN // weight.shape[1]))
    return turns


def _grouped(weight: Tensor) -> Tensor:
    if weight.shape[1] % GROUP:
        raise ValueError(f"a row of {weight.shape[1]} weights is not a multiple of the group size {GROUP}")
    if not bool((weight.abs() < HALF_MAX).all()):
        raise ValueError("a weight is not finite, or too large for float16 scales")
    groups: Tensor = weight.float().unflatten(1, (-1, GROUP))
    return groups


def _values(q: Tensor, d: Tensor, m: Tensor) -> Tensor:
    return q * d.float().unsqueeze(-1) + m.float().unsqueeze(-1)


def _nearest(x: Tensor, d: Tensor, m: Tensor, top: int) -> Tensor:
    """The nearest q of each weight as float32, 0..15 for Q4_1 and -127..127 for Q8_0 (m = 0)."""
    scale = d.float().unsqueeze(-1)
    q = ((x - m.float().unsqueeze(-1)) / torch.where(scale == 0, torch.ones_like(scale), scale)).round()
    return q.clamp(0 if top == 15 else -top, top)


def _search(flat: Tensor, d: Tensor, m: Tensor, top: int, scales: list[Tensor], among: Tensor | None = None) -> Tensor:
    """Set `d` of every group that one of the scales, or an adjacent float16, reproduces; returns the other indices."""
    rest = torch.arange(len(flat)) if among is None else among
    for scale in scales:
        for candidate in _neighbours(scale):
            # Most groups are found in the first pass, so only the rest is copied.
            x, tried, offset = (t if len(rest) == len(t) else t[rest] for t in (flat, candidate, m))
            found = (_values(_nearest(x, tried, offset, top), tried, offset) == x).all(1)
            d[rest[found]] = tried[found]
            rest = rest[~found]
            if not len(rest):
                return rest
    return rest


def _search_symmetric(flat: Tensor, d: Tensor, m: Tensor, rest: Tensor) -> Tensor:
    """Set `d` and `m` of every group that is s (q - 8), as in checkpoints of GPTQ (model/quantized.py); returns the
    other indices."""
    sample = rest[:: max(1, len(rest) // _SAMPLE)][:_SAMPLE]
    if len(_symmetric(flat, d, m, sample)) == len(sample):  # the weights are on no such grid
        return rest
    return _symmetric(flat, d, m, rest)


def _symmetric(flat: Tensor, d: Tensor, m: Tensor, rest: Tensor) -> Tensor:
    """A scale may be shared by several groups, so the largest q - 8 of a group may be less than 8."""
    for steps in range(8, 0, -1):
        for candidate in range(3):
            x = flat[rest]
            scale = _neighbours(x.abs().amax(1) / steps)[candidate]
            found = (_values(_nearest(x, scale, -8 * scale, 15), scale, -8 * scale) == x).all(1)
            d[rest[found]], m[rest[found]] = scale[found], -8 * scale[found]
            rest = rest[~found]
            if not len(rest):
                return rest
    return rest


def _neighbours(values: Tensor) -> list[Tensor]:
    """Positive float32 values as the nearest float16, then the float16 below and above it."""
    nearest = values.half()
    bits = nearest.view(torch.int16)
    return [nearest, (bits - 1).clamp(min=0).view(torch.float16), (bits + 1).clamp(max=0x7BFF).view(torch.float16)]


def _fit(x: Tensor) -> tuple[Tensor, Tensor]:
    """d and m float16 [n] of groups [n, 32], in chunks that stay in the cache, since the fit reads them repeatedly."""
    d, m = zip(*map(_fit_some, x.split(_FIT_GROUPS)), strict=True)
    return torch.cat(d), torch.cat(m)


def _fit_some(x: Tensor) -> tuple[Tensor, Tensor]:
    """d and m with a small weighted squared error; large weights count more.

    For each of some scales: the nearest q, then the best d and m for these q by least squares (llama.cpp,
    ggml-quants.c, make_qkx2_quants).
    """
    low, high = x.aminmax(dim=1, keepdim=True)
    importance = x.pow(2).mean(1, keepdim=True).sqrt() + x.abs()
    total = importance.sum(1, keepdim=True)
    best_d, best_m = ((high - low) / 15).half(), low.half()
    best_error = _error(x, best_d, best_m, importance)
    mean_x = (importance * x).sum(1, keepdim=True) / total
    for step in range(_STEPS):
        scale = (high - low) / (14.0 + 2.5 * step / (_STEPS - 1))
        q = ((x - low) / scale.clamp(min=1e-20)).round().clamp(0, 15)
        mean_q = (importance * q).sum(1, keepdim=True) / total
        spread = (importance * (q - mean_q).pow(2)).sum(1, keepdim=True)
        slope = (importance * (q - mean_q) * (x - mean_x)).sum(1, keepdim=True) / spread.clamp(min=1e-20)
        d = torch.where(spread > 0, slope, scale).half()
        m = (mean_x - d.float() * mean_q).half()
        error = _error(x, d, m, importance)
        better = error < best_error
        best_d, best_m = torch.where(better, d, best_d), torch.where(better, m, best_m)
        best_error = torch.where(better, error, best_error)
    return best_d.squeeze(1), best_m.squeeze(1)


def _error(x: Tensor, d: Tensor, m: Tensor, importance: Tensor) -> Tensor:
    d, m = d.squeeze(1), m.squeeze(1)
    return (importance * (_values(_nearest(x, d, m, 15), d, m) - x).pow(2)).sum(1, keepdim=True)
