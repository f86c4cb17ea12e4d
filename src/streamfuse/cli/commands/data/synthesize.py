"""`streamfuse data synthesize`: prompts for `distill`, where nobody has any."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from streamfuse.cli.shared import options
from streamfuse.cli.shared.console import err
from streamfuse.cli.shared.declared import given, with_options
from streamfuse.cli.shared.help import COMMON
from streamfuse.cli.shared.options import DEFAULT_MODEL
from streamfuse.extras import need
from streamfuse.train.config import SYNTHESIZE, DistillConfig


def register(app: typer.Typer) -> None:
    app.command("synthesize")(synthesize)


@with_options(SYNTHESIZE)
def synthesize(
    out: Annotated[Path, typer.Argument(metavar="OUT.jsonl", help="File to append prompts to, until it has --count.")],
    count: Annotated[int, typer.Option(min=1, help="Number of prompts in the finished file."), COMMON] = 2000,
    model: Annotated[options.BaseModel, COMMON] = DEFAULT_MODEL,
    begin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help='Beginning of the prompts, for example "Summarize: ". Several are used in turn.',
        ),
        COMMON,
    ] = None,
    after: Annotated[
        Path | None,
        typer.Option(
            metavar="ANSWERS.jsonl", help="Write second turns, which follow the finished answers in this file."
        ),
        COMMON,
    ] = None,
    system: Annotated[options.System, COMMON] = None,
    offline: options.Offline = False,
    **flags: Any,
) -> None:
    """Let the model write prompts, by continuing its own chat template (Magpie).

    The template stops where the user's text begins. Prints the file. `streamfuse data distill` answers them
    afterwards. If interrupted, the same command continues.

    [bold]Examples[/bold]

    streamfuse data synthesize prompts.jsonl --count 4000

    streamfuse data synthesize stories.jsonl --begin "Write a story about" --begin "Continue: "

    streamfuse data synthesize follow-ups.jsonl --after answers.jsonl --max-prompt-tokens 400
    """
    need("synthesize")
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from streamfuse.model.pull import resolve_model
    from streamfuse.train import synthesize as prompts
    from streamfuse.train.distill import load_writer
    from streamfuse.train.prompts import open_text

    config = replace(SYNTHESIZE, **given(DistillConfig, flags))
    if not config.temperature:
        raise typer.BadParameter("--temperature must be above 0: every prompt would be the same")
    folder = resolve_model(model, offline=offline)
    text = open_text(folder)
    places, end = prompts.openings(text, begin or (), system, after)
    provenance = prompts.prompt_provenance(config, folder, begin or (), system, after)
    prompts.check_prompts(out, count, provenance)
    base = load_writer(folder, None, config)
    columns = (TextColumn("Prompts"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=err) as progress:
        task = progress.add_task("", total=count)
        for added in prompts.synthesize(base, text, out, count, config, places, end, provenance):
            progress.advance(task, added)
    print(out)
