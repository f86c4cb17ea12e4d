"""`streamfuse bundle keygen`: a pair of keys, to sign bundles with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streamfuse.cli.shared.console import say


def register(app: typer.Typer) -> None:
    app.command("keygen")(keygen)


def keygen(
    name: Annotated[
        Path,
        typer.Argument(metavar="NAME", help="Writes NAME.key and NAME.pub, for example release.key and release.pub."),
    ],
) -> None:
    """Create a pair of ed25519 keys to sign bundles with, and print the public key.

    NAME.key is the private key (PEM, without a passphrase, readable only by
    you): keep it in a secret store, since anyone who has it can sign in your
    name. NAME.pub is the public key, one line to put into an app, which then
    refuses bundles that were not signed with NAME.key.

    [bold]Examples[/bold]

    streamfuse bundle keygen release

    streamfuse bundle sign build/demo --key release.key

    streamfuse run build/demo "Why is the sky blue?" --public-key release.pub
    """
    from streamfuse.bundle.signature import write_keys

    if not name.name:
        raise typer.BadParameter(f"NAME {name} is a folder; name the keys in it, for example {name / 'release'}")
    private, public = name.with_name(f"{name.name}.key"), name.with_name(f"{name.name}.pub")
    line = write_keys(private, public)
    say(f"{private} signs; keep it secret. {public} is for those who check:")
    print(line)
