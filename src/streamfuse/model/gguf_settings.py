"""Reads the metadata of a GGUF as a Hugging Face `config.json`, and finds the files of a split GGUF.

Every field of the architecture is either read, or known to have no effect, or rejected by name. Missing fields have
llama.cpp's defaults, except `minicpm.logit_scale`.
"""

from __future__ import annotations

import re
import struct
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import gguf_gemma4, gguf_linear
from .families import ARCHITECTURES as HF_ARCHITECTURES
from .fields import ADD_A_FAMILY, CheckpointError, CheckpointWarning, Fields

# The version of what gguf.py makes of a file, in its source.json. A correction raises it, so that files which were
# converted before are converted again.
CONVERSION = 2
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2vl": "Qwen2ForCausalLM",  # the language model; the vision encoder is in a separate mmproj file
    "qwen3": "Qwen3ForCausalLM",
    "qwen3vl": "Qwen3ForCausalLM",
    "mistral3": "Ministral3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "granite": "GraniteForCausalLM",
    "minicpm": "MiniCPMForCausalLM",
    "hunyuan-dense": "HunYuanDenseV1ForCausalLM",
    "ernie4_5": "Ernie4_5ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "gemma4": "Gemma4ForCausalLM",
    "olmo2": "Olmo2ForCausalLM",  # with a window: OLMo 3
    "exaone4": "Exaone4ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "qwen35": "Qwen3_5ForCausalLM",
}
_NO_ROPE_INTERVAL = 4  # of smollm3 in llama.cpp; a GGUF does not have it
_GRANITE_SCALES = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
# What llama.cpp assumes for gemma3: each sixth layer attends to the whole context, the others have their own rotary
# frequencies.
_GEMMA_PATTERN, _GEMMA_LOCAL_BASE = 6, 10000.0
_GEMMA_27B_LAYERS = 62  # its attention's scale is not that of the head's size
_OLMO_3_PATTERN = _EXAONE_PATTERN = 4
_EXAONE_32B_LAYERS, _EXAONE_32B_WINDOW = 64, 4096
_WINDOWS = {"attention.sliding_window", "attention.sliding_window_pattern"}
_SECTIONS = "rope.dimension_sections"  # of M-RoPE; for text, the positions of all sections are equal
_OWN_READ = {
    "granite": set(_GRANITE_SCALES),
    "minicpm": {"embedding_scale", "residual_scale", "logit_scale", "rope.scaling.attn_factor"},
    "gemma3": {*_WINDOWS, "rope.freq_base_swa"},
    "gemma4": gguf_gemma4.READ,
    "olmo2": {*_WINDOWS, "rope.freq_base_swa"},
    "exaone4": {*_WINDOWS, "rope.freq_base_swa"},
    "mistral3": {"attention.temperature_scale", "rope.scaling.yarn_log_multiplier"},
    "phi3": {"attention.sliding_window", "rope.dimension_count", "rope.scaling.attn_factor"},
    "lfm2": {"shortconv.l_cache"},
    "ernie4_5": {_SECTIONS},
    "qwen2vl": {_SECTIONS},
    "qwen3vl": {_SECTIONS, "n_deepstack_layers"},
    "qwen35": {_SECTIONS, "rope.dimension_count", "nextn_predict_layers", *gguf_linear.READ},
}
# Where converters write YaRN's attention_factor: the current key, and one meant for LongRoPE, which older ones used.
_YARN_FACTORS = ("yarn_attn_factor", "attn_factor")
LONGROPE = ("phi3", "minicpm")  # architectures that can have tensors with the factors of LongRoPE
_OWN_SAYS = {"granite": {"rope.scaling.finetuned"}}  # fields that have an effect in this family alone
NORMAL, CONTROL = 1, 3  # types of tokens
_LARGEST_FLOAT32 = 3.4e38
# Words that end a turn, for files without the field that names the token.
_TURN_ENDS = ("<end_of_turn>", "<turn|>", "<|im_end|>", "<|eot_id|>", "<|end|>")
_SPLIT = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
# Fields below the architecture's name that are read, or that have no effect in these families.
_READ = {
    "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.layer_norm_rms_epsilon",
    "block_count", "context_length", "embedding_length", "feed_forward_length", "rope.freq_base",
    "rope.scale_linear", "rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.type",
    "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
}  # fmt: skip
_SAYS_NOTHING = {
    "attention.layer_norm_epsilon", "expert_used_count", "pooling_type", "rope.scaling.finetuned",
    "tensor_data_layout", "use_parallel_residual", "vocab_size",
}  # fmt: skip


class Metadata:
    """The metadata of a GGUF; a missing field is an error that names it."""

    def __init__(self, values: dict[str, Any], path: Path) -> None:
        self.values, self.path = values, path

    def __getitem__(self, name: str) -> Any:
        if name not in self.values:
            raise CheckpointError(f"{self.path}: field {name!r} is missing")
        return self.values[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self.values.get(name, default)

    def token(self, kind: str) -> int | None:
        """The id of a special token (`bos`, `eos`, `unknown`); None if the file has none.

        Raises:
            CheckpointError: it is not one of the file's tokens.
        """
        name = f"tokenizer.ggml.{kind}_token_id"
        found, count = self.get(name), len(self["tokenizer.ggml.tokens"])
        if found is not None and not (isinstance(found, int) and 0 <= found < count):
            raise CheckpointError(
                f"{self.path}: field {name!r} is {found!r:.40}, and the file has {count} tokens, numbered from 0; copy "
                "or download it again, or convert the model again with a current llama.cpp (convert_hf_to_gguf.py)"
            )
        return found


def is_part(path: Path) -> bool:
    """Whether a file is named as a part of a split GGUF."""
    return _SPLIT.fullmatch(path.name) is not None


def gguf_files(path: Path) -> list[Path]:
    """The files of a GGUF, first part first: all parts of a split one (NAME-00001-of-00004.gguf), else the file alone.

    Raises:
        CheckpointError: a part is missing.
    """
    found = _SPLIT.fullmatch(path.name)
    if found is None:
        return [path]
    count = int(found[3])
    parts = [path.with_name(f"{found[1]}-{i + 1:05d}-of-{count:05d}.gguf") for i in range(count)]
    if missing := [part.name for part in parts if not part.is_file()]:
        raise CheckpointError(
            f"{path}: one of {count} parts of a split GGUF, and {', '.join(missing[:3])} is not in its folder; "
            "put all parts there"
        )
    return parts or [path]


def check_whole(fields: Metadata, files: int) -> None:
    """CheckpointError if a GGUF is not a language model, or its number of parts differs from its metadata."""
    path, count = fields.path, fields.get("split.count", 0) or 1
    if count != files:
        raise CheckpointError(
            f"{path}: one of {count} parts of a split GGUF (split.count), but {files} was found; put all into one "
            f"folder, named NAME-00001-of-{count:05d}.gguf and so on, or merge them (llama-gguf-split --merge)"
        )
    if (kind := fields.get("general.type", "model")) != "model":
        raise CheckpointError(f"{path}: general.type {kind!r} is not a language model; use the model's own GGUF")


def hf_architecture(fields: Metadata) -> str:
    """The architecture in Hugging Face's config.json."""
    architecture = fields["general.architecture"]
    if architecture == "olmo2" and fields.get("olmo2.attention.sliding_window"):
        return "Olmo3ForCausalLM"
    return ARCHITECTURES[architecture]


def config_of(fields: Metadata) -> dict[str, Any]:
    """The `config.json`, except for what depends on the tensors (vocab_size, tie_word_embeddings, attention_bias).

    Raises:
        CheckpointError: a field is missing or not supported.
    """
    architecture = fields["general.architecture"]
    if architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise CheckpointError(
            f"{fields.path}: architecture {architecture!r} is not supported; supported are {known}; {ADD_A_FAMILY}"
        )

    def get(key: str, default: Any = None) -> Any:
        return _one(fields, f"{architecture}.{key}", default)

    def size(key: str, default: int | None = None) -> int:
        name = f"{architecture}.{key}"
        return Fields({name: _one(fields, name, default)}, str(fields.path)).size(name)

    heads, hidden = size("attention.head_count"), size("embedding_length")
    head_dim = size("attention.key_length", max(hidden // heads, 1))
    _check_others(fields, architecture, head_dim)
    layers = size("block_count")
    if get("nextn_predict_layers"):  # layers after the model's own, which predict one more token
        layers -= size("nextn_predict_layers")
        if layers < 1:
            raise CheckpointError(f"{fields.path}: {architecture}.nextn_predict_layers must be below block_count")
    return {
        "architectures": [hf_architecture(fields)],
        "model_type": HF_ARCHITECTURES[hf_architecture(fields)],
        "hidden_size": hidden,
        "intermediate_size": _mlp_size(fields, architecture),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": _kv_heads(fields, architecture, heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": decimal(get("attention.layer_norm_rms_epsilon", 1e-6)),
        "rope_theta": decimal(get("rope.freq_base", 10000.0)),
        "rope_scaling": _rope_scaling(fields, architecture),
        "max_position_embeddings": get("context_length", 2048),
        "bos_token_id": fields.token("bos"),
        "eos_token_id": _ends(fields),
        **_own_settings(architecture, head_dim, hidden, heads, layers, fields),
    }


def _own_settings(
    architecture: str, head_dim: int, hidden: int, heads: int, layers: int, fields: Metadata
) -> dict[str, Any]:
    """Settings that only some architectures have."""

    def get(key: str, default: Any = None) -> Any:
        return _one(fields, f"{architecture}.{key}", default)

    if architecture == "smollm3":
        return {"no_rope_layer_interval": _NO_ROPE_INTERVAL}
    if architecture == "gemma3":
        window = get("attention.sliding_window") or None
        pattern = fields.get("gemma3.attention.sliding_window_pattern", _GEMMA_PATTERN)
        return {
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": hidden // max(heads, 1) if layers == _GEMMA_27B_LAYERS else head_dim,
            "rope_local_base_freq": decimal(get("rope.freq_base_swa", _GEMMA_LOCAL_BASE)),
            "sliding_window": window,
            "layer_types": _layer_types(pattern, window, layers),
        }
    if architecture == "gemma4":
        if _rope_scaling(fields, architecture) is not None:
            raise CheckpointError(f"{fields.path}: field 'gemma4.rope.scaling.type' is not supported")
        return gguf_gemma4.settings_of(fields.values, str(fields.path), layers, head_dim)
    if architecture == "exaone4" or hf_architecture(fields) == "Olmo3ForCausalLM":
        exaone = architecture == "exaone4"
        usual_window = _EXAONE_32B_WINDOW if exaone and layers == _EXAONE_32B_LAYERS else None
        window = get("attention.sliding_window", usual_window) or None
        usual = _EXAONE_PATTERN if exaone else _OLMO_3_PATTERN
        pattern = fields.get(f"{architecture}.attention.sliding_window_pattern", usual)
        windows = {"sliding_window": window, "layer_types": _layer_types(pattern, window, layers)}
        base = get("rope.freq_base", 10000.0)
        local = get("rope.freq_base_swa", base)
        if not exaone:
            return {**windows, "rope_local_base_freq": decimal(local)}
        if window and local != base:  # only layers with a window have a rotary embedding
            return {**windows, "rope_theta": decimal(local)}
        return windows
    if architecture == "mistral3":
        return _ministral_rope(fields)
    if architecture == "minicpm":
        # Older files lack these keys: MiniCPM 2B's values. llama.cpp's default for logit_scale, 256 / n_embd, is the
        # inverse of what the converter writes.
        scale = get("logit_scale", hidden / 256)
        if not scale:
            raise CheckpointError(f"{fields.path}: field 'minicpm.logit_scale' must not be 0")
        return {
            "scale_emb": decimal(get("embedding_scale", 12.0)),
            "scale_depth": _six_digits(get("residual_scale", 1.4 / layers**0.5) * layers**0.5),
            "dim_model_base": _six_digits(hidden / scale),
            "original_max_position_embeddings": get("rope.scaling.original_context_length"),
        }
    if architecture == "qwen35":
        turned = Fields(fields.values, str(fields.path)).size("qwen35.rope.dimension_count", head_dim) / head_dim
        own = gguf_linear.settings_of(fields.values, str(fields.path), architecture, layers)
        return {"partial_rotary_factor": turned, **own}
    if architecture == "phi3":
        return {
            "partial_rotary_factor": get("rope.dimension_count", head_dim) / head_dim,
            "original_max_position_embeddings": get("rope.scaling.original_context_length"),
            "sliding_window": get("attention.sliding_window") or None,
        }
    if architecture == "lfm2":  # a layer without heads of keys is a convolution
        kv_heads = fields.get("lfm2.attention.head_count_kv")
        kv_heads = kv_heads if isinstance(kv_heads, list) else [1] * layers
        if len(kv_heads) != layers:
            raise CheckpointError(
                f"{fields.path}: field 'lfm2.attention.head_count_kv' has {len(kv_heads)} numbers, and the file "
                f"{layers} layers; copy or download it again"
            )
        return {
            "norm_eps": decimal(get("attention.layer_norm_rms_epsilon", 1e-5)),
            "conv_L_cache": fields["lfm2.shortconv.l_cache"],
            "block_auto_adjust_ff_dim": False,
            "layer_types": ["full_attention" if count else "conv" for count in kv_heads],
        }
    if architecture != "granite":
        return {}
    none = {"attention.scale": head_dim**-0.5}  # a scale that is missing or 0 has no effect
    return {field: decimal(get(key) or none.get(key, 1.0)) for key, field in _GRANITE_SCALES.items()}


def _mlp_size(fields: Metadata, architecture: str) -> int:
    """The size of the MLPs; of Gemma 4, that of the first layer (gguf_gemma4.py)."""
    name = f"{architecture}.feed_forward_length"
    value = fields.get(name)
    first = value[0] if architecture == "gemma4" and isinstance(value, list) and value else value
    return Fields({name: _one(Metadata({name: first}, fields.path), name, None)}, str(fields.path)).size(name)


def _kv_heads(fields: Metadata, architecture: str, heads: int) -> int:
    """The heads of keys in a layer with attention; a file of lfm2 has 0 for the other layers."""
    name = f"{architecture}.attention.head_count_kv"
    value = fields.get(name, heads)
    if architecture == "lfm2" and isinstance(value, list):
        value = [count for count in value if count] or heads
    return int(_one(Metadata({name: value}, fields.path), name, heads))


def _ministral_rope(fields: Metadata) -> dict[str, Any]:
    """The rotary embedding of Ministral 3, and of Mistral models without its scaling of queries."""
    scaling = _rope_scaling(fields, "mistral3")
    if scaling is None:
        theta = decimal(fields.get("mistral3.rope.freq_base", 10000.0))
        return {"rope_parameters": {"rope_type": "default", "rope_theta": theta}}
    if weight := fields.get("mistral3.rope.scaling.yarn_log_multiplier"):
        scaling |= {"mscale": 1.0, "mscale_all_dim": decimal(weight)}
    if beta := fields.get("mistral3.attention.temperature_scale"):
        scaling["llama_4_scaling_beta"] = decimal(beta)
    return {"rope_scaling": scaling}


def longrope_of(fields: Metadata, short_factors: list[float]) -> dict[str, Any]:
    """The RoPE scaling of a file with these divisors of the frequencies, for contexts of the trained length."""
    factor = fields.get(f"{fields['general.architecture']}.rope.scaling.attn_factor", 1.0)
    return {"rope_type": "longrope", "short_factor": short_factors, "attention_factor": decimal(factor)}


def _layer_types(pattern: int | list[bool], window: int | None, layers: int) -> list[str]:
    """The pattern is whether each layer has a window, or which layers have none: each one of so many."""
    has = pattern if isinstance(pattern, list) else [bool((i + 1) % max(pattern, 1)) for i in range(layers)]
    return ["sliding_attention" if window and each else "full_attention" for each in has]


def _ends(fields: Metadata) -> list[int]:
    """The tokens that end an answer: end of text, of turn and of message, as in llama.cpp."""
    tokens = fields["tokenizer.ggml.tokens"]
    turn = fields.get("tokenizer.ggml.eot_token_id")
    if turn is None:
        turn = next((tokens.index(word) for word in _TURN_ENDS if word in tokens), None)
    ends = [_end_of_text(fields), turn, fields.get("tokenizer.ggml.eom_token_id")]
    return list(dict.fromkeys(end for end in ends if end is not None and end < len(tokens)))


def _end_of_text(fields: Metadata) -> int:
    """`eos_token_id`; or `eot_token_id`, with a warning, if the former is an ordinary token (files of Hunyuan 7B have
    3, which is "$")."""
    if (eos := fields.token("eos")) is None:
        raise CheckpointError(f"{fields.path}: field 'tokenizer.ggml.eos_token_id' is missing")
    types, turn = fields.get("tokenizer.ggml.token_type") or [], fields.get("tokenizer.ggml.eot_token_id")
    if turn is None or not max(eos, turn) < len(types) or (types[eos], types[turn]) != (NORMAL, CONTROL):
        return eos
    words = fields["tokenizer.ggml.tokens"]
    warnings.warn(
        f"{fields.path}: tokenizer.ggml.eos_token_id is {words[eos]!r}, an ordinary token; eot_token_id, "
        f"{words[turn]!r}, is used instead",
        CheckpointWarning,
        stacklevel=2,
    )
    return int(turn)


def sampling_of(fields: Metadata) -> dict[str, Any]:
    """The sampling settings for `generation_config.json`; empty if the file has none. Missing settings have llama.cpp's
    defaults."""
    usual = {"temp": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "penalty_repeat": 1.0}
    names = {"temp": "temperature", "penalty_repeat": "repetition_penalty"}
    given = {key: fields.get(f"general.sampling.{key}") for key in usual}
    if all(value is None for value in given.values()):
        return {}
    found = {key: usual[key] if value is None else value for key, value in given.items()}
    sampling = {names.get(key, key): decimal(value) for key, value in found.items()}
    return {"do_sample": sampling["temperature"] > 0, **sampling, "top_k": max(0, int(found["top_k"]))}


def decimal(value: float) -> float:
    """The value in the original config: the shortest decimal that rounds to the float32 in the file."""
    if abs(value) > _LARGEST_FLOAT32:  # stored as float64
        return value
    wanted = struct.pack("f", value)
    found = (float(f"{value:.{digits}g}") for digits in range(6, 9))
    return next((number for number in found if struct.pack("f", number) == wanted), float(f"{value:.9g}"))


def _six_digits(value: float) -> float:
    """A number that is computed from float32 ones, without their rounding errors."""
    return float(f"{value:.6g}")


def _one(fields: Metadata, name: str, default: Any) -> Any:
    """A number that may be stored per layer, but must be the same in all layers."""
    value = fields.get(name, default)
    if not isinstance(value, list):
        return value
    if len(set(value)) != 1:
        raise CheckpointError(f"{fields.path}: field {name!r} differs from layer to layer, which is not supported")
    return value[0]


def _check_others(fields: Metadata, architecture: str, head_dim: int) -> None:
    """Reject fields of the architecture that are not read and affect results."""
    neutral: Mapping[str, tuple[Any, ...]] = {
        "attention.causal": (True,),
        "attention.scale": (0.0, head_dim**-0.5),
        "attention.value_length": (head_dim,),
        "embedding_scale": (0.0, 1.0),
        "logit_scale": (0.0, 1.0),
        "residual_scale": (0.0, 1.0),
        "rope.dimension_count": (head_dim,),
        "rope.scaling.finetuned": (True,),  # of granite; false: its layers have no rotary embedding
        "rope.scaling.attn_factor": (1.0,),
        "rope.scaling.yarn_attn_factor": (1.0,),
        "rope.scaling.yarn_ext_factor": (1.0, -1.0),
    }
    yarn = fields.get(f"{architecture}.rope.scaling.type") == "yarn"
    for name, value in fields.values.items():
        owner, _, key = name.partition(".")
        if owner != architecture or key in _READ or key in _SAYS_NOTHING - _OWN_SAYS.get(architecture, set()):
            continue
        if key in _OWN_READ.get(architecture, ()):
            continue
        if yarn and key.removeprefix("rope.scaling.") in _YARN_FACTORS:
            continue
        if key in neutral:
            own = _one(fields, name, value)
            fine = any(abs(own - number) <= 1e-6 * abs(number) for number in neutral[key])
        else:
            fine = value in (0, "") or (isinstance(value, list) and not any(value))
        if not fine:
            raise CheckpointError(f"{fields.path}: field {name!r} is {value!r:.60}, which is not supported")


def _rope_scaling(fields: Metadata, architecture: str) -> dict[str, Any] | None:
    """A factor without a type means linear scaling and has an older name."""

    def get(key: str, default: Any = None) -> Any:
        return fields.get(f"{architecture}.rope.{key}", default)

    kind, factor = get("scaling.type", "linear"), get("scaling.factor") or get("scale_linear") or 1.0
    if kind == "none" or (kind in ("linear", "yarn") and factor == 1.0):
        return None
    if kind == "longrope" and architecture in LONGROPE:  # tensors have its factors
        return None
    if kind not in ("linear", "yarn"):
        raise CheckpointError(f"{fields.path}: rope scaling {kind!r} is not supported (none, linear and yarn are)")
    scaling = {"rope_type": kind, "factor": decimal(factor)}
    if kind == "yarn":
        names = {"original_max_position_embeddings": "original_context_length", "beta_fast": "yarn_beta_fast",
                 "beta_slow": "yarn_beta_slow"}  # fmt: skip
        scaling |= {name: get(f"scaling.{key}") for name, key in names.items() if get(f"scaling.{key}")}
        # attention_factor of config.json, as the converter copied it. 1.0, llama.cpp's default, counts as missing.
        stated = (get(f"scaling.{key}") for key in _YARN_FACTORS)
        if factor := next((found for found in stated if found not in (None, 0.0, 1.0)), None):
            scaling["attention_factor"] = decimal(factor)
    return scaling
