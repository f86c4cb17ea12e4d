"""What an export will take: a straight line through measured exports, so that nobody starts an hour's work unawares.

    CPU seconds = fixed + per_layer * (layers of all methods) + per_million * (millions of weights)
    peak bytes  = base + per_weight * (weights)

The figures were measured with SmolLM2-135M on one core of an AMD EPYC (Zen 4); docs/export.md has them and says how far
they can be trusted. Weights are assumed to lie on their grid or to be rounded to eight bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from .plan import ExportPlan


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one export: seconds of one core, and the largest memory of the process."""

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
    "kernels": _Line(3, 0.20, 0.11, 1.0e9, 6),
    "onnxruntime": _Line(4, 0.02, 0.09, 1.0e9, 10),
}


def export_cost(plan: ExportPlan, layer_runs: int, n_weights: int) -> Cost | None:
    """`layer_runs`: layers summed over the methods. None for a backend that was never measured."""
    line = _LINES.get(plan.backend)
    if line is None:
        return None
    seconds = line.fixed + line.per_layer * layer_runs + line.per_million * n_weights / 1e6
    return Cost(seconds, line.base + line.per_weight * n_weights)
