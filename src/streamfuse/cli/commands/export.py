"""`streamfuse export`: turns a checkpoint and an adapter into a bundle."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from streamfuse.adapters import DEFAULT, DEFAULT_ELSEWHERE
from streamfuse.cli.shared import complete, export_preview, options
from streamfuse.cli.shared.console import print_json, say
from streamfuse.cli.shared.declared import given, read_config, with_options
from streamfuse.cli.shared.errors import usage_errors
from streamfuse.cli.shared.exporting import run_with_progress
from streamfuse.cli.shared.help import COMMON
from streamfuse.export.config import RUN, ExportConfig
from streamfuse.extras import need, need_export, need_native
from streamfuse.model.pull import DEFAULT_MODEL

NO_VULKAN = (
    "no library of streamfuse runs --backend vulkan, except one that android_demo/tools/aar --vulkan has built "
    "(docs/android.md)"
)


def register(app: typer.Typer) -> None:
    app.command("export")(export)


@usage_errors()
def _read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Make the file's values the defaults of the flags; flags override them."""
    if path is not None:
        need("export")
        context.default_map = read_config(path, context.command, ExportConfig, ("config", "help", "json_"))
    return path


@with_options(ExportConfig)
def export(
    output_dir: Annotated[Path, typer.Option("--output-dir", "-o", help="Folder to write the bundle to.")],
    model: Annotated[
        str, typer.Option("--model", help="Hub name, checkpoint folder or .gguf file."), COMMON
    ] = DEFAULT_MODEL,
    adapter: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE|none",
            autocompletion=complete.export_adapters,
            help="Shipped adapter, or a file from `streamfuse train`. none: no streams, prompt look-up only.",
            show_default=f"{DEFAULT}, or {DEFAULT_ELSEWHERE} for other backends and schedules; none for another model",
        ),
        COMMON,
    ] = "auto",
    config: Annotated[
        Path | None,
        typer.Option(
            callback=_read_config, is_eager=True, help="YAML file with these flags as keys; flags override it."
        ),
        COMMON,
    ] = None,
    *,
    sign_key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=options.SIGN_KEY_HELP,
            rich_help_panel=RUN,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the options and expected sizes, memory and time. Nothing is written.",
            rich_help_panel=RUN,
        ),
        COMMON,
    ] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Use local files only; download nothing.", rich_help_panel=RUN)
    ] = False,
    json_: Annotated[
        bool,
        typer.Option("--json", help="Print only the report, or the result of --dry-run, as JSON.", rich_help_panel=RUN),
    ] = False,
    **flags: Any,
) -> None:
    """Export a model to a bundle of static graphs, and compare them with PyTorch.

    The bundle contains the graphs (prefill, decode and one verify method per width, with shared weights),
    tokenizer.json, draft.safetensors, selftest.npz, export_report.json and manifest.json. If a graph is below its
    parity floor, nothing is written unless --allow-parity-below names that floor.

    [bold]Examples[/bold]

    streamfuse export -o build/demo

    streamfuse export -o build/plain --model ~/models/mine --adapter none

    streamfuse export -o build/phone --target coreml --layout ane

    streamfuse export -o build/onnx --target onnx --quantize int8 --scheme mlp=int4:32

    streamfuse export -o build/stock --backend xnnpack --quantize none

    streamfuse export -o build/small --num-streams 2 --max-context-len 512 --dry-run

    streamfuse export -o build/mine --config mine.yaml --overwrite
    """
    need_export(flags["target"], flags["backend"] or "")
    if not dry_run:
        need_native()
    key = None if sign_key is None else options.private_key("--sign-key", sign_key)
    # Read when PyTorch is loaded. Otherwise its threads spin while they wait for one that is not scheduled.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from streamfuse.export.adapter import configure, is_named
    from streamfuse.export.preview import preview

    if is_named(adapter):
        options.adapter_file("--adapter", adapter)
    asked, chosen = configure(output_dir, model, adapter, given(ExportConfig, flags), offline, dry_run)
    if chosen.note is not None:
        say(chosen.note, "yellow")
    expected = preview(asked)
    if expected.sampling.note is not None:
        say(expected.sampling.note)
    if expected.warning is not None:
        say(expected.warning, "yellow")
    if asked.backend == "vulkan":
        say(NO_VULKAN, "yellow")
    if dry_run:
        export_preview.show(asked, expected, json_)
        return
    report = run_with_progress(asked, expected, {"model": model, "adapter": chosen.word}, key)
    if json_:
        print_json(vars(report))
        return
    for miss in report.below_floor:
        say(
            f"below the floor {miss['floor']}, as allowed: {miss['comparison']}, {miss['method']}, {miss['metric']} "
            f"{miss['measured']:.3g} instead of {miss['asked']:.3g}",
            "yellow",
        )
    worst = min(row["snr_db"] for row in report.parity["lowering"].values())
    seconds, size = sum(report.seconds.values()), sum(report.bytes.values()) / 1e6
    say(f"parity with PyTorch: at least {worst:.0f} dB over all methods; {seconds:.0f} s, {size:.0f} MB")
    print(output_dir)
