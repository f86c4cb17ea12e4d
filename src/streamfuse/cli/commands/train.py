"""`streamfuse train`: stream adapters for a base model, in one run or by a recipe of several stages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from streamfuse.cli.shared import complete, options
from streamfuse.cli.shared.declared import given, with_options
from streamfuse.cli.shared.help import COMMON
from streamfuse.cli.shared.options import DEFAULT_MODEL
from streamfuse.cli.shared.training import import_main, report, run_config
from streamfuse.model.config import StreamConfig
from streamfuse.options import check_choice, choices_of, flag_of, types_of
from streamfuse.train.config import (
    BASE_SIZES,
    CHECKPOINTS,
    PRESETS,
    TrainConfig,
    default_streams,
    streams_of,
    with_preset,
)

_WITH_A_RECIPE = {"recipe", "output_dir", "data_root", "changes", "sweep", "model", "adapter", "resume", "offline"}


def _recipe_option(flag: str, **kwargs: Any) -> Any:
    return typer.Option(flag, rich_help_panel="Recipes", **kwargs)


def register(app: typer.Typer) -> None:
    app.command("train")(train)


@with_options(
    TrainConfig,
    default_streams("lossless"),
    completers={
        "format": complete.data_formats,
        "init_adapter": complete.adapters,
        "base_adapter": complete.adapters,
    },
)
def train(
    ctx: typer.Context,
    output_dir: Annotated[
        Path,
        typer.Option(
            "--output-dir",
            "-o",
            help="Folder for checkpoints and metrics. It also holds TensorBoard events and cached hidden states.",
        ),
    ],
    data: Annotated[
        list[str] | None,
        typer.Option(metavar="SOURCE", help=f"{options.DATA_HELP} Repeat the flag for several."),
        COMMON,
    ] = None,
    model: Annotated[options.BaseModel, COMMON] = DEFAULT_MODEL,
    adapter: Annotated[
        Path | None, typer.Option(help="Output file.", show_default="OUTPUT_DIR/adapter.safetensors")
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="small: streams in two layers, for inference on CPUs (docs/training.md). Explicit flags override it.",
            **complete.among(*PRESETS),
        ),
        COMMON,
    ] = None,
    offline: options.Offline = False,
    recipe: Annotated[
        str | None,
        _recipe_option(
            "--recipe",
            help="Shipped recipe, for example e2e-shared, or a file. docs/training.md lists the recipes.",
            autocompletion=complete.recipes,
        ),
        COMMON,
    ] = None,
    data_root: Annotated[Path, _recipe_option("--data-root", help="Folder of the recipe's data files."), COMMON] = Path(
        "data"
    ),
    changes: Annotated[
        list[str] | None,
        _recipe_option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a setting of the recipe's last stage. Use STAGE.KEY=VALUE for another stage.",
        ),
        COMMON,
    ] = None,
    sweep: Annotated[
        str | None,
        _recipe_option("--sweep", metavar="KEY=V1,V2,...", help="Run the last stage once per value and print a table."),
    ] = None,
    *,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume/--no-resume",
            help="Continue from the last checkpoint, or delete it and start over. What a recipe's stages have written "
            "with the same settings is kept.",
            rich_help_panel=CHECKPOINTS,
        ),
    ] = True,
    **flags: Any,
) -> None:
    """Train speculative streams and, in shared mode, the base model.

    Prints the adapter's path. The output of the layers below the lowest trained one is computed once and
    cached. Ctrl-C writes a checkpoint after the current step, and the same
    command continues from it. For several processes use `accelerate launch
    $(which streamfuse) train ...`.

    [bold]Examples[/bold]

    streamfuse train --recipe e2e-shared --data-root data -o build/train/e2e

    streamfuse train --data answers.jsonl -o build/train/chat --preset small

    streamfuse train --data mine.jsonl --mode shared -o build/train/mine --model ~/models/mine

    streamfuse train --recipe sql-shared -o build/train/sql --set num_msa_layers=4 --set max_steps=500

    streamfuse train --recipe e2e-shared -o build/ablations --sweep num_msa_layers=1,2,4,8

    tensorboard --logdir build/train/chat/runs
    """
    if sweep is not None:
        options.refuse_unread(ctx, "with --sweep, which writes OUTPUT_DIR/KEY=VALUE/adapter.safetensors", "adapter")
    adapter = adapter or output_dir / "adapter.safetensors"
    if recipe is not None:
        _refuse_other_flags(ctx)
        from streamfuse.cli.shared.train_recipe import run_recipe

        run_recipe(recipe, changes or [], sweep, data_root, output_dir, adapter, model, resume, offline)
        return
    _refuse_recipe_flags(ctx)
    if not data:
        raise typer.BadParameter("give --data or --recipe")
    settings, streams = given(TrainConfig, flags), given(StreamConfig, flags)
    if preset is not None:
        explicit = {name: value for name, value in settings.items() if options.is_given(ctx, name)}
        for name, value in with_preset(preset, {**explicit, **streams}).items():
            (streams if name in types_of(StreamConfig) else settings)[name] = value
    for name in ("init_adapter", "base_adapter"):
        if name in settings:
            settings[name] = options.adapter_file(flag_of(name), settings[name])
    if "init_adapter" in settings:
        settings["widen"], streams = streams, {}
    if "base_adapter" in settings and (sized := BASE_SIZES & streams.keys()):
        raise typer.BadParameter(
            f"--base-adapter brings its own tuned base, so {flag_of(min(sized))} does not go with it"
        )
    import_main()
    from streamfuse.model.pull import resolve_model

    check_choice("--mode", settings["mode"], choices_of(TrainConfig, "mode"))
    settings["streams"] = streams_of(settings["mode"], streams)
    config = TrainConfig(Path(model), tuple(data), output_dir, adapter, **settings)
    config = replace(config, model=resolve_model(model, offline=offline))  # may be a download, so it comes last
    report(run_config(config, resume), config.adapter)


def _refuse_other_flags(ctx: typer.Context) -> None:
    for name in ctx.params.keys() - _WITH_A_RECIPE:
        if options.is_given(ctx, name):
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
        if options.is_given(ctx, name):
            raise typer.BadParameter(f"{flag} goes with --recipe; without one, {instead}")
