"""`streamfuse bench structured`: answers that a schema or a grammar restricts, with and without speculation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from streamfuse.api import load
from streamfuse.cli.shared import complete, options, tables
from streamfuse.cli.shared.console import err, out, print_json, say
from streamfuse.cli.shared.engine import settle
from streamfuse.extras import need

if TYPE_CHECKING:
    from streamfuse.bench.structured.tasks import Task

_NAMES = ("function-calling", "extraction", "sql", "objects")


def register(bench: typer.Typer) -> None:
    bench.command("structured")(structured)


def structured(
    bundle: options.BundleFolder,
    task: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=DATA]",
            help=f"{', '.join(_NAMES)}; all but objects need data. Repeat the flag for several tasks.",
            show_default="objects",
            autocompletion=complete.listed(*_NAMES),
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Questions per task, evenly spread over the data.", show_default="all")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Maximum tokens per answer.")] = 256,
    repetitions: Annotated[int, typer.Option(min=1, help="Timed runs of each system per question.")] = 3,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    seed: options.Seed = 0,
    threads: options.Threads = None,
    provider: options.Provider = None,
    split: options.DataSplit = "test",
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Measure structured output: speed-up by speculation, cost of the constraint, and validity.

    Three systems alternate on every question: constrained speculative,
    constrained plain, and unconstrained plain decoding of as many tokens.
    Both constrained answers must be equal. Every answer that ends must
    satisfy its constraint; the packages jsonschema and lark check this.

    [bold]Tasks[/bold]

    function-calling: one call of a given function, in the form of the
    Berkeley Function Calling Leaderboard; extraction: a restaurant's
    attributes from a text of E2E; sql: a query under a Lark grammar of the
    table's columns; objects: 16 prompts with schemas of many shapes.

    [bold]Examples[/bold]

    streamfuse bench structured build/demo

    streamfuse bench structured build/demo --task function-calling=simple.jsonl --limit 20

    streamfuse bench structured build/sql --task sql=sql_context/test.jsonl --json
    """
    need("bench-structured")
    from streamfuse.bench.shared.comparison import TaskSettings
    from streamfuse.bench.shared.machine import engine_facts
    from streamfuse.bench.structured.measure import measure
    from streamfuse.bench.structured.report import summary, task_rows
    from streamfuse.bench.structured.tasks import encode_questions

    settings = TaskSettings(max_new_tokens, repetitions, temperature, seed)
    sources = [_task(one) for one in task or ["objects"]]
    questions = {found.name: found.read_questions(source, split) for found, source in sources}
    model = load(bundle, threads=threads, provider=provider, cost_cache=False)
    todo = {
        name: encode_questions(read, model.tokenizer, model.manifest, max_new_tokens, limit)
        for name, read in questions.items()
    }
    for name, (fitting, skipped) in todo.items():
        if not fitting:
            raise typer.BadParameter(
                f"none of the {skipped} questions of {name} with {max_new_tokens} new tokens fits into "
                f"{model.manifest.cache.capacity} of context; lower --max-new-tokens"
            )
    with model, _progress(sum(len(fitting) for fitting, _ in todo.values())) as advance:
        settle(model, plan=True)
        facts = {**engine_facts(model.backend), "data": {found.name: source for found, source in sources}}
        result = measure(model.stream, todo, settings, model.tokenizer.decode, facts, advance)
    if json_:
        print_json(result.to_dict())
    else:
        out.print(tables.figures(*task_rows(result)))
        for line in summary(result):
            out.print(line, markup=False, soft_wrap=True)
    if result.stopped_by is not None:
        done = {name: len(figures.results) for name, figures in result.tasks.items()}
        told = ", ".join(f"{done.get(name, 0)} of {len(fitting)} of {name}" for name, (fitting, _) in todo.items())
        say(f"Stopped early: the figures are of {told}.", "yellow")
        raise result.stopped_by


def _task(text: str) -> tuple[Task, str]:
    """A task and its data. BadParameter names the flag."""
    from streamfuse.bench.structured.tasks import TASKS

    name, _, source = text.partition("=")
    task = TASKS.get(name)
    if task is None:
        raise typer.BadParameter(f"--task names one of {', '.join(TASKS)}, not {name!r}")
    if task.needs_data and not source:
        raise typer.BadParameter(f"--task {name} needs data: --task {name}=FILE.jsonl")
    if source and not task.needs_data:
        raise typer.BadParameter(f"--task {name} takes no data")
    return task, source


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("Answering"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task, 1)
