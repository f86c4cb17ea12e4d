"""`streamfuse research compare`: the methods of the literature and ours on one target, in one run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from streamfuse.api import load
from streamfuse.cli.shared import options, tables
from streamfuse.cli.shared.console import err, out, print_json, say
from streamfuse.cli.shared.engine import loaded
from streamfuse.cli.shared.help import COMMON, command_line
from streamfuse.durable import reason, write_text
from streamfuse.extras import need

from .shared import BundlesFolder, DataSets, data_set, read_sets

QUICK_PROMPTS, QUICK_TOKENS = 2, 48
_TEXT = {
    "yes": "-",
    "yes, same text": "same",
    "yes, in distribution": "drawn",
    "OUTPUTS DIFFER": "DIFFERS",
    "LOSSY": "LOSSY",
}


def register(research: typer.Typer) -> None:
    research.command("compare")(compare)


def compare(
    ctx: typer.Context,
    bundle: options.BundleFolder,
    data: DataSets,
    bundles: BundlesFolder = Path("build/methods"),
    only: Annotated[
        str | None, typer.Option("--methods", metavar="NAME;...", help="Some methods only.", show_default="all"), COMMON
    ] = None,
    peers: Annotated[
        str | None,
        typer.Option(
            metavar="NAME;...", help="Other programs (docs/methods.md), or none.", show_default="all installed"
        ),
        COMMON,
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, help="Questions of each data set, evenly spread over it; all their turns."), COMMON
    ] = 8,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Tokens per answer at most."), COMMON] = 96,
    repetitions: Annotated[int, typer.Option(min=1, help="Times that every method answers every prompt."), COMMON] = 3,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="0 is greedy; above, acceptors that draw take part.")
    ] = 0.0,
    seed: options.Seed = 0,
    online: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Prompts of each data set for methods that learn online, twice as many of the first; 0: none.",
        ),
    ] = 12,
    quick: Annotated[
        bool,
        typer.Option("--quick", help=f"Take minutes: {QUICK_PROMPTS} questions per set, {QUICK_TOKENS} tokens, once."),
        COMMON,
    ] = False,
    threads: options.Threads = None,
    answers: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Write each method's answers in Spec-Bench's format."),
    ] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE.md", help="Also write the tables.")] = None,
    report: Annotated[options.ReportFile, COMMON] = None,
    json_: Annotated[options.Json, COMMON] = False,
) -> None:
    """Compare the methods of the literature with ours on the same model and engine.

    They use the same kernels, and answer the same prompts in turns. Lossy methods are marked. Speed-ups on other
    devices are computed from the passes of the run, and marked. Other programs (llama.cpp's server, Hugging Face,
    ONNX Runtime GenAI) answer in the same turns if they are installed. The trained adapters of other methods are in a
    clone of the repository only.

    [bold]Examples[/bold]

    streamfuse research compare build/demo --data chat=spec_bench/question.jsonl --quick

    streamfuse research compare build/demo --data e2e_nlg/test.jsonl --methods "streams, ours; Medusa heads"

    streamfuse research compare build/demo --data spec_bench/question.jsonl --data e2e_nlg/test.jsonl --report page.html
    """
    for flag, file in (("--report", report), ("--markdown", markdown)):
        options.check_place(flag, file)
        options.check_not_read(flag, file, "--data", [source.rpartition("=")[2] for source in data])
    if answers is not None:
        try:
            answers.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise typer.BadParameter(f"--answers {answers}: {reason(error)}") from None
    from streamfuse.bench.shared.comparison import TaskSettings
    from streamfuse.bench.shared.machine import ReadBandwidth, engine_facts, engine_threads
    from streamfuse.bench.shared.work import weight_bytes
    from streamfuse.engines import processor
    from streamfuse.export.calibrate import questions
    from streamfuse.research.compare import peers as programs
    from streamfuse.research.compare.answers import write_answers
    from streamfuse.research.compare.bundles import folder_for, missing, opened, prepare
    from streamfuse.research.compare.calibrate import shapes
    from streamfuse.research.compare.core import CORE_OURS, CORE_PLAIN, CoreSystem
    from streamfuse.research.compare.costs import measured
    from streamfuse.research.compare.measure import measure
    from streamfuse.research.compare.memory import peak_memory
    from streamfuse.research.compare.methods import ONLINE, WIDTH, chosen
    from streamfuse.research.compare.peer_rows import peer_rows

    if quick:
        options.refuse_unread(ctx, "with --quick", "limit", "max_new_tokens", "repetitions")
        limit, max_new_tokens, repetitions, online = QUICK_PROMPTS, QUICK_TOKENS, 1, min(online, QUICK_PROMPTS)
    settings = TaskSettings(max_new_tokens, repetitions, temperature, seed)
    model = load(bundle, threads=threads, cost_cache=False)
    read = read_sets(data, lambda place: limit)
    names = None if only is None else [name.strip() for name in only.split(";")]
    asked_peers = programs.peers_named(peers)
    learning = [name for name in ONLINE if online and (names is None or name in names)]
    if names is not None:
        names = [ONLINE.get(name, name) for name in names]
    if learning:
        need("export")
        from streamfuse.research.compare.learners import able

        learning = [name for name in learning if name in able(model.bundle)]
    bundles = folder_for(model.bundle, bundles)
    with err.status("opening") as status, loaded(model, text=False) as session:
        plain, ours = CoreSystem(CORE_PLAIN, session, False), CoreSystem(CORE_OURS, session, True)
        status.update("answering first turns")
        sets = [data_set(name, samples, model, settings, plain) for name, samples in read]
        if waiting := missing(bundles, names):
            say(f"Exporting {len(waiting)} bundles to {bundles}, once: {', '.join(waiting)}.")
            prepare(model.bundle, bundles, waiting, status.update)
        used = engine_threads(session.backend)
        with (
            opened(model.bundle, bundles, threads) as here,
            programs.opened(
                asked_peers, model.bundle, bundles / "peers", used, peers is not None, _without, status.update
            ) as beside,
        ):
            status.update("measuring what passes cost, calibrating static trees")
            costs = measured(here.parts, sets[0].prompts[0])
            here.parts.shapes = shapes(here.parts, questions(model.tokenizer), WIDTH, costs)
            bandwidth = ReadBandwidth(used)
            facts = {
                "model": model.manifest.model.name,
                "machine": {"processor": processor(), "cores": os.cpu_count(), **engine_facts(session.backend)},
                "shapes": here.parts.shapes,
                "command": command_line(ctx),
                "settings": {
                    "max_new_tokens": max_new_tokens, "repetitions": repetitions, "temperature": temperature,
                    "seed": seed, "width": WIDTH,
                },
            }  # fmt: skip
            core: dict[str, Any] = {
                CORE_PLAIN: (plain, "one token per pass, through the core"),
                CORE_OURS: (ours, "what a user runs: the core plans every pass"),
            }
            compared = chosen(here.parts, temperature, names)
            memory = peak_memory(
                [*(method.name for method in compared), *core], here.folders, threads, here.parts.shapes,
                settings.request(0, sets[0].prompts[0]), status.update, _without,
            )  # fmt: skip
            extra = {name: {**here.extra.get(name, {}), "peak_memory_bytes": peak} for name, peak in memory.items()}
            found = measure(
                compared, here.parts, sets, settings, model.tokenizer, core=core, peers=list(beside.values()),
                extra=extra, facts=facts, costs=costs, bandwidth=bandwidth, weight_bytes=weight_bytes(model.manifest),
                progress=status.update, without=_without,
            )  # fmt: skip
            result = {**found.to_dict(), "peers": peer_rows(found, asked_peers)}
            stopped_by = found.stopped_by
            try:
                if stopped_by is None:
                    first = settings.request(0, sets[0].prompts[0])
                    result["sample"]["methods"][CORE_OURS] = ours.lane(first, model.tokenizer)
                if learning and stopped_by is None:
                    from streamfuse.research.compare.learners import rows

                    status.update("online: answering first turns")
                    mix = read_sets(data, lambda place: online if place else 2 * online)
                    asked = [data_set(name, samples, model, settings, plain) for name, samples in mix]
                    result["methods"] |= rows(
                        learning, model.bundle, bundles, here, asked, settings, model.tokenizer, threads, found.costs,
                        progress=status.update,
                    )  # fmt: skip
            except (KeyboardInterrupt, Exception) as error:  # what was measured before is still good
                stopped_by, result["complete"] = error, False
    if answers is not None:
        write_answers(found, answers)
    if markdown is not None:
        from streamfuse.research.compare.report import to_markdown

        write_text(markdown, to_markdown(result))
    if report is not None:
        from streamfuse.research.compare.report import write_page

        write_page(result, report)
    if json_:
        print_json(result)
    else:
        _print(result, temperature)
    if stopped_by is not None:
        say("Stopped early: the figures are of what was complete.", "yellow")
        raise stopped_by


def _without(line: str) -> None:
    say(line, "yellow")


def _print(result: dict[str, Any], temperature: float) -> None:
    from streamfuse.research.compare.peer_rows import peers_short

    for name in result["data"]:
        out.print(name, markup=False)
        out.print(tables.figures(*_rows(result, name)))
        if result["peers"]:
            out.print(tables.figures(*peers_short(result, name)))
            say(
                "Peers: times their own plain decoding, times our core's; how much of our plain's text they begin with."
            )
    say("Tokens per pass; times as fast as the same loop's plain decoding (the core's own for the core); peak memory.")
    if temperature:
        say("Texts are the same tokens as plain decoding's under this seed, or drawn from the same distribution.")


def _rows(result: dict[str, Any], data: str) -> tuple[list[str], list[list[str]]]:
    """As wide as a terminal is: rates, and what is left of the texts of lossy methods, are in the files."""
    from streamfuse.research.compare.tables import loss, megabytes

    columns = ["method", "tokens", "speed", "95 %", "MB", "text"]
    rows = []
    for name, method in result["methods"].items():
        one = method["results"][data]
        interval = one["speedup_interval"]
        rows.append(
            [name, f"{one['mean_accepted_tokens']:.2f}", f"{one['speedup']:.2f}",
             "-" if interval is None else f"{interval[0]:.2f}-{interval[1]:.2f}",
             megabytes(method.get("peak_memory_bytes"), ".0f"), _TEXT[loss(result, name, data).split(":")[0]]]
        )  # fmt: skip
    return columns, rows
