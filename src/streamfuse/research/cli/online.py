"""`streamfuse research online`: drafters that learn while they answer, each with its frozen twin."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streamfuse.api import load
from streamfuse.cli.shared import options, tables
from streamfuse.cli.shared.console import err, out, print_json, say
from streamfuse.cli.shared.engine import loaded
from streamfuse.extras import need

from .shared import BundlesFolder, DataSets, data_set, read_sets


def register(research: typer.Typer) -> None:
    research.command("online")(online)


def online(
    bundle: options.BundleFolder,
    data: DataSets,
    bundles: BundlesFolder = Path("build/methods"),
    limit: Annotated[
        int, typer.Option(min=1, help="Questions of each data set, twice as many of the first, spread over it.")
    ] = 12,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Tokens per answer at most.")] = 96,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    seed: options.Seed = 0,
    threads: options.Threads = None,
    json_: options.Json = False,
) -> None:
    """Measure drafters that learn online from rejected drafts.

    The mix of prompts shifts: the data sets come one after another, and the first one again with other prompts. Each
    drafter answers next to its frozen twin; the text is the same for both. `research compare --online` has the same
    rows with those of all methods.

    [bold]Examples[/bold]

    streamfuse research online build/demo --data chat=spec_bench/question.jsonl --data e2e_nlg/test.jsonl
    """
    need("export")
    from streamfuse.bench.shared.comparison import TaskSettings
    from streamfuse.research.compare.bundles import folder_for, missing, opened, prepare
    from streamfuse.research.compare.core import CORE_PLAIN, CoreSystem
    from streamfuse.research.compare.costs import everywhere, measured
    from streamfuse.research.compare.learners import able, rows
    from streamfuse.research.compare.methods import ONLINE
    from streamfuse.research.compare.tables import online_table

    settings = TaskSettings(max_new_tokens, 1, temperature, seed)
    model = load(bundle, threads=threads, cost_cache=False)
    names = able(model.bundle)
    if not names:
        raise typer.BadParameter(f"{bundle}: streams learn online with --backend kernels alone")
    read = read_sets(data, lambda place: limit if place else 2 * limit)
    bundles = folder_for(model.bundle, bundles)
    with err.status("opening") as status, loaded(model, text=False) as session:
        plain = CoreSystem(CORE_PLAIN, session, False)
        status.update("answering first turns")
        sets = [data_set(name, samples, model, settings, plain) for name, samples in read]
        if waiting := missing(bundles, [ONLINE[name] for name in names]):
            say(f"Exporting {len(waiting)} bundles to {bundles}, once: {', '.join(waiting)}.")
            prepare(model.bundle, bundles, waiting, status.update)
        with opened(model.bundle, bundles, threads) as here:
            status.update("measuring what passes cost")
            costs = everywhere(measured(here.parts, sets[0].prompts[0]))
            found = rows(
                names,
                model.bundle,
                bundles,
                here,
                sets,
                settings,
                model.tokenizer,
                threads,
                costs,
                progress=status.update,
            )
    result = {"model": model.manifest.model.name, "data": [one.name for one in sets], "methods": found}
    if json_:
        print_json(result)
    else:
        out.print(tables.figures(*online_table(result)))
