"""`streamfuse demo`: three short answers of different kinds, with plain and with speculative decoding."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from streamfuse.api import GenerationOptions, load
from streamfuse.cli.shared import drafts, options, tables
from streamfuse.cli.shared.compare import Comparison, Comparisons, check_equal, compare
from streamfuse.cli.shared.console import err, out, print_json, say
from streamfuse.cli.shared.engine import settle, tell_emulated, tell_provider
from streamfuse.cli.shared.prompts import PROMPTS
from streamfuse.interrupt import stop_on_interrupt


def register(app: typer.Typer) -> None:
    app.command("demo")(demo)


def demo(
    bundle: options.BundleFolder,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of tokens per answer.")] = 96,
    repeats: Annotated[
        int,
        typer.Option(min=1, help="Runs per answer with plain and with speculative decoding each; the median is shown."),
    ] = 3,
    threads: options.Threads = None,
    provider: options.Provider = None,
    json_: options.Json = False,
) -> None:
    """Compare plain and speculative decoding on three prompts.

    A chat answer, a Python function, and a JSON object under a schema, all
    greedy. Prints each answer, then tokens per pass, tokens per second, and
    the accepted drafts by source: streams, look-up, n-gram table, or grammar
    (tokens that the schema forces or makes likely). "Cold caches" is the
    speed-up if the CPU caches are evicted before each pass, which then reads
    its weights from memory, as on a device whose caches are much smaller than
    the weights. The exit code is 1 if plain and speculative decoding generate
    different outputs.

    [bold]Examples[/bold]

    streamfuse demo build/demo

    streamfuse demo build/demo --repeats 1 --json
    """
    from streamfuse.cli.shared.own_systems import with_cold_caches

    model = load(bundle, threads=threads, provider=provider)
    asked = GenerationOptions(max_new_tokens=max_new_tokens, temperature=0.0, repetition_penalty=1.0)
    rows: list[tuple[str, Comparison]] = []
    stopped_by: KeyboardInterrupt | None = None
    if not json_:
        tell_emulated(model.bundle)
    with model:
        settle(model, plan=True)
        if not json_:
            tell_provider(model.backend)
        for kind, (prompt, restriction) in PROMPTS.items():
            ask = partial(model.stream, prompt, **asked, **restriction)
            if not json_:
                out.print(f"{kind}: {prompt}", style="bold", markup=False, soft_wrap=True)
                answer = ask()
                with stop_on_interrupt(answer.stop) as interrupted:
                    drafts.write(answer)
                if interrupted:
                    raise KeyboardInterrupt
                out.print()
            rows.append((kind, compare(model, ask, repeats, err)))
        # Other engines are emulated, or do not read their weights through the CPU's caches.
        if model.manifest.backend in ("kernels", "xnnpack", "onnxruntime") and provider in (None, "cpu"):
            try:
                with err.status("with cold caches"):
                    rows = with_cold_caches(model, rows, PROMPTS, max_new_tokens)
            except KeyboardInterrupt as error:  # the table of what is complete comes first
                stopped_by = error
            except MemoryError:
                say("Not measured with cold caches: too little memory to evict them.", "yellow")
    compared = Comparisons(rows)
    if json_:
        print_json(compared.to_dict("answer"))
    else:
        out.print(tables.comparisons(compared, "answer"))
        if compared.speedup_cold_caches is not None:
            say(
                "Cold caches: they are evicted before each pass, which then reads its weights from memory, as on a "
                "device whose caches are much smaller than the weights."
            )
        say(
            "Tokens per pass is the upper limit of the speed-up: it is reached if a pass that verifies several tokens "
            "takes as long as one that decodes a single token, and drafting is free."
        )
    if stopped_by is not None:
        raise stopped_by
    check_equal(compared, model.manifest.backend)
