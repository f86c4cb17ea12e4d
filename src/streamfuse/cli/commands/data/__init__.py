"""`streamfuse data ...`: one small module per command."""

from __future__ import annotations

import typer

from streamfuse.cli.shared.groups import register_group

COMMANDS = ("fetch", "synthesize", "distill")


def register(app: typer.Typer) -> None:
    about = "Get data for training and benchmarks, or let the model write it."
    register_group(app, "data", about, __name__, COMMANDS)
