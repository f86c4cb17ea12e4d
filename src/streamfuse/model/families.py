"""What distinguishes the families of models: one description of each, and the form of its weights in a checkpoint.

`ModelConfig` is read with a description, and everything after that reads the configuration: the model, the exporter and
the operators do not know families by name. docs/architecture.md, "Add a family", lists the places to change.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor

    from .config import ModelConfig

# RMS norms of a layer: before each half (attention and MLP), after it and before the residual addition, or both.
Norms = Literal["before", "after", "both"]
# Of each head, before or after the rotary embedding, or of all heads of a row together.
QueryKeyNorm = Literal["none", "head", "head after rope", "width"]
Activation = Literal["silu", "gelu_tanh"]
CONVOLUTION = "conv"  # in `layer_types`: a layer with a short convolution in place of attention
LINEAR_ATTENTION = "linear_attention"  # in `layer_types`: a layer with a gated delta rule in place of attention
# Attention's output multiplied by sigmoids: one for each head, or one for each element.
AttentionGate = Literal["none", "head", "element"]
# Layers with a sliding window where `layer_types` is missing or not read: none, with `use_sliding_window` those from
# `max_window_layers` on or those without a rotary embedding, all if `sliding_window` is a number, all except every
# n-th, where n is `sliding_window_pattern`. LFM3: layer i, counted from 0, has full attention if i % 4 == 2, a window
# if i % 4 == 0 and i > 0, else a convolution.
Sliding = Literal["none", "from", "without rotary", "all", "pattern", "lfm3"]

_PREFIX = "model."
# In checkpoints that also have parts for images or sound: prefixes of the text model, and names of the other parts.
_TEXT = re.compile(r"(?:model\.)?(?:language_model|text_model)\.(?:model\.)?")
_NOT_TEXT = re.compile(
    r"(?:model\.)?(?:vision_tower|vision_model|visual|audio_tower|multi_modal_projector|connector|mtp)\."
)
_AFTER = {"post_attention_layernorm": "attention_output_norm", "post_feedforward_layernorm": "mlp_output_norm"}
_LFM = {
    "operator_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "embedding_norm": "norm",
    "conv.out_proj": "conv.o_proj",
    "conv.conv": "conv.taps",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w2": "mlp.down_proj",
    "feed_forward.w3": "mlp.up_proj",
}


@dataclass(frozen=True, slots=True)
class Family:
    """One family.

    Attributes:
        model_type: in its config.json.
        defaults: those of its configuration class in transformers, for missing fields, if they differ from
            `DEFAULTS`. Without a head_dim, it is hidden_size / heads.
        reads: fields that change what a model computes and that are read; elsewhere they are only accepted with a value
            without effect.
        norm_offset: added to the weights of all norms of a checkpoint.
        activation_field: the field with the activation's name.
        eps_field: the field with the epsilon of the norms.
        intermediate_field: the field with the size of the MLP.
        sliding: which layers have a window where `layer_types` is missing or not read.
        layer_types: whether `layer_types` is read; some classes of transformers ignore it.
        convolutions: whether layers can be short convolutions.
        linear_attention: whether layers can have linear attention (a gated delta rule).
        attention_gate: gates of attention's output; `use_attention_gate` can switch those of a family that reads it
            off. Gates of elements are stored with q, head by head.
        value_norm: whether the heads of values have an RMS norm, without weights.
        layer_scalars: whether the hidden state after each layer is multiplied by a number of the layer.
        qkv_bias: whether q, k and v have biases; None: as `attention_bias` says.
        output_bias: whether the attention's output projection can have one.
        partial_rotary: whether `partial_rotary_factor` may be less than 1.
        interleaved_rotary: whether rotary pairs are adjacent in a checkpoint (2i, 2i + 1) instead of half a head apart.
        rotary_alpha: whether the settings of a `dynamic` scaling can have `alpha`, which changes the base.
        full_rotary: whether layers with full attention have a rotary embedding in models that also have windows.
        names: parts of the names of tensors in a checkpoint, and the names here.
        fused: tensors of a checkpoint with the rows of several projections, and these in order.
    """

    model_type: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    reads: tuple[str, ...] = ()
    norms: Norms = "before"
    norm_offset: float = 0.0
    query_key_norm: QueryKeyNorm = "none"
    activation: Activation = "silu"
    activation_field: str = "hidden_act"
    eps_field: str = "rms_norm_eps"
    intermediate_field: str = "intermediate_size"
    sliding: Sliding = "none"
    layer_types: bool = True
    convolutions: bool = False
    linear_attention: bool = False
    attention_gate: AttentionGate = "none"
    value_norm: bool = False
    layer_scalars: bool = False
    qkv_bias: bool | None = None
    output_bias: bool = True
    partial_rotary: bool = False
    interleaved_rotary: bool = False
    rotary_alpha: bool = False
    full_rotary: bool = True
    names: Mapping[str, str] = field(default_factory=dict)
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def default(self, name: str) -> Any:
        return self.defaults.get(name, DEFAULTS.get(name))


DEFAULTS = {"max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "rope_theta": 10000.0}
# Factors of embeddings, attention scores and residual additions, and the divisor of logits.
MULTIPLIERS = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
# MiniCPM multiplies embeddings by scale_emb and residual branches by scale_depth / sqrt(num_hidden_layers), and divides
# logits by hidden_size / dim_model_base.
MINICPM_SCALES = ("scale_emb", "scale_depth", "dim_model_base")
_GRANITE = dict.fromkeys(MULTIPLIERS, 1.0)
_QWEN = {"num_key_value_heads": 32, "max_position_embeddings": 32768, "sliding_window": 4096}
_MISTRAL = {"num_key_value_heads": 8, "max_position_embeddings": 4096 * 32, "sliding_window": 4096}
FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": Family("llama"),
    "Qwen2ForCausalLM": Family("qwen2", _QWEN, sliding="from", qkv_bias=True, output_bias=False),
    "Qwen3ForCausalLM": Family("qwen3", {**_QWEN, "head_dim": 128}, query_key_norm="head", sliding="from"),
    "MistralForCausalLM": Family("mistral", _MISTRAL, sliding="all", layer_types=False),
    "MinistralForCausalLM": Family("ministral", _MISTRAL, sliding="all"),
    "Ministral3ForCausalLM": Family(
        "ministral3",
        {"rms_norm_eps": 1e-5, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 262144,
         "rope_parameters": {
             "rope_type": "yarn", "rope_theta": 1000000.0, "factor": 16.0, "original_max_position_embeddings": 16384,
             "mscale_all_dim": 1.0, "mscale": 1.0, "llama_4_scaling_beta": 0.1}},
        sliding="all",
        layer_types=False,
    ),
    "SmolLM3ForCausalLM": Family(
        "smollm3",
        {"num_key_value_heads": 4, "max_position_embeddings": 32768, "rope_theta": 2000000.0,
         "tie_word_embeddings": True},
        reads=("no_rope_layers", "no_rope_layer_interval"),
        sliding="without rotary",
    ),
    "Olmo2ForCausalLM": Family("olmo2", {"rms_norm_eps": 1e-5}, norms="after", query_key_norm="width", names=_AFTER),
    "Olmo3ForCausalLM": Family(
        "olmo3",
        {"rms_norm_eps": 1e-5, "rope_theta": 500000.0, "rope_local_base_freq": 500000.0, "sliding_window": 4096,
         "sliding_window_pattern": 4},
        norms="after",
        query_key_norm="width",
        sliding="pattern",
        names=_AFTER,
    ),
    "Exaone4ForCausalLM": Family(
        "exaone4",
        {"rms_norm_eps": 1e-5, "num_key_value_heads": 32, "sliding_window": 4096, "sliding_window_pattern": 4},
        norms="after",
        query_key_norm="head",
        sliding="pattern",
        qkv_bias=False,
        output_bias=False,
        full_rotary=False,
        names=_AFTER,
    ),
    "Ernie4_5ForCausalLM": Family(
        "ernie4_5",
        {"rms_norm_eps": 1e-5, "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131072,
         "rope_theta": 500000.0, "tie_word_embeddings": True},
        qkv_bias=False,
        output_bias=False,
        interleaved_rotary=True,
    ),
    "GlmForCausalLM": Family(
        "glm",
        {"rms_norm_eps": 0.00000015625, "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131072,
         "attention_bias": True, "partial_rotary_factor": 0.5},
        reads=("partial_rotary_factor",),
        output_bias=False,
        partial_rotary=True,
        interleaved_rotary=True,
        fused={"mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj")},
    ),
    "HeliumForCausalLM": Family(
        "helium",
        {"rms_norm_eps": 1e-8, "num_key_value_heads": 20, "head_dim": 128, "max_position_embeddings": 4096,
         "rope_theta": 100000.0},
        output_bias=False,
        interleaved_rotary=True,
    ),
    "GraniteForCausalLM": Family("granite", _GRANITE, reads=MULTIPLIERS),
    "GraniteMoeHybridForCausalLM": Family(
        "granitemoehybrid",
        {**_GRANITE, "num_local_experts": 8},
        reads=(*MULTIPLIERS, "position_embedding_type"),
        intermediate_field="shared_intermediate_size",
        names={"shared_mlp.output_linear": "mlp.down_proj"},
        fused={"shared_mlp.input_linear": ("mlp.gate_proj", "mlp.up_proj")},
    ),
    "HunYuanDenseV1ForCausalLM": Family(
        "hunyuan_v1_dense",
        {"vocab_size": 290943, "rms_norm_eps": 1e-5},
        query_key_norm="head after rope",
        rotary_alpha=True,
        names={"self_attn.query_layernorm": "self_attn.q_norm", "self_attn.key_layernorm": "self_attn.k_norm"},
    ),
    "MiniCPMForCausalLM": Family(
        "minicpm", {**dict.fromkeys(MINICPM_SCALES, 1.0), "tie_word_embeddings": True}, reads=MINICPM_SCALES
    ),
    "Phi3ForCausalLM": Family(
        "phi3",
        {"rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "original_max_position_embeddings": 4096},
        reads=("partial_rotary_factor",),
        sliding="all",
        partial_rotary=True,
        fused={
            "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
        },
    ),
    "Gemma3ForCausalLM": Family(
        "gemma3_text",
        {"vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
         "max_position_embeddings": 131072, "tie_word_embeddings": True,
         "query_pre_attn_scalar": 256, "sliding_window": 4096, "rope_theta": 1000000.0,
         "rope_local_base_freq": 10000.0, "sliding_window_pattern": 6, "hidden_activation": "gelu_pytorch_tanh"},
        reads=("query_pre_attn_scalar",),
        norms="both",
        norm_offset=1.0,
        query_key_norm="head",
        activation="gelu_tanh",
        activation_field="hidden_activation",
        sliding="pattern",
        names={**_AFTER, "pre_feedforward_layernorm": "post_attention_layernorm"},
    ),
    "Gemma4ForCausalLM": Family(
        "gemma4_text",
        {"vocab_size": 262144, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
         "max_position_embeddings": 131072, "tie_word_embeddings": True, "sliding_window": 512,
         "sliding_window_pattern": 6, "hidden_activation": "gelu_pytorch_tanh", "global_head_dim": 512,
         "hidden_size_per_layer_input": 256,
         "rope_parameters": {
             "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
             "full_attention": {
                 "rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25}}},
        reads=("final_logit_softcapping", "global_head_dim", "hidden_size_per_layer_input", "num_kv_shared_layers",
               "per_layer_config", "use_double_wide_mlp"),
        norms="both",
        query_key_norm="head",
        value_norm=True,
        layer_scalars=True,
        activation="gelu_tanh",
        activation_field="hidden_activation",
        sliding="pattern",
        qkv_bias=False,
        output_bias=False,
        names={
            **_AFTER,
            "pre_feedforward_layernorm": "post_attention_layernorm",
            "embed_tokens_per_layer": "per_layer_embedding",
            "per_layer_model_projection": "per_layer_projection",
            "per_layer_projection_norm": "per_layer_norm",
            "per_layer_input_gate": "per_layer_gate",
            "per_layer_projection": "per_layer_proj",
            "post_per_layer_input_norm": "per_layer_output_norm",
        },
    ),
    "Lfm2ForCausalLM": Family(
        "lfm2",
        {"num_key_value_heads": 8, "max_position_embeddings": 128000, "norm_eps": 1e-5, "rope_theta": 1000000.0,
         "tie_word_embeddings": True, "conv_L_cache": 3},
        reads=("full_attn_idxs", "block_ff_dim", "tie_embedding"),
        query_key_norm="head",
        eps_field="norm_eps",
        convolutions=True,
        qkv_bias=False,
        output_bias=False,
        names={
            **_LFM,
            "self_attn.out_proj": "self_attn.o_proj",
            "self_attn.q_layernorm": "self_attn.q_norm",
            "self_attn.k_layernorm": "self_attn.k_norm",
        },
        fused={"conv.in_proj": ("conv.k_proj", "conv.q_proj", "conv.v_proj")},
    ),
    "Lfm3ForCausalLM": Family(
        "lfm3",
        {"vocab_size": 128000, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 4,
         "head_dim": 128, "max_position_embeddings": 128000, "norm_eps": 1e-5, "rope_theta": 1000000.0,
         "tie_word_embeddings": True, "sliding_window": 256, "conv_L_cache": 7, "use_sandwich_norm": True,
         "use_attention_gate": True,
         "rope_parameters": {
             "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
             "full_attention": {
                 "rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.5}}},
        reads=("use_sandwich_norm", "use_attention_gate"),
        norms="both",
        query_key_norm="head",
        eps_field="norm_eps",
        sliding="lfm3",
        convolutions=True,
        attention_gate="head",
        names={
            **_LFM,
            "post_operator_norm": "attention_output_norm",
            "post_ffn_norm": "mlp_output_norm",
            "self_attn.gate_proj": "self_attn.g_proj",
        },
        fused={"conv.in_proj": ("conv.k_proj", "conv.q_proj", "conv.v_proj")},
    ),
    "Qwen3_5ForCausalLM": Family(
        "qwen3_5_text",
        {"num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 32768, "partial_rotary_factor": 0.25,
         "full_attention_interval": 4, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
         "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32},
        reads=("partial_rotary_factor", "attn_output_gate"),
        norm_offset=1.0,
        query_key_norm="head",
        linear_attention=True,
        attention_gate="element",
        partial_rotary=True,
        names={
            "linear_attn.norm": "linear_attn.output_norm",
            "linear_attn.in_proj_a": "linear_attn.a_proj",
            "linear_attn.in_proj_b": "linear_attn.b_proj",
            "linear_attn.in_proj_z": "linear_attn.g_proj",
            "linear_attn.out_proj": "linear_attn.o_proj",
            "linear_attn.conv1d": "linear_attn.taps",
        },
        fused={
            "linear_attn.in_proj_qkv": ("linear_attn.q_proj", "linear_attn.k_proj", "linear_attn.v_proj"),
            "self_attn.q_proj": ("self_attn.q_proj", "self_attn.g_proj"),
        },
    ),
}  # fmt: skip
ACTIVATIONS: dict[Activation, tuple[str, ...]] = {
    "silu": ("silu", "swish"),
    "gelu_tanh": ("gelu_pytorch_tanh", "gelu_new", "gelu_fast"),
}
# Architectures that people ask for, and what they have that is not supported.
UNSUPPORTED = {
    "Gemma2ForCausalLM": "soft-capping of attention scores (attn_logit_softcapping)",
    "GptOssForCausalLM": "attention sinks and experts (num_local_experts)",
    "MixtralForCausalLM": "experts (num_local_experts)",
    "Qwen2MoeForCausalLM": "experts (num_experts)",
    "Qwen3MoeForCausalLM": "experts (num_experts)",
    "Qwen3NextForCausalLM": "experts (num_experts)",
    "Qwen3_5MoeForCausalLM": "experts (num_experts)",
    "Lfm2MoeForCausalLM": "experts (num_experts)",
    "Llama4ForCausalLM": "chunked attention (layer_types) and experts (num_local_experts)",
    "Gemma3nForCausalLM": "AltUp and LAuReL blocks (altup_num_inputs, laurel_rank)",
    "FalconH1ForCausalLM": "Mamba layers",
}
# Other names of architectures in config.json.
RENAMED = {"Ernie4_5_ForCausalLM": "Ernie4_5ForCausalLM"}
# Architectures, each with its model_type.
ARCHITECTURES = {name: family.model_type for name, family in FAMILIES.items()}


def unsupported(kind: str) -> str:
    """Why an architecture or a model_type is not supported, for an error message; empty if that is not known."""

    def plain(name: str) -> str:
        return name.removesuffix("ForCausalLM").removesuffix("_text").replace("_", "").lower()

    return next((f" because of its {own}" for name, own in UNSUPPORTED.items() if plain(name) == plain(kind)), "")


def own_name(name: str) -> str:
    """A tensor's name without the checkpoint's prefix."""
    found = _TEXT.match(name)
    return name.removeprefix(_PREFIX) if found is None else name[found.end() :]


def text_names(names: Iterable[str]) -> set[str]:
    """Of the names of a checkpoint's tensors, those of the text model: all, unless it also has other parts."""
    every = set(names)
    nested = {name for name in every if _TEXT.match(name)}
    if nested:
        return nested | {name for name in every if name.startswith("lm_head.")}
    return {name for name in every if _NOT_TEXT.match(name) is None}


def own_module(name: str, config: ModelConfig) -> str:
    """The model's name of a checkpoint's module, such as `layers.0.self_attn.q_proj`; a fused one keeps its own."""
    return _renamed(f"{own_name(name)}.", FAMILIES[config.architecture].names).removesuffix(".")


def own_shapes(name: str, shape: tuple[int, ...], config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The tensors of the model that a checkpoint's tensor contains, with their shapes; itself if it is not known."""
    found = _parts(name, shape[0] if shape else 0, config)
    return {part: (len(rows), *shape[1:]) if len(found) > 1 else shape for part, rows in found.items()}


def from_checkpoint(name: str, value: Tensor, config: ModelConfig) -> dict[str, Tensor]:
    """The tensors of the model that a checkpoint's tensor contains, in its dtype. Norms that differ from the stored
    ones are float32 where that dtype would round them, or where the family multiplies by them in float32."""
    parts = _parts(name, len(value), config)
    value = value if (order := _gate_order(parts, config)) is None else value[order]
    split = {part: value[rows.start : rows.stop] if len(parts) > 1 else value for part, rows in parts.items()}
    return {part: _converted(part, tensor, config) for part, tensor in split.items()}


def to_checkpoint(state: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """A model's tensors as its family stores them, without a tied head: the inverse of `from_checkpoint`."""
    import torch  # not for the configuration, which every command reads

    family = FAMILIES[config.architecture]
    left = {name: _restored(name, value, config) for name, value in state.items()}
    if config.tie_word_embeddings:
        left.pop("lm_head.weight", None)
    found: dict[str, Tensor] = {}
    for whole, parts in family.fused.items():
        for name in [name for name in left if f".{parts[0]}." in name]:
            start, _, kind = name.partition(f".{parts[0]}.")
            own = [f"{start}.{part}.{kind}" for part in parts]
            order, joined = _gate_order(own, config), torch.cat([left.pop(name) for name in own])
            found[f"{start}.{whole}.{kind}"] = joined if order is None else joined[order.argsort()]
    back = {own: stored for stored, own in family.names.items()}
    found |= {_renamed(name, back): value for name, value in left.items()}
    return {name if name.startswith("lm_head.") else _PREFIX + name: v.contiguous() for name, v in found.items()}


def _parts(name: str, rows: int, config: ModelConfig) -> dict[str, range]:
    """Names in the model of what a checkpoint's tensor contains, and their rows of it."""
    family, name = FAMILIES[config.architecture], own_name(name)
    for whole, parts in family.fused.items():
        start, found, kind = name.partition(f".{whole}.")
        if found:
            ends, at = [], 0
            for size in _sizes(parts, rows, config):
                ends.append(range(at, at + size))
                at += size
            return {f"{start}.{part}.{kind}": some for part, some in zip(parts, ends, strict=True)}
    return {_renamed(name, family.names): range(rows)}


def _gate_order(parts: Iterable[str], config: ModelConfig) -> Tensor | None:
    """The permutation, int64 [N], of rows that are q and gates of each head in turn to all of q, then all gates; None
    if a checkpoint's tensor with these parts is another one."""
    import torch  # not for the configuration, which every command reads

    if config.attention_gate != "element" or not any(".self_attn.g_proj." in part for part in parts):
        return None
    rows = torch.arange(2 * config.num_heads * config.head_dim)
    return rows.view(config.num_heads, 2, config.head_dim).transpose(0, 1).flatten()


def _sizes(parts: tuple[str, ...], rows: int, config: ModelConfig) -> list[int]:
    """The outputs of fused projections: those of q, k and v follow from the heads, others are equal."""
    if parts[0] == "linear_attn.q_proj" and config.delta is not None:
        keys = config.delta.keys
        return [keys, keys, max(rows - 2 * keys, 0)]
    if parts[0] != "self_attn.q_proj" or len(parts) != 3:
        return [rows // len(parts)] * len(parts)
    query, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return [query, kv, max(rows - query - kv, 0)]


def _renamed(name: str, names: Mapping[str, str]) -> str:
    for stored, own in names.items():
        start, found, kind = f".{name}".partition(f".{stored}.")
        if found:
            return f"{start}.{own}.{kind}".removeprefix(".")
    return name


def _converted(name: str, value: Tensor, config: ModelConfig) -> Tensor:
    family, order = FAMILIES[config.architecture], rotary_order(name, config)
    value = value if order is None else value[order]
    if not _is_norm(name):
        return value
    scale = config.logits_scale if name == "norm.weight" else 1.0
    wide = (value.float() + family.norm_offset) / scale
    # bfloat16 has 8 significant bits: rounded to it, 1 + w would lose most of a small w.
    narrow = wide.to(value.dtype)
    return wide if family.norm_offset or not narrow.float().equal(wide) else narrow


def _restored(name: str, value: Tensor, config: ModelConfig) -> Tensor:
    family, order = FAMILIES[config.architecture], rotary_order(name, config)
    value = value if order is None else value[order.argsort()]
    if not _is_norm(name):
        return value
    value = value * config.logits_scale if name == "norm.weight" and config.logits_scale != 1 else value
    return value - family.norm_offset if family.norm_offset else value


def _is_norm(name: str) -> bool:
    """Whether a tensor is the weight of a norm with the family's offset: all except those of linear attention."""
    owner = name.rpartition(".")[0]
    return owner.endswith("norm") and not owner.endswith("linear_attn.output_norm")


def rotary_order(name: str, config: ModelConfig) -> Tensor | None:
    """The permutation, int64 [N], of rows of q or k, or of the weights of their norms, from the checkpoint's order to
    the model's (`value[order]`); None if the order is the same or the tensor is neither.

    The numbers of a head that are rotated together are half a head apart here, also where only a part of the head is
    rotated (the others have angles of 0). In a checkpoint they are half of the rotated numbers apart, or neighbors.
    Scores are sums over a head, so q and k may be permuted alike.
    """
    import torch  # not for the configuration, which every command reads

    half, turned, apart = (
        size // 2 for size in (config.rotary_dims[0], config.rotaries[0].size, config.rotaries[0].frequency_dim)
    )
    interleaved = FAMILIES[config.architecture].interleaved_rotary
    rows_of = ("q_proj.weight", "k_proj.weight", "q_proj.bias", "k_proj.bias", "q_norm.weight", "k_norm.weight")
    if not name.endswith(rows_of) or "linear_attn." in name or turned == 0 or (apart == half and not interleaved):
        return None
    rotated, left = torch.arange(2 * turned), torch.arange(2 * turned, config.head_dim)
    first, second = (rotated[::2], rotated[1::2]) if interleaved else (rotated[:turned], rotated[turned:])
    head = torch.cat([first, left[: half - turned], second, left[half - turned :]])
    heads = config.num_heads if "q_proj" in name or "q_norm" in name else config.num_kv_heads
    heads = 1 if "norm" in name and config.query_key_norm != "width" else heads
    return (torch.arange(heads)[:, None] * config.head_dim + head).flatten()
