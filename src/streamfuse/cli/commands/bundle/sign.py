"""`streamfuse bundle sign`: a bundle gets a signature."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streamfuse.bundle import sign_bundle
from streamfuse.cli.shared import options
from streamfuse.cli.shared.console import say


def register(app: typer.Typer) -> None:
    app.command("sign")(sign)


def sign(
    bundle: options.BundleFolder,
    key: Annotated[
        Path, typer.Option("--key", metavar="FILE", help="Private key, NAME.key of `streamfuse bundle keygen`.")
    ],
) -> None:
    """Check a bundle and sign it.

    Writes manifest.sig, replacing an existing one. The signature covers the manifest, which contains the hashes of
    all other files. A new export is unsigned, unless --sign-key is given.

    [bold]Examples[/bold]

    streamfuse bundle sign build/demo --key release.key

    streamfuse export -o build/demo --overwrite --sign-key release.key
    """
    from streamfuse.bundle.signature import SIGNATURE_NAME, public_line

    private = options.private_key("--key", key)
    sign_bundle(bundle, private)
    say(f"signed for the public key {public_line(private)}")
    print(Path(bundle) / SIGNATURE_NAME)
