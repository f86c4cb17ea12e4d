"""`streamfuse data fetch`: public data sets as JSON lines."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from streamfuse.cli.shared import complete
from streamfuse.cli.shared.console import err, say


def register(app: typer.Typer) -> None:
    app.command("fetch")(fetch)


def fetch(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            help="Any of e2e, sql, dialogsum, spec-bench, gsm8k, humaneval, function-calling.",
            autocompletion=complete.data_sets,
        ),
    ],
    output_dir: Annotated[
        Path,
        typer.Option(
            "--output-dir", "-o", help="Each data set gets a folder in it, for example data/e2e_nlg, as recipes expect."
        ),
    ] = Path("data"),
    origin: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="FOLDER|URL",
            help="Read the files from here instead.",
            show_default="the authors' site",
        ),
    ] = None,
) -> None:
    """Download public data sets as JSON lines.

    Prints the folders, which train, distill and bench read. Splits are the authors' own, except for E2E: train and
    valid are both from the development set, on which the shipped adapters were trained, and test is the test set.
    Files come from a fixed commit and are checked. docs/training.md lists the licences.

    [bold]Examples[/bold]

    streamfuse data fetch e2e sql

    streamfuse bench tasks build/e2e --data data/e2e_nlg/test.jsonl --limit 12

    streamfuse data fetch sql -o /tmp/data --from ~/downloads/WikiSQL
    """
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from streamfuse.train.public import NAMES, SOURCES, make

    if unknown := [name for name in names if name not in NAMES]:
        raise typer.BadParameter(f"NAME must be one of {', '.join(NAMES)}, not {unknown[0]}")
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(
        *columns, console=err, transient=True, disable=not err.is_terminal, redirect_stdout=sys.stdout.isatty()
    ) as progress:
        task = progress.add_task("", total=None)

        def show(file: str, done: int, size: int) -> None:
            progress.update(task, description=file, completed=done, total=size or None)

        for name in names:
            folder = make(name, output_dir, origin, show)
            say(f"{SOURCES[name].about}. Licence: {SOURCES[name].licence}.")
            print(folder)
