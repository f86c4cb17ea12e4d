"""`streamfuse data ...`: one small module per command."""

from __future__ import annotations

from importlib import import_module

import typer

COMMANDS = ("fetch", "synthesize", "distill")


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Get text for training and benchmarks: public data sets, or prompts and answers by the model itself.",
        no_args_is_help=True,
    )
    for name in COMMANDS:
        import_module(f"{__package__}.{name}").register(group)
    app.add_typer(group, name="data")
