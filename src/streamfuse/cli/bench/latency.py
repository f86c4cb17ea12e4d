"""`streamfuse bench latency`: the latency of a pass, per method and per part."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from streamfuse.api import load
from streamfuse.cli.shared import options, tables
from streamfuse.cli.shared.console import err, out, print_json
from streamfuse.cli.shared.engine import settle
from streamfuse.cli.shared.help import command_line
from streamfuse.extras import need

if TYPE_CHECKING:
    from streamfuse.bench.latency.measure import Latency


def register(bench: typer.Typer) -> None:
    bench.command("latency")(latency)


def latency(
    ctx: typer.Context,
    bundle: options.BundleFolder,
    adapter: options.TaskAdapter = None,
    threads: options.Threads = None,
    provider: options.Provider = None,
    repetitions: Annotated[int, typer.Option(min=1, help="Passes per method; the median is reported.")] = 30,
    context: Annotated[int, typer.Option(min=1, help="Tokens in the cache before each pass.")] = 64,
    cold_caches: options.ColdCaches = False,
    report: options.ReportFile = None,
    json_: options.Json = False,
) -> None:
    """Measure the latency of every method and its parts, GB/s and GMAC/s.

    GB/s are compared with the machine's read bandwidth. Runs full passes on random tokens; methods take turns, each
    with several passes in a row. `commit` (copying accepted rows into the KV cache) and `loop` (drafting, accepting,
    planning) are not part of a pass. The roofline is the time to read the weights of a plain decoding pass once. With
    --cold-caches each pass reads its weights from memory, as on a device whose caches are much smaller than the
    weights, such as a phone.

    [bold]Examples[/bold]

    streamfuse bench latency build/demo

    streamfuse bench latency build/demo --threads 2 --context 512 --report build/latency.html --json
    """
    need("bench-latency")
    options.check_report(report)
    from streamfuse.bench.latency.loop_cost import loop_costs
    from streamfuse.bench.latency.measure import LatencySettings, measure
    from streamfuse.bench.latency.profile import profiler_of
    from streamfuse.bench.latency.report import latency_report
    from streamfuse.bench.shared.cold_caches import ColdCaches
    from streamfuse.bench.shared.machine import ReadBandwidth, engine_facts, engine_threads

    whole = load(bundle, threads=threads, provider=provider, cost_cache=False)
    model = options.with_adapter(whole, adapter)
    manifest = model.manifest
    settings = LatencySettings(repetitions=repetitions, context=context, settle=1 if cold_caches else 8)
    settings.check(manifest)
    with whole, err.status("the loop") as status:
        settle(model, plan=False)
        backend = model.backend
        loop_ms = loop_costs(model, settings, status.update)
        machine = ReadBandwidth(engine_threads(backend), cold_caches)
        facts = {
            **engine_facts(backend),
            "read_bandwidth_bytes": machine.num_bytes,
            "core_distance_ns": machine.core_distance_ns,
            "cold_caches": cold_caches,
        }
        if adapter is not None:
            facts["adapter"] = adapter
        measured = measure(
            backend, manifest, settings, machine, profiler_of(backend), loop_ms, facts, status.update,
            ColdCaches() if cold_caches else time.perf_counter,
        )  # fmt: skip
    if report is not None:
        latency_report(measured, manifest.model.name, command_line(ctx)).write(report)
    if json_:
        print_json(measured.to_dict())
    else:
        _print(measured)


def _print(measured: Latency) -> None:
    from streamfuse.bench.latency.report import method_rows, part_tables, summary

    out.print(tables.figures(*method_rows(measured)))
    for table in part_tables(measured):
        out.print(tables.figures(*table))
    for line in summary(measured):
        out.print(line, markup=False, soft_wrap=True)
