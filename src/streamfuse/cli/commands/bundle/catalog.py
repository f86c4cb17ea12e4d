"""`streamfuse bundle catalog`: a list of bundles that apps can download."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from streamfuse.bundle import make_catalog
from streamfuse.cli.shared import complete, options, tables
from streamfuse.cli.shared.console import out, say, write_json
from streamfuse.durable import write_text

_FOLDER_URL = re.compile(r"https://[^/?#\s]+(/[^?#\s]*)?")


def register(app: typer.Typer) -> None:
    app.command("catalog")(catalog)


def catalog(
    bundles: Annotated[
        list[str],
        typer.Argument(
            metavar="BUNDLE...", help="Folders that `streamfuse export` wrote.", autocompletion=complete.bundles
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", dir_okay=False, help="The catalogue, a JSON file.")
    ],
    title: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=TEXT",
            help="The title that apps show for the bundle in folder NAME; repeatable.",
            show_default="the model's name",
        ),
    ] = None,
    base_url: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="HTTPS address of the folder that contains the bundles.",
            show_default="the catalogue's own folder",
        ),
    ] = "",
    public_key: options.PublicKey = None,
    json_: Annotated[bool, typer.Option("--json", help="Also print the catalogue as JSON, and nothing else.")] = False,
) -> None:
    """Check bundles and list them in a catalogue, from which apps download.

    The catalogue contains the name, title, licence, context length, size and
    backend of each bundle, and the size and SHA-256 of each file. Upload it
    with the folders of the bundles beside it to any HTTPS server of static
    files. If the server supports range requests, interrupted downloads resume.
    Apps read it with BundleStore of the Kotlin or Swift library.

    [bold]Examples[/bold]

    streamfuse bundle catalog build/demo build/sql -o build/catalog.json

    streamfuse bundle catalog build/demo -o catalog.json --title "demo=SmolLM2 135M" --public-key release.pub
    """
    files = [file for bundle in bundles for file in Path(bundle).rglob("*")]
    options.check_not_read("--output", output, "BUNDLE", files)
    titles = dict(_title(each) for each in title or [])
    if base_url:
        if not _FOLDER_URL.fullmatch(base_url):
            raise typer.BadParameter(
                f"--base-url must begin with https:// and a host, and have no query or fragment, not {base_url}"
            )
        base_url = base_url.rstrip("/") + "/"
    made = make_catalog(bundles, titles, base_url, public_key)
    text = made.json_text()
    write_text(output, text)
    if json_:
        write_json(text)
        return
    out.print(tables.catalog(made))
    say(f"wrote {output}; upload it with the folders of the bundles")


def _title(text: str) -> tuple[str, str]:
    name, equals, words = text.partition("=")
    if not name or not equals or not words:
        raise typer.BadParameter(f"--title takes NAME=TEXT, not {text}")
    return name, words
