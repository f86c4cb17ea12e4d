"""A small model to draft with: the first layers of a model, with its own embedding, final norm and head.

It is where a draft model begins (it shares the tokenizer, and its head reads states of the right size); `streamfuse
train --mode base` on the model's own answers then teaches those layers to end in the head (sequence-level distillation,
Kim and Rush, 2016, arXiv 1606.07947).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from streamfuse.model.checkpoint import shards
from streamfuse.model.config import CheckpointError, ModelConfig, read_object
from streamfuse.paths import own_name

_COPIED = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json",
    "chat_template.jinja",
)  # fmt: skip


_BY_LAYER = ("layer_types", "no_rope_layers")  # fields of config.json with an entry per layer


def write_first_layers(model: Path, layers: int, folder: Path) -> None:
    """A checkpoint folder with the first `layers` layers of the checkpoint `model`.

    Raises:
        CheckpointError: the model cannot be read, or has no more than so many layers.
    """
    config = ModelConfig.load(model)
    if not 1 <= layers < config.num_layers:
        raise CheckpointError(
            f"{model}: has {config.num_layers} layers; a draft model has from 1 to one less, not {layers}"
        )
    state: dict[str, Tensor] = {}
    for path in shards(model):
        state |= {name: tensor for name, tensor in load_file(path).items() if _layer(name) < layers}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(state, folder / "model.safetensors")
    for name in _COPIED:
        if (model / name).is_file():
            shutil.copyfile(model / name, folder / name)
    source = read_object(model / "source.json")
    source["model"] = f"{source.get('model', own_name(model))}, first {layers} layers"
    settings = {**read_object(model / "config.json"), "num_hidden_layers": layers}
    settings |= {name: settings[name][:layers] for name in _BY_LAYER if isinstance(settings.get(name), list)}
    for name, content in (
        ("config", settings),
        ("source", source),
    ):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _layer(name: str) -> int:
    """The layer that a tensor belongs to; -1 for those outside the layers."""
    words = name.removeprefix("model.").split(".")
    return int(words[1]) if words[0] == "layers" else -1
