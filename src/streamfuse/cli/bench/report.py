"""`streamfuse bench report`: one HTML page that shows plain and speculative decoding pass by pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from streamfuse.api import Generation, GenerationOptions, Model, load
from streamfuse.cli.shared import options
from streamfuse.cli.shared.console import err, out, print_json, say
from streamfuse.cli.shared.engine import settle
from streamfuse.cli.shared.help import COMMON, command_line
from streamfuse.cli.shared.prompts import PROMPTS, fitting
from streamfuse.extras import need


def register(bench: typer.Typer) -> None:
    bench.command("report")(report)


def report(
    ctx: typer.Context,
    bundle: options.BundleFolder,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.html", help="The page to write."), COMMON
    ] = Path("report.html"),
    adapter: Annotated[options.TaskAdapter, COMMON] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="DATA", help=options.DATA_HELP, show_default="the prompts of streamfuse demo"),
        COMMON,
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, help="With --data: number of prompts, evenly spread over the data."), COMMON
    ] = 12,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Maximum tokens per answer."), COMMON] = 128,
    threads: options.Threads = None,
    provider: options.Provider = None,
    format_: options.DataFormat = None,
    template: options.DataTemplate = None,
    split: options.DataSplit = "test",
    json_: Annotated[bool, typer.Option("--json", help="Print the measured answers as one JSON object.")] = False,
) -> None:
    """Write an HTML page that shows where the speed-up of a bundle comes from.

    Answers each prompt by plain and by speculative decoding, greedily, and
    draws both on one time axis: a bar per pass, a square per token, coloured
    by the source that drafted it. The page replays answers in real time and
    shows the speed-up by kind of prompt, the acceptance by depth, and the
    latency of passes by width. It is one self-contained file.

    Each prompt is answered once, so the figures are rough: `streamfuse bench
    tasks` measures with repetitions and intervals. The exit code is 1 if
    plain and speculative decoding generate different outputs.

    [bold]Examples[/bold]

    streamfuse bench report build/demo -o report.html

    streamfuse bench report build/demo --data question.jsonl -o chat.html
    """
    if data is None:
        options.refuse_unread(ctx, "without --data", "limit", "format_", "template", "split")
    need("bench-report")
    options.check_place("--output", output)
    options.check_not_read("--output", output, "--data", [] if data is None else [data])
    from streamfuse.bench.report import measure
    from streamfuse.bench.report.page import page_of
    from streamfuse.bench.shared.machine import engine_threads
    from streamfuse.bench.shared.report import write_page
    from streamfuse.bench.suite import commit
    from streamfuse.engines import processor

    settings = GenerationOptions(max_new_tokens=max_new_tokens, temperature=0.0, repetition_penalty=1.0)
    answers: list[measure.Answer] = []
    with (
        load(bundle, threads=threads, provider=provider, cost_cache=False) as whole,
        err.status("warming up") as status,
    ):
        model = options.with_adapter(whole, adapter)
        asked = _demo(model) if data is None else _read(model, data, limit, max_new_tokens, format_, template, split)
        settle(model, plan=True)
        for number, (kind, prompt, ask) in enumerate(asked):
            status.update(f"prompt {number + 1} of {len(asked)}")
            answers.append(measure.answer(kind, prompt, partial(ask, **settings), plain_first=number % 2 == 0))
        facts = f"{model.manifest.model.name}, {processor()}, {engine_threads(model.backend)} threads, greedy"
        if revision := commit():
            facts += f", commit {revision}"
        title = f"Speculative decoding of {model.manifest.model.name.rpartition('/')[2]}"
    write_page(output, page_of(answers, title, facts, command_line(ctx)))
    if json_:
        print_json({"speedup": measure.speedup(answers), "answers": [one.to_dict() for one in answers]})
    else:
        out.print(f"{output}: {len(answers)} answers, {measure.speedup(answers):.2f}x as fast as plain decoding",
                  markup=False, soft_wrap=True)  # fmt: skip
    if different := [one.kind for one in answers if not one.equal]:
        say(f"The outputs differ: {', '.join(different)}", "red")
        raise typer.Exit(1)


Ask = Callable[..., Generation]


def _demo(model: Model) -> list[tuple[str, str, Ask]]:
    return [(kind, text, _asking(model, text, **restriction)) for kind, (text, restriction) in PROMPTS.items()]


def _read(
    model: Model, data: str, limit: int, max_new_tokens: int, format_: str | None, template: str | None, split: str
) -> list[tuple[str, str, Ask]]:
    """Kind, prompt and how to ask it, of the prompts that fit the context."""
    from streamfuse.train.readers import encode_prompt, merged, read_samples, spread

    samples = spread(merged(read_samples(data, format_, options.data_template(template), split=split)), limit)
    encoded = [encode_prompt(sample, model.tokenizer) for sample in samples]
    found = []
    for place in fitting(encoded, model.manifest, max_new_tokens):
        sample = samples[place]
        found.append((sample.kind, sample.turns[0] if sample.turns else "", _asking(model, encoded[place])))
    return found


def _asking(model: Model, prompt: str | Sequence[int], **restriction: Any) -> Ask:
    def ask(**settings: Any) -> Generation:
        model.reset()
        return model.stream(prompt, **restriction, **settings)

    return ask
