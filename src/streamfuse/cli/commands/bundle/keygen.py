"""`streamfuse bundle keygen`: a pair of keys, to sign bundles with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streamfuse.cli.shared.console import say


def register(app: typer.Typer) -> None:
    app.command("keygen")(keygen)


def keygen(
    name: Annotated[Path, typer.Argument(metavar="NAME", help="NAME.key and NAME.pub are written.")],
) -> None:
    """Make a pair of ed25519 keys to sign bundles with; prints the public one.

    NAME.key is the private key (PEM, readable by you alone, without a passphrase): keep it in a store of secrets. Who
    has it signs in your name. NAME.pub is one line, which an app holds: readers refuse what the other one did not sign.

    [bold]Examples[/bold]

    streamfuse bundle keygen release

    streamfuse bundle sign build/demo --key release.key

    streamfuse run build/demo "Why is the sky blue?" --public-key release.pub
    """
    from streamfuse.bundle.signature import write_keys

    private, public = name.with_name(f"{name.name}.key"), name.with_name(f"{name.name}.pub")
    line = write_keys(private, public)
    say(f"{private} signs; keep it secret. {public} is for those who check:")
    print(line)
