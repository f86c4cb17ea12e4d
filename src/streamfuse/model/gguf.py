"""Converts GGUF files to Hugging Face folders, which are all that other parts of streamfuse read.

Weights are dequantized to float32 exactly as the format defines, so the folder has the GGUF's own values. The rows of q
and k projections, which some architectures store permuted for interleaved rotary embedding, are permuted back.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from streamfuse.digest import sha256_of
from streamfuse.durable import reason

from . import gguf_gemma4
from .families import FAMILIES
from .fields import ADD_A_FAMILY, CheckpointError
from .gguf_linear import LAYER_NAMES as LINEAR_NAMES
from .gguf_linear import WHOLE_NAMES, in_checkpoint
from .gguf_settings import (
    CONVERSION,
    LONGROPE,
    Metadata,
    check_whole,
    config_of,
    decimal,
    gguf_files,
    hf_architecture,
    longrope_of,
    sampling_of,
)
from .gguf_tokenizer import tokenizer_of
from .rope import rope_of, scaled_frequencies
from .shards import lfs_hint

FloatArray = npt.NDArray[np.float32]

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_AFTER = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
# What some architectures have besides, or have for something else.
_OWN_LAYER_NAMES = {
    "gemma3": {"ffn_norm": "pre_feedforward_layernorm", **_AFTER},
    "gemma4": gguf_gemma4.LAYER_NAMES,
    "olmo2": _AFTER,
    "exaone4": _AFTER,
    "hunyuan-dense": {"attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"},
    "lfm2": {
        "attn_norm": "operator_norm",
        "attn_output": "self_attn.out_proj",
        "attn_q_norm": "self_attn.q_layernorm",
        "attn_k_norm": "self_attn.k_layernorm",
        "shortconv.in_proj": "conv.in_proj",
        "shortconv.conv": "conv.conv",
        "shortconv.out_proj": "conv.out_proj",
        "ffn_norm": "ffn_norm",
        "ffn_gate": "feed_forward.w1",
        "ffn_up": "feed_forward.w3",
        "ffn_down": "feed_forward.w2",
    },
    "phi3": {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    "qwen35": LINEAR_NAMES,
}
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_OWN_TOP_NAMES = {
    "lfm2": {"token_embd_norm": "model.embedding_norm"},  # after the last layer, despite its name
    "gemma4": gguf_gemma4.TOP_NAMES,
}
_OWN_WHOLE_NAMES = {"gemma4": gguf_gemma4.WHOLE_NAMES, "qwen35": WHOLE_NAMES}
_CONVOLUTION = "shortconv.conv.weight"  # [h, L], in a checkpoint [h, 1, L]
PERMUTED = (
    "llama",
    "smollm3",
    "granite",
    "mistral3",
    "minicpm",
)  # architectures with rows of q and k in llama.cpp's own order
ROPE_FACTORS = "rope_freqs.weight"  # float32 [head_dim / 2]: divisors of the rotary embedding's frequencies
# The same for contexts within the trained length of LongRoPE, and for longer ones, which are not supported.
_SHORT_FACTORS, _LONG_FACTORS = "rope_factors_short.weight", "rope_factors_long.weight"
# The same for all models with llama3 scaling; a GGUF only has the resulting factors.
_LLAMA_3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


def convert(gguf_path: Path, out_dir: Path) -> None:
    """Write `config.json, model.safetensors (float32), tokenizer.json, tokenizer_config.json, generation_config.json,
    source.json` to `out_dir` (created).

    Raises:
        CheckpointError: the file is not a GGUF, or has an unsupported architecture, tokenizer or tensor.
    """
    from safetensors.numpy import save_file

    files = gguf_files(gguf_path)
    readers = [open_gguf(path) for path in files]
    values = {name: field.contents() for name, field in readers[0].fields.items() if not name.startswith("GGUF.")}
    fields = Metadata(values, gguf_path)
    check_whole(fields, len(files))
    config = config_of(fields)
    tokenizer = tokenizer_of(fields)
    tensors = _weights([tensor for reader in readers for tensor in reader.tensors], fields, config)
    config["attention_bias"] = _complete_biases(tensors, config)
    config["tie_word_embeddings"] = "lm_head.weight" not in tensors
    config["vocab_size"] = int(tensors["model.embed_tokens.weight"].shape[0])
    out_dir.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out_dir / "model.safetensors", metadata={"format": "pt"})
    _write(out_dir / "tokenizer.json", tokenizer, indent=None)  # every bundle has a copy of it
    _write(out_dir / "config.json", config)
    marks = {name: config[name] for name in ("eos_token_id", "bos_token_id")}
    _write(out_dir / "generation_config.json", {**marks, **sampling_of(fields)})
    _write(out_dir / "tokenizer_config.json", _tokenizer_config(fields, config, tokenizer["added_tokens"]))
    _write(out_dir / "source.json", _source(fields, files, out_dir))


def open_gguf(path: Path) -> Any:
    """A GGUF's reader. CheckpointError if the file is damaged, or none that can be read."""
    import gguf

    try:
        with path.open("rb") as file:
            start = file.read(8)
        version = int.from_bytes(start[4:], "little")
        if start[:4] == b"GGUF" and version and not version & 0xFFFF:  # a small number in the other byte order
            raise CheckpointError(
                f"{path}: a big-endian GGUF, which is not supported; `gguf-convert-endian {path.name} little` "
                "(of the Python package gguf) converts it"
            )
        if start[:4] != b"GGUF":
            raise CheckpointError(f"{path}: not a GGUF file: it does not begin with the letters GGUF{lfs_hint(start)}")
        if len(start) == 8 and version not in (2, 3):
            raise CheckpointError(
                f"{path}: version {version} of GGUF is not supported (2 and 3 are); convert the model again with a "
                "current llama.cpp (convert_hf_to_gguf.py)"
            )
        return gguf.GGUFReader(path)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({reason(error)})") from None
    except (ValueError, IndexError, KeyError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            f"{path}: incomplete or damaged ({path.stat().st_size} bytes; {error}); copy or download it again"
        ) from None


def _source(fields: Metadata, files: list[Path], out_dir: Path) -> dict[str, Any]:
    """Names the first part of a split GGUF; the hash is over all parts in order."""
    gguf_path = files[0]
    return {
        "kind": "gguf",
        "conversion": CONVERSION,
        "file": gguf_path.name,
        # The `..` of a path leave the folder that a link leads to, so links to folders are followed.
        "path": os.path.relpath(gguf_path.parent.resolve() / gguf_path.name, out_dir.resolve()),
        "sha256": sha256_of(files),
        "name": fields.get("general.name", gguf_path.stem),
        "license": fields.get("general.license"),
        "file_type": fields.get("general.file_type"),
    }


def _tokenizer_config(fields: Metadata, config: dict[str, Any], added: list[dict[str, Any]]) -> dict[str, Any]:
    """With the added tokens of tokenizer.json, so that the ids of special tokens are known without that large file."""
    tokens, bos = fields["tokenizer.ggml.tokens"], config["bos_token_id"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": fields.get("tokenizer.chat_template") or _named_templates(fields),
        "bos_token": None if bos is None else tokens[bos],
        "eos_token": tokens[config["eos_token_id"][0]],
        "model_max_length": config["max_position_embeddings"],
        "added_tokens_decoder": {
            str(token["id"]): {name: value for name, value in token.items() if name != "id"} for token in added
        },
    }


def _named_templates(fields: Metadata) -> list[dict[str, str]] | None:
    names = fields.get("tokenizer.chat_templates") or []
    return [{"name": name, "template": fields[f"tokenizer.chat_template.{name}"]} for name in names] or None


def _weights(found: list[Any], fields: Metadata, config: dict[str, Any]) -> dict[str, FloatArray]:
    """All tensors in float32 by their Hugging Face names; factors of RoPE scaling are added to `config`."""
    import gguf

    architecture, path = fields["general.architecture"], fields.path
    # llama.cpp permutes rows in some architectures; the others use the half-split rotary layout unchanged.
    permuted = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    # Norms of a GGUF contain the offset that the family adds to those of a checkpoint.
    norm_offset = FAMILIES[hf_architecture(fields)].norm_offset
    tensors = {}
    for tensor in found:
        if tensor.name == ROPE_FACTORS and architecture == "gemma4":
            share = gguf_gemma4.rotated_share(np.array(tensor.data, np.float64), config["global_head_dim"], path)
            config["rope_parameters"]["full_attention"]["partial_rotary_factor"] = share
            continue
        if tensor.name == ROPE_FACTORS:
            config["rope_scaling"] = _scaling_of(np.array(tensor.data, np.float64), config, path)
            continue
        if architecture in LONGROPE and tensor.name in (_SHORT_FACTORS, _LONG_FACTORS):
            if tensor.name == _SHORT_FACTORS:
                config["rope_scaling"] = longrope_of(fields, [decimal(factor) for factor in tensor.data])
            continue
        if _layer_of(tensor.name) >= config["num_hidden_layers"] and fields.get(f"{architecture}.nextn_predict_layers"):
            continue  # of a layer that predicts one more token (MTP) from the model's last hidden state
        name = tensor_name(tensor.name, architecture, path)
        try:
            weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        except NotImplementedError:
            raise CheckpointError(
                f"{path}: tensor {tensor.name!r} has the type {tensor.tensor_type.name}, which is not supported; take "
                "a GGUF of another type, for example Q4_K_M or Q8_0"
            ) from None
        part, kind = _part(tensor.name)
        if part.startswith("ffn_") and kind == "bias":
            raise CheckpointError(
                f"{path}: tensor {tensor.name!r} is a bias of the MLP, which is not supported; {ADD_A_FAMILY}"
            )
        if architecture in PERMUTED and part in permuted:
            weight = _unpermute(weight, permuted[part])
        if tensor.name.endswith(_CONVOLUTION):
            weight = weight[:, None]
        if ".linear_attn." in name:
            weight = in_checkpoint(name, weight, config, f"{path}: tensor {tensor.name!r}")
        elif norm_offset and tensor.name.endswith("_norm.weight"):
            weight = weight - np.float32(norm_offset)
        tensors[name] = np.ascontiguousarray(weight)
    if fields.get(f"{architecture}.rope.scaling.type") == "longrope" and config["rope_scaling"] is None:
        raise CheckpointError(f"{path}: tensor {_SHORT_FACTORS!r} is missing, the factors of LongRoPE")
    if architecture == "gemma4":
        if "partial_rotary_factor" not in config["rope_parameters"]["full_attention"]:
            raise CheckpointError(f"{path}: tensor {ROPE_FACTORS!r} is missing")
        for layer in range(config["num_hidden_layers"]):
            tensors.setdefault(f"model.layers.{layer}.layer_scalar", np.ones(1, np.float32))
    if "model.embed_tokens.weight" not in tensors:
        raise CheckpointError(f"{path}: tensor 'token_embd.weight' is missing")
    return tensors


def _complete_biases(tensors: dict[str, FloatArray], config: dict[str, Any]) -> bool:
    """Whether the attention has biases: all four of a layer, as in transformers; missing ones are added as zeros.

    Qwen2 has three of them, whatever its configuration is.
    """
    projections = ("q_proj", "k_proj", "v_proj", "o_proj")
    if config["model_type"] == "qwen2":
        return True
    if not any(name.endswith("_proj.bias") for name in tensors):
        return False
    for layer in range(config["num_hidden_layers"]):
        for name in (f"model.layers.{layer}.self_attn.{projection}" for projection in projections):
            if f"{name}.weight" in tensors and f"{name}.bias" not in tensors:
                tensors[f"{name}.bias"] = np.zeros(len(tensors[f"{name}.weight"]), np.float32)
    return True


def _scaling_of(factors: npt.NDArray[np.float64], config: dict[str, Any], path: Path) -> dict[str, Any] | None:
    """The RoPE scaling that gives these factors [head_dim / 2] in addition to the metadata."""
    declared: dict[str, Any] | None = config["rope_scaling"]
    theta, longest = config["rope_theta"], config["max_position_embeddings"]
    half = config["head_dim"] // 2
    inverse = theta ** (-np.arange(half, dtype=np.float64) / half)
    if factors.shape == (half,) and ((factors >= 1) & np.isfinite(factors)).all():
        llama3 = {"rope_type": "llama3", "factor": decimal(factors.max()), **_LLAMA_3}
        before, *wanted = (
            scaled_frequencies(inverse, theta, rope_of({"rope_scaling": scaling}, longest, str(path))[1])
            for scaling in (declared, declared, llama3)
        )
        for scaling, after in zip((declared, llama3), wanted, strict=True):
            expected = before / after
            if np.allclose(factors, expected, rtol=1e-4, atol=0):
                return scaling
    raise CheckpointError(
        f"{path}: {ROPE_FACTORS} has factors of an unsupported RoPE scaling (llama3 over "
        f"{_LLAMA_3['original_max_position_embeddings']} positions is supported); use the safetensors checkpoint"
    )


def tensor_name(name: str, architecture: str, path: Path) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    parts, names = name.split("."), _LAYER_NAMES | _OWN_LAYER_NAMES.get(architecture, {})
    part, kind = _part(name)
    whole = _OWN_WHOLE_NAMES.get(architecture, {}).get(".".join(parts[2:]))
    if whole is not None and _layer_of(name) >= 0:
        return f"model.layers.{parts[1]}.{whole}"
    if part in names:
        return f"model.layers.{parts[1]}.{names[part]}.{kind}"
    top = _TOP_NAMES | _OWN_TOP_NAMES.get(architecture, {})
    if len(parts) == 2 and parts[0] in top:
        return f"{top[parts[0]]}.{parts[1]}"
    raise CheckpointError(f"{path}: tensor {name!r} is of no supported model; {ADD_A_FAMILY}")


def _layer_of(name: str) -> int:
    """`blk.3.attn_q.weight` -> 3; -1 for a tensor that is of no layer."""
    block, _, rest = name.partition(".")
    layer = rest.partition(".")[0]
    return int(layer) if block == "blk" and layer.isdecimal() else -1


def _part(name: str) -> tuple[str, str]:
    """`blk.3.attn_q.weight` -> `attn_q`, `weight`; empty for a tensor that is of no layer."""
    part, _, kind = name.partition(".")[2].partition(".")[2].rpartition(".")
    return (part, kind) if _layer_of(name) >= 0 else ("", "")


def _unpermute(weight: FloatArray, num_heads: int) -> FloatArray:
    """Rows (head, pair, 2) of interleaved rotary embedding, permuted to (head, 2, pair) of the half-split layout."""
    shape = weight.shape
    return weight.reshape(num_heads, shape[0] // num_heads // 2, 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def permute(weight: npt.NDArray[Any], num_heads: int) -> npt.NDArray[Any]:
    """Rows of the half-split layout in the order of a GGUF of the llama architecture; the inverse of `_unpermute`."""
    shape = weight.shape
    return weight.reshape(num_heads, 2, shape[0] // num_heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def _write(path: Path, data: dict[str, Any], indent: int | None = 2) -> None:
    separators = (",", ": ") if indent else (",", ":")
    text = json.dumps(data, indent=indent, separators=separators, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
