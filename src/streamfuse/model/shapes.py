"""The tensors of a model, by name and shape, as its configuration has them: a checkpoint's headers are checked by them.

Does not import PyTorch, so that `streamfuse pull` can check a download without it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from .config import ModelConfig
from .delta_config import DeltaConfig
from .families import own_name, own_shapes, text_names
from .fields import CheckpointError, read_object
from .quantized import Has, Packed, packed_of, shapes_of
from .shards import TensorFacts, check_types, misfit, read_header, shards

_KEYS_AND_VALUES = re.compile(r"layers\.(\d{1,6})\.self_attn\.(?:k_proj|v_proj|k_norm|v_norm)\..*")
EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
PER_LAYER = "per_layer_embedding.weight"
Shapes = Mapping[str, tuple[int, ...]]


def packing(folder: Path) -> Packed | None:
    """How the folder's weights are packed; None: they are floats."""
    path = folder / "config.json"
    return packed_of(read_object(path), str(path))


def is_unused(name: str, config: ModelConfig) -> bool:
    """Whether the model has no use for a checkpoint's tensor: old ones contain the rotary frequencies, and Gemma 4's
    have keys and values of layers that read those of others."""
    if "rotary_emb" in name:
        return True
    found = _KEYS_AND_VALUES.fullmatch(own_name(name))
    return found is not None and config.num_cached_layers <= int(found[1]) < config.num_layers


def has_of(config: ModelConfig) -> Has:
    """A function that says whether the model has what a tensor of a checkpoint holds, by the tensor's name."""
    names = shapes_in(config).keys()
    return lambda name: bool(own_shapes(name, (), config).keys() & names)


def read_headers(config: ModelConfig, folder: Path) -> dict[str, TensorFacts]:
    """The tensors of a folder's files as they are once decoded, by their names without the checkpoint's prefix.

    Raises:
        CheckpointError: a file is missing or damaged, or a weight's dtype is not supported.
    """
    stored = {name: facts for path in shards(folder) for name, facts in read_header(path).items()}
    text = text_names(stored)
    headers = {own_name(name): facts for name, facts in stored.items() if name in text}
    headers = shapes_of(headers, packing(folder), has_of(config))
    headers = {name: facts for name, facts in headers.items() if not is_unused(name, config)}
    check_types(headers)
    return headers


def check_headers(config: ModelConfig, headers: Mapping[str, TensorFacts], folder: Path) -> None:
    """`check_shapes` of the tensors that `read_headers` found."""
    shapes = [own_shapes(name, facts.shape, config) for name, facts in headers.items()]
    check_shapes(config, {name: shape for some in shapes for name, shape in some.items()}, folder)


def check_shapes(config: ModelConfig, found: Shapes, folder: Path) -> None:
    """CheckpointError if tensors of these shapes are not the model's; one of a tied pair is sufficient."""
    wanted = shapes_in(config)
    if config.tie_word_embeddings:
        there = [name for name in (EMBEDDING, HEAD) if name in found]
        found = {**found, **{name: found[there[0]] for name in (EMBEDDING, HEAD) if there and name not in found}}
        if not there:
            del wanted[HEAD]  # report the missing embedding only once
    if (problem := misfit(wanted, found)) is not None:
        raise CheckpointError(
            f"{folder}: tensors do not fit config.json ({problem}); copy or download both from one model"
        )


def shapes_in(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The names and shapes of `Transformer(config).state_dict()`."""
    hidden = config.hidden_size
    layer: dict[str, tuple[int, ...]] = {}
    before, after = config.norms != "after", config.norms != "before"
    norms = ("input_layernorm", "post_attention_layernorm") * before
    norms += ("attention_output_norm", "mlp_output_norm") * after
    layer |= {f"{name}.weight": (hidden,) for name in norms}
    if config.layer_scalars:
        layer["layer_scalar"] = (1,)
    whole = {EMBEDDING: (config.vocab_size, hidden), "norm.weight": (hidden,), HEAD: (config.vocab_size, hidden)}
    if (size := config.per_layer_size) > 0:
        layer |= {"per_layer_gate.weight": (size, hidden), "per_layer_proj.weight": (hidden, size)}
        layer["per_layer_output_norm.weight"] = (hidden,)
        every = config.num_layers * size
        whole |= {PER_LAYER: (config.vocab_size, every), "per_layer_projection.weight": (every, hidden)}
        whole["per_layer_norm.weight"] = (size,)
    layers = {
        f"layers.{i}.{name}": shape
        for i in range(config.num_layers)
        for name, shape in {**_mixer(config, i), **_mlp(config, i), **layer}.items()
    }
    return {**whole, **layers}


def _mlp(config: ModelConfig, layer: int) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.layer_mlp_sizes[layer]
    found = {f"mlp.{name}.weight": (inner, hidden) for name in ("gate_proj", "up_proj")}
    return {**found, "mlp.down_proj.weight": (hidden, inner)}


def _linear_attention(sizes: DeltaConfig, hidden: int) -> dict[str, tuple[int, ...]]:
    outputs = {
        "a_proj": sizes.value_heads,
        "b_proj": sizes.value_heads,
        "q_proj": sizes.keys,
        "k_proj": sizes.keys,
        "v_proj": sizes.values,
        "g_proj": sizes.values,
    }
    return {
        **{f"{name}.weight": (rows, hidden) for name, rows in outputs.items()},
        "o_proj.weight": (hidden, sizes.values),
        "taps.weight": (sizes.channels, 1, sizes.taps),
        "A_log": (sizes.value_heads,),
        "dt_bias": (sizes.value_heads,),
        "output_norm.weight": (sizes.value_dim,),
    }


def _mixer(config: ModelConfig, layer: int) -> dict[str, tuple[int, ...]]:
    """The tensors of a layer's attention, or of what it has instead."""
    hidden, head_dim = config.hidden_size, config.layer_head_dims[layer]
    if config.layer_convolutions[layer]:
        found = {f"conv.{name}.weight": (hidden, hidden) for name in ("q_proj", "k_proj", "v_proj", "o_proj")}
        return {**found, "conv.taps.weight": (hidden, 1, config.layer_windows[layer] or 0)}
    if config.layer_recurrences[layer] and config.delta is not None:
        return {f"linear_attn.{name}": shape for name, shape in _linear_attention(config.delta, hidden).items()}
    query, kv = config.num_heads * head_dim, config.num_kv_heads * head_dim
    mixer: dict[str, tuple[int, ...]] = {}
    own = layer < config.num_cached_layers
    for name, rows in (("q_proj", query), *((("k_proj", kv), ("v_proj", kv)) if own else ())):
        mixer[f"self_attn.{name}.weight"] = (rows, hidden)
        if config.attention_bias:
            mixer[f"self_attn.{name}.bias"] = (rows,)
    mixer["self_attn.o_proj.weight"] = (hidden, query)
    if config.output_bias:
        mixer["self_attn.o_proj.bias"] = (hidden,)
    if config.attention_gate != "none":
        gates = config.num_heads if config.attention_gate == "head" else query
        mixer["self_attn.g_proj.weight"] = (gates, hidden)
    if config.query_key_norm != "none":
        wide = config.query_key_norm == "width"
        mixer |= {"self_attn.q_norm.weight": (query if wide else head_dim,)}
        mixer |= {"self_attn.k_norm.weight": (kv if wide else head_dim,)} if own else {}
    return mixer
