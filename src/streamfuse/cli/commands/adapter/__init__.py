"""`streamfuse adapter ...`: one small module per command."""

from __future__ import annotations

from importlib import import_module

import typer

COMMANDS = ("average", "ngrams")


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Edit trained adapters: average several, or count an n-gram table.", no_args_is_help=True)
    for name in COMMANDS:
        import_module(f"{__package__}.{name}").register(group)
    app.add_typer(group, name="adapter")
