"""`streamfuse data distill`: the model writes the answers that its streams learn from."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamfuse.cli.shared import complete, options
from streamfuse.cli.shared.console import err, say
from streamfuse.cli.shared.declared import given, with_options
from streamfuse.cli.shared.help import COMMON
from streamfuse.cli.shared.options import DEFAULT_MODEL
from streamfuse.extras import need
from streamfuse.train.config import DistillConfig

if TYPE_CHECKING:
    from streamfuse.model.transformer import Transformer
    from streamfuse.runtime.text import Tokenizer
    from streamfuse.train.distill import Answering


def register(app: typer.Typer) -> None:
    app.command("distill")(distill)


@with_options(DistillConfig)
def distill(
    ctx: typer.Context,
    prompts: Annotated[str, typer.Argument(metavar="PROMPTS", help=options.DATA_HELP)],
    out: Annotated[
        Path, typer.Argument(metavar="OUT.jsonl", help="File to append answers to; answered prompts are skipped.")
    ],
    model: Annotated[options.BaseModel, COMMON] = DEFAULT_MODEL,
    adapter: Annotated[
        str | None,
        typer.Option(
            help="Answer with the base that this adapter tunes. A shipped name or a file; its chat template is used.",
            autocompletion=complete.adapters,
        ),
        COMMON,
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option(
            metavar="BUNDLE",
            help="Let this exported bundle answer instead of PyTorch: its quantized weights, with speculative "
            "decoding. Usually faster on a CPU with the streamfuse kernels.",
            autocompletion=complete.bundles,
        ),
        COMMON,
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of prompts.", show_default="all"), COMMON
    ] = None,
    system: Annotated[options.DataSystem, COMMON] = None,
    format_: options.DataFormat = None,
    template: Annotated[options.DataTemplate, COMMON] = None,
    split: options.DataSplit = "train",
    device: Annotated[str, typer.Option(help="PyTorch device, for example cpu, cuda or mps.")] = "cpu",
    offline: options.Offline = False,
    **flags: Any,
) -> None:
    """Let the model answer a file of prompts, to train streams on its own output.

    Prints the path of the answers. Each batch is written when it is done. If interrupted, the same command
    continues.

    [bold]Examples[/bold]

    streamfuse data distill prompts.jsonl build/train/chat.jsonl

    streamfuse data distill openai/gsm8k:main math.jsonl --template "{question}"

    streamfuse data distill prompts.jsonl varied.jsonl --temperature 0.8 --top-p 0.95 --seed 7 --system "Be brief."

    streamfuse data distill prompts.jsonl answers.jsonl --bundle build/quick/bundle

    streamfuse data distill e2e.jsonl own.jsonl --adapter e2e-shared --max-new-tokens 64
    """
    need("distill")
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from streamfuse.train.distill import check_context, pending, summary
    from streamfuse.train.distill import distill as write_answers
    from streamfuse.train.prompts import prompt_items
    from streamfuse.train.readers import read_samples

    config = DistillConfig(**given(DistillConfig, flags))
    if bundle is not None:
        ignored = ("model", "adapter", "device", "dtype", "batch_size", "offline")
        options.refuse_unread(ctx, "with --bundle, which has its own weights and engine", *ignored)
        source = _from_bundle(bundle, config)
    else:
        source = _from_model(model, adapter, device, config, offline)
    samples = read_samples(prompts, format_, options.data_template(template), split=split)
    if not source.text.can_chat:
        if system is not None:
            raise typer.BadParameter(f"--system needs a chat template, and {source.folder} has none")
        say(f"{source.folder} has no chat template, so the model continues the prompts as raw text.", "yellow")
    items = prompt_items(samples, source.text, system, config.seed, limit)
    todo = pending(items, out, config, source.provenance)
    if source.context is not None:
        check_context([item["input_ids"] for item in todo], config, source.context)
    answering = source.open()
    say(summary(items, todo, config))
    n_tokens, started = 0, time.perf_counter()
    columns = (TextColumn("Distilling"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, TimeRemainingColumn(), console=err) as progress:
        task = progress.add_task("", total=len(todo))
        for written in write_answers(answering, todo, out, config, source.provenance):
            n_tokens += written.tokens
            speed = f"{n_tokens / (time.perf_counter() - started):.0f} tokens/s"
            progress.update(task, advance=written.answers, description=speed)
    print(out)


@dataclass(frozen=True, slots=True)
class _Source:
    """Who answers: its folder, tokenizer and provenance, and what loads it. `context` is the model's; None: it
    is checked already."""

    folder: Path
    text: Tokenizer
    provenance: dict[str, Any]
    open: Callable[[], Answering]
    context: int | None = None


def _from_model(model: str, adapter: str | None, device: str, config: DistillConfig, offline: bool) -> _Source:
    from streamfuse.model.config import ModelConfig
    from streamfuse.model.pull import resolve_model
    from streamfuse.train.distill import in_batches, provenance_of
    from streamfuse.train.prompts import open_text

    tuned = None if adapter is None else options.adapter_file("--adapter", adapter)
    folder = resolve_model(model, offline=offline)
    text = open_text(folder, tuned, raw=True)

    def open_() -> Answering:
        return in_batches(_on_device(folder, tuned, config, device))

    context = ModelConfig.load(folder).max_position_embeddings
    return _Source(folder, text, provenance_of(config, folder, tuned), open_, context)


def _from_bundle(folder: Path, config: DistillConfig) -> _Source:
    from streamfuse.bundle import open_bundle
    from streamfuse.cli.shared.bundle_answers import bundle_provenance, by_bundle, check_context

    bundle = open_bundle(folder)
    check_context(bundle, config)
    return _Source(folder, bundle.tokenizer, bundle_provenance(bundle, config), lambda: by_bundle(bundle))


def _on_device(folder: Path, adapter: Path | None, config: DistillConfig, device: str) -> Transformer:
    from streamfuse.train.distill import load_writer

    try:
        return load_writer(folder, adapter, config, device)
    except (RuntimeError, AssertionError) as error:
        raise typer.BadParameter(f"--device {device} cannot be used ({str(error).splitlines()[0]})") from None
