"""`streamfuse bench tasks`: plain, speculative and llama.cpp over a data set, in turns."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from streamfuse.api import load
from streamfuse.bench.shared.systems import MEMORY, PLAIN, PROGRAMS, SPECULATIVE, WITHOUT, System
from streamfuse.cli.shared import complete, options, tables
from streamfuse.cli.shared.console import err, out, print_json, say
from streamfuse.cli.shared.help import COMMON, command_line
from streamfuse.cli.shared.prompts import fitting
from streamfuse.cli.shared.systems import Programs, refuse_unused_weights, system_names, warn

if TYPE_CHECKING:
    from streamfuse.bench.tasks.measure import TaskResult

_SYSTEMS = (PLAIN, SPECULATIVE, *WITHOUT.values(), *PROGRAMS)
ADVERSARIAL = "adversarial"  # --data: prompts that no drafter can foresee


def register(bench: typer.Typer) -> None:
    bench.command("tasks")(tasks)


def tasks(
    ctx: typer.Context,
    bundle: options.BundleFolder,
    data: Annotated[
        str,
        typer.Option(
            metavar="DATA",
            help=f"{options.DATA_HELP} `{ADVERSARIAL}`: prompts of random words, answered at a high temperature.",
        ),
    ],
    limit: Annotated[
        int | None, typer.Option(min=1, help="Prompts, evenly spread over the data.", show_default="all"), COMMON
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Maximum tokens per answer."), COMMON] = 128,
    repetitions: Annotated[int, typer.Option(min=1, help="Runs of each system per prompt."), COMMON] = 5,
    systems: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,...",
            help=f"Any of {', '.join(_SYSTEMS)}.",
            show_default="plain, speculative, and the installed programs",
            autocompletion=complete.listed(*_SYSTEMS),
        ),
        COMMON,
    ] = None,
    sources: Annotated[
        bool,
        typer.Option(
            "--sources", help="Also run speculation with one source of drafts off: streams, look-up or table."
        ),
        COMMON,
    ] = False,
    memory: Annotated[
        bool,
        typer.Option("--memory", help="Also run speculation that drafts from earlier answers too."),
    ] = False,
    gguf: options.Gguf = None,
    adapter: Annotated[options.TaskAdapter, COMMON] = None,
    trained_adapter: options.TrainedAdapter = None,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="0 is greedy.", show_default=f"0; 1.5 for {ADVERSARIAL}")
    ] = None,
    seed: options.Seed = 0,
    threads: options.Threads = None,
    provider: options.Provider = None,
    format_: options.DataFormat = None,
    template: options.DataTemplate = None,
    split: options.DataSplit = "test",
    cold_caches: options.ColdCaches = False,
    report: Annotated[options.ReportFile, COMMON] = None,
    json_: Annotated[options.Json, COMMON] = False,
) -> None:
    """Measure tokens per second of each system, with 95 % intervals.

    Also prints the memory roofline of plain decoding. The systems alternate on
    every prompt. llama.cpp runs the same weights on as many threads, in the
    fastest of Q4_0, Q4_1, Q8_0 and the GGUF's own type; ONNX Runtime GenAI
    runs the four-bit weights of its own builder. They need pip install
    'streamfuse\\[llama-cpp]' and 'streamfuse\\[onnx-genai]', and run in
    separate processes; one that crashes is left out. Ctrl-C ends the run and
    reports what is complete.

    --sources measures the gain from each source of drafts, for each category
    of the data: the speed with all sources over the speed without that one.
    --memory measures the gain from `run --memory`, which depends on how much
    answers resemble each other. The memory is emptied before each repetition.
    With --cold-caches each pass reads its weights from memory, as on a device
    whose caches are much smaller than the weights, such as a phone. Other
    programs cannot be measured in this way and are left out.

    [bold]Examples[/bold]

    streamfuse bench tasks build/demo --data question.jsonl --limit 20

    streamfuse bench tasks build/e2e --data test.jsonl --systems plain,speculative,llama.cpp --json

    streamfuse bench tasks build/tasks --adapter e2e --data test.jsonl

    streamfuse bench tasks build/demo --data question.jsonl --sources

    streamfuse bench tasks build/demo --data question.jsonl --cold-caches --systems "plain,speculative,without streams"

    streamfuse bench tasks build/demo --data adversarial --limit 8
    """
    if data == ADVERSARIAL:
        options.refuse_unread(ctx, f"with --data {ADVERSARIAL}", "format_", "template", "split")
    options.check_report(report)
    options.check_not_read("--report", report, "--data", [data])
    from streamfuse.bench.shared.cold_caches import ColdCaches
    from streamfuse.bench.shared.comparison import TaskSettings
    from streamfuse.bench.shared.machine import ReadBandwidth, engine_facts, engine_threads
    from streamfuse.bench.shared.work import weight_bytes
    from streamfuse.bench.tasks.measure import compare
    from streamfuse.bench.tasks.prompts import ADVERSARIAL_PROMPTS, ADVERSARIAL_TEMPERATURE, random_words
    from streamfuse.bench.tasks.report import tasks_report
    from streamfuse.cli.shared.own_systems import own_system
    from streamfuse.train.readers import encode_prompt, merged, read_samples, spread

    names = system_names(systems, _SYSTEMS)
    others = [name for name in names if name in PROGRAMS]
    if cold_caches and others:
        if systems is not None:
            raise typer.BadParameter(
                f"leave {' and '.join(others)} out of --systems: --cold-caches cannot interrupt the passes of other "
                "programs"
            )
        others = []
    refuse_unused_weights(ctx, others)
    if (sources or memory) and SPECULATIVE not in names:
        raise typer.BadParameter(f"--{'sources' if sources else 'memory'} needs speculative among --systems")
    trained = None if trained_adapter is None else options.adapter_file("--trained-adapter", trained_adapter)
    hot = ADVERSARIAL_TEMPERATURE if data == ADVERSARIAL else 0.0
    settings = TaskSettings(max_new_tokens, repetitions, hot if temperature is None else temperature, seed)
    whole = load(bundle, threads=threads, provider=provider, cost_cache=False)
    opened = options.with_adapter(whole, adapter)
    manifest = opened.manifest
    if data == ADVERSARIAL:
        asked = random_words(opened.tokenizer, manifest.model.vocab_size, limit or ADVERSARIAL_PROMPTS, seed)
        kinds = [ADVERSARIAL] * len(asked)
    else:
        samples = spread(merged(read_samples(data, format_, options.data_template(template), split=split)), limit)
        asked = [encode_prompt(sample, opened.tokenizer) for sample in samples]
        kinds = [sample.kind for sample in samples]
    fits = fitting(asked, manifest, max_new_tokens)
    prompts, kinds = [asked[place] for place in fits], [kinds[place] for place in fits]
    programs = Programs(others, required=systems is not None)
    programs.prepare(manifest, gguf, trained)
    with whole, ExitStack() as stack, err.status("warming up") as status:
        own = [name for name in names if name not in PROGRAMS]
        if sources:
            own += [name for name in WITHOUT.values() if name not in own]
        if not manifest.speculation.num_streams and (name := WITHOUT["streams"]) in own:
            own.remove(name)
            programs.left_out[name] = "the bundle has no streams"
            if name in names:
                warn(f"Without {name}: the bundle has no streams")
        if not own and not others:
            raise typer.BadParameter("the bundle has no streams to leave out; name another system in --systems")
        clock = ColdCaches() if cold_caches else None
        ours = [own_system(opened, name, clock) for name in own]
        running: list[System] = list(ours)
        backend = ours[0].backend if ours else opened.backend
        used = engine_threads(backend)
        machine = ReadBandwidth(used, cold_caches)
        facts = {
            **engine_facts(backend),
            "data": data,
            "adapter": adapter,
            "prompts": len(prompts),
            "skipped": len(asked) - len(prompts),
            "cold_caches": cold_caches,
            "read_bandwidth_bytes": machine.num_bytes,
            "core_distance_ns": machine.core_distance_ns,
        }
        if memory:
            again = load(whole.bundle, threads=threads, provider=provider, cost_cache=False, memory="")
            remembering = options.with_adapter(stack.enter_context(again), adapter)
            running.append(own_system(remembering, MEMORY, clock))
        running += programs.open(stack, used, manifest, prompts[0], settings, status.update)
        facts |= programs.facts
        result = compare(
            running, prompts, settings, machine, weight_bytes(manifest), facts, status.update, warn, kinds
        )  # fmt: skip
    result = replace(result, left_out={**programs.left_out, **result.left_out})
    if json_:
        print_json(result.to_dict())
    else:
        _print(result)
    if report is not None:
        tasks_report(result, manifest.model.name, command_line(ctx)).write(report)
    if result.stopped_by is not None:
        say(
            f"Stopped early: the figures are of {result.prompts} of {len(prompts)} prompts, "
            f"{result.settings.repetitions} of {repetitions} repetitions.",
            "yellow",
        )
        raise result.stopped_by


def _print(result: TaskResult) -> None:
    from streamfuse.bench.tasks.report import gain_rows, summary, system_rows

    out.print(tables.figures(*system_rows(result)))
    columns, rows = gain_rows(result)
    if rows:
        out.print(tables.figures(columns, rows))
    for line in summary(result):
        out.print(line, markup=False, soft_wrap=True)
