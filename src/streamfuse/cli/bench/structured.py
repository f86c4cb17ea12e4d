"""`streamfuse bench structured`: answers that a schema or a grammar restricts, with and without speculation, and in
other programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from streamfuse.api import load
from streamfuse.bench.shared.systems import PROGRAMS
from streamfuse.cli.shared import complete, options, tables
from streamfuse.cli.shared.console import err, out, print_json, say
from streamfuse.cli.shared.engine import settle
from streamfuse.cli.shared.help import COMMON
from streamfuse.cli.shared.systems import Programs, refuse_unused_weights, system_names, warn
from streamfuse.extras import need

if TYPE_CHECKING:
    from streamfuse.bench.structured.tasks import Task

_NAMES = ("function-calling", "extraction", "sql", "objects")
_NO_PROGRAM = "none"  # of --systems


def register(bench: typer.Typer) -> None:
    bench.command("structured")(structured)


def structured(
    ctx: typer.Context,
    bundle: options.BundleFolder,
    task: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=DATA]",
            help=f"{', '.join(_NAMES)}; all except objects need data. Repeat the flag for several tasks.",
            show_default="objects",
            autocompletion=complete.listed(*_NAMES),
        ),
        COMMON,
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(min=1, help="Questions per task, evenly spread over the data.", show_default="all"),
        COMMON,
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Maximum tokens per answer."), COMMON] = 256,
    repetitions: Annotated[int, typer.Option(min=1, help="Timed runs of each system per question."), COMMON] = 3,
    systems: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help=f"Other programs to compare with: any of {', '.join(PROGRAMS)}, or {_NO_PROGRAM}.",
            show_default="all installed ones",
            autocompletion=complete.listed(*PROGRAMS, _NO_PROGRAM),
        ),
        COMMON,
    ] = None,
    gguf: options.Gguf = None,
    adapter: Annotated[options.TaskAdapter, COMMON] = None,
    trained_adapter: options.TrainedAdapter = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    seed: options.Seed = 0,
    threads: options.Threads = None,
    provider: options.Provider = None,
    split: options.DataSplit = "test",
    json_: Annotated[options.Json, COMMON] = False,
) -> None:
    """Measure structured output: speed-up, cost of the constraint, and validity.

    Three systems alternate on every question: constrained speculative,
    constrained plain, and unconstrained plain decoding of as many tokens.
    Both constrained answers must be equal. Every complete answer must satisfy
    its constraint, which the packages jsonschema and lark check.

    llama.cpp with the task's JSON schema and ONNX Runtime GenAI with guidance
    answer after these three if installed: pip install 'streamfuse\\[llama-cpp]'
    and pip install 'streamfuse\\[onnx-genai]'.

    [bold]Tasks[/bold]

    function-calling: a call of a given function, as in the Berkeley Function Calling Leaderboard

    extraction: a restaurant's attributes from an E2E text

    sql: a query under a Lark grammar with the table's columns

    objects: 16 built-in prompts with a variety of schemas

    [bold]Examples[/bold]

    streamfuse bench structured build/demo

    streamfuse bench structured build/demo --task function-calling=simple.jsonl --limit 20

    streamfuse bench structured build/tasks --adapter sql --task sql=sql_context/test.jsonl

    streamfuse bench structured build/sql --task sql=sql_context/test.jsonl --json
    """
    need("bench-structured")
    from streamfuse.bench.shared.comparison import TaskSettings
    from streamfuse.bench.shared.machine import engine_facts, engine_threads
    from streamfuse.bench.structured.external import Externals
    from streamfuse.bench.structured.measure import measure
    from streamfuse.bench.structured.report import summary, system_rows, task_rows
    from streamfuse.bench.structured.tasks import encode_questions

    names = _programs(systems)
    refuse_unused_weights(ctx, names)
    trained = None if trained_adapter is None else options.adapter_file("--trained-adapter", trained_adapter)
    settings = TaskSettings(max_new_tokens, repetitions, temperature, seed)
    sources = [_task(one) for one in task or ["objects"]]
    if not any(source for _, source in sources):
        options.refuse_unread(ctx, "without a task that has data", "split")
    questions = {found.name: found.read_questions(source, split) for found, source in sources}
    whole = load(bundle, threads=threads, provider=provider, cost_cache=False)
    model = options.with_adapter(whole, adapter)
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
    programs = Programs(names, required=systems is not None)
    programs.prepare(model.manifest, gguf, trained)
    with whole, ExitStack() as stack:
        rest = range(repetitions - 1)
        again = (load(whole.bundle, threads=threads, provider=provider, cost_cache=False) for _ in rest)
        models = [model, *(options.with_adapter(stack.enter_context(one), adapter) for one in again)]
        for one in models:
            settle(one, plan=True)
        facts = {
            **engine_facts(model.backend),
            "adapter": adapter,
            "data": {found.name: source for found, source in sources},
        }
        used, first = engine_threads(model.backend), next(iter(todo.values()))[0][0].prompt_ids
        with err.status("") as status:
            opened = programs.open(stack, used, model.manifest, first, settings, status.update, forced_tokens=True)
        externals = Externals(opened, warn)
        with _progress(sum(len(fitting) for fitting, _ in todo.values())) as advance:
            result = measure(
                [one.stream for one in models], todo, settings, model.tokenizer.decode, {**facts, **programs.facts},
                advance, externals,
            )  # fmt: skip
    result = replace(result, left_out={**programs.left_out, **result.left_out})
    if json_:
        print_json(result.to_dict())
    else:
        out.print(tables.figures(*task_rows(result)))
        if any(figures.external for figures in result.tasks.values()):
            out.print(tables.figures(*system_rows(result)))
        for line in summary(result):
            out.print(line, markup=False, soft_wrap=True)
    if result.stopped_by is not None:
        done = {name: len(figures.results) for name, figures in result.tasks.items()}
        told = ", ".join(f"{done.get(name, 0)} of {len(fitting)} of {name}" for name, (fitting, _) in todo.items())
        say(f"Stopped early: the figures are of {told}.", "yellow")
        raise result.stopped_by


def _programs(systems: str | None) -> list[str]:
    """Names of `PROGRAMS`. BadParameter names the flag."""
    if systems is None:
        return list(PROGRAMS)  # one that is not installed is left out, with the reason
    return [] if systems == _NO_PROGRAM else system_names(systems, PROGRAMS)


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
