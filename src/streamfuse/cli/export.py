"""`streamfuse export`: a checkpoint and an adapter become a bundle."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from streamfuse.adapters import DEFAULT, find
from streamfuse.model.pull import DEFAULT_MODEL, resolve_model

from .console import err, out, say

if TYPE_CHECKING:
    from streamfuse.export.bundle import Report
    from streamfuse.export.plan import ExportPlan
    from streamfuse.export.preview import Preview


def register(app: typer.Typer) -> None:
    app.command("export")(export)


def export(
    output_dir: Annotated[Path, typer.Option("--output-dir", "-o", help="Folder of the bundle.")],
    model: Annotated[str, typer.Option("--model", help="Hub name, checkpoint folder or .gguf file.")] = DEFAULT_MODEL,
    adapter: Annotated[str, typer.Option(help="Name of a shipped adapter, or a file of `streamfuse train`.")] = DEFAULT,
    target: Annotated[
        str, typer.Option(metavar="[executorch|coreml|onnx]", help="Format of the graphs.")
    ] = "executorch",
    backend: Annotated[
        str,
        typer.Option(
            metavar="[kernels|xnnpack|coreml|vulkan|qnn]",
            help="What runs the graphs inside ExecuTorch; kernels: streamfuse's own operators.",
        ),
    ] = "auto",
    quantize: Annotated[
        str,
        typer.Option(
            "--quantize",
            metavar="[8da4w|8da8w|int4|int8|none]",
            help="int8 activations with int4 or int8 weights (executorch); int4 or int8 weights (coreml, onnx).",
        ),
    ] = "auto",
    scheme: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART=GRID",
            help="Another grid for attention, mlp, head or streams: q4_1 or q8_0; may be given again.",
            show_default="from --quantize",
        ),
    ] = None,
    group_size: Annotated[int, typer.Option(help="Weights per scale: 32, 64, 128 or 256.")] = 32,
    max_context_len: Annotated[int, typer.Option(help="Capacity of the caches in tokens.")] = 1024,
    prefill_len: Annotated[int, typer.Option(help="Prompt tokens per prefill pass.")] = 64,
    num_streams: Annotated[
        int | None, typer.Option(min=1, help="Keep only the first streams of the adapter.", show_default="all")
    ] = None,
    widths: Annotated[str, typer.Option(help="Nodes of the verify methods, ascending.")] = "4,8,16",
    default_width: Annotated[int, typer.Option(help="The verify method to use where nobody chooses.")] = 8,
    prune_keep: Annotated[
        str, typer.Option(metavar="N|WIDTH:N,...", help="Nodes that survive the pruner where more are verified.")
    ] = "8",
    stream_nodes: Annotated[
        str, typer.Option(metavar="N|WIDTH:N,...|all", help="Survivors that carry streams, the likeliest last ones.")
    ] = "4",
    schedule: Annotated[
        str,
        typer.Option(
            metavar="[fused|deferred|both]", help="Streams in the verifying pass, in a second one after it, or both."
        ),
    ] = "deferred",
    top_k: Annotated[int, typer.Option(help="Candidates per stream and node that the graph returns.")] = 16,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the bundle that is there.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the plan, print it with the sizes to expect, write nothing.")
    ] = False,
    offline: Annotated[bool, typer.Option("--offline", help="Use only what is on this machine.")] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print the report or plan as JSON, nothing else.")] = False,
) -> None:
    """Lower a stream-fused model to static ExecuTorch graphs, prove them against PyTorch, and write a bundle.

    The folder gets model.pte (prefill, decode and one verify method per width, sharing their weights), tokenizer.json,
    draft.npz, selftest.npz and manifest.json. Nothing is written where a graph misses its parity floor.

    [bold]Examples[/bold]

    streamfuse export -o build/demo

    streamfuse export -o build/mine --adapter build/train/mine/adapter.safetensors --overwrite

    streamfuse export -o build/stock --backend xnnpack --quantize none

    streamfuse export -o build/small --num-streams 2 --max-context-len 512 --dry-run
    """
    from streamfuse.export.plan import ExportPlan, PlanError, Quantize, Schedule
    from streamfuse.export.preview import preview

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
            target=target,
            backend=backend,
            quantize=_choice("--quantize", quantize, {kind.value: kind for kind in Quantize}),
            schemes=dict(_scheme(item) for item in scheme or []),
            group_size=group_size,
            max_context_len=max_context_len,
            prefill_len=prefill_len,
            num_streams=num_streams,
            widths=nodes,
            default_width=default_width,
            prune_keep=_per_width("--prune-keep", prune_keep),
            stream_nodes=None if stream_nodes == "all" else _per_width("--stream-nodes", stream_nodes),
            schedule=_choice("--schedule", schedule, {kind.value: kind for kind in Schedule}),
            top_k=top_k,
            overwrite=overwrite,
        )
        expected = preview(plan)
    except PlanError as error:
        raise typer.BadParameter(str(error)) from None
    if dry_run:
        _print_plan(plan, expected, json_)
        return
    report = _run(plan, expected)
    if json_:
        print(json.dumps(vars(report)))
        return
    worst = min(row["snr_db"] for row in report.parity["lowering"].values())
    seconds, size = sum(report.seconds.values()), sum(report.bytes.values()) / 1e6
    say(f"parity with PyTorch: at least {worst:.0f} dB over all methods; {seconds:.0f} s, {size:.0f} MB")
    out.print(str(output_dir))


Chosen = TypeVar("Chosen")


def _choice(flag: str, value: str, choices: dict[str, Chosen]) -> Chosen:
    if value not in choices:
        raise typer.BadParameter(f"{flag} must be one of {', '.join(choices)}, not {value}")
    return choices[value]


def _scheme(item: str) -> tuple[str, str]:
    part, sign, grid = item.partition("=")
    if not sign:
        raise typer.BadParameter(f"--scheme must be PART=GRID, for example head=q4_1, not {item}")
    return part, grid


def _per_width(flag: str, value: str) -> int | dict[int, int]:
    """One number, or `8:4,16:8`: numbers by width."""
    try:
        if ":" not in value:
            return int(value)
        pairs = (item.split(":") for item in value.split(","))
        return {int(width): int(number) for width, number in pairs}
    except ValueError:
        raise typer.BadParameter(f"{flag} must be a number, or like 8:4,16:8, not {value}") from None


def _run(plan: ExportPlan, expected: Preview) -> Report:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("loading PyTorch and ExecuTorch", total=None)
        from streamfuse.export.bundle import count_steps, export_bundle

        progress.update(task, total=count_steps(expected))
        return export_bundle(plan, lambda words: progress.update(task, advance=1, description=words))


def _print_plan(plan: ExportPlan, expected: Preview, as_json: bool) -> None:
    facts: dict[str, Any] = asdict(plan)
    if as_json:
        print(json.dumps({**facts, **expected.to_dict()}, default=str))
        return
    for name, part in expected.parts.items():
        facts[name] = f"{part.parameters / 1e6:.1f} M weights, {part.bytes / 1e6:.1f} MB"
    facts["all weights"] = f"{expected.weight_bytes / 1e6:.1f} MB, one copy for all methods"
    facts["caches"] = f"{expected.cache_bytes / 1e6:.1f} MB of memory for {plan.max_context_len} tokens"
    if any(expected.delegates.values()):
        facts["delegates"] = ", ".join(f"{name} {count}" for name, count in expected.delegates.items())
    facts["adapter facts"] = expected.adapter
    facts["quantize"], facts["schedule"] = plan.quantize.value, plan.schedule.value
    for name, value in facts.items():
        out.print(f"{name:16} {value}", highlight=False, soft_wrap=True)
