"""`streamfuse run`: one prompt, one answer; with `--compare` the same prompt plainly and speculatively."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from streamfuse.api import Model

from . import options, tables
from .compare import compare
from .console import as_text, err, out, print_json, read_input, say
from .engine import loaded
from .interrupt import stop_on_interrupt

if TYPE_CHECKING:
    from streamfuse.runtime.config import GenerationConfig
    from streamfuse.runtime.session import Session


def register(app: typer.Typer) -> None:
    app.command("run")(run)


def run(
    bundle: options.BundleFolder,
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="What to say to the model; `-` reads it from standard input.")
    ],
    max_new_tokens: options.MaxNewTokens = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    repetition_penalty: options.RepetitionPenalty = None,
    seed: options.Seed = 0,
    stop: options.Stop = None,
    system: options.System = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Complete the prompt as it is, without the chat template.")
    ] = False,
    no_speculation: options.NoSpeculation = False,
    width: options.Width = options.AUTO,
    no_cost_cache: options.NoCostCache = False,
    threads: options.Threads = None,
    public_key: options.PublicKey = None,
    compare_: Annotated[
        bool, typer.Option("--compare", help="Run plainly and speculatively; compare texts and speed.")
    ] = False,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each kind with --compare; the median counts.")] = 3,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    stats: Annotated[
        bool, typer.Option("--stats", "--verbose", help="Statistics and plan after the answer, on standard error.")
    ] = False,
) -> None:
    """Answer one prompt; the text is streamed to standard output.

    [bold]Examples[/bold]

    streamfuse run build/demo "Why is the sky blue?"

    streamfuse run build/demo "Write a haiku." --temperature 0.8 --top-p 0.95 --seed 7 --stats

    streamfuse run build/demo "Count from 1 to 30." --compare

    cat letter.txt | streamfuse run build/demo - --raw --max-new-tokens 64 --json
    """
    if compare_ and no_speculation:
        raise typer.BadParameter("--compare runs both ways, so --no-speculation does not go with it")
    if raw and system is not None:
        raise typer.BadParameter("--system belongs to the chat template, so it does not go with --raw")
    model = Model(bundle, threads=threads, cost_cache=not no_cost_cache, public_key=public_key)
    config = options.GenerationOptions(
        max_new_tokens, temperature, top_k, top_p, min_p, repetition_penalty, seed, tuple(stop or ()),
        not no_speculation, width,
    ).config(model.manifest)  # fmt: skip
    prompt_ids = model.encode(as_text(read_input()) if prompt == "-" else prompt, system, raw)
    model.check_prompt(prompt_ids)
    with loaded(model, plan=config.needs_plan) as session:
        if compare_:
            comparison = compare(session, prompt_ids, config, repeats, err)
            if json_:
                print_json(comparison.to_dict())
            else:
                out.print(comparison.text, markup=False)
                out.print(tables.comparison(comparison))
        else:
            _answer(session, prompt_ids, config, json_, stats)


def _answer(session: Session, prompt_ids: list[int], config: GenerationConfig, as_json: bool, stats: bool) -> None:
    generation = session.generate(prompt_ids, config)
    with stop_on_interrupt(generation.stop) as interrupted:
        for piece in generation:
            if not as_json:
                sys.stdout.write(piece.text)
                sys.stdout.flush()
    statistics = generation.statistics
    if as_json:
        print_json({"text": generation.text, **statistics})
    else:
        print()
        if stats:
            err.print(tables.statistics(statistics))
        elif statistics["finish_reason"] == "context":
            say(f"The context of {session.backend.spec.capacity} tokens is full.", "yellow")
    if interrupted:
        raise KeyboardInterrupt
