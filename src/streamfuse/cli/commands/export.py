"""`streamfuse export`: turns a checkpoint and an adapter into a bundle."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from streamfuse.adapters import DEFAULT
from streamfuse.cli.shared import complete, export_plan, options
from streamfuse.cli.shared.console import err, print_json, say
from streamfuse.extras import need, need_export, need_native
from streamfuse.model.pull import DEFAULT_MODEL, resolve_model

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from streamfuse.export.pipeline import Report
    from streamfuse.export.plan import ExportPlan
    from streamfuse.export.preview import Preview

_FORMAT, _WEIGHTS, _SIZES = "Backend and format", "Weights", "Graph sizes"
_SPECULATION, _RUN = "Speculation", "This export"
_NOT_IN_FILES = ("config", "help", "json_")


def register(app: typer.Typer) -> None:
    app.command("export")(export)


def _read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Make the file's values the defaults of the flags; flags override them."""
    if path is not None:
        need("export")
        from streamfuse.export.plan import PlanError
        from streamfuse.export.plan_file import read_config

        known = {parameter.name or "" for parameter in context.command.params} - set(_NOT_IN_FILES)
        try:
            context.default_map = read_config(path, known)
        except PlanError as error:
            raise typer.BadParameter(error.flags) from None
    return path


def export(
    output_dir: Annotated[Path, typer.Option("--output-dir", "-o", help="Folder to write the bundle to.")],
    model: Annotated[str, typer.Option("--model", help="Hub name, checkpoint folder or .gguf file.")] = DEFAULT_MODEL,
    adapter: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE|none",
            autocompletion=complete.export_adapters,
            help="Shipped adapter, or a file from `streamfuse train`; none: no streams, draft by look-up only.",
            show_default=f"{DEFAULT} where it fits the model, else none",
        ),
    ] = "auto",
    config: Annotated[
        Path | None,
        typer.Option(
            callback=_read_config, is_eager=True, help="YAML file with these flags as keys; flags override it."
        ),
    ] = None,
    target: Annotated[
        str,
        typer.Option(
            **complete.among("executorch", "coreml", "onnx"), help="Format of the graphs.", rich_help_panel=_FORMAT
        ),
    ] = "executorch",
    backend: Annotated[
        str,
        typer.Option(
            **complete.among("kernels", "xnnpack", "coreml", "vulkan", "qnn", "openvino"),
            help="ExecuTorch backend of the graphs; kernels: streamfuse's own operators. vulkan runs only in an "
            "Android library built with it.",
            show_default="kernels",
            rich_help_panel=_FORMAT,
        ),
    ] = "auto",
    dtype: Annotated[
        str,
        typer.Option(
            **complete.among("float16", "float32"),
            help="Type of activations and unquantized weights; kernels and xnnpack: float32 only.",
            show_default="float16 for coreml, vulkan and qnn, else float32",
            rich_help_panel=_FORMAT,
        ),
    ] = "auto",
    layout: Annotated[
        str,
        typer.Option(
            **complete.among("plain", "ane"),
            help="Tensor layout; ane: channels first with 1x1 convolutions, for the Neural Engine; coreml.",
            rich_help_panel=_FORMAT,
        ),
    ] = "plain",
    compute_units: Annotated[
        str,
        typer.Option(
            **complete.among("all", "cpu_and_ne", "cpu_and_gpu", "cpu_only"),
            help="Compute units that Core ML may use; with --target coreml or --backend coreml.",
            show_default="cpu_and_ne",
            rich_help_panel=_FORMAT,
        ),
    ] = "auto",
    minimum_deployment_target: Annotated[
        str,
        typer.Option(
            **complete.among("iOS18", "iOS26", "macOS15", "macOS26"),
            help="Oldest system that the Core ML model supports; with --target coreml or --backend coreml.",
            show_default="iOS18",
            rich_help_panel=_FORMAT,
        ),
    ] = "auto",
    soc: Annotated[
        str,
        typer.Option(
            **complete.among("SM8550", "SM8650", "SM8750", "SM8850"),
            help="Snapdragon to compile for: 8 Gen 2, 8 Gen 3, 8 Elite, 8 Elite Gen 5; qnn.",
            show_default="SM8650",
            rich_help_panel=_FORMAT,
        ),
    ] = "auto",
    weight_sharing: Annotated[
        str,
        typer.Option(
            **complete.among("on", "off"),
            help="Share one copy of the weights between methods; off: needed by the desktop simulator; qnn.",
            show_default="on",
            rich_help_panel=_FORMAT,
        ),
    ] = "auto",
    device: Annotated[
        str,
        typer.Option(
            **complete.among("cpu", "gpu", "npu"),
            help="Device to compile for; this machine must have it; openvino.",
            show_default="cpu",
            rich_help_panel=_FORMAT,
        ),
    ] = "auto",
    provider: Annotated[
        str,
        typer.Option(
            **complete.among("cpu", "webgpu", "qnn", "coreml", "directml"),
            help="ONNX Runtime execution provider; onnx.",
            show_default="cpu",
            rich_help_panel=_FORMAT,
        ),
    ] = "auto",
    quantize: Annotated[
        str,
        typer.Option(
            **complete.among("q4_1", "q8_0", "8da4w", "int4", "int8", "16a8w", "16a4w", "none"),
            help="kernels: the GGUF's grids q4_1 or q8_0; xnnpack: 8da4w or none; qnn: int8, 16a8w, 16a4w or none; "
            "elsewhere int4, int8 or none.",
            show_default="q4_1; 8da4w for xnnpack; int4 for coreml and onnx; none for delegates of phones",
            rich_help_panel=_WEIGHTS,
        ),
    ] = "auto",
    scheme: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART=SCHEME",
            help="Override the scheme of embedding, attention, mlp, head or streams; repeatable. kernels: q4_1 or "
            "q8_0. coreml, onnx: int4, int8 or float, then :GROUP or :channel, then :symmetric or :affine.",
            show_default="from --quantize",
            rich_help_panel=_WEIGHTS,
        ),
    ] = None,
    calibration_text: Annotated[
        Path | None,
        typer.Option(
            help="UTF-8 text to calibrate activation ranges on, with 16a8w and 16a4w.",
            show_default="the adapter's held-out prompts, or a few questions",
            rich_help_panel=_WEIGHTS,
        ),
    ] = None,
    group_size: Annotated[
        int, typer.Option(help="Weights per scale of int4: 32, 64, 128 or 256.", rich_help_panel=_WEIGHTS)
    ] = 32,
    merge_adapter: Annotated[
        str,
        typer.Option(
            **complete.among("auto", "on", "off"),
            help="Merge the adapter's tuning of the base model into its weights; auto: off for 4-bit weights, unless "
            "the streams have their own adapters.",
            rich_help_panel=_WEIGHTS,
        ),
    ] = "auto",
    max_context_len: Annotated[int, typer.Option(help="KV cache capacity in tokens.", rich_help_panel=_SIZES)] = 1024,
    prefill_len: Annotated[int, typer.Option(help="Prompt tokens per prefill pass.", rich_help_panel=_SIZES)] = 64,
    widths: Annotated[
        str | None,
        typer.Option(
            help="Tree nodes of each verify method, ascending; 1: a plain pass that also computes streams.",
            show_default="4,8,16, and 1 with the kernels",
            rich_help_panel=_SIZES,
        ),
    ] = None,
    default_width: Annotated[
        int | None,
        typer.Option(
            help="Verify width used by default.",
            show_default="the widest of at most 8, else the narrowest",
            rich_help_panel=_SIZES,
        ),
    ] = None,
    num_streams: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Keep only the first streams of the adapter.",
            show_default="all",
            rich_help_panel=_SPECULATION,
        ),
    ] = None,
    top_k: Annotated[
        int,
        typer.Option(help="Candidates that the graph returns per stream and node.", rich_help_panel=_SPECULATION),
    ] = 32,
    schedule: Annotated[
        str,
        typer.Option(
            **complete.among("fused", "deferred", "both"),
            help="Compute streams in the verify pass (fused), in a pass after it (deferred), or export both.",
            rich_help_panel=_SPECULATION,
        ),
    ] = "deferred",
    prune_keep: Annotated[
        str,
        typer.Option(
            metavar="N|WIDTH:N,...",
            help="Nodes that the pruner keeps in wider verify passes.",
            rich_help_panel=_SPECULATION,
        ),
    ] = "8",
    prune_threshold: Annotated[
        float,
        typer.Option(
            metavar="P",
            help="Drop a node and its descendants if the pruner gives its edge a probability below P; 0 drops none.",
            rich_help_panel=_SPECULATION,
        ),
    ] = 0.0,
    stream_nodes: Annotated[
        str,
        typer.Option(
            metavar="N|WIDTH:N,...|all",
            help="Kept nodes that compute streams, those likeliest to be accepted last; with --schedule fused or both.",
            show_default="4",
            rich_help_panel=_SPECULATION,
        ),
    ] = "auto",
    ngram_table_mb: Annotated[
        float,
        typer.Option(
            metavar="MB",
            help="Maximum size of the n-gram table; contexts of highest gain are kept. 0: no table.",
            rich_help_panel=_SPECULATION,
        ),
    ] = 8.0,
    sampling: Annotated[
        str,
        typer.Option(
            **complete.among("model", "greedy"),
            help="Sampling defaults of the bundle; model: from generation_config.json, or greedy if it has none. Flags "
            "of `streamfuse run` override them.",
            rich_help_panel=_RUN,
        ),
    ] = "model",
    allow_parity_below: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FLOOR",
            help="Export even if results are below this parity floor (float32, float16, int8, int4, 8da4w, kernels); "
            "the manifest records them and `inspect` shows them. Repeatable.",
            show_default="none",
            rich_help_panel=_RUN,
        ),
    ] = None,
    sign_key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Sign the bundle with this private key (NAME.key from `streamfuse bundle keygen`).",
            show_default="none",
            rich_help_panel=_RUN,
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing bundle.", rich_help_panel=_RUN)
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Check and print the plan with expected sizes, memory and time; write nothing.",
            rich_help_panel=_RUN,
        ),
    ] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Use local files only; download nothing.", rich_help_panel=_RUN)
    ] = False,
    json_: Annotated[
        bool, typer.Option("--json", help="Print only the report or plan, as JSON.", rich_help_panel=_RUN)
    ] = False,
) -> None:
    """Lower a model with streams to static graphs, compare them with PyTorch, and write a bundle.

    The bundle contains the graphs (prefill, decode and one verify method per width, with shared weights),
    tokenizer.json, draft.safetensors, selftest.npz, export_report.json and manifest.json. If a graph is below its
    parity floor, nothing is written unless --allow-parity-below names that floor.

    [bold]Examples[/bold]

    streamfuse export -o build/demo

    streamfuse export -o build/phone --target coreml --layout ane

    streamfuse export -o build/onnx --target onnx --quantize int8 --scheme mlp=int4:32

    streamfuse export -o build/stock --backend xnnpack --quantize none

    streamfuse export -o build/small --num-streams 2 --max-context-len 512 --dry-run

    streamfuse export -o build/mine --config mine.yaml --overwrite

    streamfuse export -o build/plain --model ~/models/mine --adapter none
    """
    need_export(target, backend)
    if not dry_run:
        need_native()
    key = None if sign_key is None else options.private_key("--sign-key", sign_key)
    from streamfuse.export.choices import AUTO, BACKENDS, NO_VULKAN, Quantize

    # Read when PyTorch is loaded. Otherwise its threads spin while they wait for one that is not scheduled.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from streamfuse.export.adapter import choose_adapter, is_named, load_plan
    from streamfuse.export.plan import ALL, PlanError, Schedule
    from streamfuse.export.preview import preview

    try:
        nodes = () if widths is None else tuple(int(part) for part in widths.split(","))
    except ValueError:
        raise typer.BadParameter(
            f"--widths must be numbers with commas between, for example 4,8,16, not {widths}"
        ) from None
    if is_named(adapter):
        options.adapter_file("--adapter", adapter)
    _choice("--target", target, {name: name for name in BACKENDS})
    try:
        folder = resolve_model(model, offline=offline)
        chosen = choose_adapter(adapter, folder, model)
        if chosen.note is not None:
            say(chosen.note, "yellow")
        plan = load_plan(
            model=folder,
            adapter=chosen.path,
            output_dir=output_dir,
            target=target,
            backend=backend,
            quantize=_choice("--quantize", quantize, {kind.value: kind for kind in Quantize}),
            schemes=dict(_scheme(item) for item in scheme or []),
            group_size=group_size,
            calibration_text=calibration_text,
            dtype=dtype,
            layout=layout,
            compute_units=compute_units,
            minimum_deployment_target=minimum_deployment_target,
            soc=soc,
            weight_sharing=weight_sharing,
            device=device,
            provider=provider,
            merge_adapter=merge_adapter,
            max_context_len=max_context_len,
            prefill_len=prefill_len,
            num_streams=num_streams,
            widths=nodes,
            default_width=default_width,
            prune_keep=_per_width("--prune-keep", prune_keep),
            prune_threshold=prune_threshold,
            stream_nodes=stream_nodes if stream_nodes in (AUTO, ALL) else _per_width("--stream-nodes", stream_nodes),
            schedule=_choice("--schedule", schedule, {kind.value: kind for kind in Schedule}),
            top_k=top_k,
            ngram_table_mb=ngram_table_mb,
            sampling=sampling,
            allow_parity_below=tuple(allow_parity_below or ()),
            overwrite=overwrite,
        )
        expected = preview(plan)
        if expected.sampling.note is not None:
            say(expected.sampling.note)
        if plan.backend == "vulkan":
            say(NO_VULKAN, "yellow")
        if dry_run:
            export_plan.show(plan, expected, json_)
            return
        report = _run(plan, expected, {"model": model, "adapter": chosen.word}, key)
    except PlanError as error:
        raise typer.BadParameter(error.flags) from None
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


Chosen = TypeVar("Chosen")


def _choice(flag: str, value: str, choices: dict[str, Chosen]) -> Chosen:
    if value not in choices:
        raise typer.BadParameter(f"{flag} must be one of {', '.join(choices)}, not {value}")
    return choices[value]


def _scheme(item: str) -> tuple[str, str]:
    part, sign, grid = item.partition("=")
    if not sign:
        raise typer.BadParameter(f"--scheme must be PART=SCHEME, for example head=q4_1 or mlp=int4:64, not {item}")
    return part, grid


def _per_width(flag: str, value: str) -> int | dict[int, int]:
    """One number, or one per width, such as `8:4,16:8`."""
    try:
        if ":" not in value:
            return int(value)
        pairs = (item.split(":") for item in value.split(","))
        return {int(width): int(number) for width, number in pairs}
    except ValueError:
        raise typer.BadParameter(f"{flag} must be a number, or like 8:4,16:8, not {value}") from None


def _run(plan: ExportPlan, expected: Preview, said: dict[str, str], sign_key: Ed25519PrivateKey | None) -> Report:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("loading PyTorch and the exporter", total=None)
        from streamfuse.export.pipeline import count_steps, export_plan

        progress.update(task, total=count_steps(expected))
        return export_plan(plan, lambda words: progress.update(task, advance=1, description=words), said, sign_key)
