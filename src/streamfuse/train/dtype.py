"""The dtype in which the base computes, in training and distillation: CPU speeds differ by a factor of two."""

from __future__ import annotations

import time
from functools import cache
from typing import cast, get_args

import torch

from .config import Dtype

NAMES = get_args(Dtype)
_CPU_FLAGS = ("avx512_bf16", "amx_bf16")  # without them, products in bfloat16 take longer than in float32
_ROWS, _SIDE, _TIMES = 256, 1024, 5  # of the product that is timed

_WORTH = 1.2  # times the speed of float32, from which bfloat16 is used: it is less precise


def choose_dtype(name: str, device: torch.device | str) -> torch.dtype:
    """The dtype of that name, one of `NAMES`; "auto" is the faster one on this device."""
    if name == "auto":
        return fastest_dtype(device)
    dtype: torch.dtype = getattr(torch, name)
    return dtype


def fastest_dtype(device: torch.device | str) -> torch.dtype:
    """bfloat16 if the device has fast bfloat16 products, else float32."""
    kind, fast = str(device).partition(":")[0], False
    if kind == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    elif kind == "cpu":
        capabilities = torch.cpu.get_capabilities()
        fast = any(capabilities.get(flag) for flag in _CPU_FLAGS) and bfloat16_gain() > _WORTH
    return torch.bfloat16 if fast else torch.float32


@cache
def bfloat16_gain() -> float:
    """How many times as fast a product in bfloat16 is, measured once per process. The instructions alone do not say:
    on a Xeon with AVX-512 BF16 and no AMX it takes 1.9 times as long as in float32."""

    def seconds(dtype: torch.dtype) -> float:
        left, right = torch.ones(_ROWS, _SIDE, dtype=dtype), torch.ones(_SIDE, _SIDE, dtype=dtype)
        taken = []
        for _ in range(1 + _TIMES):  # the first one also prepares the library
            started = time.perf_counter()
            left @ right
            taken.append(time.perf_counter() - started)
        return min(taken[1:])

    return seconds(torch.float32) / seconds(torch.bfloat16)


def name_of(dtype: torch.dtype) -> Dtype:
    """The inverse of `choose_dtype`."""
    return cast("Dtype", str(dtype).removeprefix("torch."))
