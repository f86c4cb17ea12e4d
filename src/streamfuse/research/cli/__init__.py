"""`streamfuse research ...`: one small module per command, each with `register(research)`, like the product's."""

from __future__ import annotations

from importlib import import_module

import typer

COMMANDS = ("compare", "online", "theory", "layer_skip", "first_layers", "train_heads", "export")


def register(app: typer.Typer) -> None:
    research = typer.Typer(
        help="Other methods of speculative decoding, measured on the same model and engine.", no_args_is_help=True
    )
    for name in COMMANDS:
        import_module(f"{__package__}.{name}").register(research)
    app.add_typer(research, name="research")
