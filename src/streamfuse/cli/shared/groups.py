"""Commands by name: each is a module with `register(app)`."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

import typer

from streamfuse.cli.shared.errors import usage_errors
from streamfuse.cli.shared.help import Command, Group


def register_all(app: typer.Typer, package: str, commands: Iterable[str], panel: str | None = None) -> None:
    """Add the commands to `app`, in this order. Each is a module of `package`, maybe in a folder ("commands.run").

    The help of `app` lists them in the panel. An OptionError that a command raises is a usage error, exit code 2.
    """
    n_commands, n_groups = len(app.registered_commands), len(app.registered_groups)
    for command in commands:
        import_module(f"{package}.{command}").register(app)
    for made in app.registered_commands[n_commands:]:
        made.cls, made.rich_help_panel = Command, panel
        if made.callback is not None:
            made.callback = usage_errors()(made.callback)
    for group in app.registered_groups[n_groups:]:
        group.rich_help_panel = panel


def register_group(app: typer.Typer, name: str, about: str, package: str, commands: Iterable[str]) -> None:
    """Add the group `name` to `app`, with the commands of `package`; `about` is its help."""
    group = typer.Typer(cls=Group, help=about, no_args_is_help=True)
    register_all(group, package, commands)
    app.add_typer(group, name=name)
