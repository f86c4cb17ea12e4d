"""`streamfuse bench all`: the benchmarks behind the published figures, in one file of results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streamfuse.cli.shared import tables
from streamfuse.cli.shared.console import out, print_json, say
from streamfuse.extras import NEEDS, need
from streamfuse.options import OptionError

_COLUMNS = ("data set", "prompts", "per pass", "speed-up", "95 %", "cold caches", "streams")


def register(bench: typer.Typer) -> None:
    bench.command("all")(all_)


def all_(
    data: Annotated[Path, typer.Option("--data", metavar="FOLDER", help="Folder that `streamfuse data fetch` wrote.")],
    bundles: Annotated[
        Path,
        typer.Option(
            "--bundles", metavar="FOLDER", help="Folder that contains the bundles demo, e2e and sql (`make bundles`)."
        ),
    ] = Path("build"),
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Results file; results already in it are reused.")
    ] = Path("build/figures.json"),
    limit: Annotated[int, typer.Option(min=1, help="Prompts per data set, evenly spread over the data.")] = 40,
    repetitions: Annotated[int, typer.Option(min=1, help="Runs of each decoding mode per prompt.")] = 1,
    only: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Only the benchmarks whose names contain this text.", show_default="all"),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the commands that would run; run none.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the results as one JSON object.")] = False,
) -> None:
    """Run the benchmarks behind the published figures.

    On two cores this takes about 50 minutes.

    Measures chat, GSM8K, HumanEval, E2E and SQL, or those that the folder of
    --data contains: speed-up over plain decoding, greedy and at temperature 0.7; the
    gain from each drafter; the speed-up and the gain from streams with CPU
    caches evicted before each pass; and the speed of llama.cpp and ONNX
    Runtime GenAI if installed. Also measures structured output, streams as the
    only drafter, a memory of earlier answers, the latency of passes and peak
    memory.

    Each benchmark is one `streamfuse bench` command; --dry-run lists them.
    Its result is stored with its command, commit, start and duration. Run the
    same command again to resume: results are reused unless the command, the
    code of the benchmarks and the runtime, the native libraries, the bundle,
    the data, the other programs, the cores or STREAMFUSE_ISA changed. A results
    file is for one processor.

    [bold]Examples[/bold]

    make bundles

    streamfuse data fetch spec-bench gsm8k humaneval e2e sql function-calling -o data

    streamfuse bench all --data data

    streamfuse bench all --data data --only structured --limit 8 --dry-run
    """
    from streamfuse.bench.suite import Results, benchmarks, identity, measure, memory_table, speed_rows
    from streamfuse.bundle import open_bundle

    chosen = [one for one in benchmarks(bundles, data, limit, repetitions) if only is None or only in one.name]
    if not chosen:
        raise OptionError(f"--only {only}: no benchmark has such a name; --dry-run without --only lists them")
    results = Results(output)
    missing: dict[str, str] = {}
    for one in chosen:
        if not one.bundle.is_dir():
            missing[one.name] = f"{one.bundle} is missing (make bundles)"
        elif one.data is not None and not one.data.is_file():
            missing[one.name] = f"{one.data} is missing (streamfuse data fetch)"
    present = [one for one in chosen if one.name not in missing]
    for bundle in dict.fromkeys(one.bundle for one in present):
        open_bundle(bundle)  # with its hashes, since `Results` compares the manifest only
    for name, why in missing.items():
        say(f"{name}: left out, {why}", "yellow")
    todo = [one for one in present if not results.has(one)]
    say(f"{len(todo)} to run, {len(present) - len(todo)} already in {output}, {len(missing)} left out")
    if dry_run and json_:
        print_json({"to_run": {one.name: one.command for one in todo}, "left_out": missing})
        return
    if dry_run:
        for one in todo:
            out.print(f"# {one.name}\n{one.command}", markup=False, soft_wrap=True)
        return
    for kind in dict.fromkeys(one.arguments[1] for one in todo):  # fail before the first benchmark, not midway
        if f"bench-{kind}" in NEEDS:
            need(f"bench-{kind}")
    try:
        for number, one in enumerate(todo, 1):
            say(f"{number} of {len(todo)}: {one.command}")
            measured = identity(one)
            result, facts = measure(one)
            results.add(one, measured, result, **facts)
    except KeyboardInterrupt:
        say(f"Stopped. Finished results are in {output}; run the same command again to continue.", "yellow")
        raise
    rows = {one.name: results.rows[one.name] for one in present}
    if json_:
        print_json({"benchmarks": rows, "left_out": missing})
        return
    if speeds := list(speed_rows(rows)):
        out.print(tables.figures(_COLUMNS, speeds))
    columns, memory = memory_table(rows)
    if memory:
        out.print(tables.figures(columns, memory))
    out.print(f"{len(rows)} results in {output}", markup=False, soft_wrap=True)
