"""Loading base checkpoints, and reading and writing adapters (safetensors with their settings in the metadata)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from .config import CheckpointError, ModelConfig, StreamConfig
from .streams import StreamFused
from .transformer import Transformer

_PREFIX = "model."


def load_base(folder: Path, dtype: torch.dtype = torch.float32) -> Transformer:
    """The base model of a Hugging Face folder (config.json and *.safetensors), in eval mode.

    Raises:
        CheckpointError: a file is missing or damaged, or the tensors do not fit the configuration.
    """
    folder = Path(folder)
    config = ModelConfig.load(folder)
    index = folder / "model.safetensors.index.json"
    names = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.is_file() else ["model.safetensors"]
    state: dict[str, Tensor] = {}
    for name in names:
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{path}: no such file")
        try:
            state.update(load_file(path))
        except SafetensorError as error:
            raise CheckpointError(f"{path}: damaged safetensors file ({error})") from None
    state = {key.removeprefix(_PREFIX): value.to(dtype) for key, value in state.items() if "rotary_emb" not in key}
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["embed_tokens.weight"]
    with torch.device("meta"):
        model = Transformer(config)
    try:
        model.load_state_dict(state, strict=True, assign=True)
    except RuntimeError as error:
        detail = " ".join(str(error).split())[:300]
        raise CheckpointError(f"{folder}: tensors do not fit config.json ({detail})") from None
    if config.tie_word_embeddings:  # assign=True made two parameters of one tensor
        model.lm_head.weight = model.embed_tokens.weight
    return model.requires_grad_(False).eval()


def save_adapter(model: StreamFused, path: Path, facts: dict[str, str] | None = None) -> None:
    """Write the trained part of a stream-fused model, atomically. `facts` (data, steps, ...) go into the metadata."""
    state = {name: value.detach().cpu().contiguous() for name, value in model.extra_state().items()}
    metadata = {"format": "streamfuse-adapter-1", "streams": model.streams_config.to_json(), **(facts or {})}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    save_file(state, temporary, metadata=metadata)
    os.replace(temporary, path)


def read_adapter(path: Path) -> tuple[StreamConfig, dict[str, Tensor], dict[str, str]]:
    """Settings, tensors and facts of an adapter file.

    Raises:
        CheckpointError: the file is missing, damaged, or not an adapter of ours.
    """
    if not Path(path).is_file():
        raise CheckpointError(f"{path}: no such adapter file")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except SafetensorError as error:
        raise CheckpointError(f"{path}: damaged adapter file ({error})") from None
    if metadata.get("format") != "streamfuse-adapter-1":
        raise CheckpointError(f"{path}: not a streamfuse adapter (metadata field 'format' is {metadata.get('format')!r})")
    return StreamConfig.from_json(metadata["streams"]), state, metadata


def load_stream_fused(base: Transformer, path: Path) -> StreamFused:
    """The base model with the streams of an adapter file."""
    config, state, _ = read_adapter(path)
    model = StreamFused(base, config, state.get("stream_vocab"))
    own = model.extra_state()
    if set(own) != set(state) or any(own[name].shape != value.shape for name, value in state.items()):
        bad = next(n for n in sorted(set(own) | set(state)) if n not in own or n not in state or own[n].shape != state[n].shape)
        raise CheckpointError(f"{path}: tensor {bad!r} does not fit the base model; was it trained on another one?")
    model.load_state_dict(state, strict=False)
    return model.eval()
