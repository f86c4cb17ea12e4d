"""`streamfuse adapter ...`: one small module per command."""

from __future__ import annotations

import typer

from streamfuse.cli.shared.groups import register_group

COMMANDS = ("average", "convert", "ngrams")


def register(app: typer.Typer) -> None:
    about = "Average or convert trained adapters, or count an n-gram table."
    register_group(app, "adapter", about, __name__, COMMANDS)
