"""`streamfuse data synthesize`: prompts for `distill`, where nobody has any."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streamfuse.cli.shared import options
from streamfuse.cli.shared.console import err
from streamfuse.cli.shared.options import DEFAULT_MODEL
from streamfuse.extras import need


def register(app: typer.Typer) -> None:
    app.command("synthesize")(synthesize)


def synthesize(
    ctx: typer.Context,
    out: Annotated[Path, typer.Argument(metavar="OUT.jsonl", help="File to append prompts to, until it has --count.")],
    count: Annotated[int, typer.Option(min=1, help="Prompts in the file at the end.")] = 2000,
    model: options.BaseModel = DEFAULT_MODEL,
    begin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help='Beginning of the prompts, for example "Summarize: ". Several are used in turn.',
            show_default="none",
        ),
    ] = None,
    after: Annotated[
        Path | None,
        typer.Option(
            metavar="ANSWERS.jsonl", help="Write second turns, which follow the finished answers in this file."
        ),
    ] = None,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="System message.", show_default="the template's own")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Drop longer prompts.")] = 96,
    max_prompt_tokens: Annotated[
        int, typer.Option(help="Skip chats that are longer than this before the prompt.")
    ] = 144,
    temperature: Annotated[float, typer.Option(help="Sampling temperature; 0 is greedy.")] = 1.0,
    top_p: Annotated[
        float, typer.Option(help="Nucleus sampling: keep the likeliest tokens up to this total probability.")
    ] = 0.95,
    batch_size: Annotated[int, typer.Option(help="Prompts sampled together.")] = 128,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    dtype: Annotated[
        str,
        typer.Option("--dtype", "--precision", help="float32, bfloat16, or auto: the faster one on this machine."),
    ] = "auto",
    offline: Annotated[bool, typer.Option("--offline", help="Use local files only; no network access.")] = False,
) -> None:
    """Let the model write prompts, by continuing its chat template at the user's turn (Magpie). Prints the file.

    `streamfuse data distill` answers them afterwards. If interrupted, the same
    command continues.

    [bold]Examples[/bold]

    streamfuse data synthesize prompts.jsonl --count 4000

    streamfuse data synthesize stories.jsonl --count 500 --begin "Write a story about" --begin "Continue this story: "

    streamfuse data synthesize follow-ups.jsonl --after answers.jsonl --max-prompt-tokens 400
    """
    need("synthesize")
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from streamfuse.model.pull import resolve_model
    from streamfuse.train import synthesize as prompts
    from streamfuse.train.distill import DistillConfig, load_writer
    from streamfuse.train.prompts import open_text

    try:
        config = DistillConfig(batch_size, max_prompt_tokens, max_new_tokens, temperature, top_p, seed, dtype)
    except ValueError as error:
        raise typer.BadParameter(options.in_flags(error, ctx.params)) from None
    if not temperature:
        raise typer.BadParameter("--temperature must be above 0: every prompt would be the same")
    folder = resolve_model(model, offline=offline)
    text = open_text(folder)
    places, end = prompts.openings(text, begin or (), system, after)
    writer = load_writer(folder, None, config)
    columns = (TextColumn("Prompts"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=err) as progress:
        task = progress.add_task("", total=count)
        for added in prompts.synthesize(writer, text, out, count, config, places, end):
            progress.advance(task, added)
    print(out)
