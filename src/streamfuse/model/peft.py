"""Reads LoRA adapters in PEFT's format: a folder with adapter_config.json and adapter_model.safetensors.

They become adapters of this project that tune the base and have no streams. `streamfuse train --base-adapter` trains
streams for them.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from .checkpoint import check_finite, own_template, save_adapter
from .config import ModelConfig, StreamConfig, named_token_ids
from .families import FAMILIES, own_module, rotary_order, text_names
from .fields import CheckpointError, CheckpointWarning, read_object
from .low_rank import PROJECTIONS, LowRank, StreamAdapters
from .streams import StreamFused
from .transformer import Transformer

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
_BASE = "base_model.model."
# In a multimodal model, the layers are those of its text model.
_TENSOR = re.compile(
    r"base_model\.model\.((?:model\.)?(?:(?:language_model|text_model)\.)?(?:model\.)?layers\.(\d+)\.[\w.]+)"
    r"\.lora_([AB])(?:\.default)?\.weight"
)
# Fields that change what an adapter computes, with the values that have no effect.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "use_dora": (False, None),
    "lora_bias": (False, None),
    "fan_in_fan_out": (False, None),
    "modules_to_save": (None, []),
    "layer_replication": (None, []),
    "trainable_token_indices": (None,),
    "alora_invocation_tokens": (None,),
    # Other starts change the base's weights, which the adapter's are then relative to.
    "init_lora_weights": (True, False, None, "gaussian", "orthogonal", "eva"),
}
_OWNERS = ("self_attn", "conv", "mlp")  # of the projections
_OTHER_BASE = "it was trained on another model, so name that one with --model"
_MERGE = "merge the adapter (PEFT's merge_and_unload, then save_pretrained) and name the merged folder with --model"


def convert(folder: Path, config: ModelConfig, out: Path) -> StreamConfig:
    """Write the adapter of a PEFT folder for a base of this configuration to `out`; returns its settings.

    Ranks that differ between matrices are filled up with zeros to the largest, and so are matrices without an adapter
    in the layers from the lowest with one.

    Raises:
        CheckpointError: a file is missing or damaged, a setting or tensor is not supported, or does not fit the base.
    """
    settings = _settings(folder)
    pairs = _pairs(folder, config)
    lowest = min(layer for layer, _ in pairs)
    if max(layer for layer, _ in pairs) >= config.num_layers:
        raise CheckpointError(
            f"{folder / WEIGHTS_FILE}: tunes layer {max(layer for layer, _ in pairs)}, and the base has "
            f"{config.num_layers} layers, numbered from 0; {_OTHER_BASE}"
        )
    rank = max(len(down) for _, down, _ in pairs.values())
    tuned = {"base_rank": rank, "base_layers": config.num_layers - lowest, "base_alpha": float(rank)}  # a scale of 1
    with torch.device("meta"):
        base = Transformer(config)
    model = StreamFused(base, StreamConfig.without(**tuned), torch.zeros(0, dtype=torch.int64))
    for layer, adapters in enumerate(model.base_adapters, lowest):
        for name, low_rank in cast("StreamAdapters", adapters).items():
            _fill(cast("LowRank", low_rank), pairs.get((layer, name)), settings, folder)
    save_adapter(model, out, _text_facts(folder, config))
    return model.streams_config


def _text_facts(folder: Path, config: ModelConfig) -> dict[str, str]:
    """What the folder's tokenizer has that the base's does not: a chat template, and the token that ends an answer."""
    template, eos = own_template(folder), named_token_ids(folder, config.vocab_size).get("eos_token")
    facts = {} if template is None else {"chat_template": template}
    if eos is not None and eos != config.eos_token_id:
        facts["eos_token_id"] = str(eos)
    return facts


def _settings(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise CheckpointError(
            f"{path}: no such file; a LoRA adapter in PEFT's format is a folder with it and {WEIGHTS_FILE}"
        )
    settings = read_object(path)
    for name, neutral in _NEUTRAL.items():
        if name in settings and settings[name] not in neutral:
            raise CheckpointError(f"{path}: {name} {settings[name]!r:.60} is not supported; {_MERGE}")
    return settings


def _pairs(folder: Path, config: ModelConfig) -> dict[tuple[int, str], tuple[str, Tensor, Tensor]]:
    """By layer and projection: the module's name in PEFT's patterns, lora_A [r, n_in] and lora_B [n_out, r]."""
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        pickled = (folder / "adapter_model.bin").is_file()
        hint = "; save adapter_model.bin, which is in PyTorch's pickle format, as safetensors (PEFT's save_pretrained)"
        raise CheckpointError(f"{path}: no such file{hint if pickled else '; copy or download it'}")
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise CheckpointError(f"{path}: damaged safetensors file ({error}); copy or download it again") from None
    check_finite(tensors, path)
    halves: dict[tuple[int, str], dict[str, Tensor]] = {}
    names: dict[tuple[int, str], str] = {}
    text = text_names(tensor.removeprefix(_BASE) for tensor in tensors)
    left = {tensor for tensor in tensors if tensor.removeprefix(_BASE) not in text}
    if left:
        warnings.warn(
            f"{path}: tensors outside the text model, such as {min(left)!r:.100}, are ignored",
            CheckpointWarning,
            stacklevel=3,
        )
    for tensor, value in ((name, value) for name, value in tensors.items() if name not in left):
        found = _TENSOR.fullmatch(tensor)
        owner, _, projection = own_module(found[1], config).rpartition(".") if found else ("", "", "")
        kind = owner.rpartition(".")[2]
        fused = f"{kind}.{projection}" in FAMILIES[config.architecture].fused
        if found is None or fused or kind not in _OWNERS or projection not in PROJECTIONS or value.ndim != 2:
            raise CheckpointError(
                f"{path}: tensor {tensor!r:.100} is not supported; adapters may tune {_tunable(config)}; {_MERGE}"
            )
        place = int(found[2]), projection
        order = rotary_order(f"{projection}.weight", config) if found[3] == "B" else None
        value = value if order is None or len(order) != len(value) else value[order]
        shares = projection in ("k_proj", "v_proj") and config.num_cached_layers <= place[0] < config.num_layers
        if shares:
            raise CheckpointError(
                f"{path}: {found[1]}: the base has no {projection} in layer {place[0]}, which shares the keys and "
                f"values of layer {config.kv_source_layers[place[0]]}; the adapter was trained on another model"
            )
        if kind != "mlp" and place[0] < config.num_layers and kind != _mixer(config, place[0]):
            raise CheckpointError(f"{path}: the base has no {found[1]}; the adapter was trained on another model")
        halves.setdefault(place, {})[found[3]], names[place] = value, found[1]
    for place, both in halves.items():
        if len(both) != 2 or both["A"].shape[0] != both["B"].shape[1]:
            raise CheckpointError(
                f"{path}: {names[place]} needs lora_A and lora_B of the same rank; copy or download the file again"
            )
    if not halves:
        raise CheckpointError(f"{path}: has no tensors; copy or download it again")
    return {place: (names[place], both["A"], both["B"]) for place, both in halves.items()}


def _mixer(config: ModelConfig, layer: int) -> str:
    """The name of a layer's attention, or of what it has instead."""
    if config.layer_recurrences[layer]:
        return "linear_attn"
    return "conv" if config.layer_convolutions[layer] else "self_attn"


def _tunable(config: ModelConfig) -> str:
    """The projections that an adapter may tune, by their names in the base's checkpoint."""
    family = FAMILIES[config.architecture]
    stored = {own: name for name, own in family.names.items()}
    fused = {part for parts in family.fused.values() for part in parts}
    mixers = ["self_attn", *["conv"] * any(config.layer_convolutions)]
    owners = {name: ["mlp"] if name in PROJECTIONS[4:] else mixers for name in PROJECTIONS}
    own = (f"{owner}.{name}" for name in PROJECTIONS for owner in owners[name])
    names = (stored.get(name, name).rpartition(".")[2] for name in own if name not in fused)
    return ", ".join(dict.fromkeys(names))


@torch.no_grad()
def _fill(into: LowRank, pair: tuple[str, Tensor, Tensor] | None, settings: Mapping[str, Any], folder: Path) -> None:
    into.down.zero_()
    into.up.zero_()
    if pair is None:
        return
    name, down, up = pair
    if (down.shape[1], up.shape[0]) != (into.down.shape[1], into.up.shape[0]):
        raise CheckpointError(
            f"{folder / WEIGHTS_FILE}: {name} has {down.shape[1]} inputs and {up.shape[0]} outputs, the base's has "
            f"{into.down.shape[1]} and {into.up.shape[0]}; {_OTHER_BASE}"
        )
    rank = len(down)
    into.down[:rank].copy_(down)
    into.up[:, :rank].copy_(up.float() * _scale(name, rank, settings, folder))


def _scale(name: str, rank: int, settings: Mapping[str, Any], folder: Path) -> float:
    """PEFT's scaling: alpha / r, or alpha / sqrt(r); `alpha_pattern` may have another alpha for a module."""
    patterns = settings.get("alpha_pattern") or {}
    of_name = (value for key, value in patterns.items() if re.match(rf"(.*\.)?({key})$", name))
    alpha = next(of_name, settings.get("lora_alpha", 8))
    if not isinstance(alpha, (int, float)) or isinstance(alpha, bool) or not math.isfinite(alpha):
        raise CheckpointError(f"{folder / CONFIG_FILE}: lora_alpha must be a number, not {alpha!r:.40}")
    return float(alpha) / (math.sqrt(rank) if settings.get("use_rslora") else rank)
