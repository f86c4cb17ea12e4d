"""`streamfuse distill`: the base model writes the answers that its streams learn from."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from .console import err, say
from .pull import DEFAULT_MODEL


def register(app: typer.Typer) -> None:
    app.command("distill")(distill)


def distill(
    prompts: Annotated[
        Path, typer.Argument(metavar="PROMPTS.jsonl", help='Lines {"prompt": ...}; "source" is carried over.')
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT.jsonl", help="Answers are appended; those there are skipped.")],
    model: Annotated[str, typer.Option(help="Hub name, checkpoint folder or .gguf file.")] = DEFAULT_MODEL,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens per answer at most.")] = 128,
    max_prompt_tokens: Annotated[int, typer.Option(help="Longer prompts are left out.")] = 144,
    batch_size: Annotated[int, typer.Option(help="Prompts answered together.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Order of the prompts, and sampling.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="Prompts to take at most.", show_default="all")] = None,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="System message.", show_default="the template's own")
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Use only what is on this machine.")] = False,
) -> None:
    """Let the base model answer a file of prompts, in its own words and tokens. Prints the path of the answers.

    Each batch is written when it is done; the same command continues after a stop. In float32, which is the fast form
    on most CPUs. The answers of the shipped adapter need nothing but the defaults.

    [bold]Examples[/bold]

    streamfuse distill prompts.jsonl build/train/chat.jsonl

    streamfuse distill prompts.jsonl short.jsonl --limit 256 --max-new-tokens 64 --batch-size 64

    streamfuse distill prompts.jsonl varied.jsonl --temperature 0.8 --seed 7 --system "Answer in one sentence."
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from streamfuse.model.checkpoint import load_base
    from streamfuse.model.pull import resolve_model
    from streamfuse.train.distill import DistillConfig, pending
    from streamfuse.train.distill import distill as write_answers
    from streamfuse.train.prompts import open_text, read_prompts

    try:
        config = DistillConfig(batch_size, max_prompt_tokens, max_new_tokens, temperature, seed)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if not prompts.is_file():
        raise typer.BadParameter(f"{prompts}: no such file")
    folder = resolve_model(model, offline=offline)
    items = read_prompts(prompts, open_text(folder), system, seed, limit)
    todo = pending(items, out, config)
    n_long = sum(len(item["input_ids"]) > max_prompt_tokens for item in items)
    n_done = len(items) - n_long - len(todo)
    say(f"{len(items)} prompts: {n_long} are too long, {n_done} are answered, {len(todo)} to go.")
    base = load_base(folder)
    n_tokens, started = 0, time.perf_counter()
    columns = (TextColumn("Distilling"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, TimeRemainingColumn(), console=err) as progress:
        task = progress.add_task("", total=len(todo))
        for written in write_answers(base, todo, out, config):
            n_tokens += written.tokens
            speed = f"{n_tokens / (time.perf_counter() - started):.0f} tokens/s"
            progress.update(task, advance=written.answers, description=speed)
    print(out)
