"""`streamfuse devices`: which backends and providers run here, why not, and which of them a bundle needs."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Group

from streamfuse.cli.shared import complete, tables
from streamfuse.cli.shared.console import err, out, print_json
from streamfuse.cli.shared.errors import EXIT_FAILURE


def register(app: typer.Typer) -> None:
    app.command("devices")(devices)


def devices(
    bundle: Annotated[
        str | None,
        typer.Argument(
            metavar="[BUNDLE]", help="Say too which of them this bundle needs.", autocompletion=complete.bundles
        ),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """List what can run graphs here: ExecuTorch's backends, ONNX Runtime's execution providers, Core ML.

    A backend is chosen when a bundle is exported: --backend of `streamfuse export`. A provider is chosen when an ONNX
    bundle is run: --provider of `streamfuse run`. What cannot be used comes with the reason and the next step; a
    backend that no library of streamfuse has here is not listed. Of a bundle the manifest is read and no graph loaded;
    `streamfuse doctor BUNDLE` loads them. Exit code 1: the bundle that was named cannot run here.

    [bold]Examples[/bold]

    streamfuse devices

    streamfuse devices build/npu

    streamfuse devices --json | jq '.devices[] | select(.usable)'
    """
    from streamfuse.cli.shared.devices_facts import examine

    with err.status("looking"):
        found = examine(bundle)
    if json_:
        print_json(found)
    else:
        out.print(_page(found))
    if found["bundle"] is not None and not found["bundle"]["usable"]:
        raise typer.Exit(EXIT_FAILURE)


def _page(found: dict[str, Any]) -> Group:
    rows = [[f"{one['target']}: {one['name']}", one["problem"] or one["about"] or "here"] for one in found["devices"]]
    lines = [tables.plain(_needs(found["bundle"]))] if found["bundle"] is not None else []
    return Group(tables.facts(rows), *lines)


def _needs(bundle: dict[str, Any]) -> str:
    kind = f"{bundle['target']} ({bundle['backend']})"
    if bundle["soc"] is not None:
        kind += f", compiled for {bundle['soc']}, weight sharing {bundle['weight_sharing']}"
    if bundle["device"] is not None:
        kind += f", compiled for {bundle['device']}"
    return f"{bundle['folder']} needs {kind}: {bundle['problem'] or 'runs here'}"
