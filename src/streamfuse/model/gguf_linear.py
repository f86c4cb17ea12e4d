"""Linear attention in GGUF files (qwen35): the tensors of a layer, in the form of a checkpoint.

llama.cpp's converter stores A = -exp(A_log), the convolution as [channels, taps], and value heads tiled, not grouped by
key head: value head 0 of every key head, then value head 1 of every key head, and so on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .fields import CheckpointError, Fields

LAYER_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
WHOLE_NAMES = {"ssm_a": "linear_attn.A_log", "ssm_dt.bias": "linear_attn.dt_bias"}  # names that do not end in `.weight`
_FIELDS = {
    "linear_num_key_heads": "ssm.group_count",
    "linear_num_value_heads": "ssm.time_step_rank",
    "linear_key_head_dim": "ssm.state_size",
    "linear_conv_kernel_dim": "ssm.conv_kernel",
}
READ = {*_FIELDS.values(), "ssm.inner_size", "full_attention_interval", "attention.recurrent_layers"}


def settings_of(values: dict[str, Any], source: str, architecture: str, layers: int) -> dict[str, Any]:
    """Settings of config.json from a file's metadata.

    Raises:
        CheckpointError: a field is missing, or its value is not possible.
    """
    numbers = Fields(values, source)
    found: dict[str, Any] = {name: numbers.size(f"{architecture}.{key}") for name, key in _FIELDS.items()}
    keys, heads = found["linear_num_key_heads"], found["linear_num_value_heads"]
    inner = numbers.size(f"{architecture}.ssm.inner_size")
    if heads % keys or inner % heads:
        raise CheckpointError(
            f"{source}: {architecture}.ssm: time_step_rank {heads} must be a multiple of group_count {keys}, and "
            f"inner_size {inner} of time_step_rank"
        )
    found["linear_value_head_dim"] = inner // heads
    every = numbers.size(f"{architecture}.full_attention_interval", 4)
    name = f"{architecture}.attention.recurrent_layers"
    recurs = values.get(name, [bool((i + 1) % every) for i in range(layers)])
    recurs = recurs if isinstance(recurs, list) else [recurs] * layers
    if len(recurs) < layers or not all(isinstance(each, (bool, int)) for each in recurs):
        raise CheckpointError(f"{source}: {name} must have a bool for each of {layers} layers, not {recurs!r:.60}")
    found["layer_types"] = ["linear_attention" if each else "full_attention" for each in recurs[:layers]]
    return found


def in_checkpoint(
    name: str, weight: npt.NDArray[np.float32], config: dict[str, Any], place: str
) -> npt.NDArray[np.float32]:
    """A tensor of linear attention as a checkpoint has it.

    Args:
        name: the checkpoint's.
        place: the tensor's file and name, for errors.

    Raises:
        CheckpointError: its shape does not match the metadata, or A is not negative.
    """
    part, hidden = name.rpartition("linear_attn.")[2], config["hidden_size"]
    keys, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    shared, values = 2 * keys * config["linear_key_head_dim"], heads * config["linear_value_head_dim"]
    shapes: dict[str, tuple[int, ...]] = {
        "in_proj_qkv.weight": (shared + values, hidden),
        "conv1d.weight": (shared + values, config["linear_conv_kernel_dim"]),
        "in_proj_z.weight": (values, hidden),
        "in_proj_a.weight": (heads, hidden),
        "in_proj_b.weight": (heads, hidden),
        "out_proj.weight": (hidden, values),
        "norm.weight": (config["linear_value_head_dim"],),
        "A_log": (heads,),
        "dt_bias": (heads,),
    }
    if weight.shape != shapes.get(part):
        wanted = (
            f"has the shape {list(weight.shape)}, not {list(shapes[part])}" if part in shapes else "is not supported"
        )
        raise CheckpointError(f"{place} {wanted}; copy or download the file again")
    part = part.removesuffix(".weight")
    if part == "A_log":
        if not (weight < 0).all():
            raise CheckpointError(f"{place} must have negative numbers only")
        weight = np.log(-weight)
    if part in ("in_proj_qkv", "conv1d"):
        weight = np.concatenate([weight[:shared], _grouped(weight[shared:], keys, heads)])
    elif part == "out_proj":
        weight = _grouped(weight.T, keys, heads).T
    elif part != "norm":
        weight = _grouped(weight, keys, heads)
    return weight[:, None] if part == "conv1d" else weight


def _grouped(weight: npt.NDArray[np.float32], keys: int, values: int) -> npt.NDArray[np.float32]:
    """Rows of value heads with those of a key head next to each other."""
    return weight.reshape(values // keys, keys, -1, *weight.shape[1:]).swapaxes(0, 1).reshape(weight.shape)
