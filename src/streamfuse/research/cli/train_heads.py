"""`streamfuse research train-heads`: Medusa's and blockwise heads, trained by a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streamfuse.cli.shared import options
from streamfuse.cli.shared.options import DEFAULT_MODEL
from streamfuse.research import files


def register(research: typer.Typer) -> None:
    research.command("train-heads")(train_heads)


def train_heads(
    recipe: Annotated[
        str,
        typer.Argument(
            metavar="RECIPE",
            help=f"{', '.join(files.recipes())}, or a file with the keys heads and head_size.",
            autocompletion=lambda incomplete: [name for name in files.recipes() if name.startswith(incomplete)],
        ),
    ],
    output_dir: Annotated[
        Path, typer.Option("--output-dir", "-o", help="Folder for checkpoints, metrics and cached states.")
    ],
    data_root: Annotated[Path, typer.Option("--data-root", help="Folder that the recipe's files are in.")] = Path(
        "data"
    ),
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a setting of the recipe's last stage. STAGE.KEY=VALUE: of another stage.",
        ),
    ] = None,
    model: Annotated[str, typer.Option(help="Hub name, checkpoint folder or .gguf file.")] = DEFAULT_MODEL,
    adapter: Annotated[
        Path | None, typer.Option(help="The file to write.", show_default="OUTPUT_DIR/adapter.safetensors")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume/--no-resume", help="Continue at the last checkpoint, or remove it and start over."),
    ] = True,
    offline: options.Offline = False,
) -> None:
    """Train heads in place of streams on the model's own answers.

    Prints the adapter's path. As `streamfuse train --recipe`, Ctrl-C ends with a checkpoint, and the same command
    continues there.

    [bold]Examples[/bold]

    streamfuse research train-heads chat-medusa -o build/medusa

    streamfuse research export build/medusa/bundle --adapter build/medusa/adapter.safetensors
    """
    from streamfuse.cli.shared.train_recipe import run_recipe
    from streamfuse.cli.shared.training import import_main

    import_main()
    import streamfuse.research.heads  # noqa: F401 (adds the kinds of heads)

    adapter = adapter or output_dir / "adapter.safetensors"
    path = files.recipe(recipe)
    if not Path(path).is_file():
        raise typer.BadParameter(f"RECIPE {recipe}: no such file, and not one of {', '.join(files.recipes())}")
    run_recipe(path, changes or [], None, data_root, output_dir, adapter, model, resume, offline)
