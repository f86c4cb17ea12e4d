"""A plot of a run: losses and held-out metrics over the steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_RATIO, _DEPTH, _RANK = "eval_call_reduction_ratio_", "eval_acceptance_depth_", "_rank_"


def plot_metrics(metrics: Path, out: Path) -> None:
    """Read a run's metrics.jsonl and write a PNG: losses, call-reduction ratio per width, acceptance per depth.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from matplotlib.figure import Figure  # not pyplot: no display and no global state

    rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    figure = Figure(figsize=(13, 4), layout="constrained")
    loss, ratio, acceptance = figure.subplots(1, 3)
    _lines(loss, rows, [name for name in ("loss", "main_loss") if _has(rows, name)], "loss")
    widths = sorted({name for row in rows for name in row if name.startswith(_RATIO)}, key=_number)
    _lines(ratio, rows, widths, "tokens per target call", {name: f"{_number(name)} nodes" for name in widths})
    depths = sorted(
        {name for row in rows for name in row if name.startswith(_DEPTH) and _RANK not in name}, key=_number
    )
    _lines(acceptance, rows, depths, "acceptance per depth", {name: f"depth {_number(name)}" for name in depths})
    figure.savefig(out, dpi=110)


def _lines(
    axes: Any, rows: list[dict[str, Any]], names: list[str], title: str, labels: dict[str, str] | None = None
) -> None:
    for name in names:
        points = [(row["step"], row[name]) for row in rows if name in row]
        axes.plot(
            *zip(*points, strict=True), marker="." if len(points) < 40 else "", label=(labels or {}).get(name, name)
        )
    axes.set_title(title)
    axes.set_xlabel("step")
    axes.grid(alpha=0.3)
    if names:
        axes.legend()


def _has(rows: list[dict[str, Any]], name: str) -> bool:
    return any(name in row for row in rows)


def _number(name: str) -> int:
    """The number in a metric's name."""
    return int("".join(c for c in name if c.isdigit()))
