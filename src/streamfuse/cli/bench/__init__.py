"""`streamfuse bench ...`: one small module per measure."""

from __future__ import annotations

import typer

from streamfuse.cli.shared.groups import register_group

COMMANDS = (
    "ablations",
    "acceptance",
    "all",
    "latency",
    "memory",
    "parity",
    "quantization",
    "report",
    "scale",
    "structured",
    "tasks",
)


def register(app: typer.Typer) -> None:
    about = "Benchmark a bundle: acceptance, speed, memory, quality of the text."
    register_group(app, "bench", about, __name__, COMMANDS)
