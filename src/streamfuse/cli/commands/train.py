"""`streamfuse train`: stream adapters for a base model, in one run or by a recipe of several stages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamfuse.cli.shared import complete, options
from streamfuse.cli.shared.options import DEFAULT_MODEL
from streamfuse.cli.shared.training import import_main, report, run_config

if TYPE_CHECKING:
    from streamfuse.train.config import TrainConfig

STREAM_DEFAULTS = {  # of a new lossless adapter, for the help; a test compares them
    "num_streams": 4,
    "num_msa_layers": 8,
    "adapter_rank": 12,
    "parent_rank": 32,
    "pruner_rank": 8,
    "eta_rank": 0,
    "next_token_rank": 0,
    "value_rotation": 0.0,
    "stream_vocab_size": 8192,
    "base_rank": 0,
    "base_layers": 0,
    "pruner_score": "sigmoid",
}
_WITH_A_RECIPE = {"recipe", "output_dir", "data_root", "changes", "sweep", "model", "adapter", "resume", "offline"}


def _stream_option(name: str, help_text: str) -> Any:
    return typer.Option(help=help_text, show_default=str(STREAM_DEFAULTS[name]), rich_help_panel="Streams")


def _recipe_option(flag: str, **kwargs: Any) -> Any:
    return typer.Option(flag, rich_help_panel="Recipes", **kwargs)


def register(app: typer.Typer) -> None:
    app.command("train")(train)


def train(
    ctx: typer.Context,
    output_dir: Annotated[
        Path,
        typer.Option(
            "--output-dir", "-o", help="Folder for checkpoints, metrics.jsonl, TensorBoard events and cached states."
        ),
    ],
    data: Annotated[
        list[str] | None, typer.Option(metavar="SOURCE", help=f"{options.DATA_HELP} Repeat the flag for several.")
    ] = None,
    format: options.DataFormat = None,
    task: Annotated[
        str,
        typer.Option(**complete.among("chat", "e2e", "sql", "dialogsum"), help="Prompt template (docs/data.md)."),
    ] = "chat",
    model: options.BaseModel = DEFAULT_MODEL,
    adapter: Annotated[
        Path | None, typer.Option(help="Output file.", show_default="adapter.safetensors in OUTPUT_DIR")
    ] = None,
    mode: Annotated[
        str,
        typer.Option(
            **complete.among("lossless", "shared", "base"),
            help="lossless: the base is frozen; shared: it is trained with the streams; base: it is trained alone.",
        ),
    ] = "lossless",
    epochs: Annotated[float, typer.Option(help="Passes over the data.", rich_help_panel="Steps")] = 3.0,
    max_steps: Annotated[
        int, typer.Option(min=0, help="Training steps, overrides --epochs; 0: off.", rich_help_panel="Steps")
    ] = 0,
    batch_size: Annotated[int, typer.Option(help="Examples per step and process.", rich_help_panel="Steps")] = 8,
    learning_rate: Annotated[
        float,
        typer.Option(help="Peak learning rate of the low-rank adapters.", rich_help_panel="Loss and learning rates"),
    ] = 1e-3,
    embedding_learning_rate: Annotated[
        float,
        typer.Option(
            help="Peak learning rate of stream embeddings, parent term and pruner.",
            rich_help_panel="Loss and learning rates",
        ),
    ] = 1e-2,
    alpha_main: Annotated[
        float,
        typer.Option(
            help="Weight of the next-token loss; unused in lossless mode.", rich_help_panel="Loss and learning rates"
        ),
    ] = 1.0,
    alpha_streams: Annotated[
        float,
        typer.Option(
            help="Weight of each stream's loss; unused in base mode.", rich_help_panel="Loss and learning rates"
        ),
    ] = 0.3,
    stream_decay: Annotated[
        float,
        typer.Option(
            help="Weight of each stream's loss relative to the stream before, at most 1.",
            rich_help_panel="Loss and learning rates",
        ),
    ] = 1.0,
    next_token_dropout: Annotated[
        float,
        typer.Option(
            help="Share of tokens, 0 to 1, whose streams are not conditioned on the next token.",
            rich_help_panel="Loss and learning rates",
        ),
    ] = 0.0,
    soft_targets: Annotated[
        float,
        typer.Option(
            help="Weight, 0 to 1, of the base's own distribution in a stream's target.",
            rich_help_panel="Loss and learning rates",
        ),
    ] = 0.0,
    anchors: Annotated[
        float,
        typer.Option(
            help="Share of an answer's tokens whose streams are trained, sampled in each step.",
            rich_help_panel="Loss and learning rates",
        ),
    ] = 1.0,
    max_tokens: Annotated[
        int, typer.Option(help="Truncate examples, including the prompt, to this many tokens.", rich_help_panel="Data")
    ] = 320,
    limit: Annotated[
        int, typer.Option(min=0, help="Rows of each source, evenly spread; 0: all.", rich_help_panel="Data")
    ] = 0,
    valid: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE", help="Held-out data.", show_default="every n-th row of --data", rich_help_panel="Data"
        ),
    ] = None,
    held_out: Annotated[
        int, typer.Option(help="Number of held-out examples, not trained on.", rich_help_panel="Data")
    ] = 40,
    log_every: Annotated[int, typer.Option(help="Steps between rows of metrics.", rich_help_panel="Checkpoints")] = 10,
    evaluate_every: Annotated[
        int, typer.Option(help="Steps between evaluations with checkpoints.", rich_help_panel="Checkpoints")
    ] = 60,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of initial weights and data order.", rich_help_panel="Steps")
    ] = 0,
    init_adapter: Annotated[
        str | None,
        typer.Option(
            help="Continue from this adapter's weights and stream settings, a shipped one or a file; ranks may grow.",
            autocompletion=complete.adapters,
        ),
    ] = None,
    base_adapter: Annotated[
        str | None,
        typer.Option(
            help="Train new streams on the base that this adapter tuned, a shipped one or a file.",
            autocompletion=complete.adapters,
        ),
    ] = None,
    dtype: Annotated[
        str,
        typer.Option(
            **complete.among("auto", "float32", "bfloat16"),
            help="Of the frozen base; auto: the faster one on this machine.",
        ),
    ] = "auto",
    resume: Annotated[
        bool,
        typer.Option(
            "--resume/--no-resume",
            help="Continue from the last checkpoint, or delete it and start over.",
            rich_help_panel="Checkpoints",
        ),
    ] = True,
    num_streams: Annotated[int | None, _stream_option("num_streams", "Streams per token (gamma).")] = None,
    num_msa_layers: Annotated[int | None, _stream_option("num_msa_layers", "Top layers with streams (Ns).")] = None,
    adapter_rank: Annotated[
        int | None, _stream_option("adapter_rank", "Rank of the low-rank adapters that only streams use; 0: none.")
    ] = None,
    parent_rank: Annotated[int | None, _stream_option("parent_rank", "Rank of the parent term; 0: off.")] = None,
    pruner_rank: Annotated[int | None, _stream_option("pruner_rank", "Rank of the pruner; 0: no pruner.")] = None,
    pruner_score: Annotated[
        str | None,
        _stream_option("pruner_score", "The pruner's score: sigmoid, or softmax over the vocabulary (the paper)."),
    ] = None,
    eta_rank: Annotated[
        int | None, _stream_option("eta_rank", "Rank of the streams' initial map; 0: the identity.")
    ] = None,
    next_token_rank: Annotated[
        int | None,
        _stream_option("next_token_rank", "Rank of the conditioning of streams on the next token; 0: none."),
    ] = None,
    value_rotation: Annotated[
        float | None,
        _stream_option("value_rotation", "Rotation per stream in radians, instead of stream embeddings; 0: off."),
    ] = None,
    stream_vocab_size: Annotated[
        int | None, _stream_option("stream_vocab_size", "Tokens that streams may propose; 0: all.")
    ] = None,
    base_rank: Annotated[
        int | None, _stream_option("base_rank", "Rank of the base's low-rank adapters; 24 if the base is tuned.")
    ] = None,
    base_layers: Annotated[
        int | None, _stream_option("base_layers", "Top layers with low-rank adapters of the base; 12 if it is tuned.")
    ] = None,
    recipe: Annotated[
        str | None,
        _recipe_option(
            "--recipe",
            help="A shipped recipe (docs/training.md), for example e2e-shared, or a file.",
            autocompletion=complete.recipes,
        ),
    ] = None,
    data_root: Annotated[Path, _recipe_option("--data-root", help="Folder of the recipe's data files.")] = Path("data"),
    changes: Annotated[
        list[str] | None,
        _recipe_option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a setting of the last stage, or with STAGE.KEY=VALUE of another one.",
        ),
    ] = None,
    sweep: Annotated[
        str | None,
        _recipe_option("--sweep", metavar="KEY=V1,V2,...", help="Run the last stage once per value and print a table."),
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Use local files only; no network access.")] = False,
) -> None:
    """Train speculative streams, and in shared mode the base with them. Prints the adapter's path.

    The output of the layers below the lowest trained one is computed once and
    cached. Ctrl-C writes a checkpoint after the current step, and the same
    command continues from it. For several processes use `accelerate launch
    $(which streamfuse) train ...`.

    [bold]Examples[/bold]

    streamfuse train --recipe e2e-shared --data-root data -o build/train/e2e

    streamfuse train --recipe sql-shared -o build/train/sql --set num_msa_layers=4 --set max_steps=500

    streamfuse train --recipe e2e-shared -o build/ablations --sweep num_msa_layers=1,2,4,8

    streamfuse train --data answers.jsonl -o build/train/chat

    streamfuse train --data mine.jsonl --mode shared -o build/train/mine --model ~/models/mine --num-streams 3

    tensorboard --logdir build/train/chat/runs
    """
    adapter = adapter or output_dir / "adapter.safetensors"
    if recipe is not None:
        _refuse_other_flags(ctx)
        from streamfuse.cli.shared.train_recipe import run_recipe

        run_recipe(recipe, changes or [], sweep, data_root, output_dir, adapter, model, resume, offline)
        return
    _refuse_recipe_flags(ctx)
    if not data:
        raise typer.BadParameter("give --data or --recipe")
    streams = {
        "num_streams": num_streams, "num_msa_layers": num_msa_layers, "adapter_rank": adapter_rank,
        "parent_rank": parent_rank, "pruner_rank": pruner_rank, "eta_rank": eta_rank,
        "next_token_rank": next_token_rank, "pruner_score": pruner_score,
        "value_rotation": value_rotation, "stream_vocab_size": stream_vocab_size,
        "base_rank": base_rank, "base_layers": base_layers,
    }  # fmt: skip
    given = {name: value for name, value in streams.items() if value is not None}
    settings = {
        "data": tuple(data), "out_dir": output_dir, "adapter": adapter, "mode": mode, "task": task, "format": format,
        "alpha_main": alpha_main, "alpha_streams": alpha_streams, "stream_decay": stream_decay,
        "next_token_dropout": next_token_dropout,
        "soft_targets": soft_targets, "anchors": anchors,
        "epochs": epochs, "max_steps": max_steps, "batch_size": batch_size, "learning_rate": learning_rate,
        "embedding_learning_rate": embedding_learning_rate,
        "max_tokens": max_tokens, "limit": limit, "valid": valid, "held_out": held_out, "log_every": log_every,
        "evaluate_every": evaluate_every, "seed": seed, "dtype": dtype,
    }  # fmt: skip
    for flag, name in (("--init-adapter", init_adapter), ("--base-adapter", base_adapter)):
        settings[flag[2:].replace("-", "_")] = None if name is None else options.adapter_file(flag, name)
    if init_adapter:
        settings, given = {**settings, "widen": given}, {}
    config = _config(ctx, model, offline, settings, given)
    report(run_config(config, resume), config.adapter)


def _refuse_other_flags(ctx: typer.Context) -> None:
    for name in ctx.params.keys() - _WITH_A_RECIPE:
        if _given(ctx, name):
            flag = name.replace("_", "-")
            raise typer.BadParameter(
                f"--recipe brings its own settings; change one with --set {name}=..., not --{flag}"
            )


def _refuse_recipe_flags(ctx: typer.Context) -> None:
    for name, flag, instead in (
        ("changes", "--set", "use the setting's own flag"),
        ("sweep", "--sweep", "run this command once per value"),
        ("data_root", "--data-root", "--data takes whole paths"),
    ):
        if _given(ctx, name):
            raise typer.BadParameter(f"{flag} goes with --recipe; without one, {instead}")


def _given(ctx: typer.Context, name: str) -> bool:
    return str(getattr(ctx.get_parameter_source(name), "name", "")) == "COMMANDLINE"


def _config(
    ctx: typer.Context, model: str, offline: bool, settings: dict[str, Any], streams: dict[str, Any]
) -> TrainConfig:
    """Check the settings, then fetch the model. Raises BadParameter, exit code 2, for values out of range."""
    import_main()
    from streamfuse.model.pull import resolve_model
    from streamfuse.train.config import MODES, TrainConfig, default_streams

    try:
        if settings["mode"] not in MODES:
            raise ValueError(f"mode must be one of {', '.join(MODES)}, not {settings['mode']!r}")
        config = TrainConfig(
            model=Path(model), streams=replace(default_streams(settings["mode"]), **streams), **settings
        )
    except ValueError as error:
        raise typer.BadParameter(options.in_flags(error, ctx.params)) from None
    return replace(config, model=resolve_model(model, offline=offline))
