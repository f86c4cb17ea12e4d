"""`streamfuse doctor`: what is installed, what is missing, and how to fix it."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Group

from streamfuse.cli.shared import complete, options, tables
from streamfuse.cli.shared.console import err, out, print_json
from streamfuse.cli.shared.errors import EXIT_FAILURE


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(
    bundles: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[BUNDLE|MODEL...]",
            help="Also check these bundles, or folders of models to export.",
            autocompletion=complete.bundles,
        ),
    ] = None,
    json_: options.Json = False,
) -> None:
    """Check this machine and the installation.

    Shows engines, instruction set, memory bandwidth, cost cache and missing
    packages. For a bundle: checks its files, loads its graphs and tries its chat
    template. For a model's folder: checks the configuration, the headers of
    the weights, the tokenizer and the chat template. Exit code 0 means that
    the bundles run here and the models can be exported; 1 means that something
    must be done first, which the last lines explain.

    [bold]Examples[/bold]

    streamfuse doctor

    streamfuse doctor build/demo build/e2e

    streamfuse doctor ~/models/mine

    streamfuse doctor --json | jq .to_do
    """
    from streamfuse.cli.shared.doctor_facts import examine

    with err.status("looking"):
        found = examine(bundles or [])
    if json_:
        print_json(found)
    else:
        out.print(_page(found))
    if not found["usable"]:
        raise typer.Exit(EXIT_FAILURE)


def _page(found: dict[str, Any]) -> Group:
    speed, cache = found["memory_gb_per_s"], found["cost_cache"]
    rows = [
        ["streamfuse", f"{found['streamfuse']}, Python {found['python']}"],
        ["machine", found["machine"]],
        ["memory", f"reads {speed['value']:.0f} GB/s ({speed['measured_by']}, {speed['threads']} threads)"],
        ["instruction set", _instructions(found)],
        *([f"engine: {name}", _engine(facts)] for name, facts in found["engines"].items()),
        *([f"provider: {name}", reason or "here"] for name, reason in _providers(found).items()),
        ["cost cache", f"{cache['entries']} entries in {cache['folder']}; to measure anew: {cache['clear']}"],
        ["packages", ", ".join(f"{name} {version or '-'}" for name, version in found["packages"].items())],
        *(["bundle", one["problem"] or _sound(one)] for one in found["bundles"]),
        *(["model", one["problem"] or f"{one['folder']} can be exported: {one['about']}"] for one in found["models"]),
        *(["missing", f"{', '.join(row['packages'])} for {row['work']}: {row['pip']}"] for row in found["missing"]),
    ]
    to_do = [f"To do: {line}" for line in found["to_do"]] or ["Nothing to do: bundles run here."]
    return Group(tables.facts(rows), *(tables.plain(line) for line in to_do))


def _instructions(found: dict[str, Any]) -> str:
    name = found["instruction_set"] or "unknown until an ExecuTorch bundle is loaded: streamfuse doctor BUNDLE"
    return f"{name} (STREAMFUSE_ISA={found['forced_isa']})" if found["forced_isa"] else name


def _providers(found: dict[str, Any]) -> dict[str, str | None]:
    return dict(found["engines"]["onnxruntime"].get("providers", {}))


def _engine(facts: dict[str, Any]) -> str:
    return str(facts["problem"] or facts["about"])


def _sound(bundle: dict[str, Any]) -> str:
    return f"{bundle['folder']} is sound: {bundle['model']}, {bundle['target']} ({bundle['backend']}), {bundle['runs']}"
