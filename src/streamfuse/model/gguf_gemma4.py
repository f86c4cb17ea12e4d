"""Gemma 4 in GGUF files (gemma4): the names of its tensors, and its settings.

llama.cpp's converter stores norms and products unchanged, the size of the MLP per layer where it differs, and the
partial rotary embedding of layers with full attention as divisors of the frequencies: 1, then 1e30.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .fields import CheckpointError, Fields

LAYER_NAMES = {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "post_per_layer_input_norm",
}
WHOLE_NAMES = {"layer_output_scale.weight": "layer_scalar"}  # names that do not end in `.weight` in a checkpoint
TOP_NAMES = {
    "per_layer_token_embd": "model.embed_tokens_per_layer",
    "per_layer_model_proj": "model.per_layer_model_projection",
    "per_layer_proj_norm": "model.per_layer_projection_norm",
}
READ = {
    "attention.key_length_swa",
    "attention.shared_kv_layers",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "attention.value_length_swa",
    "embedding_length_per_layer_input",
    "final_logit_softcapping",
    "rope.dimension_count_swa",
    "rope.freq_base_swa",
}
_NOT_ROTATED = 1e20  # divisors from here on leave a pair at an angle of 0


def settings_of(values: dict[str, Any], source: str, layers: int, head_dim: int) -> dict[str, Any]:
    """Settings of config.json from a file's metadata. `head_dim` is that of layers with full attention. The share of
    their heads that is rotated comes from a tensor (`rotated_share`).

    Raises:
        CheckpointError: a field is missing, or a value is invalid.
    """
    numbers = Fields(values, source)

    def number(key: str, default: float) -> float:
        return numbers.number(f"gemma4.{key}", default)

    local_dim = numbers.size("gemma4.attention.key_length_swa")
    for key in ("attention.value_length_swa", "rope.dimension_count_swa"):
        if (found := numbers.size(f"gemma4.{key}", local_dim)) != local_dim:
            raise CheckpointError(f"{source}: field 'gemma4.{key}' must be attention.key_length_swa, not {found}")
    name = "gemma4.attention.sliding_window_pattern"
    pattern = values.get(name)
    if not isinstance(pattern, list) or len(pattern) < layers:
        raise CheckpointError(f"{source}: {name} must have a bool for each of {layers} layers, not {pattern!r:.60}")
    shared = values.get("gemma4.attention.shared_kv_layers", 0)
    cap = values.get("gemma4.final_logit_softcapping", 0.0)
    per_layer = values.get("gemma4.embedding_length_per_layer_input", 0)
    return {
        "head_dim": local_dim,
        "global_head_dim": head_dim,
        "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": ["sliding_attention" if each else "full_attention" for each in pattern[:layers]],
        "sliding_window": numbers.size("gemma4.attention.sliding_window"),
        "num_kv_shared_layers": shared,
        "use_double_wide_mlp": _is_double_wide(values, source, layers, shared),
        "hidden_size_per_layer_input": per_layer,
        "final_logit_softcapping": cap,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": number("rope.freq_base_swa", 10000.0)},
            "full_attention": {"rope_type": "proportional", "rope_theta": number("rope.freq_base", 1000000.0)},
        },
    }


def _is_double_wide(values: dict[str, Any], source: str, layers: int, shared: Any) -> bool:
    """Whether the MLPs of layers that share keys and values are twice as wide as the others."""
    name = "gemma4.feed_forward_length"
    sizes = values.get(name)
    if not isinstance(sizes, list) or all(size == sizes[0] for size in sizes):
        return False
    cached = layers - shared if isinstance(shared, int) and 0 < shared < layers else layers
    if sizes != [sizes[0]] * cached + [2 * sizes[0]] * (layers - cached):
        raise CheckpointError(
            f"{source}: field {name!r} is {sizes!r:.60}; it must be one size for all layers, or twice this size for "
            f"the last {layers - cached}, which share keys and values"
        )
    return True


def rotated_share(factors: npt.NDArray[np.float64], head_dim: int, path: Path) -> float:
    """The share of a head that is rotated, from the divisors of its frequencies [head_dim / 2].

    Raises:
        CheckpointError: they are not 1 for the first pairs and very large for the others.
    """
    rotated = int((factors == 1).sum())
    if (
        factors.shape != (head_dim // 2,)
        or not (factors[:rotated] == 1).all()
        or (factors[rotated:] < _NOT_ROTATED).any()
    ):
        raise CheckpointError(
            f"{path}: rope_freqs.weight must have {head_dim // 2} numbers, 1 for the pairs that are rotated, then 1e30"
        )
    return 2 * rotated / head_dim
