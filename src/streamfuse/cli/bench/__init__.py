"""`streamfuse bench ...`: one small module per measure."""

from __future__ import annotations

from importlib import import_module

import typer

COMMANDS = ("ablations", "acceptance", "latency", "parity", "quantization", "scale", "tasks")


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Benchmark a bundle: acceptance, speed, quality of the text.", no_args_is_help=True)
    for name in COMMANDS:
        import_module(f"{__package__}.{name}").register(group)
    app.add_typer(group, name="bench")
