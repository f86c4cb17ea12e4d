"""The dtype in which the base computes, in training and distillation: CPU speeds differ by a factor of two."""

from __future__ import annotations

from typing import cast, get_args

import torch

from .config import Dtype

NAMES = get_args(Dtype)
_CPU_FLAGS = ("avx512_bf16", "amx_bf16")  # products in bfloat16 take half the time there, and more elsewhere


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
        fast = any(capabilities.get(flag) for flag in _CPU_FLAGS)
    return torch.bfloat16 if fast else torch.float32


def name_of(dtype: torch.dtype) -> Dtype:
    """The inverse of `choose_dtype`."""
    return cast("Dtype", str(dtype).removeprefix("torch."))
