"""`streamfuse bundle ...`: one small module per command."""

from __future__ import annotations

import typer

from streamfuse.cli.shared.groups import register_group

COMMANDS = ("inspect", "sign", "keygen", "catalog")


def register(app: typer.Typer) -> None:
    about = "Check, show, sign and list exported bundles."
    register_group(app, "bundle", about, __name__, COMMANDS)
