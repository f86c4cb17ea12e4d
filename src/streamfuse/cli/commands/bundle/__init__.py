"""`streamfuse bundle ...`: one small module per command."""

from __future__ import annotations

import typer

from streamfuse.cli.shared.groups import register_group

COMMANDS = ("inspect", "sign", "keygen")


def register(app: typer.Typer) -> None:
    about = "Check, show and sign exported bundles."
    register_group(app, "bundle", about, __name__, COMMANDS)
