"""`streamfuse train`: stream adapters for a frozen base model."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import err, say
from .errors import EXIT_INTERRUPTED
from .interrupt import stop_on_interrupt
from .pull import DEFAULT_MODEL

if TYPE_CHECKING:
    from streamfuse.train.main import TrainConfig, TrainResult

_STREAM_DEFAULTS = {  # of train.main.TrainConfig, for the help; a test compares them
    "num_streams": 4,
    "num_msa_layers": 8,
    "adapter_rank": 12,
    "parent_rank": 32,
    "pruner_rank": 8,
    "eta_rank": 0,
    "value_rotation": 0.0,
    "stream_vocab_size": 8192,
}


def _stream_option(name: str, help_text: str) -> Any:
    return typer.Option(help=help_text, show_default=str(_STREAM_DEFAULTS[name]), rich_help_panel="Streams")


def register(app: typer.Typer) -> None:
    app.command("train")(train)


def train(
    data: Annotated[Path, typer.Option(metavar="FILE.jsonl", help="What `streamfuse distill` wrote.")],
    output_dir: Annotated[
        Path, typer.Option("--output-dir", "-o", help="Checkpoints, metrics.jsonl, TensorBoard events, cached states.")
    ],
    model: Annotated[str, typer.Option(help="Hub name, checkpoint folder or .gguf file.")] = DEFAULT_MODEL,
    adapter: Annotated[
        Path | None, typer.Option(help="The file to write.", show_default="OUTPUT_DIR/adapter.safetensors")
    ] = None,
    epochs: Annotated[float, typer.Option(help="Passes over the data.")] = 3.0,
    batch_size: Annotated[int, typer.Option(help="Examples per step.")] = 8,
    learning_rate: Annotated[float, typer.Option(help="Peak rate of the low-rank adapters.")] = 1e-3,
    embedding_learning_rate: Annotated[
        float, typer.Option(help="Peak rate of stream embeddings, parent term and pruner.")
    ] = 1e-2,
    max_tokens: Annotated[int, typer.Option(help="Examples are cut there, prompt included.")] = 320,
    held_out: Annotated[int, typer.Option(help="First examples of the file: measured, not trained on.")] = 40,
    log_every: Annotated[int, typer.Option(help="Steps between two rows of metrics.")] = 10,
    evaluate_every: Annotated[int, typer.Option(help="Steps between two held-out measures and checkpoints.")] = 60,
    seed: Annotated[int, typer.Option(min=0, help="Initial weights and order of the data.")] = 0,
    init_adapter: Annotated[
        Path | None, typer.Option(help="Begin with this adapter's weights and stream settings.")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume/--no-resume", help="Continue at the last checkpoint, or remove all and start over."),
    ] = True,
    num_streams: Annotated[int | None, _stream_option("num_streams", "Streams per token (gamma).")] = None,
    num_msa_layers: Annotated[int | None, _stream_option("num_msa_layers", "Top layers with streams (Ns).")] = None,
    adapter_rank: Annotated[
        int | None, _stream_option("adapter_rank", "Rank of the adapters of stream rows; 0: none.")
    ] = None,
    parent_rank: Annotated[int | None, _stream_option("parent_rank", "Rank of the parent term; 0: off.")] = None,
    pruner_rank: Annotated[int | None, _stream_option("pruner_rank", "Rank of the pruner; 0: no pruner.")] = None,
    eta_rank: Annotated[
        int | None, _stream_option("eta_rank", "Rank of the streams' initial map; 0: the identity.")
    ] = None,
    value_rotation: Annotated[
        float | None, _stream_option("value_rotation", "Radians per stream, instead of embeddings; 0: off.")
    ] = None,
    stream_vocab_size: Annotated[
        int | None, _stream_option("stream_vocab_size", "Tokens that streams may propose; 0: all.")
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Use only what is on this machine.")] = False,
) -> None:
    """Train speculative streams; the base model stays as it is. Prints the adapter's path.

    The layers below the streams are run once and cached. Ctrl-C ends after the step at hand with a checkpoint, and the
    same command continues there. The shipped adapter needs nothing but the defaults.

    [bold]Examples[/bold]

    streamfuse distill prompts.jsonl build/train/chat.jsonl

    streamfuse train --data build/train/chat.jsonl -o build/train/chat

    streamfuse train --data mine.jsonl -o build/train/mine --model ~/models/mine --num-streams 3 --num-msa-layers 4

    tensorboard --logdir build/train/chat/runs
    """
    streams = {
        "num_streams": num_streams, "num_msa_layers": num_msa_layers, "adapter_rank": adapter_rank,
        "parent_rank": parent_rank, "pruner_rank": pruner_rank, "eta_rank": eta_rank,
        "value_rotation": value_rotation, "stream_vocab_size": stream_vocab_size,
    }  # fmt: skip
    said = {name: value for name, value in streams.items() if value is not None}
    if init_adapter and said:
        flag = "--" + next(iter(said)).replace("_", "-")
        raise typer.BadParameter(f"--init-adapter brings its own stream settings, so {flag} does not go with it")
    if not data.is_file():
        raise typer.BadParameter(f"{data}: no such file; `streamfuse distill` writes one")
    settings = {
        "data": data, "out_dir": output_dir, "adapter": adapter or output_dir / "adapter.safetensors",
        "epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate,
        "embedding_learning_rate": embedding_learning_rate, "max_tokens": max_tokens, "held_out": held_out,
        "log_every": log_every, "evaluate_every": evaluate_every, "seed": seed, "init_adapter": init_adapter,
    }  # fmt: skip
    config = _config(model, offline, settings, said)
    result = _run(config, resume)
    if not result.finished:
        say(f"Stopped at step {result.step} of {result.max_steps}; the same command continues there.", "yellow")
        raise typer.Exit(EXIT_INTERRUPTED)
    ratio = result.metrics["eval_call_reduction_ratio"]
    say(f"Held-out call-reduction ratio {ratio:.3f} after {result.step} steps.")
    print(config.adapter)


def _config(model: str, offline: bool, settings: dict[str, Any], streams: dict[str, Any]) -> TrainConfig:
    """Check what was said, then fetch the model. BadParameter, exit code 2, for values out of range."""
    main = _import_main()
    from streamfuse.model.config import StreamConfig
    from streamfuse.model.pull import resolve_model

    try:
        config: TrainConfig = main.TrainConfig(
            model=Path(model), streams=StreamConfig(**{**_STREAM_DEFAULTS, **streams}), **settings
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return replace(config, model=resolve_model(model, offline=offline))


def _import_main() -> Any:
    # transformers imports torchao where it is installed, and its types make torch warn about a future release.
    logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)
    try:
        from streamfuse.train import main
    except ModuleNotFoundError as error:
        raise ImportError(f"training needs {error.name}: pip install 'streamfuse[train]'") from None
    return main


def _run(config: TrainConfig, resume: bool) -> TrainResult:
    main, stop = _import_main(), threading.Event()

    def ask_to_stop() -> None:
        say("Ending after this step; Ctrl-C again leaves at once.", "yellow")
        stop.set()

    with stop_on_interrupt(ask_to_stop):
        result: TrainResult = main.run(config, resume, stop=stop, console=err)
    return result
