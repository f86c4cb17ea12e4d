"""`streamfuse bundle inspect`: what is in a bundle."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from streamfuse.bundle import open_bundle
from streamfuse.bundle.manifest import manifest_json
from streamfuse.cli.shared import options, tables
from streamfuse.cli.shared.console import out, say, write_json
from streamfuse.cli.shared.engine import tell_emulated

_REPORT = "export_report.json"


def register(app: typer.Typer) -> None:
    app.command("inspect")(inspect)


def inspect(
    bundle: options.BundleFolder,
    json_: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON and nothing else.")] = False,
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="Do not compare the SHA-256 sums of the files.")
    ] = False,
    public_key: options.PublicKey = None,
) -> None:
    """Check a bundle and print its model, methods, quantization, parity and files.

    [bold]Examples[/bold]

    streamfuse bundle inspect build/demo

    streamfuse bundle inspect build/demo --json | jq .speculation

    streamfuse bundle inspect build/demo --public-key release.pub
    """
    if no_verify and public_key is not None:
        raise typer.BadParameter("--public-key checks all hashes, so --no-verify does not go with it")
    opened = open_bundle(bundle, verify=not no_verify, public_key=public_key)
    if public_key is not None:
        say(f"signed with {public_key}")
    if json_:
        write_json(manifest_json(opened.manifest))
        return
    out.print(tables.bundle(opened.manifest))
    tell_emulated(opened)
    if "coreml" in (opened.manifest.target, opened.manifest.backend) and _REPORT in opened.manifest.files:
        out.print(tables.operations(json.loads(opened.file(_REPORT).read_text(encoding="utf-8"))["target"]))
