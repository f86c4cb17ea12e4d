"""`streamfuse adapter average`: one adapter of several, the mean of their weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streamfuse.cli.shared import complete, options
from streamfuse.cli.shared.console import print_json
from streamfuse.extras import need


def register(app: typer.Typer) -> None:
    app.command("average")(average)


def average(
    adapters: Annotated[
        list[str],
        typer.Argument(
            metavar="ADAPTER...",
            help="Two or more: names of shipped adapters, or files.",
            autocompletion=complete.adapters,
        ),
    ],
    out: Annotated[Path, typer.Option("--output", "-o", metavar="OUT.safetensors", help="The adapter to write.")],
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Write the mean of the weights of adapters of the same base and sizes; prints its path.

    An adapter that was trained on with other text (`train --init-adapter`) learns that text and forgets some of the
    old. The mean of before and after keeps most of both. The n-gram table is the last one's. Measure before you ship:
    `streamfuse bench acceptance`.

    [bold]Examples[/bold]

    streamfuse adapter average chat-lossless build/train/more/adapter.safetensors -o mine.safetensors
    """
    need("average")
    from streamfuse.model.checkpoint import average_adapters

    if len(adapters) < 2:
        raise typer.BadParameter("ADAPTER... takes two or more; the mean of one is itself")
    files = [options.adapter_file("ADAPTER", name) for name in adapters]
    options.check_place("--output", out)
    average_adapters(files, out)
    if json_:
        print_json({"adapter": str(out), "of": [str(file) for file in files]})
        return
    print(out)
