"""A small model to draft with: the first layers of a model, with its own embedding, final norm and head.

It is where a draft model begins (it shares the tokenizer, and its head reads states of the right size); `streamfuse
train --mode base` on the model's own answers then teaches those layers to end in the head (sequence-level distillation,
Kim and Rush, 2016, arXiv 1606.07947).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from safetensors.torch import load_file, save_file
from torch import Tensor

from streamfuse.durable import flush_tree, replace_folder
from streamfuse.model import families
from streamfuse.model.checkpoint import shards
from streamfuse.model.config import CheckpointError, ModelConfig, read_object
from streamfuse.model.families import text_names
from streamfuse.model.shards import read_header
from streamfuse.model.text_part import text_config
from streamfuse.paths import own_name

_COPIED = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json",
    "chat_template.jinja", "chat_template.json",
)  # fmt: skip


_BY_LAYER = ("layer_types", "no_rope_layers")  # fields of config.json with an entry per layer


def write_first_layers(model: Path, layers: int, folder: Path) -> None:
    """A checkpoint folder with the first `layers` layers of the checkpoint `model`.

    The folder may be one that this function wrote; it is replaced in one step.

    Raises:
        CheckpointError: the model cannot be read, or has no more than so many layers; or the folder has other files.
    """
    config = ModelConfig.load(model)
    if not 1 <= layers < config.num_layers:
        raise CheckpointError(
            f"{model}: has {config.num_layers} layers; a draft model has from 1 to one less, not {layers}"
        )
    if folder.exists() and not _is_replaceable(folder):
        raise CheckpointError(f"{folder}: exists and was not written by this command; name another folder")
    state: dict[str, Tensor] = {}
    text = text_names(name for path in shards(model) for name in read_header(path))
    for path in shards(model):
        state |= {name: tensor for name, tensor in load_file(path).items() if name in text and _layer(name) < layers}
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
        new = Path(temporary) / "new"
        new.mkdir()
        save_file(state, new / "model.safetensors")
        for name in _COPIED:
            if (model / name).is_file():
                shutil.copyfile(model / name, new / name)
        source = read_object(model / "source.json")
        source["model"] = f"{source.get('model', own_name(model))}, first {layers} layers"
        source["first_layers"] = layers
        path = model / "config.json"
        settings = {**text_config(read_object(path), str(path)), "num_hidden_layers": layers}
        settings |= {name: settings[name][:layers] for name in _BY_LAYER if isinstance(settings.get(name), list)}
        for name, content in (("config", settings), ("source", source)):
            (new / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        flush_tree(new)
        replace_folder(new, folder)


def _is_replaceable(folder: Path) -> bool:
    """Whether a folder is empty or was written here."""
    return folder.is_dir() and ("first_layers" in read_object(folder / "source.json") or not any(folder.iterdir()))


def _layer(name: str) -> int:
    """The layer that a tensor belongs to; -1 for those outside the layers."""
    words = families.own_name(name).split(".")
    return int(words[1]) if words[0] == "layers" else -1
