"""`streamfuse inspect`: what is in a bundle."""

from __future__ import annotations

from typing import Annotated

import typer

from streamfuse.bundle import open_bundle
from streamfuse.bundle.manifest import manifest_json

from . import options, tables
from .console import out


def register(app: typer.Typer) -> None:
    app.command("inspect")(inspect)


def inspect(
    bundle: options.BundleFolder,
    json_: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON and nothing else.")] = False,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Skip the sha256 of the files.")] = False,
) -> None:
    """Check a bundle and print its model, methods with shapes, quantization, parity and files.

    [bold]Examples[/bold]

    streamfuse inspect build/demo

    streamfuse inspect build/demo --json | jq .speculation
    """
    manifest = open_bundle(bundle, verify=not no_verify).manifest
    if json_:
        print(manifest_json(manifest), end="")
    else:
        out.print(tables.bundle(manifest))
