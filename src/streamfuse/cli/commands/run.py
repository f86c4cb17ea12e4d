"""`streamfuse run`: answers one prompt; `--compare` runs it with plain and with speculative decoding."""

from __future__ import annotations

import sys
from functools import partial
from typing import Annotated, Any

import typer

from streamfuse.api import GenerationOptions, Statistics, load
from streamfuse.cli.shared import drafts, options, tables
from streamfuse.cli.shared.answer import answer, calls
from streamfuse.cli.shared.compare import compare
from streamfuse.cli.shared.console import as_text, err, out, print_json, read_input, say, write
from streamfuse.cli.shared.engine import settle, tell_defaults, tell_emulated, tell_limit, tell_prefix, tell_provider
from streamfuse.cli.shared.help import COMMON
from streamfuse.interrupt import stop_on_interrupt
from streamfuse.options import AUTO
from streamfuse.runtime.config import MOST_TOP_LOG_PROBS

_REPEATS = 3  # of --compare


def register(app: typer.Typer) -> None:
    app.command("run")(run)


def run(
    bundle: options.BundleFolder,
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="PROMPT", help="The prompt; `-` reads it from standard input.", show_default="standard input"
        ),
    ] = None,
    max_new_tokens: Annotated[options.MaxNewTokens, COMMON] = None,
    temperature: Annotated[options.Temperature, COMMON] = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    repetition_penalty: options.RepetitionPenalty = None,
    seed: options.Seed = 0,
    stop: options.Stop = None,
    schema: Annotated[options.AnswerSchema, COMMON] = None,
    regex: options.Regex = None,
    grammar: options.Grammar = None,
    tools: Annotated[options.Tools, COMMON] = None,
    tool_choice: options.ToolChoice = None,
    template_variables: options.TemplateVariables = None,
    system: Annotated[options.System, COMMON] = None,
    adapter: Annotated[options.TaskAdapter, COMMON] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the prompt without the chat template.")] = False,
    no_speculation: Annotated[options.NoSpeculation, COMMON] = False,
    width: options.Width = AUTO,
    no_cost_cache: options.NoCostCache = False,
    memory: Annotated[options.Memory, COMMON] = None,
    threads: options.Threads = None,
    provider: options.Provider = None,
    public_key: options.PublicKey = None,
    compare_: Annotated[
        bool, typer.Option("--compare", help="Also run plain decoding, and compare outputs and speed."), COMMON
    ] = False,
    repeats: Annotated[
        int | None,
        typer.Option(
            min=1, help="With --compare: runs of each decoding mode; the median is shown.", show_default=str(_REPEATS)
        ),
    ] = None,
    json_: Annotated[options.Json, COMMON] = False,
    log_probs: Annotated[
        bool,
        typer.Option("--log-probs", help="With --json: also print the ids of the tokens and their log-probabilities."),
    ] = False,
    top_log_probs: Annotated[
        int,
        typer.Option(
            min=0,
            max=MOST_TOP_LOG_PROBS,
            help="With --json: like --log-probs, plus the N most probable tokens at each position.",
        ),
    ] = 0,
    stats: Annotated[
        bool,
        typer.Option("--stats", "--verbose", help="Print statistics and plan on standard error."),
        COMMON,
    ] = False,
    show_drafts: Annotated[options.ShowDrafts, COMMON] = False,
) -> None:
    """Answer one prompt and stream the answer to standard output.

    [bold]Examples[/bold]

    streamfuse run build/demo "Why is the sky blue?"

    streamfuse run build/demo "Count from 1 to 30." --compare

    streamfuse run build/demo "Write a haiku." --temperature 0.8 --top-p 0.95 --seed 7 --stats

    streamfuse run build/tasks "name[Aromi], food[Chinese]" --adapter e2e

    streamfuse run build/demo "Why is the sky blue?" --show-drafts

    streamfuse run build/demo "Name a city in Italy and its river." --schema city.json

    streamfuse run build/demo "How warm is it in Rome?" --tools weather.json --tool-choice required --json

    cat letter.txt | streamfuse run build/demo --raw --max-new-tokens 64 --json
    """
    if prompt is None and sys.stdin.isatty():
        raise typer.BadParameter("there is no PROMPT; give one, or pipe a text to this command")
    if compare_ and no_speculation:
        raise typer.BadParameter("--compare runs both ways, so --no-speculation does not go with it")
    if compare_ and memory is not None:
        raise typer.BadParameter(
            "--compare answers twice, so with --memory the second answer would be drafted from the first; "
            "`streamfuse bench tasks --memory` measures what a memory brings"
        )
    of_template = {"--system": system, "--tools": tools, "--template-variables": template_variables}
    for flag, value in of_template.items():
        if raw and value is not None:
            raise typer.BadParameter(f"{flag} belongs to the chat template, so it does not go with --raw")
    if stats and (json_ or compare_):
        flag = "--json" if json_ else "--compare"
        raise typer.BadParameter(f"{flag} prints statistics itself, so --stats does not go with it")
    if repeats is not None and not compare_:
        raise typer.BadParameter("--repeats needs --compare")
    for flag, given in (("--log-probs", log_probs), ("--top-log-probs", top_log_probs)):
        if given and (compare_ or not json_):
            raise typer.BadParameter(f"{flag} needs --json, without --compare")
    if show_drafts and (json_ or compare_):
        raise typer.BadParameter(
            f"--show-drafts colours a text, so {'--json' if json_ else '--compare'} does not go with it"
        )
    whole = load(
        bundle, threads=threads, provider=provider, cost_cache=not no_cost_cache, public_key=public_key, memory=memory
    )
    model = options.with_adapter(whole, adapter)
    asked = GenerationOptions(
        max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        repetition_penalty=repetition_penalty, seed=seed, stop=tuple(stop or ()), speculative=not no_speculation,
        width=options.nodes(width, no_speculation), log_probs=log_probs, top_log_probs=top_log_probs,
    )  # fmt: skip
    asked.update(options.restrictions(schema, regex, grammar))
    options.add_prompt(asked, tools, template_variables, tool_choice)
    config = options.checked(model.manifest, asked)
    options.check_restriction(config, model.tokenizer)
    if not json_:
        tell_emulated(model.bundle)
        tell_defaults(options.defaults(model.manifest, asked))
    words = _prompt() if prompt in (None, "-") else prompt
    model.check_prompt(model.encode(words, system=system, raw=raw, **asked))
    ask = partial(model.stream, words, system=system, raw=raw, **asked)
    with whole:
        settle(model, plan=config.needs_plan)
        if not json_:
            tell_provider(model.backend)
        if compare_:
            comparison = compare(model, ask, repeats or _REPEATS, err)
            if json_:
                print_json(comparison.to_dict())
            else:
                write(comparison.text + "\n" + calls(comparison.speculative.result))
                out.print(tables.comparison(comparison))
        else:
            generation = ask()
            with stop_on_interrupt(generation.stop) as interrupted:
                if json_:
                    generation.finish()
                    result = generation.result
                    found = answer(result, log_probs, top_log_probs)
                    print_json({**found, **result.statistics.to_dict(), **_provider(model.backend)})
                else:
                    drafts.write(generation, show_drafts)
                    write(calls(generation.result))
                    _tell_end(generation.statistics, model.manifest.cache.capacity, stats)
            if interrupted:
                raise KeyboardInterrupt


def _prompt() -> str:
    """All of standard input."""
    words = as_text(read_input())
    if not words:
        raise typer.BadParameter("standard input is empty; give a PROMPT")
    return words


def _provider(backend: object) -> dict[str, Any]:
    """ONNX Runtime's provider and what it ran, for JSON; empty for other engines."""
    facts = getattr(backend, "description", {})
    return {name: facts[name] for name in ("provider", "nodes", "nodes_on_cpu", "operators_on_cpu") if name in facts}


def _tell_end(found: Statistics, capacity: int, stats: bool) -> None:
    if stats:
        err.print(tables.statistics(found))
    tell_prefix(found)
    tell_limit(found)
    if found.finish_reason == "context":
        say(f"The context of {capacity} tokens is full.", "yellow")
