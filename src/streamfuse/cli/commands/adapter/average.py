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
            help="Two or more shipped adapters, by name, or files.",
            autocompletion=complete.adapters,
        ),
    ],
    out: Annotated[Path, typer.Option("--output", "-o", metavar="OUT.safetensors", help="The adapter to write.")],
    json_: options.Json = False,
) -> None:
    """Average the weights of adapters with the same base and sizes.

    Prints the path of the result. An adapter that is fine-tuned on other data (`train --init-adapter`) learns
    those data and forgets some of the old. The average of the adapters before
    and after fine-tuning keeps most of both. The n-gram table is that of the last adapter.
    Measure the result before you ship it: `streamfuse bench acceptance`.

    [bold]Examples[/bold]

    streamfuse adapter average chat-lossless build/train/more/adapter.safetensors -o mine.safetensors
    """
    need("average")
    from streamfuse.model.checkpoint import average_adapters

    if len(adapters) < 2:
        raise typer.BadParameter("ADAPTER... takes two or more; the mean of one is itself")
    files = [options.adapter_file("ADAPTER", name) for name in adapters]
    options.check_place("--output", out)
    options.check_not_read("--output", out, "ADAPTER", files)
    average_adapters(files, out)
    if json_:
        print_json({"adapter": str(out), "of": [str(file) for file in files]})
        return
    print(out)
