"""`streamfuse devices`: which backends and providers run here, why others do not, and which of them a bundle needs."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Group

from streamfuse.cli.shared import complete, options, tables
from streamfuse.cli.shared.console import err, out, print_json
from streamfuse.cli.shared.errors import EXIT_FAILURE


def register(app: typer.Typer) -> None:
    app.command("devices")(devices)


def devices(
    bundle: Annotated[
        str | None,
        typer.Argument(
            metavar="[BUNDLE]", help="Also show which of them this bundle needs.", autocompletion=complete.bundles
        ),
    ] = None,
    json_: options.Json = False,
) -> None:
    """List the backends and execution providers that can run graphs here.

    These are ExecuTorch's backends, ONNX Runtime's execution providers and
    Core ML. Choose a backend when you export a bundle, with `streamfuse export
    --backend`, and a provider when you run an ONNX bundle, with `streamfuse
    run --provider`. Each one that is not usable is listed with the reason and
    the next step; backends that are not built into the installed libraries
    are not listed. For a bundle only the manifest is read; `streamfuse doctor
    BUNDLE` also loads its graphs. Exit code 1: the bundle cannot run here.

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
    state = bundle["problem"] or _runs(bundle["provider"], bundle["provider_problem"])
    return f"{bundle['folder']} needs {kind}: {state}"


def _runs(provider: str | None, problem: str | None) -> str:
    """How a bundle runs on this machine; `provider` is the one that an ONNX bundle was exported for."""
    if provider in (None, "cpu"):
        return "runs here"
    if problem is None:
        return f"runs here; with --provider {provider}, on the device it was exported for"
    return f"runs here on the CPU only; it was exported for {provider}: {problem}"
