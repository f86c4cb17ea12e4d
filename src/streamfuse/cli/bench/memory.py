"""`streamfuse bench memory`: peak memory of plain, speculative and llama.cpp, each in a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamfuse.api import load
from streamfuse.cli.shared import options, tables
from streamfuse.cli.shared.console import err, out, print_json
from streamfuse.cli.shared.help import COMMON
from streamfuse.cli.shared.prompts import fitting
from streamfuse.cli.shared.systems import Programs, refuse_unused_weights, system_names, warn

if TYPE_CHECKING:
    from streamfuse.bench.memory import Opener
    from streamfuse.bundle import Manifest


def register(bench: typer.Typer) -> None:
    bench.command("memory")(memory)


def memory(
    ctx: typer.Context,
    bundle: options.BundleFolder,
    data: Annotated[str, typer.Option(metavar="DATA", help=options.DATA_HELP)],
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, help="Prompts to choose the longest from, evenly spread over the data.", show_default="all"
        ),
        COMMON,
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Maximum tokens of the answer."), COMMON] = 128,
    systems: Annotated[options.Systems, COMMON] = None,
    gguf: options.Gguf = None,
    adapter: Annotated[options.TaskAdapter, COMMON] = None,
    trained_adapter: options.TrainedAdapter = None,
    threads: options.Threads = None,
    provider: options.Provider = None,
    format_: options.DataFormat = None,
    template: options.DataTemplate = None,
    split: options.DataSplit = "test",
    json_: Annotated[options.Json, COMMON] = False,
) -> None:
    """Measure the peak resident memory of each system for one answer.

    Each system runs in a new Python process, which loads it, answers the
    longest of the prompts greedily and reports its peak. This includes Python
    itself, caches, and the pages of mapped weights that were read. llama.cpp
    runs the same weights in each of Q4_0, Q4_1, Q8_0 and the GGUF's own type;
    it needs pip install 'streamfuse\\[llama-cpp]'.

    [bold]Examples[/bold]

    streamfuse bench memory build/demo --data question.jsonl --limit 20

    streamfuse bench memory build/e2e --data test.jsonl --systems plain,speculative --json
    """
    from streamfuse.bench.memory import measure, own_systems, rows, summary
    from streamfuse.bench.shared.machine import engine_facts, engine_threads
    from streamfuse.bench.shared.systems import LLAMA_CPP, PLAIN, SPECULATIVE, Request
    from streamfuse.train.readers import encode_prompt, merged, read_samples, spread

    names = system_names(systems, (PLAIN, SPECULATIVE, LLAMA_CPP))
    refuse_unused_weights(ctx, [name for name in names if name == LLAMA_CPP])
    trained = None if trained_adapter is None else options.adapter_file("--trained-adapter", trained_adapter)
    with load(bundle, threads=threads, provider=provider, cost_cache=False) as whole:
        opened = options.with_adapter(whole, adapter)
        manifest = opened.manifest
        samples = spread(merged(read_samples(data, format_, options.data_template(template), split=split)), limit)
        asked = [encode_prompt(sample, opened.tokenizer) for sample in samples]
        longest = max((asked[place] for place in fitting(asked, manifest, max_new_tokens)), key=len)
        used, facts = engine_threads(opened.backend), {**engine_facts(opened.backend), "data": data, "adapter": adapter}
    openers = own_systems(Path(bundle), names, adapter, threads, provider)
    programs = Programs([LLAMA_CPP], required=systems is not None)
    if LLAMA_CPP in names:
        openers |= programs.attempt(LLAMA_CPP, lambda: _llama_cpp(manifest, gguf, trained, used)) or {}
    with err.status("starting") as status:
        result = measure(openers, Request(longest, max_new_tokens), facts, programs.left_out, status.update, warn)
    if json_:
        print_json(result.to_dict())
        return
    out.print(tables.figures(*rows(result)))
    for line in summary(result):
        out.print(line, markup=False, soft_wrap=True)


def _llama_cpp(manifest: Manifest, gguf: Path | None, trained: Path | None, threads: int) -> dict[str, Opener]:
    from streamfuse.bench.external.opening import llama_cpp_weights
    from streamfuse.bench.memory import llama_cpp_systems

    return llama_cpp_systems(llama_cpp_weights(manifest, gguf, trained), threads, manifest)
