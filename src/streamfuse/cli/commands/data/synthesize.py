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
    out: Annotated[Path, typer.Argument(metavar="OUT.jsonl", help="Prompts are appended until there are enough.")],
    count: Annotated[int, typer.Option(min=1, help="Prompts that the file shall hold.")] = 2000,
    model: Annotated[str, typer.Option(help="Hub name, checkpoint folder or .gguf file.")] = DEFAULT_MODEL,
    begin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help='What prompts begin with, such as "Summarize: ". Given several times, they take turns.',
            show_default="whatever the model says",
        ),
    ] = None,
    after: Annotated[
        Path | None,
        typer.Option(
            metavar="ANSWERS.jsonl", help="Prompts are second turns, after the finished answers of this file."
        ),
    ] = None,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="System message.", show_default="the template's own")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="Longer prompts are dropped.")] = 96,
    max_prompt_tokens: Annotated[int, typer.Option(help="Longer chats before a prompt are left out.")] = 144,
    temperature: Annotated[float, typer.Option(help="Of the sampling.")] = 1.0,
    top_p: Annotated[float, typer.Option(help="Sample among the likeliest tokens of this total probability.")] = 0.95,
    batch_size: Annotated[int, typer.Option(help="Prompts sampled together.")] = 128,
    seed: Annotated[int, typer.Option(help="Of the sampling.")] = 0,
    dtype: Annotated[
        str,
        typer.Option("--dtype", "--precision", help="Of the model: float32, bfloat16, or auto, the faster one here."),
    ] = "auto",
    offline: Annotated[bool, typer.Option("--offline", help="Use only what is on this machine.")] = False,
) -> None:
    """Let the model write prompts: it goes on with its chat template where the user speaks (Magpie). Prints the file.

    `streamfuse data distill` has them answered then. The same command continues after a stop.

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
