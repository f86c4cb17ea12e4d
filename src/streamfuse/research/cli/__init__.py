"""`streamfuse research ...`: one small module per command, each with `register(research)`, like the product's."""

from __future__ import annotations

import typer

COMMANDS = ("compare", "online", "theory", "layer_skip", "first_layers", "train_heads", "export")


def register(app: typer.Typer) -> None:
    from streamfuse.cli.shared.groups import register_group  # `streamfuse.cli` calls this while it is imported

    about = "Other methods of speculative decoding, measured on the same model and engine."
    register_group(app, "research", about, __name__, COMMANDS)
