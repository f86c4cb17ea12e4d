"""`streamfuse bundle ...`: one small module per command."""

from __future__ import annotations

import typer

from streamfuse.cli.shared.groups import register_group

COMMANDS = ("inspect", "prefix", "sign", "keygen", "catalog")


def register(app: typer.Typer) -> None:
    about = "Check, show, extend, sign and list exported bundles."
    register_group(app, "bundle", about, __name__, COMMANDS)
