"""`streamfuse export`: a checkpoint and an adapter become a bundle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from streamfuse.adapters import DEFAULT, find
from streamfuse.model.pull import DEFAULT_MODEL, resolve_model

from .console import err, out, say


def register(app: typer.Typer) -> None:
    app.command("export")(export)


def export(
    output_dir: Annotated[Path, typer.Option("--output-dir", "-o", help="Folder of the bundle.")],
    model: Annotated[str, typer.Option("--model", help="Hub name, checkpoint folder or .gguf file.")] = DEFAULT_MODEL,
    adapter: Annotated[str, typer.Option(help="Name of a shipped adapter, or a file of `streamfuse train`.")] = DEFAULT,
    quantize: Annotated[
        str,
        typer.Option(
            "--quantize", metavar="[8da4w|none]", help="8da4w: int8 activations, int4 weights; none: float32."
        ),
    ] = "8da4w",
    group_size: Annotated[int, typer.Option(help="Weights per scale: 32, 64, 128 or 256.")] = 32,
    max_context_len: Annotated[int, typer.Option(help="Capacity of the caches in tokens.")] = 1024,
    prefill_len: Annotated[int, typer.Option(help="Prompt tokens per prefill pass.")] = 64,
    num_streams: Annotated[
        int | None, typer.Option(min=1, help="Keep only the first streams of the adapter.", show_default="all")
    ] = None,
    widths: Annotated[str, typer.Option(help="Nodes of the verify methods, ascending.")] = "4,8,16",
    default_width: Annotated[int, typer.Option(help="The verify method to use where nobody chooses.")] = 8,
    prune_keep: Annotated[int, typer.Option(help="Nodes that survive the pruner where more are verified.")] = 8,
    top_k: Annotated[int, typer.Option(help="Candidates per stream and node that the graph returns.")] = 16,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the bundle that is there.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, print the plan, write nothing.")
    ] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Use only what is on this machine.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the export report as JSON and nothing else.")] = False,
) -> None:
    """Lower a stream-fused model to static ExecuTorch graphs, prove them against PyTorch, and write a bundle.

    The folder gets model.pte (prefill, decode and one verify method per width, sharing their weights), tokenizer.json, draft.npz,
    selftest.npz and manifest.json. Nothing is written where a graph misses its parity floor.

    [bold]Examples[/bold]

    streamfuse export -o build/demo

    streamfuse export -o build/mine --adapter build/train/mine/adapter.safetensors --quantize none --overwrite
    """
    from streamfuse.export.plan import ExportPlan, PlanError, Quantize

    kinds = {kind.value: kind for kind in Quantize}
    if quantize not in kinds:
        raise typer.BadParameter(f"--quantize must be one of {', '.join(kinds)}, not {quantize}")
    try:
        nodes = tuple(int(part) for part in widths.split(","))
    except ValueError:
        raise typer.BadParameter(
            f"--widths must be numbers with commas between, for example 4,8,16, not {widths}"
        ) from None
    try:
        adapter_path = find(adapter)
    except FileNotFoundError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        plan = ExportPlan(
            model=resolve_model(model, offline=offline),
            adapter=adapter_path,
            output_dir=output_dir,
            quantize=kinds[quantize],
            group_size=group_size,
            max_context_len=max_context_len,
            prefill_len=prefill_len,
            num_streams=num_streams,
            widths=nodes,
            default_width=default_width,
            prune_keep=prune_keep,
            top_k=top_k,
            overwrite=overwrite,
        )
    except PlanError as error:
        raise typer.BadParameter(str(error)) from None
    if dry_run:
        _print_plan(plan, json_)
        return
    report = _run(plan)
    if json_:
        print(json.dumps(vars(report)))
        return
    worst = min(row["snr_db"] for row in report.parity["emitted"].values())
    size = sum(report.bytes.values()) / 1e6
    say(
        f"parity with the float32 model: at least {worst:.0f} dB over all methods; {sum(report.seconds.values()):.0f} s, {size:.0f} MB"
    )
    out.print(str(output_dir))


def _run(plan):  # type: ignore[no-untyped-def]
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        progress.add_task("loading PyTorch and ExecuTorch", total=None)
        from streamfuse.export.bundle import export_executorch
        from streamfuse.export.lower import count_steps

        task = progress.task_ids[0]
        progress.update(task, total=count_steps(plan))
        return export_executorch(plan, lambda words: progress.update(task, advance=1, description=words))


def _print_plan(plan, as_json: bool) -> None:  # type: ignore[no-untyped-def]
    from dataclasses import asdict

    from streamfuse.export.bundle import adapter_summary

    facts = {**asdict(plan), "adapter_facts": adapter_summary(plan.adapter)}
    if as_json:
        print(json.dumps(facts, default=str))
        return
    for name, value in facts.items():
        out.print(f"{name:16} {value}")
