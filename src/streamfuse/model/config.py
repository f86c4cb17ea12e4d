"""The configuration of a checkpoint: the base model and the settings of its streams.

Both are frozen dataclasses. `ModelConfig` is read from a Hugging Face `config.json`; `StreamConfig` is stored in an
adapter file's metadata, so that its modules can be rebuilt from the file alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Set
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from streamfuse.options import OptionError, check, flag_of, option

from .delta_config import MOST_TAPS, PASS_ROWS, DeltaConfig
from .families import (
    ACTIVATIONS,
    CONVOLUTION,
    FAMILIES,
    LINEAR_ATTENTION,
    MINICPM_SCALES,
    MULTIPLIERS,
    RENAMED,
    Activation,
    AttentionGate,
    Family,
    Norms,
    QueryKeyNorm,
    unsupported,
)
from .families import ARCHITECTURES as ARCHITECTURES
from .fields import ADD_A_FAMILY, PEFT, Fields, refuse_constant
from .fields import CheckpointError as CheckpointError
from .fields import read_object as read_object
from .quantized import packed_of
from .rope import Rotary, by_layer_type, local_and_global, rotary_of, trained_length, with_ntk_alpha
from .text_part import text_config

if TYPE_CHECKING:
    from .heads import Heads

WIDENS = (
    "num_streams",
    "num_msa_layers",
    "eta_rank",
    "next_token_rank",
    "adapter_rank",
    "parent_rank",
    "pruner_rank",
    "stream_vocab_size",
)  # sizes of streams that may grow after training
PrunerScore = Literal["sigmoid", "softmax"]
SIGMOID, SOFTMAX = "sigmoid", "softmax"
STREAMS = "Streams"  # the heading of their options
# Kinds of heads that may stand in for streams, by name. There are none until somebody adds them.
HEADS: dict[str, type[Heads]] = {}
_SIZES = (  # sizes of the streams; all 0 without streams
    *WIDENS,
    "value_rotation",
)
# Fields that change what a model computes, with the values that have no effect; a family may read some of them.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "mlp_bias": (False,),
    "use_bias": (False,),
    "partial_rotary_factor": (1.0,),
    "attention_multiplier": (),
    "residual_multiplier": (1.0,),
    "embedding_multiplier": (1.0,),
    "logits_scaling": (1.0,),
    "logit_scale": (1.0,),
    "scale_emb": (1.0,),
    "scale_depth": (),
    "dim_model_base": (),
    "sparse_config": (),
    "query_pre_attn_scalar": (),
    "attn_logit_softcapping": (0,),
    "final_logit_softcapping": (0,),
    "clip_qkv": (0,),
    "no_rope_layers": ([],),
    "no_rope_layer_interval": (),
    "position_embedding_type": ("rope",),
    "use_bidirectional_attention": (False, "vision"),  # "vision": among the tokens of an image, and there are none
    "num_experts": (0, 1),
    "num_local_experts": (0, 1),
    "n_routed_experts": (0,),
    "is_causal": (True,),
    "conv_bias": (False,),
    "use_attention_gate": (False,),
    "attn_output_gate": (False,),
    "use_sandwich_norm": (False,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "per_layer_config": ({},),
    "num_kv_shared_layers": (0,),
    "hidden_size_per_layer_input": (0,),
    "use_double_wide_mlp": (False,),
    "attention_k_eq_v": (False,),
    "enable_moe_block": (False,),
    "transformers_weights": ("model.safetensors",),
}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Configuration of a base model (sizes in elements), in the form in which it is computed here.

    The residual multiplier of a family is not part of it: hidden states are those of the family divided by the
    multiplier, which changes the scale of the embeddings and the epsilon of the norms, and no weight.

    Attributes:
        max_position_embeddings: the longest context.
        attention_bias: whether q, k and v have biases.
        output_bias: whether the attention's output projection has one.
        norms: the norms of a layer: before attention and MLP, after them (before the residual addition), or both.
        query_key_norm: norms of queries and keys: of each head, before or after its rotary embedding, or of all heads
            together.
        attention_gate: whether each head's output, or each element of it, is multiplied by sigmoid(g_proj(x)), x being
            the layer's normalized input.
        value_norm: whether the heads of values have an RMS norm, without weights.
        attention_scale: factor of the attention's scores.
        embedding_scale: factor of the embeddings, as the first layer reads them.
        logits_scale: divisor of the logits; it is part of the final norm's weights (families.py).
        logit_cap: cap in the soft-capped logits cap * tanh(logits / cap) (`final_logit_softcapping`); 0: none.
        layer_scalars: whether each layer's output is multiplied by a scalar (`layer_scalar`).
        per_layer_size: size of the per-layer input of a token (`hidden_size_per_layer_input`); 0: none.
        rotaries: the rotary embeddings.
        layer_rotaries: for each layer, the index of its rotary embedding.
        layer_head_dims: for each layer, the size of a head of its attention; `head_dim` in layers without attention.
        layer_mlp_sizes: for each layer, the size of its MLP.
        num_cached_layers: layers that compute keys and values, the lowest ones (all but `num_kv_shared_layers`). Each
            layer above reads the keys and values of the last of them that has the same rotary embedding and window.
        layer_windows: for each layer, how many tokens a token's output depends on, itself included; None: all. Of
            linear attention: the most rows that a pass reads again to update the state.
        layer_convolutions: for each layer, whether it is a short convolution over its window instead of attention.
        layer_recurrences: for each layer, whether it has linear attention, a recurrence, instead of attention.
        delta: the sizes of layers with linear attention; None: there are none.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    attention_bias: bool
    output_bias: bool
    norms: Norms
    query_key_norm: QueryKeyNorm
    attention_gate: AttentionGate
    value_norm: bool
    activation: Activation
    attention_scale: float
    embedding_scale: float
    logits_scale: float
    logit_cap: float
    layer_scalars: bool
    per_layer_size: int
    rotaries: tuple[Rotary, ...]
    layer_rotaries: tuple[int, ...]
    layer_head_dims: tuple[int, ...]
    layer_mlp_sizes: tuple[int, ...]
    num_cached_layers: int
    layer_windows: tuple[int | None, ...]
    layer_convolutions: tuple[bool, ...]
    layer_recurrences: tuple[bool, ...]
    delta: DeltaConfig | None
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]

    @property
    def layer_attentions(self) -> tuple[bool, ...]:
        """For each layer, whether it has attention."""
        both = zip(self.layer_convolutions, self.layer_recurrences, strict=True)
        return tuple(not (convolves or recurs) for convolves, recurs in both)

    @property
    def kv_source_layers(self) -> tuple[int, ...]:
        """For each layer, the layer whose keys and values it reads: itself, or a lower one."""
        kinds = list(zip(self.layer_rotaries, self.layer_windows, strict=True))
        last = {kind: i for i, kind in enumerate(kinds[: self.num_cached_layers])}
        return tuple(i if i < self.num_cached_layers else last[kind] for i, kind in enumerate(kinds))

    @property
    def rotary_dims(self) -> tuple[int, ...]:
        """For each rotary embedding, the size of the heads of its layers."""
        return tuple(self.layer_head_dims[self.layer_rotaries.index(i)] for i in range(len(self.rotaries)))

    def lowest_kv_layer(self, layer: int) -> int:
        """The lowest layer whose keys and values are read by the layers from `layer` on."""
        return min(self.kv_source_layers[layer:], default=layer)

    def require_attention(self, command: str) -> None:
        """OptionError if a layer has no attention, or no keys and values of its own, for commands that only know
        layers with both."""
        if not all(self.layer_attentions):
            raise OptionError(f"{command} needs a model whose layers all have attention, not {self.architecture}")
        if self.num_cached_layers < self.num_layers or self.layer_scalars:
            raise OptionError(
                f"{command} needs a model whose layers all have keys and values of their own and no scalars, not "
                f"{self.architecture}"
            )

    def heads_of(self, layer: int) -> int:
        """Heads of a layer's queries. A convolution's channels count as heads of `head_dim`."""
        return self.hidden_size // self.head_dim if self.layer_convolutions[layer] else self.num_heads

    def kv_heads_of(self, layer: int) -> int:
        """Heads in each of a layer's two caches. A convolution has half of its channels in each, linear attention half
        of the rows that it reads again."""
        if self.layer_recurrences[layer] and self.delta is not None:
            return self.delta.cached_heads(self.head_dim)
        return self.heads_of(layer) // 2 if self.layer_convolutions[layer] else self.num_kv_heads

    @property
    def longest_window(self) -> int | None:
        """The greatest of `layer_windows`; None: no layer has a window."""
        return max((window for window in self.layer_windows if window is not None), default=None)

    @property
    def eos_token_id(self) -> int | None:
        """The end-of-sequence token to append to training text; None if the model has none."""
        return next(iter(self.eos_token_ids), None)

    @classmethod
    def from_hf(cls, config: dict[str, Any], source: str = "config.json") -> ModelConfig:
        """Read a Hugging Face `config.json`.

        Raises:
            CheckpointError: a field is missing, or the architecture or a feature of it (unknown RoPE scaling, another
                activation, experts) is not supported.
        """
        config = text_config(config, source)
        numbers = Fields(config, source)
        by_type = {kind: [name] for name, kind in ARCHITECTURES.items()}
        named = config.get("architectures") or by_type.get(str(config.get("model_type")), ["?"])
        architecture = named[0] if isinstance(named, list) else named
        architecture = RENAMED.get(architecture, architecture) if isinstance(architecture, str) else architecture
        if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
            reason, known = unsupported(str(architecture)), ", ".join(ARCHITECTURES)
            raise CheckpointError(
                f"{source}: architecture {architecture!r} is not supported{reason}; supported are {known}; "
                f"{ADD_A_FAMILY}"
            )
        family = FAMILIES[architecture]
        _check_kind(config, architecture, source)
        heads, hidden, vocab = (
            numbers.size(name, family.default(name)) for name in ("num_attention_heads", "hidden_size", "vocab_size")
        )
        own_kv_heads = heads if "num_key_value_heads" in config else family.default("num_key_value_heads") or heads
        kv_heads = numbers.size("num_key_value_heads", own_kv_heads)
        own_head_dim = hidden // heads if "head_dim" in config else family.default("head_dim") or hidden // heads
        head_dim = numbers.size("head_dim", own_head_dim)
        longest = numbers.size("max_position_embeddings", family.default("max_position_embeddings"))
        layers = numbers.size("num_hidden_layers")
        if heads % kv_heads:
            raise CheckpointError(f"{source}: num_key_value_heads {kv_heads} does not divide {heads} heads")
        if head_dim < 2 or head_dim % 2:
            raise CheckpointError(f"{source}: heads of {head_dim} numbers have no pairs to rotate; see head_dim")
        _check_token("bos_token_id", config.get("bos_token_id"), vocab, source)
        kinds = _layer_types(config, family, layers, source)
        head_dims = _head_dims(config, family, kinds, head_dim, source)
        rotaries, layer_rotaries = _rotaries(config, family, kinds, longest, head_dim, head_dims, source)
        longest = trained_length(rotaries, longest)
        window = _window(config, family, source) if "sliding_attention" in kinds else None
        window = None if window is None or window >= longest else window
        taps = numbers.size("conv_L_cache", family.default("conv_L_cache")) if CONVOLUTION in kinds else None
        delta = _delta_config(config, family, source) if LINEAR_ATTENTION in kinds else None
        cached = _cached_layers(config, family, kinds, source)
        windows = {"full_attention": None, "sliding_attention": window, CONVOLUTION: taps, LINEAR_ATTENTION: PASS_ROWS}
        if taps == 1:
            raise CheckpointError(f"{source}: conv_L_cache must be at least 2, not 1")
        if taps is not None and hidden % (2 * head_dim):
            raise CheckpointError(
                f"{source}: hidden_size must be a multiple of {2 * head_dim} (two heads), not {hidden}"
            )
        bias = bool(config.get("attention_bias", family.default("attention_bias")))
        multipliers = _Multipliers.of(config, family, hidden, layers, head_dim, source)
        return cls(
            architecture=architecture,
            vocab_size=vocab,
            hidden_size=hidden,
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            rms_norm_eps=numbers.number(family.eps_field, family.default(family.eps_field)) / multipliers.residual**2,
            max_position_embeddings=longest,
            tie_word_embeddings=_tied(config, family),
            attention_bias=bias if family.qkv_bias is None else family.qkv_bias,
            output_bias=bias and family.output_bias,
            norms=family.norms if _flag(config, family, "use_sandwich_norm") else "before",
            query_key_norm=family.query_key_norm,
            attention_gate=family.attention_gate if _flag(config, family, "use_attention_gate") else "none",
            value_norm=family.value_norm,
            activation=family.activation,
            attention_scale=multipliers.attention,
            embedding_scale=multipliers.embedding / multipliers.residual,
            logits_scale=multipliers.logits,
            logit_cap=_logit_cap(config, family, source),
            layer_scalars=family.layer_scalars,
            per_layer_size=_per_layer_size(config, family, vocab, source),
            rotaries=rotaries,
            layer_rotaries=layer_rotaries,
            layer_head_dims=head_dims,
            layer_mlp_sizes=_mlp_sizes(config, family, layers, cached, source),
            num_cached_layers=cached,
            layer_windows=tuple(windows[kind] for kind in kinds),
            layer_convolutions=tuple(kind == CONVOLUTION for kind in kinds),
            layer_recurrences=tuple(kind == LINEAR_ATTENTION for kind in kinds),
            delta=delta,
            bos_token_id=config.get("bos_token_id"),
            eos_token_ids=_end_tokens(config, vocab, source),
        )

    @classmethod
    def load(cls, folder: Path) -> ModelConfig:
        """Read a checkpoint folder's `config.json`, and its special tokens from the files next to it.

        The tokens that end an answer are those of `generation_config.json`, else of config.json. The tokenizer's
        `bos_token` and `eos_token` take precedence, because chat templates use them.
        """
        path = folder / "config.json"
        if not path.is_file():
            if (folder / "adapter_config.json").is_file():
                raise CheckpointError(f"{folder} {PEFT}")
            raise CheckpointError(f"{path}: no such file; a checkpoint folder needs config.json")
        config, generation = read_object(path), read_object(folder / "generation_config.json")
        stated = generation.get("eos_token_id") is not None
        found = cls.from_hf({**config, "eos_token_id": None} if stated else config, str(path))
        ends = found.eos_token_ids
        if stated:
            ends = _end_tokens(generation, found.vocab_size, str(folder / "generation_config.json"))
        named = named_token_ids(folder, found.vocab_size)
        if (eos := named.get("eos_token")) is not None:
            ends = tuple(dict.fromkeys((eos, *ends)))
        return replace(found, bos_token_id=named.get("bos_token", found.bos_token_id), eos_token_ids=ends)


def _end_tokens(config: dict[str, Any], vocab_size: int, source: str) -> tuple[int, ...]:
    """The tokens of `eos_token_id`, which is one, a list, or null."""
    found = config.get("eos_token_id")
    ends = found if isinstance(found, list) else [found]
    for token in ends:
        _check_token("eos_token_id", token, vocab_size, source)
    return tuple(token for token in ends if token is not None)


def _check_token(name: str, token: Any, vocab_size: int, source: str) -> None:
    if token is not None and not (type(token) is int and 0 <= token < vocab_size):
        raise CheckpointError(f"{source}: {name} {token!r:.40} is not a token id below {vocab_size}")


def _check_kind(config: dict[str, Any], architecture: str, source: str) -> None:
    """Reject configurations that would be computed incorrectly; a field that is null counts as missing."""
    packed_of(config, source)
    kind = config.get("model_type")
    if kind is not None and kind != ARCHITECTURES[architecture]:
        raise CheckpointError(
            f"{source}: model_type {kind!r:.40} does not go with the architecture {architecture}, "
            f"whose model_type is {ARCHITECTURES[architecture]!r}"
        )
    family = FAMILIES[architecture]
    for name, neutral in _NEUTRAL.items():
        value = config.get(name, family.defaults.get(name))
        if name not in family.reads and value is not None and value not in neutral:
            only = f" (only {neutral[0]!r} is)" if neutral else ""
            if name == "sparse_config":
                only = "; remove it to use dense attention"
            raise CheckpointError(f"{source}: {name} {value!r:.40} is not supported{only}")
    if family.attention_gate == "element":
        # Gates are stored with q, whose biases would be theirs too.
        for name, required in (("attn_output_gate", True), ("attention_bias", False)):
            if (value := config.get(name)) is not None and value is not required:
                raise CheckpointError(f"{source}: {name} {value!r:.40} is not supported (only {required!r} is)")
    known, field = ACTIVATIONS[family.activation], family.activation_field
    if (value := config.get(field)) is not None and value not in known:
        raise CheckpointError(f"{source}: {field} {value!r:.40} is not supported (only {known[0]!r} is)")


def _flag(config: dict[str, Any], family: Family, name: str) -> bool:
    """A boolean setting; True in families that do not read it."""
    if name not in family.reads:
        return True
    value = config.get(name)
    return bool(family.default(name) if value is None else value)


def _tied(config: dict[str, Any], family: Family) -> bool:
    """Whether the head is the embedding. `tie_embedding` is an older name of LFM2's, and takes precedence."""
    tied = config.get("tie_word_embeddings", family.default("tie_word_embeddings"))
    return bool(config.get("tie_embedding", tied) if "tie_embedding" in family.reads else tied)


def _count(config: dict[str, Any], family: Family, name: str, source: str) -> int:
    """A non-negative integer. Null and fields that the family does not read count as 0."""
    value = config.get(name, family.default(name)) if name in family.reads else None
    return Fields({name: value}, source).size(name) if value else 0


def _per_layer_size(config: dict[str, Any], family: Family, vocab: int, source: str) -> int:
    """The size of the per-layer input of a token."""
    rows = config.get("vocab_size_per_layer_input")
    size = _count(config, family, "hidden_size_per_layer_input", source)
    if size and rows is not None and rows != vocab:
        raise CheckpointError(f"{source}: vocab_size_per_layer_input must be vocab_size, {vocab}, not {rows!r:.40}")
    return size


def _logit_cap(config: dict[str, Any], family: Family, source: str) -> float:
    """The cap of soft-capped logits; 0: none."""
    name = "final_logit_softcapping"
    value = config.get(name, family.default(name)) if name in family.reads else None
    cap = Fields({name: value}, source).number(name) if value else 0.0
    if cap and not 1e-3 <= cap <= 1e6:
        raise CheckpointError(f"{source}: {name} must be from 0.001 to 1000000, or 0 for none, not {cap:g}")
    return cap


def _cached_layers(config: dict[str, Any], family: Family, kinds: list[str], source: str) -> int:
    """Layers that compute keys and values: all except the last `num_kv_shared_layers`."""
    shared = _count(config, family, "num_kv_shared_layers", source)
    cached = len(kinds) - shared
    if shared and not set(kinds[cached:]) <= set(kinds[: max(cached, 0)]):
        raise CheckpointError(
            f"{source}: num_kv_shared_layers {shared}: the last {shared} layers have a type in layer_types that no "
            "layer before them has, so there are no keys and values to share"
        )
    return cached


def _head_dims(config: dict[str, Any], family: Family, kinds: list[str], head_dim: int, source: str) -> tuple[int, ...]:
    """The size of a head in each layer. Gemma 4's layers with full attention have larger heads."""
    name = "global_head_dim"
    if name not in family.reads:
        return (head_dim,) * len(kinds)
    stated = _with_global_head_dim(config, kinds, head_dim, source)
    wide = Fields(stated, source).size(name, family.default(name))
    if wide % 2:
        raise CheckpointError(f"{source}: {name} must be even, not {wide}")
    return tuple(wide if kind == "full_attention" else head_dim for kind in kinds)


def _with_global_head_dim(config: dict[str, Any], kinds: list[str], head_dim: int, source: str) -> dict[str, Any]:
    """The settings, with `global_head_dim` taken from `per_layer_config` if they have one.

    transformers writes {layer: {"head_dim": number}} for each layer with full attention, or {} if these heads have the
    size of the others.
    """
    own = config.get("per_layer_config")
    if own is None:
        return config
    if own == {}:
        return {**config, "global_head_dim": head_dim}
    layers = [str(i) for i, kind in enumerate(kinds) if kind == "full_attention"]
    if isinstance(own, dict) and {str(name) for name in own} == set(layers) and layers:
        first, *others = own.values()
        if isinstance(first, dict) and first.keys() == {"head_dim"} and all(other == first for other in others):
            return {**config, "global_head_dim": first["head_dim"]}
    raise CheckpointError(
        f"{source}: per_layer_config {own!r:.80} is not supported; it may only set head_dim, to the same number in all "
        "layers with full attention"
    )


def _mlp_sizes(config: dict[str, Any], family: Family, layers: int, cached: int, source: str) -> tuple[int, ...]:
    """The MLP's size in each layer. With `use_double_wide_mlp`, it is doubled in layers that share keys and values."""
    size = _intermediate_size(config, family, source)
    name = "use_double_wide_mlp"
    wide = 1 + (name in family.reads and bool(config.get(name, family.default(name))))
    return (size,) * cached + (wide * size,) * (layers - cached)


def _intermediate_size(config: dict[str, Any], family: Family, source: str) -> int:
    """The size of the MLP. LFM2 states one from which the size is computed (`block_auto_adjust_ff_dim`)."""
    numbers = Fields(config, source)
    if "block_ff_dim" not in family.reads:
        return numbers.size(family.intermediate_field)
    size = numbers.size(family.intermediate_field if config.get("block_ff_dim") is None else "block_ff_dim")
    if not config.get("block_auto_adjust_ff_dim", True):
        return size
    size = 2 * size // 3
    if config.get("block_ffn_dim_multiplier", 1.0) is None:
        return size
    multiple = numbers.size("block_multiple_of", 256)
    return -(-int(numbers.number("block_ffn_dim_multiplier", 1.0) * size) // multiple) * multiple


def _delta_config(config: dict[str, Any], family: Family, source: str) -> DeltaConfig:
    """The sizes of linear attention."""

    def size(name: str) -> int:
        return Fields(config, source).size(f"linear_{name}", family.default(f"linear_{name}"))

    keys, values = size("num_key_heads"), size("num_value_heads")
    if values % keys:
        raise CheckpointError(
            f"{source}: linear_num_value_heads must be a multiple of linear_num_key_heads ({keys}), not {values}"
        )
    if not 2 <= (taps := size("conv_kernel_dim")) <= MOST_TAPS:
        raise CheckpointError(f"{source}: linear_conv_kernel_dim must be from 2 to {MOST_TAPS}, not {taps}")
    return DeltaConfig(keys, values, size("key_head_dim"), size("value_head_dim"), taps)


def _layer_types(config: dict[str, Any], family: Family, layers: int, source: str) -> list[str]:
    """`full_attention`, `sliding_attention`, `conv` or `linear_attention` for each layer, as in transformers."""
    full, sliding = "full_attention", "sliding_attention"
    found = config.get("layer_types")
    if found is not None and family.layer_types:
        found = [full if kind == "attention" else kind for kind in found] if isinstance(found, list) else [found]
        others = {
            sliding: family.sliding != "none",
            CONVOLUTION: family.convolutions,
            LINEAR_ATTENTION: family.linear_attention,
        }
        known = (full, *(kind for kind, has in others.items() if has))
        if len(found) != layers or not all(kind in known for kind in found):
            raise CheckpointError(
                f"{source}: layer_types {config['layer_types']!r:.80} is not supported ({' and '.join(known)}, one for "
                f"each of {layers} layers, are)"
            )
        # As in transformers, the last layer of Gemma 4 has full attention in any case.
        return [*found[:-1], full] if "global_head_dim" in family.reads else found
    if "full_attn_idxs" in family.reads:
        attending = config.get("full_attn_idxs", list(range(layers)))
        if not isinstance(attending, list) or not all(type(i) is int and 0 <= i < layers for i in attending):
            raise CheckpointError(
                f"{source}: full_attn_idxs must be a list of numbers from 0 to {layers - 1}, not {attending!r:.80}"
            )
        return [full if i in attending else CONVOLUTION for i in range(layers)]
    if family.linear_attention:
        every = Fields(config, source).size("full_attention_interval", family.default("full_attention_interval"))
        return [LINEAR_ATTENTION if (i + 1) % every else full for i in range(layers)]
    if family.sliding == "from":
        first = Fields(config, source).size("max_window_layers", 28) if config.get("max_window_layers") != 0 else 0
        return [sliding if config.get("use_sliding_window") and i >= first else full for i in range(layers)]
    if family.sliding == "without rotary":
        asked = config.get("use_sliding_window")
        return [full if turned or not asked else sliding for turned in _turned(config, family, layers, source)]
    if family.sliding == "lfm3":
        return [full if i % 4 == 2 else sliding if i % 4 == 0 and i > 0 else CONVOLUTION for i in range(layers)]
    if family.sliding == "pattern":  # in Gemma 4 the last layer always has full attention
        every = Fields(config, source).size("sliding_window_pattern", family.default("sliding_window_pattern"))
        last = layers - 1 if "global_head_dim" in family.reads else layers
        return [sliding if (i + 1) % every and i != last else full for i in range(layers)]
    return [sliding if family.sliding == "all" else full] * layers


def _window(config: dict[str, Any], family: Family, source: str) -> int | None:
    """The size of the sliding window; null means none, and a missing one is the family's."""
    size = config.get("sliding_window", family.default("sliding_window"))
    # As in transformers: SmolLM3's layer_types apply without use_sliding_window, Qwen's do not.
    asks = family.sliding == "from" or (family.sliding == "without rotary" and config.get("layer_types") is None)
    if size is None or (asks and not config.get("use_sliding_window")):
        return None
    return Fields({"sliding_window": size}, source).size("sliding_window")


def _rotaries(
    config: dict[str, Any],
    family: Family,
    kinds: list[str],
    longest: int,
    head_dim: int,
    head_dims: tuple[int, ...],
    source: str,
) -> tuple[tuple[Rotary, ...], tuple[int, ...]]:
    """The rotary embeddings of a model, and for each layer the index of its own."""
    theta, local = family.default("rope_theta"), family.default("rope_local_base_freq")
    own = family.default("rope_parameters") or {}
    by_type: dict[str, Rotary] = {}
    if local is not None:
        by_type = local_and_global(config, longest, head_dim, source, theta, local)
    elif "full_attention" in own:
        stated = config.get("rope_parameters") or config.get("rope_scaling")
        config = config if stated else {**config, "rope_parameters": own}
        by_type = by_layer_type(config, dict(zip(kinds, head_dims, strict=True)), longest, source, theta)
        by_type[CONVOLUTION] = Rotary(theta, None, 0, 0)
    if by_type:
        used = [kind for kind in by_type if kind in kinds]
        return tuple(by_type[kind] for kind in used), tuple(used.index(kind) for kind in kinds)
    defaults = {name: family.default(name) for name in ("original_max_position_embeddings", "partial_rotary_factor")}
    if not config.get("rope_scaling"):  # which would replace them
        defaults["rope_parameters"] = family.default("rope_parameters")
    missing = {name for name, default in defaults.items() if default is not None and config.get(name) is None}
    config = {**config, **{name: defaults[name] for name in missing}}
    config = with_ntk_alpha(config, head_dim, source, theta) if family.rotary_alpha else config
    rotary = rotary_of(config, longest, head_dim, source, theta, family.partial_rotary)
    without_rotary = {CONVOLUTION, LINEAR_ATTENTION}
    if not family.full_rotary and _window(config, family, source) is not None:
        without_rotary.add("full_attention")
    turned = [
        each and kind not in without_rotary
        for each, kind in zip(_turned(config, family, len(kinds), source), kinds, strict=True)
    ]
    none = replace(rotary, scaling=None, size=0, frequency_dim=0)
    if all(turned):
        return (rotary,), (0,) * len(kinds)
    return ((rotary, none), tuple(int(not each) for each in turned)) if any(turned) else ((none,), (0,) * len(kinds))


def _turned(config: dict[str, Any], family: Family, layers: int, source: str) -> list[bool]:
    """Whether each layer has a rotary embedding."""
    turned = [True] * layers
    if "no_rope_layers" in family.reads:  # 1 means that a layer has a rotary embedding, as in transformers
        every = Fields(config, source).size("no_rope_layer_interval", 4)
        found = config.get("no_rope_layers")
        turned = [bool((i + 1) % every) for i in range(layers)] if found is None else list(map(bool, found))
        if len(turned) != layers:
            raise CheckpointError(f"{source}: no_rope_layers must have an entry for each of {layers} layers")
    if "position_embedding_type" in family.reads and config.get("position_embedding_type") != "rope":
        turned = [False] * layers
    return turned


@dataclass(frozen=True, slots=True)
class _Multipliers:
    """Factors of embeddings, attention scores and residual additions, and the divisor of logits."""

    embedding: float
    attention: float
    residual: float
    logits: float

    @classmethod
    def of(
        cls, config: dict[str, Any], family: Family, hidden: int, layers: int, head_dim: int, source: str
    ) -> _Multipliers:
        numbers = Fields(config, source)
        if "hidden_size_per_layer_input" in family.reads:  # Gemma 4
            return cls(math.sqrt(hidden), 1.0, 1.0, 1.0)
        if "query_pre_attn_scalar" in family.reads:  # Gemma
            scalar = numbers.number("query_pre_attn_scalar", family.default("query_pre_attn_scalar"))
            return cls(math.sqrt(hidden), scalar**-0.5, 1.0, 1.0)
        if set(MINICPM_SCALES) <= set(family.reads):
            embedding, depth, base = (numbers.number(name, family.default(name)) for name in MINICPM_SCALES)
            return cls(embedding, head_dim**-0.5, depth / math.sqrt(layers), hidden / base)
        if not set(MULTIPLIERS) <= set(family.reads):
            return cls(1.0, head_dim**-0.5, 1.0, 1.0)
        return cls(*(numbers.number(name, family.default(name)) for name in MULTIPLIERS))


def token_word(entry: Any) -> str | None:
    """A special token in tokenizer_config.json: a string, or an object with `content`. None for anything else."""
    word = entry.get("content") if isinstance(entry, dict) else entry
    return word if isinstance(word, str) else None


def named_token_ids(folder: Path, vocab_size: int) -> dict[str, int | None]:
    """Ids of the `bos_token` and `eos_token` in the tokenizer's settings; None for those that are null.

    As in transformers, special_tokens_map.json takes precedence over tokenizer_config.json, unless the latter has an
    `added_tokens_decoder`. Missing names and words that are not tokens of the model are omitted.
    """
    config = read_object(folder / "tokenizer_config.json")
    if "added_tokens_decoder" not in config:
        config |= read_object(folder / "special_tokens_map.json")
    words = {name: token_word(config[name]) for name in ("bos_token", "eos_token") if name in config}
    if not words:
        return {}
    decoder = config.get("added_tokens_decoder")
    known: dict[str | None, int | None] = {None: None}
    if isinstance(decoder, dict):
        known |= {token_word(entry): int(number) for number, entry in decoder.items() if number.isdecimal()}
    if not known.keys() >= set(words.values()):
        known |= _tokens(folder / "tokenizer.json", set(words.values()))
    ids = {name: known[word] for name, word in words.items() if word in known}
    return {name: number for name, number in ids.items() if number is None or number < vocab_size}


def _tokens(path: Path, words: Set[str | None]) -> dict[str | None, int | None]:
    """Ids of those words that a tokenizer has; empty if the file is unreadable, which the tokenizer's loader
    reports."""
    try:
        tokenizer = json.loads(path.read_bytes())
        vocab = tokenizer["model"]["vocab"]
        numbered = vocab.items() if isinstance(vocab, dict) else ((piece, n) for n, (piece, _) in enumerate(vocab))
        found: dict[str | None, int | None] = {word: int(number) for word, number in numbered if word in words}
        return found | {str(entry["content"]): int(entry["id"]) for entry in tokenizer["added_tokens"]}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}


@dataclass(frozen=True, slots=True)
class StreamConfig:
    """Settings of the speculative streams (Speculative Streaming, section 3) and of this project's additions.

    Attributes:
        adapter_alpha: scale of the streams' adapters is adapter_alpha / adapter_rank.
        base_rank: rank of adapters on all rows of the top `base_layers` layers (shared mode, or a tuned base under a
            lossless adapter); they are merged into the base's weights when an adapter is loaded to run.
        base_alpha: their scale is base_alpha / base_rank.
        heads: a kind of `HEADS` in place of streams (model/heads.py); they have no layers (num_msa_layers 0). Empty:
            streams.
        head_size: a size of the heads; its meaning depends on the kind.
    """

    num_streams: int = option(4, "Streams per token (gamma).", STREAMS, least=1, most=8, common=True)
    num_msa_layers: int = option(8, "Top layers with streams (Ns).", STREAMS, least=0, common=True)
    adapter_rank: int = option(12, "Rank of the low-rank adapters that only streams use; 0: none.", STREAMS, least=0)
    adapter_alpha: float = 24.0
    parent_rank: int = option(
        32, "Rank of the parent term, which conditions a candidate on its parent in the tree; 0: off.", STREAMS, least=0
    )
    pruner_rank: int = option(8, "Rank of the pruner's early exit; 0: no pruner.", STREAMS, least=0)
    pruner_score: PrunerScore = option(
        "sigmoid",
        "The pruner's score: sigmoid of the child's own logit, or softmax over the vocabulary (the paper).",
        STREAMS,
    )
    eta_rank: int = option(
        0,
        "Rank of the update to the streams' initial map (eq. 3 of the paper); 0: the identity only.",
        STREAMS,
        least=0,
    )
    next_token_rank: int = option(
        0,
        "Rank of the conditioning of streams on the next token, which only a deferred pass knows; 0: none.",
        STREAMS,
        least=0,
    )
    value_rotation: float = option(
        0.0, "Rotation per stream in radians, instead of stream embeddings; 0: off.", STREAMS
    )
    stream_vocab_size: int = option(0, "Tokens that streams may propose; 0: all.", STREAMS, least=0)
    base_rank: int = option(0, "Rank of the base's low-rank adapters; 24 with --mode shared or base.", STREAMS, least=0)
    base_layers: int = option(
        0, "Top layers with low-rank adapters of the base; 12 with --mode shared or base.", STREAMS, least=0
    )
    base_alpha: float = 48.0
    heads: str = ""
    head_size: int = 0

    def __post_init__(self) -> None:
        for setting in fields(self):
            kind: Any = {"float": (int, float), "int": int}.get(str(setting.type))
            value = getattr(self, setting.name)
            if kind and (not isinstance(value, kind) or isinstance(value, bool) or not -math.inf < value < math.inf):
                raise OptionError(f"{flag_of(setting.name)} must be a number, not {value!r}")
        if any(getattr(self, name) for name in _SIZES):  # else a base model alone, tuned or not
            check(self)
            if self.heads:
                self._check_heads()
            elif self.num_msa_layers < 1:
                raise OptionError(f"--num-msa-layers must be at least 1, not {self.num_msa_layers}")
        if bool(self.base_rank) != bool(self.base_layers):
            raise OptionError(
                f"--base-rank and --base-layers go together, both 0 or both positive, not {self.base_rank} and "
                f"{self.base_layers}"
            )

    def _check_heads(self) -> None:
        if self.heads not in HEADS:
            known = f"one of {', '.join(HEADS)}, or empty" if HEADS else "empty"
            raise ValueError(
                f"heads must be {known} for streams, not {self.heads!r}; heads of other methods need `streamfuse "
                "research`"
            )
        ranks = ("eta_rank", "next_token_rank", "adapter_rank", "pruner_rank", "base_rank")
        for name in ("num_msa_layers", *ranks, "value_rotation"):
            if getattr(self, name):
                raise ValueError(f"{name} must be 0 with heads, which begin after the last layer")
        if self.head_size < HEADS[self.heads].LEAST_SIZE:
            raise ValueError(f"head_size of {self.heads} heads cannot be {self.head_size}")

    @classmethod
    def without(cls, **tuning: Any) -> StreamConfig:
        """The settings of a base model without streams; `tuning` are settings of low-rank products that tune it."""
        return cls(num_streams=0, num_msa_layers=0, adapter_rank=0, parent_rank=0, pruner_rank=0, **tuning)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> StreamConfig:
        """The settings from `to_json`. ValueError if a value is out of range, TypeError for an unknown field."""
        return cls(**dict(json.loads(text, parse_constant=refuse_constant)))
