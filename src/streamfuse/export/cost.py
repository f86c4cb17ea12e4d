"""Estimates the time and memory of an export, linearly from measured exports, so that a long one is no surprise.

    CPU seconds = fixed + per_layer * (layers of all methods) + per_million * (millions of weights)
                  + the time of quantizing to four bits, for weights that do not come from a GGUF
    peak bytes  = base + per_weight * (weights)

The figures were measured with SmolLM2-135M and a model of 1.2 G random weights on one core of an AMD EPYC (Zen 5);
docs/export.md has them, with their accuracy.
"""

from __future__ import annotations

from dataclasses import dataclass

from .config import ExportConfig
from .schemes import BITS

_FIT = 0.13  # seconds per million weights that are not already four-bit


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU seconds of an export, and the peak memory of its process."""

    cpu_seconds: float
    peak_bytes: float


@dataclass(frozen=True, slots=True)
class _Line:
    fixed: float  # seconds
    per_layer: float  # seconds per layer and method
    per_million: float  # seconds per million weights
    base: float  # bytes
    per_weight: float  # bytes


_LINES = {
    "kernels": _Line(4, 0.09, 0.12, 1.2e9, 5.1),
    "xnnpack": _Line(5, 0.45, 0.15, 1.6e9, 9),
    "coreml": _Line(8, 0.45, 0.15, 2.0e9, 13),
    "vulkan": _Line(8, 1.0, 0.15, 2.4e9, 13),
    "qnn": _Line(8, 9.0, 0.15, 1.5e9, 70),  # mostly the parity check on the simulator
    "openvino": _Line(8, 0.56, 0.15, 1.3e9, 17),
    "mlprogram": _Line(4, 0.16, 0.12, 1.2e9, 11),
    "onnxruntime": _Line(2, 0.02, 0.07, 0.8e9, 9),
}


def export_cost(config: ExportConfig, layer_runs: int, n_weights: int, on_grid: bool) -> Cost | None:
    """The estimate; None for a backend that was never measured.

    Args:
        layer_runs: layers summed over the methods.
        on_grid: whether the weights come from a GGUF, whose four-bit numbers are recovered instead of fitted.
    """
    line = _LINES.get(config.backend)
    if line is None:
        return None
    millions = n_weights / 1e6
    seconds = line.fixed + line.per_layer * layer_runs + line.per_million * millions
    if BITS[config.quantize] == 4 and not on_grid:
        seconds += _FIT * millions
    return Cost(seconds, line.base + line.per_weight * n_weights)
