"""GGUF to a Hugging Face folder: every other part of streamfuse reads only the latter.

Weights are dequantized to float32 exactly as the format defines them, so the folder holds the GGUF's own values. The rows of
q and k projections are stored permuted for interleaved rotary embedding (llama architecture) and are put back.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from .config import CheckpointError

_ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
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
_TOP_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
# Pre-tokenizers by the GGUF's own key; each splits text before the byte-level BPE merges.
_DIGITS_THEN_BYTES = ("smollm", "starcoder", "refact", "command-r")
_SPLIT_PATTERNS = {
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
_CONTROL, _USER_DEFINED = 3, 4  # token types


def convert(gguf_path: Path, out_dir: Path) -> None:
    """Write `config.json, model.safetensors (float32), tokenizer.json, tokenizer_config.json, generation_config.json,
    source.json` to `out_dir` (created).

    Raises:
        CheckpointError: the file is not a GGUF, or holds an architecture, tokenizer or tensor that is not supported.
    """
    import gguf
    from safetensors.numpy import save_file

    try:
        reader = gguf.GGUFReader(gguf_path)
    except (ValueError, OSError, IndexError) as error:
        raise CheckpointError(f"{gguf_path}: not a readable GGUF file ({error})") from None
    fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    architecture = fields["general.architecture"]
    if architecture not in _ARCHITECTURES:
        raise CheckpointError(f"{gguf_path}: architecture {architecture!r} is not one of {', '.join(_ARCHITECTURES)}")
    config = _config(fields, architecture)
    tensors = {}
    for tensor in reader.tensors:
        if tensor.name == "rope_freqs.weight":  # llama3 scaling, expressed by rope_scaling in config.json
            raise CheckpointError(f"{gguf_path}: rope_freqs tensors are not supported; use the safetensors checkpoint")
        weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        name = _tensor_name(tensor.name, gguf_path)
        if architecture == "llama" and ".attn_q." in tensor.name:
            weight = _unpermute(weight, config["num_attention_heads"])
        if architecture == "llama" and ".attn_k." in tensor.name:
            weight = _unpermute(weight, config["num_key_value_heads"])
        tensors[name] = np.ascontiguousarray(weight)
    config["tie_word_embeddings"] = "lm_head.weight" not in tensors
    config["vocab_size"] = int(tensors["model.embed_tokens.weight"].shape[0])
    out_dir.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out_dir / "model.safetensors", metadata={"format": "pt"})
    eos = fields["tokenizer.ggml.eos_token_id"]
    _write(out_dir / "config.json", config)
    _write(out_dir / "generation_config.json", {"eos_token_id": eos, "bos_token_id": config["bos_token_id"]})
    _write(out_dir / "source.json", {
        "kind": "gguf",
        "file": gguf_path.name,
        "path": os.path.relpath(gguf_path, out_dir),
        "sha256": _sha256(gguf_path),
        "name": fields.get("general.name", gguf_path.stem),
        "license": fields.get("general.license"),
        "file_type": fields.get("general.file_type"),
    })
    _tokenizer(fields, gguf_path).save(str(out_dir / "tokenizer.json"))
    tokens = fields["tokenizer.ggml.tokens"]
    _write(out_dir / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": fields.get("tokenizer.chat_template"),
        "bos_token": tokens[config["bos_token_id"]] if config["bos_token_id"] is not None else None,
        "eos_token": tokens[eos],
        "add_bos_token": bool(fields.get("tokenizer.ggml.add_bos_token", False)),
        "model_max_length": config["max_position_embeddings"],
    })


def _config(fields: dict[str, Any], architecture: str) -> dict[str, Any]:
    def get(key: str, default: Any = None) -> Any:
        return fields.get(f"{architecture}.{key}", default)

    heads = get("attention.head_count")
    return {
        "architectures": [_ARCHITECTURES[architecture]],
        "model_type": architecture,
        "hidden_size": get("embedding_length"),
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv", heads),
        "head_dim": get("attention.key_length", get("embedding_length") // heads),
        "hidden_act": "silu",
        # float32 in the file; the shortest decimal that gives it back is what the original config said.
        "rms_norm_eps": float(f"{get('attention.layer_norm_rms_epsilon', 1e-6):.6g}"),
        "rope_theta": float(f"{get('rope.freq_base', 10000.0):.6g}"),
        "max_position_embeddings": get("context_length", 2048),
        "attention_bias": architecture == "qwen2",
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
    }


def _tensor_name(name: str, path: Path) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    parts = name.split(".")
    if parts[0] == "blk" and len(parts) == 4 and parts[2] in _LAYER_NAMES:
        return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.{parts[3]}"
    if len(parts) == 2 and parts[0] in _TOP_NAMES:
        return f"{_TOP_NAMES[parts[0]]}.{parts[1]}"
    raise CheckpointError(f"{path}: tensor {name!r} is not part of a supported model")


def _unpermute(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows (head, pair, 2) of interleaved rotary embedding back to (head, 2, pair) of the half-split form."""
    rows, columns = weight.shape
    return weight.reshape(num_heads, rows // num_heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _tokenizer(fields: dict[str, Any], path: Path) -> Any:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    if fields.get("tokenizer.ggml.model") != "gpt2":
        kind = fields.get("tokenizer.ggml.model")
        raise CheckpointError(f"{path}: tokenizer.ggml.model {kind!r} is not supported (gpt2 is: byte-level BPE)")
    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    pre = fields.get("tokenizer.ggml.pre", "default")
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges, ignore_merges=pre == "llama-bpe"))
    if pre in _DIGITS_THEN_BYTES:
        first, regex = pre_tokenizers.Digits(individual_digits=True), True
    elif pre in _SPLIT_PATTERNS:
        first, regex = pre_tokenizers.Split(Regex(_SPLIT_PATTERNS[pre]), "isolated"), False
    else:
        raise CheckpointError(f"{path}: tokenizer.ggml.pre {pre!r} is not supported")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [first, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"]
    added = [AddedToken(t, normalized=False, special=k == _CONTROL) for t, k in zip(tokens, kinds, strict=True) if k in (_CONTROL, _USER_DEFINED)]
    tokenizer.add_special_tokens([t for t in added if t.special])
    tokenizer.add_tokens([t for t in added if not t.special])
    return tokenizer


def _write(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else hashlib.sha256(file.read()).hexdigest()
