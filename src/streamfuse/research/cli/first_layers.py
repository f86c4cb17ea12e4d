"""`streamfuse research first-layers`: the checkpoint that a draft model begins as."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streamfuse.cli.shared.options import DEFAULT_MODEL
from streamfuse.extras import need


def register(research: typer.Typer) -> None:
    research.command("first-layers")(first_layers)


def first_layers(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The checkpoint to write.")],
    model: Annotated[str, typer.Option(help="Hub name or checkpoint folder.")] = DEFAULT_MODEL,
    layers: Annotated[int, typer.Option(min=1, help="Layers to keep, the lowest.")] = 4,
) -> None:
    """Write the first layers of a model: the start of a draft model.

    The embedding, the final norm and the head are written too.

    [bold]Examples[/bold]

    streamfuse research first-layers build/draft-base --layers 4

    streamfuse train --mode base --model build/draft-base --data answers.jsonl --base-layers 4 -o build/draft
    """
    need("pull")
    from streamfuse.model.pull import resolve_model
    from streamfuse.research.first_layers import write_first_layers

    write_first_layers(resolve_model(model), layers, folder)
    print(folder)
