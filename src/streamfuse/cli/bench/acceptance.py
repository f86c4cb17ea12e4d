"""`streamfuse bench acceptance`: tokens per pass, and quality of the text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Group
from rich.table import Table

from streamfuse.api import load
from streamfuse.cli.shared import complete, options, tables
from streamfuse.cli.shared.console import err, out, print_json
from streamfuse.cli.shared.help import COMMON
from streamfuse.cli.shared.options import DEFAULT_MODEL
from streamfuse.extras import need

if TYPE_CHECKING:
    from streamfuse.bench.acceptance import Acceptance, AcceptanceSettings
    from streamfuse.train.formats import Sample

_REPLAY_WIDTH = 16


def register(bench: typer.Typer) -> None:
    bench.command("acceptance")(acceptance)


def acceptance(
    ctx: typer.Context,
    data: Annotated[str, typer.Option(metavar="DATA", help=options.DATA_HELP)],
    bundle: Annotated[
        str | None,
        typer.Argument(
            metavar="BUNDLE", help="Folder that `streamfuse export` wrote.", autocompletion=complete.bundles
        ),
    ] = None,
    adapter: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="With BUNDLE: answer with this task adapter of the bundle. Without: measure this adapter, a file or "
            "the name of a shipped one.",
            autocompletion=complete.adapters,
        ),
        COMMON,
    ] = None,
    model: Annotated[
        str,
        typer.Option(help="Without BUNDLE: base model of --adapter.", show_default=DEFAULT_MODEL.rpartition("/")[2]),
        COMMON,
    ] = DEFAULT_MODEL,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Samples, evenly spread over the data.", show_default="all"), COMMON
    ] = None,
    width: Annotated[
        int | None,
        typer.Option(
            min=2, help="Nodes per tree, including the root.", show_default="the bundle's widest; 16 without BUNDLE"
        ),
        COMMON,
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Maximum tokens per answer."), COMMON] = 128,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    seed: options.Seed = 0,
    no_plain: Annotated[
        bool, typer.Option("--no-plain", help="Skip plain decoding, and the comparison of the outputs.")
    ] = False,
    threads: options.Threads = None,
    provider: options.Provider = None,
    format_: options.DataFormat = None,
    template: options.DataTemplate = None,
    completion: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="The reference answer, built like --template."),
    ] = None,
    split: options.DataSplit = "test",
    json_: Annotated[options.Json, COMMON] = False,
) -> None:
    """Measure call-reduction ratio, acceptance, and quality of the text.

    Acceptance is reported per depth and rank. Quality needs references in the data.
    Rows with the same prompt are one sample with several references. With
    BUNDLE, the runtime answers every turn with and without speculation, and
    the two outputs are compared. Without, --adapter is measured in PyTorch:
    the model answers the first turns greedily, and replaying these answers
    shows which drafts each pass accepts.

    [bold]Examples[/bold]

    streamfuse bench acceptance build/demo --data question.jsonl --limit 20

    streamfuse bench acceptance build/sql --data test.jsonl --width 8 --json

    streamfuse bench acceptance build/tasks --adapter e2e --data test.jsonl

    streamfuse bench acceptance --adapter build/train/e2e/adapter.safetensors --data test.jsonl
    """
    from streamfuse.bench.acceptance import AcceptanceSettings
    from streamfuse.bench.quality.scores import needs_rouge
    from streamfuse.train.readers import merged, read_samples, spread

    file = None
    if bundle is not None:
        options.refuse_unread(ctx, "with a BUNDLE", "model")
    else:
        options.refuse_unread(ctx, "without a BUNDLE", "threads", "provider", "no_plain")
        if adapter is None:
            raise typer.BadParameter("give a BUNDLE, or --adapter")
        if temperature:
            raise typer.BadParameter(
                "--adapter without a bundle replays greedy text, so --temperature does not go with it"
            )
        need("bench-adapter")
        file = options.adapter_file("--adapter", adapter)
    source = options.data_template(template, completion)
    samples = spread(merged(read_samples(data, format_, source, split=split)), limit)
    if needs_rouge(samples):
        need("bench-acceptance")
    settings = AcceptanceSettings(width or _REPLAY_WIDTH, max_new_tokens, temperature, seed, not no_plain)
    if file is not None:
        result = _replay(file, model, samples, settings)
    else:
        result, settings = _run(str(bundle), adapter, samples, settings, width, threads, provider)
    found = {**result.to_dict(), "settings": {"data": data, "adapter": adapter, **asdict(settings)}}
    if json_:
        print_json(found)
    else:
        out.print(_table(found))


def _run(
    bundle: str,
    adapter: str | None,
    samples: list[Sample],
    settings: AcceptanceSettings,
    width: int | None,
    threads: int | None,
    provider: str | None,
) -> tuple[Acceptance, AcceptanceSettings]:
    from dataclasses import replace

    from streamfuse.bench.acceptance import measure_bundle

    whole = load(bundle, threads=threads, provider=provider, cost_cache=False)
    model = options.with_adapter(whole, adapter)
    widths = model.bundle.spec().verify_widths
    if not widths:
        raise typer.BadParameter(
            f"{bundle}: this bundle has no verify methods, so nothing is drafted; name one that has"
        )
    options.checked(model.manifest, {"width": width})
    settings = replace(settings, width=width or widths[-1])
    with whole, _progress(len(samples)) as advance:
        return measure_bundle(model, samples, settings, advance), settings


def _replay(adapter: Path, model: str, samples: list[Sample], settings: AcceptanceSettings) -> Acceptance:
    from streamfuse.bench.acceptance import measure_adapter
    from streamfuse.model.checkpoint import load_with_adapter, read_adapter
    from streamfuse.model.pull import resolve_model
    from streamfuse.train.prompts import open_text

    if not read_adapter(adapter)[0].num_streams:
        raise typer.BadParameter(f"--adapter {adapter}: this adapter has no streams whose drafts could be replayed")
    folder = resolve_model(model)
    fused = load_with_adapter(folder, adapter)
    with _progress(len(samples)) as advance:
        return measure_adapter(fused, open_text(folder, adapter, raw=True), samples, settings, advance)


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("Answering"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)


def _table(found: dict[str, Any]) -> Group:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("", "answers", "tokens", "call\nreduction", "mean\naccepted", "accepted\nper depth"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    for name, figures in (*found["sources"].items(), ("all", found)):
        table.add_row(
            tables.plain(name),
            str(figures["answers"]),
            str(figures["tokens"]),
            f"{figures['call_reduction_ratio']:.2f}",
            f"{figures['mean_accepted_tokens']:.2f}",
            " ".join(f"{share:.2f}" for share in figures["acceptance_per_depth"]) or "-",
        )
    lines = [f"{name} {value:.2f}" for name, value in found["quality"].items()]
    if found["equal"] is not None:
        lines.append(f"{100 * found['equal']:.1f} % of the answers are equal to the plain ones")
    if found["skipped"]:
        lines.append(f"{found['skipped']} samples were too long for the context")
    return Group(table, *lines)
