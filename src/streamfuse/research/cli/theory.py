"""`streamfuse research theory`: when streams beat a draft model, by cost, and where measured points lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from streamfuse.cli.shared import options, tables
from streamfuse.cli.shared.console import out, print_json


def register(research: typer.Typer) -> None:
    research.command("theory")(theory)


def theory(
    measured: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="What `streamfuse research compare --json` printed."),
    ] = None,
    round_: Annotated[
        list[str] | None,
        typer.Option(
            "--round",
            metavar="NAME=[N*]BUNDLE:METHOD+...@TOKENS",
            help="Print only bytes and multiply-accumulates of these passes, which advance the text by TOKENS. Repeat "
            "the flag for several rounds.",
        ),
    ] = None,
    context: Annotated[int, typer.Option(min=0, help="With --round: tokens in the cache.")] = 256,
    report: options.ReportFile = None,
    json_: options.Json = False,
) -> None:
    """Compute the speed-up over a draft model, by cost and tokens per pass.

    This is the cost analysis of Speculative Streaming; --measured adds own points.

    [bold]Examples[/bold]

    streamfuse research theory

    streamfuse research theory --measured methods.json --report theory.html

    streamfuse research theory --round plain=build/demo:decode --round "fused=build/demo:verify_8@2.2"
    """
    options.check_report(report)
    if round_:
        if measured is not None or report is not None:
            raise typer.BadParameter("--round prints a table of its own, without --measured and --report")
        _print_rounds(round_, context, json_)
        return
    from streamfuse.research.theory import curve_rows, point_rows, points, theory_report, to_dict

    result = {} if measured is None else _read(measured)
    found = points(result)
    if measured is not None and not found:
        raise typer.BadParameter(
            f"--measured {measured}: needs the methods 'draft model, chain' and 'streams, ours' with passes and costs"
        )
    if report is not None:
        theory_report(found, result.get("model")).write(report)
    if json_:
        print_json(to_dict(found))
        return
    out.print(tables.figures(*curve_rows()))
    if found:
        out.print(tables.figures(*point_rows(found)))


def _print_rounds(texts: list[str], context: int, json_: bool) -> None:
    from streamfuse.research.rounds import read_round, round_rows

    try:
        rounds = [read_round(one, context) for one in texts]
    except ValueError as error:
        raise typer.BadParameter(f"--round {error}") from None
    if json_:
        print_json({"context": context, "rounds": [one.to_dict() for one in rounds]})
    else:
        out.print(tables.figures(*round_rows(rounds)))


def _read(file: Path) -> dict[str, Any]:
    """BadParameter, exit code 2, for what is not a file with a JSON object."""
    try:
        result = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise typer.BadParameter(f"--measured {file}: {error.strerror}") from None
    except ValueError as error:
        raise typer.BadParameter(f"--measured {file} is not JSON: {error}") from None
    if not isinstance(result, dict):
        raise typer.BadParameter(f"--measured {file} must hold one JSON object")
    return result
