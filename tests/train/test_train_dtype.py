"""Which dtype the base computes in: the faster one on the device that does the work, not on another of the machine.

Run: python -m pytest tests/train/test_train_dtype.py
"""

from __future__ import annotations

import pytest
import torch

from streamfuse.train import dtype
from streamfuse.train.dtype import NAMES, choose_dtype, name_of


@pytest.mark.parametrize(
    ("device", "cpu", "cpu_gain", "gpu", "expected"),
    [
        ("cpu", (), 2.0, "native", torch.float32),
        ("cpu", ("amx_bf16",), 3.0, "none", torch.bfloat16),
        ("cpu", ("avx512_bf16",), 2.0, "emulated", torch.bfloat16),
        ("cpu", ("avx512_bf16",), 0.5, "none", torch.float32),
        ("cuda", (), 0.5, "native", torch.bfloat16),
        ("cuda:1", (), 0.5, "native", torch.bfloat16),
        (torch.device("cuda:0"), ("amx_bf16",), 3.0, "emulated", torch.float32),
        ("mps", ("amx_bf16",), 3.0, "none", torch.float32),
    ],
)
def test_auto_is_the_faster_one_on_the_device(
    device: torch.device | str,
    cpu: tuple[str, ...],
    cpu_gain: float,
    gpu: str,
    expected: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def is_bf16_supported(including_emulation: bool = True) -> bool:
        return gpu == "native" or (gpu == "emulated" and including_emulation)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu != "none")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_bf16_supported)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(cpu, True))
    monkeypatch.setattr(dtype, "bfloat16_gain", lambda: cpu_gain)
    assert choose_dtype("auto", device) == expected


def test_the_gain_is_measured_once() -> None:
    dtype.bfloat16_gain.cache_clear()
    assert 0 < dtype.bfloat16_gain() == dtype.bfloat16_gain()


def test_names_are_those_of_pytorch() -> None:
    for name in NAMES[1:]:
        assert name_of(choose_dtype(name, "cpu")) == name
    assert name_of(choose_dtype("auto", "cpu")) in NAMES[1:]
