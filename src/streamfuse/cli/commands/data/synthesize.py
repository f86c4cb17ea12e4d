"""`streamfuse data synthesize`: prompts for `distill`, where nobody has any."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamfuse.cli.shared import complete, options
from streamfuse.cli.shared.console import err
from streamfuse.cli.shared.declared import given, with_options
from streamfuse.cli.shared.help import COMMON
from streamfuse.cli.shared.options import DEFAULT_MODEL
from streamfuse.extras import need
from streamfuse.train.config import SYNTHESIZE, DistillConfig

if TYPE_CHECKING:
    from streamfuse.runtime.text import Tokenizer
    from streamfuse.train.distill import Answering


def register(app: typer.Typer) -> None:
    app.command("synthesize")(synthesize)


@with_options(SYNTHESIZE)
def synthesize(
    ctx: typer.Context,
    out: Annotated[Path, typer.Argument(metavar="OUT.jsonl", help="File to append prompts to, until it has --count.")],
    count: Annotated[int, typer.Option(min=1, help="Number of prompts in the finished file."), COMMON] = 2000,
    model: Annotated[options.BaseModel, COMMON] = DEFAULT_MODEL,
    bundle: Annotated[
        Path | None,
        typer.Option(
            metavar="BUNDLE",
            help="Let this exported bundle write the prompts instead of PyTorch, as in data distill.",
            autocompletion=complete.bundles,
        ),
        COMMON,
    ] = None,
    begin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help='Beginning of the prompts, for example "Summarize: ". Several are used in turn.',
        ),
        COMMON,
    ] = None,
    after: Annotated[
        Path | None,
        typer.Option(
            metavar="ANSWERS.jsonl", help="Write second turns, which follow the finished answers in this file."
        ),
        COMMON,
    ] = None,
    system: Annotated[options.System, COMMON] = None,
    offline: options.Offline = False,
    **flags: Any,
) -> None:
    """Let the model write prompts, by continuing its own chat template (Magpie).

    The template stops where the user's text begins. Prints the file. `streamfuse data distill` answers them
    afterwards. If interrupted, the same command continues.

    [bold]Examples[/bold]

    streamfuse data synthesize prompts.jsonl --count 4000

    streamfuse data synthesize stories.jsonl --begin "Write a story about" --begin "Continue: "

    streamfuse data synthesize prompts.jsonl --count 4000 --bundle build/quick/bundle

    streamfuse data synthesize follow-ups.jsonl --after answers.jsonl --max-prompt-tokens 400
    """
    need("synthesize")
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from streamfuse.train import synthesize as prompts

    config = replace(SYNTHESIZE, **given(DistillConfig, flags))
    if not config.temperature:
        raise typer.BadParameter("--temperature must be above 0: every prompt would be the same")
    if bundle is not None:
        ignored = ("model", "dtype", "batch_size", "offline")
        options.refuse_unread(ctx, "with --bundle, which has its own weights and engine", *ignored)
        config = prompts.for_bundle(config)
        source = _from_bundle(bundle, config)
    else:
        source = _from_model(model, config, offline)
    places, end = prompts.openings(source.text, begin or (), system, after)
    provenance = prompts.prompt_provenance(config, source.folder, begin or (), system, after, **source.facts)
    prompts.check_prompts(out, count, provenance)
    answering = source.open()
    columns = (TextColumn("Prompts"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=err) as progress:
        task = progress.add_task("", total=count)
        for added in prompts.synthesize(
            answering, source.text, out, count, config, places, end, provenance, source.context
        ):
            progress.advance(task, added)
    print(out)


@dataclass(frozen=True, slots=True)
class _Source:
    """Who writes the prompts: its tokenizer, what loads it, and what tells it from others, a folder or facts. `context`
    is the model's; None: it is checked already."""

    text: Tokenizer
    open: Callable[[], Answering]
    folder: Path | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    context: int | None = None


def _from_model(model: str, config: DistillConfig, offline: bool) -> _Source:
    from streamfuse.model.config import ModelConfig
    from streamfuse.model.pull import resolve_model
    from streamfuse.train.distill import in_batches, load_writer
    from streamfuse.train.prompts import open_text

    folder = resolve_model(model, offline=offline)
    context = ModelConfig.load(folder).max_position_embeddings
    return _Source(open_text(folder), lambda: in_batches(load_writer(folder, None, config)), folder, context=context)


def _from_bundle(folder: Path, config: DistillConfig) -> _Source:
    from streamfuse.bundle import open_bundle
    from streamfuse.cli.shared.bundle_answers import by_bundle, check_context

    bundle = open_bundle(folder)
    check_context(bundle, config)
    return _Source(bundle.tokenizer, lambda: by_bundle(bundle), facts={"bundle": bundle.identity[:16]})
