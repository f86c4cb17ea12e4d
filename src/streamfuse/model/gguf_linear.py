"""Linear attention in GGUF files (qwen35): the tensors of a layer, in the form of a checkpoint.

llama.cpp's converter stores A = -exp(A_log), the convolution as [channels, taps], and value heads in another order: the
first value heads of all key heads, then the second ones, and so on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

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
WHOLE_NAMES = {"ssm_a": "linear_attn.A_log", "ssm_dt.bias": "linear_attn.dt_bias"}  # without a dot and `weight`
_FIELDS = {
    "linear_num_key_heads": "ssm.group_count",
    "linear_num_value_heads": "ssm.time_step_rank",
    "linear_key_head_dim": "ssm.state_size",
    "linear_conv_kernel_dim": "ssm.conv_kernel",
}
READ = {*_FIELDS.values(), "ssm.inner_size", "full_attention_interval", "attention.recurrent_layers"}


def settings_of(fields: Any, architecture: str, layers: int) -> dict[str, Any]:
    """Settings of config.json, from metadata that raise CheckpointError for a missing field."""
    found: dict[str, Any] = {name: fields[f"{architecture}.{key}"] for name, key in _FIELDS.items()}
    found["linear_value_head_dim"] = fields[f"{architecture}.ssm.inner_size"] // max(found["linear_num_value_heads"], 1)
    every = fields.get(f"{architecture}.full_attention_interval", 4)
    usual = [bool((i + 1) % max(every, 1)) for i in range(layers)]
    recurs = fields.get(f"{architecture}.attention.recurrent_layers", usual)[:layers]
    found["layer_types"] = ["linear_attention" if each else "full_attention" for each in recurs]
    return found


def in_checkpoint(name: str, weight: npt.NDArray[np.float32], config: dict[str, Any]) -> npt.NDArray[np.float32]:
    """A tensor of linear attention as a checkpoint has it; `name` is the checkpoint's."""
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    part, shared = name.rpartition("linear_attn.")[2].removesuffix(".weight"), 2 * keys * config["linear_key_head_dim"]
    if part == "A_log":
        weight = np.log(-weight)
    if part in ("in_proj_qkv", "conv1d"):
        weight = np.concatenate([weight[:shared], _grouped(weight[shared:], keys, values)])
    elif part == "out_proj":
        weight = _grouped(weight.T, keys, values).T
    elif part != "norm":
        weight = _grouped(weight, keys, values)
    return weight[:, None] if part == "conv1d" else weight


def _grouped(weight: npt.NDArray[np.float32], keys: int, values: int) -> npt.NDArray[np.float32]:
    """Rows of value heads with those of a key head next to each other."""
    return weight.reshape(values // keys, keys, -1, *weight.shape[1:]).swapaxes(0, 1).reshape(weight.shape)
