"""`streamfuse adapter convert`: an adapter of a LoRA in PEFT's format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from streamfuse.cli.shared import options
from streamfuse.cli.shared.console import print_json, say
from streamfuse.extras import need
from streamfuse.model.pull import DEFAULT_MODEL
from streamfuse.paths import own_name


def register(app: typer.Typer) -> None:
    app.command("convert")(convert)


def convert(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder with adapter_config.json and adapter_model.safetensors.")
    ],
    out: Annotated[Path, typer.Option("--output", "-o", metavar="OUT.safetensors", help="The adapter to write.")],
    model: Annotated[
        str, typer.Option(help="Base model of the LoRA: hub name, checkpoint folder or .gguf file.")
    ] = DEFAULT_MODEL,
    offline: options.Offline = False,
    json_: options.Json = False,
) -> None:
    """Convert a LoRA in PEFT's format to an adapter of this project, and print its path.

    The adapter tunes the base model and has no streams. Export it as a task
    adapter of a bundle (the task then drafts by look-up), or first train
    streams for it.

    [bold]Examples[/bold]

    streamfuse adapter convert my-lora --model ~/models/base -o build/mine.safetensors

    streamfuse export --model ~/models/base --task mine=build/mine.safetensors -o build/tasks

    streamfuse train --model ~/models/base --base-adapter build/mine.safetensors --data mine.jsonl -o build/train/mine
    """
    need("convert")
    from streamfuse.model.config import ModelConfig
    from streamfuse.model.fields import read_object
    from streamfuse.model.peft import CONFIG_FILE, WEIGHTS_FILE
    from streamfuse.model.peft import convert as convert_folder
    from streamfuse.model.pull import resolve_model

    options.check_place("--output", out)
    options.check_not_read("--output", out, "FOLDER", [folder / CONFIG_FILE, folder / WEIGHTS_FILE])
    found = convert_folder(folder, ModelConfig.load(resolve_model(model, offline=offline)), out)
    trained_on = read_object(folder / CONFIG_FILE).get("base_model_name_or_path")
    if isinstance(trained_on, str) and Path(trained_on).name.lower() != own_name(model).lower():
        say(
            f"warning: {folder} was trained on {trained_on}, and --model is {model}; a LoRA fits its own base only",
            "yellow",
        )
    if json_:
        print_json({"adapter": str(out), "rank": found.base_rank, "layers": found.base_layers})
        return
    print(out)
