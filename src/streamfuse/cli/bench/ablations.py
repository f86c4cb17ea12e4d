"""`streamfuse bench ablations`: the effect of each part of the method, as a table and a plot."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streamfuse.cli.shared import options
from streamfuse.cli.shared.console import say
from streamfuse.cli.shared.errors import EXIT_INTERRUPTED
from streamfuse.cli.shared.options import DEFAULT_MODEL, BaseModel
from streamfuse.extras import need


def register(bench: typer.Typer) -> None:
    bench.command("ablations")(ablations)


def ablations(
    data: Annotated[
        str,
        typer.Option(metavar="ANSWERS.jsonl", help="The base model's answers, written by `streamfuse data distill`."),
    ],
    output_dir: Annotated[
        Path, typer.Option("--output-dir", "-o", help="Folder for models, rows.jsonl and ablations.png.")
    ],
    model: BaseModel = DEFAULT_MODEL,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each training run.")] = 80,
    batch_size: Annotated[int, typer.Option(min=1, help="Examples per step.")] = 4,
    examples: Annotated[int, typer.Option(min=1, help="Training examples.")] = 320,
    held_out: Annotated[int, typer.Option(min=1, help="Held-out prompts to measure.")] = 40,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="MODEL", help="Train only this variant; repeat the flag for several.", show_default="all"),
    ] = None,
    document: Annotated[
        Path | None,
        typer.Option(help="Also put the table into this Markdown file, and the plot beside it as ablations.png."),
    ] = None,
    offline: options.Offline = False,
) -> None:
    """Train small variants of the streams, measure each, and print a table.

    All variants train for the same number of steps. Each row is saved when it
    is measured: if interrupted, the same command continues, and once all rows
    are there it only prints the table. Another model, data or size needs
    another folder.

    [bold]Examples[/bold]

    streamfuse bench ablations --data build/train/chat-own.jsonl -o build/ablations

    streamfuse bench ablations --data build/train/chat-own.jsonl -o build/ablations --document ablations.md
    """
    need("bench-ablations")
    from dataclasses import replace

    from streamfuse.bench.ablations.variants import Plan, Size, default_plan
    from streamfuse.cli.shared.training import import_main, run_config
    from streamfuse.model.pull import resolve_model

    import_main()
    from streamfuse.bench.ablations.report import plot, table, write_table
    from streamfuse.bench.ablations.run import Ablations, read_rows

    plan = default_plan()
    unknown = set(only or ()) - plan.models.keys()
    if unknown:
        raise typer.BadParameter(f"--only {min(unknown)}: the models are {', '.join(plan.models)}")
    chosen = {name: settings for name, settings in plan.models.items() if not only or name in only}
    size = replace(Size(), steps=steps, batch_size=batch_size, examples=examples, held_out=held_out)
    folder = resolve_model(model, offline=offline)
    work = Ablations(
        folder, data, output_dir, Plan(chosen, plan.rows), size, lambda config: run_config(config, True, more=True)
    )
    try:
        for row in work.run():
            say(f"{row['group']}: {row['label']}: {row['greedy']['ratio']['16']:.3f} tokens per target call")
    except KeyboardInterrupt:
        say("Stopped; the same command continues there.", "yellow")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    groups = list(dict.fromkeys(row.group for row in plan.rows))
    rows = sorted(read_rows(output_dir), key=lambda row: row["group"] != groups[0])
    plot(rows, groups, output_dir / "ablations.png")
    text = table(rows, groups)
    if document:
        write_table(document, text)
        plot(rows, groups, document.with_name("ablations.png"))
    print(text)
