"""Which number type a machine trains fastest in: CPUs differ by a factor of two in either direction."""

from __future__ import annotations

import torch

_CPU_FLAGS = ("avx512_bf16", "amx_bf16")  # products in bfloat16 take half the time there, and more elsewhere


def fastest_dtype() -> torch.dtype:
    """bfloat16 where the machine multiplies it, else float32."""
    if torch.cuda.is_available():
        fast = torch.cuda.is_bf16_supported()
    else:
        capabilities = torch.cpu.get_capabilities()
        fast = any(capabilities.get(flag) for flag in _CPU_FLAGS)
    return torch.bfloat16 if fast else torch.float32
