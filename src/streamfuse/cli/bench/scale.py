"""`streamfuse bench scale`: how cost grows with the size of a model and with its context."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from streamfuse.cli.shared import options, tables
from streamfuse.cli.shared.console import out, print_json, say
from streamfuse.cli.shared.errors import EXIT_FAILURE
from streamfuse.extras import need, need_native


def register(bench: typer.Typer) -> None:
    bench.command("scale")(scale)


def scale(
    shapes: Annotated[
        str, typer.Option(metavar="SIZE,...", help="Any of 135M, 360M (SmolLM2), 1B and 3B (Llama 3.2).")
    ] = "135M,360M,1B,3B",
    contexts: Annotated[
        str, typer.Option(metavar="N,...", help="Tokens in the cache before the passes.")
    ] = "64,512,2048,4096",
    work: Annotated[Path, typer.Option(metavar="FOLDER", help="Working folder for models and bundles.")] = Path(
        "build/scale"
    ),
    repetitions: Annotated[
        int, typer.Option(min=1, help="Passes per method and context; the median is reported.")
    ] = 20,
    threads: options.Threads = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the bundles in the working folder.")] = False,
    json_: options.Json = False,
) -> None:
    """Export models of published sizes with random weights, and time their passes.

    Passes run at several context lengths. Reports time and memory of the export, milliseconds per pass, decode
    against the roofline, verify_8 with its streams as a multiple of decode,
    and resident memory. A size that does not fit in memory or on the disk is
    left out, with the reason. After Ctrl-C the same command continues with the
    exported bundles.

    [bold]Examples[/bold]

    streamfuse bench scale --shapes 135M

    streamfuse bench scale --shapes 135M,1B --contexts 64,4096 --keep --json
    """
    need("bench-scale")
    need_native()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # read when PyTorch is loaded, here and in the exports
    from streamfuse.bench.scale.measure import LeftOut, Scale, ScaleSettings, lines_of, rows, shape_of

    names = list(dict.fromkeys(shapes.split(",")))
    settings = ScaleSettings(_lengths(contexts), repetitions, threads)
    for name in names:
        settings.check(name, shape_of(name))
    bench = Scale(work, settings, say)
    found: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    stopped_by: BaseException | None = None
    try:
        for name in names:
            try:
                found[name] = bench.measure(name)
            except LeftOut as error:
                left_out[name] = str(error)
                say(str(error), "yellow")
    except KeyboardInterrupt as error:
        say("Stopped; the same command goes on with what is exported.", "yellow")
        stopped_by = error
    except Exception as error:  # the shapes before it have their figures
        stopped_by = error
    if json_ and (found or stopped_by is None):
        print_json({"shapes": found, "left_out": left_out, "repetitions": repetitions})
    elif found:
        out.print(tables.figures(*rows(found)))
        for name, one in found.items():
            for line in lines_of(name, one):
                out.print(line, markup=False, soft_wrap=True)
    if stopped_by is not None:
        raise stopped_by
    if not keep:
        for name in names:
            bench.remove(name)
    if not found:
        raise typer.Exit(EXIT_FAILURE)


def _lengths(contexts: str) -> list[int]:
    try:
        return [int(part) for part in contexts.split(",")]
    except ValueError:
        raise typer.BadParameter(f"--contexts must be like 64,512, not {contexts}") from None
