"""`streamfuse quickstart`: from a model to a bundle that drafts without training, and what that gains."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamfuse.cli.shared import complete, options, tables
from streamfuse.cli.shared.console import out, print_json, say
from streamfuse.cli.shared.options import DEFAULT_MODEL
from streamfuse.extras import need, need_export, need_native
from streamfuse.options import AUTO, check_choice
from streamfuse.paths import own_name

if TYPE_CHECKING:
    from streamfuse.cli.shared.compare import Comparisons
    from streamfuse.cli.shared.quickstart import Quickstart

_BACKENDS = {AUTO: "executorch", "kernels": "executorch", "xnnpack": "executorch", "onnxruntime": "onnx"}  # targets


def register(app: typer.Typer) -> None:
    app.command("quickstart")(quickstart)


def quickstart(
    model: Annotated[
        str, typer.Argument(help="Hub name (owner/name), checkpoint folder or .gguf file.", show_default=True)
    ] = DEFAULT_MODEL,
    output_dir: Annotated[
        Path | None,
        typer.Option(
            "--output-dir", "-o", help="Folder for answers, table and bundle.", show_default="build/quickstart/NAME"
        ),
    ] = None,
    tokens: Annotated[
        int,
        typer.Option(min=500, max=60_000, help="Answer tokens to count n-grams in. More tokens give better drafts."),
    ] = 20_000,
    max_context_len: Annotated[
        int | None,
        typer.Option(
            min=32, help="KV cache capacity of the bundle in tokens.", show_default="1024, or the model's limit"
        ),
    ] = None,
    backend: Annotated[
        str, typer.Option(help="What runs the graphs; auto: kernels.", **complete.among(*_BACKENDS))
    ] = AUTO,
    threads: options.Threads = None,
    offline: options.Offline = False,
    json_: options.Json = False,
) -> None:
    """Try speculative decoding on a model, without training, in a few minutes.

    Needs no GPU. Pulls the model if needed; lets it answer built-in prompts; counts an
    n-gram table in its answers; exports a bundle that drafts from that table
    and by look-up, without streams; and compares plain with speculative
    decoding on other prompts. The output is the same, token for token. A model
    without a chat template continues the prompts as raw text.

    Each step keeps its result: after Ctrl-C the same command continues, and
    finished steps are skipped. With more --tokens the answers are continued.

    [bold]Examples[/bold]

    streamfuse quickstart

    streamfuse quickstart Qwen/Qwen2.5-0.5B-Instruct --tokens 40000

    streamfuse quickstart ~/models/mine.gguf -o build/mine --max-context-len 2048

    streamfuse quickstart ~/models/mine --backend xnnpack --threads 4 --json
    """
    check_choice("--backend", backend, tuple(_BACKENDS))
    target = _BACKENDS[backend]
    need("distill")
    need_export(target, backend)
    need_native()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as in `export`
    from streamfuse.bundle import open_bundle
    from streamfuse.cli.shared.compare import check_equal
    from streamfuse.cli.shared.quickstart import Quickstart
    from streamfuse.model.pull import resolve_model

    place = output_dir or Path("build/quickstart") / (
        own_name(Path(model).expanduser()).removesuffix(".gguf") or "model"
    )
    folder = resolve_model(model, offline=offline)
    flags: dict[str, Any] = {"target": target, "backend": backend, "max_context_len": max_context_len}
    steps = Quickstart(model, folder, place, tokens, flags)
    if not steps.chats:
        say(f"{folder} has no chat template, so the model continues the prompts as raw text.", "yellow")
    try:
        written = steps.write_answers()
        table = steps.count_table()
        steps.export()
        compared = steps.compare(threads)
    except KeyboardInterrupt:
        say("Stopped; the same command continues here.", "yellow")
        raise
    if json_:
        print_json(
            {
                "bundle": str(steps.bundle),
                "answers": str(steps.answers),
                "tokens": written,
                "table": table,
                "chat_template": steps.chats,
                "skipped": steps.skipped,
                "comparison": compared.to_dict(),
                "next": [command for _, command in steps.next_commands()],
            }
        )
    else:
        _show(steps, compared)
    check_equal(compared, open_bundle(steps.bundle, verify=False).manifest.backend)


def _show(steps: Quickstart, compared: Comparisons) -> None:
    out.print(tables.comparisons(compared, "prompt"))
    out.print(tables.facts([["bundle", str(steps.bundle)]]))
    out.print("\nNext:", markup=False)
    for purpose, command in steps.next_commands():
        out.print(f"  # {purpose}\n  {command}", markup=False, soft_wrap=True)
