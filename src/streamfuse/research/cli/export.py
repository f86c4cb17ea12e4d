"""`streamfuse research export`: bundles of heads, and of a model that drafts for itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from streamfuse.cli.shared.console import err
from streamfuse.cli.shared.options import DEFAULT_MODEL
from streamfuse.extras import need_export, need_native

WIDTHS = (4, 8, 16)


def register(research: typer.Typer) -> None:
    research.command("export")(export)


def export(
    output_dir: Annotated[Path, typer.Argument(metavar="BUNDLE", help="Folder to write.")],
    adapter: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Heads that `streamfuse research train-heads` wrote."),
    ] = None,
    leave_out: Annotated[
        str | None,
        typer.Option(metavar="NAME,...", help="Sub-layers (attention.3,mlp.7) that the method `draft` leaves out."),
    ] = None,
    model: Annotated[str, typer.Option(help="Hub name, checkpoint folder or .gguf file.")] = DEFAULT_MODEL,
    max_context_len: Annotated[int, typer.Option(help="Tokens of context.")] = 1024,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a bundle that is there.")] = False,
) -> None:
    """Export a bundle with heads, or one whose model drafts for itself.

    `research compare` exports its own. A bundle with heads runs in every app. The method `draft` is for `research
    compare` alone.

    [bold]Examples[/bold]

    streamfuse research export build/medusa --adapter src/streamfuse/research/adapters/medusa.safetensors

    streamfuse research export build/self --leave-out attention.9,mlp.11
    """
    if (adapter is None) == (leave_out is None):
        raise typer.BadParameter("give --adapter or --leave-out, and not both")
    need_export("", "")
    need_native()
    import streamfuse.research.heads  # noqa: F401 (adds the kinds of heads)
    from streamfuse.export import export_bundle
    from streamfuse.research.self_draft import leaving_out

    options: dict[str, Any] = {"adapter": adapter, "prune_keep": max(WIDTHS)}
    if leave_out is not None:
        names = [name.strip() for name in leave_out.split(",")]
        options = {"adapter": None, "extra_methods": leaving_out(names)}
    with err.status("loading the model") as status:
        export_bundle(
            output_dir, model=model, widths=WIDTHS, max_context_len=max_context_len, overwrite=overwrite,
            progress=status.update, **options,
        )  # fmt: skip
    print(output_dir)
