"""GGUF to a Hugging Face folder: every other part of streamfuse reads only the latter.

Weights are dequantized to float32 exactly as the format defines them, so the folder holds the GGUF's own values. The
rows of q and k projections are stored permuted for interleaved rotary embedding (llama architecture) and are put back.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .config import CheckpointError, scaled_frequencies

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import PreTokenizer
    from tokenizers.processors import PostProcessor

FloatArray = npt.NDArray[np.float32]

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
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|DIGITS| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLIT_PATTERNS = {
    "llama-bpe": _WORDS.replace("DIGITS", r"\p{N}{1,3}"),
    "qwen2": _WORDS.replace("DIGITS", r"\p{N}"),
}
_CONTROL, _USER_DEFINED = 3, 4  # token types
ROPE_FACTORS = "rope_freqs.weight"  # float32 [head_dim / 2]: what each frequency of rotary embedding is divided by
# Of all models with llama3 scaling; a GGUF says the factors that come of it.
_LLAMA_3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}


class _Fields:
    """The metadata of a GGUF; a missing field is an error that names it."""

    def __init__(self, values: dict[str, Any], path: Path) -> None:
        self.values, self.path = values, path

    def __getitem__(self, name: str) -> Any:
        if name not in self.values:
            raise CheckpointError(f"{self.path}: field {name!r} is missing")
        return self.values[name]

    def get(self, name: str, default: Any = None) -> Any:
        return self.values.get(name, default)


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
    except (ValueError, OSError, IndexError, KeyError) as error:
        raise CheckpointError(f"{gguf_path}: not a readable GGUF file ({error})") from None
    values = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    fields = _Fields(values, gguf_path)
    config = _config(fields)
    tokenizer = _tokenizer(fields)
    tensors = _weights(reader, config, gguf_path)
    config["tie_word_embeddings"] = "lm_head.weight" not in tensors
    config["vocab_size"] = int(tensors["model.embed_tokens.weight"].shape[0])
    out_dir.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out_dir / "model.safetensors", metadata={"format": "pt"})
    tokenizer.save(str(out_dir / "tokenizer.json"))
    _write(out_dir / "config.json", config)
    _write(out_dir / "generation_config.json", {name: config[name] for name in ("eos_token_id", "bos_token_id")})
    _write(out_dir / "tokenizer_config.json", _tokenizer_config(fields, config))
    _write(out_dir / "source.json", _source(fields, gguf_path, out_dir))


def _source(fields: _Fields, gguf_path: Path, out_dir: Path) -> dict[str, Any]:
    return {
        "kind": "gguf",
        "file": gguf_path.name,
        "path": os.path.relpath(gguf_path, out_dir),
        "sha256": _sha256(gguf_path),
        "name": fields.get("general.name", gguf_path.stem),
        "license": fields.get("general.license"),
        "file_type": fields.get("general.file_type"),
    }


def _tokenizer_config(fields: _Fields, config: dict[str, Any]) -> dict[str, Any]:
    tokens, bos = fields["tokenizer.ggml.tokens"], config["bos_token_id"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": fields.get("tokenizer.chat_template"),
        "bos_token": None if bos is None else tokens[bos],
        "eos_token": tokens[config["eos_token_id"]],
        "add_bos_token": _adds_bos(fields),
        "model_max_length": config["max_position_embeddings"],
    }


def _weights(reader: Any, config: dict[str, Any], path: Path) -> dict[str, FloatArray]:
    """All tensors in float32 under their Hugging Face names; factors of RoPE scaling go into `config`."""
    import gguf

    # llama.cpp permutes the rows of the llama architecture only; the others use the half-split rotary form as it is.
    permuted = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors = {}
    for tensor in reader.tensors:
        if tensor.name == ROPE_FACTORS:
            config["rope_scaling"] = _scaling_of(np.array(tensor.data, np.float64), config, path)
            continue
        name = tensor_name(tensor.name, path)
        try:
            weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        except NotImplementedError:
            raise CheckpointError(f"{path}: tensor {tensor.name!r} has the type {tensor.tensor_type.name}") from None
        part = tensor.name.split(".")[2] if tensor.name.startswith("blk.") else ""
        if config["model_type"] == "llama" and part in permuted:
            weight = _unpermute(weight, permuted[part])
        tensors[name] = np.ascontiguousarray(weight)
    if "model.embed_tokens.weight" not in tensors:
        raise CheckpointError(f"{path}: tensor 'token_embd.weight' is missing")
    return tensors


def _config(fields: _Fields) -> dict[str, Any]:
    architecture = fields["general.architecture"]
    if architecture not in _ARCHITECTURES:
        known = ", ".join(_ARCHITECTURES)
        raise CheckpointError(f"{fields.path}: architecture {architecture!r} is not one of {known}")

    def get(key: str, default: Any = None) -> Any:
        return fields.get(f"{architecture}.{key}", default)

    heads, hidden = fields[f"{architecture}.attention.head_count"], fields[f"{architecture}.embedding_length"]
    return {
        "architectures": [_ARCHITECTURES[architecture]],
        "model_type": architecture,
        "hidden_size": hidden,
        "intermediate_size": fields[f"{architecture}.feed_forward_length"],
        "num_hidden_layers": fields[f"{architecture}.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv", heads),
        "head_dim": get("attention.key_length", hidden // heads),
        "hidden_act": "silu",
        # float32 in the file; the shortest decimal that gives it back is what the original config said.
        "rms_norm_eps": float(f"{get('attention.layer_norm_rms_epsilon', 1e-6):.6g}"),
        "rope_theta": float(f"{get('rope.freq_base', 10000.0):.6g}"),
        "rope_scaling": _rope_scaling(get("rope.scaling.type", "none"), get("rope.scaling.factor"), fields.path),
        "max_position_embeddings": get("context_length", 2048),
        "attention_bias": architecture == "qwen2",
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
    }


def _rope_scaling(kind: str, factor: float | None, path: Path) -> dict[str, Any] | None:
    if kind == "none":
        return None
    if kind == "linear" and factor:
        return {"rope_type": "linear", "factor": float(f"{factor:.6g}")}
    raise CheckpointError(f"{path}: rope scaling {kind!r} is not supported (linear is)")


def _scaling_of(factors: npt.NDArray[np.float64], config: dict[str, Any], path: Path) -> dict[str, Any] | None:
    """The RoPE scaling that gives these factors [head_dim / 2] on top of what the metadata say."""
    said: dict[str, Any] | None = config["rope_scaling"]
    half = config["head_dim"] // 2
    inverse = config["rope_theta"] ** (-np.arange(half, dtype=np.float64) / half)
    if factors.shape == (half,) and ((factors >= 1) & np.isfinite(factors)).all():
        llama3 = {"rope_type": "llama3", "factor": float(f"{factors.max():.6g}"), **_LLAMA_3}
        for scaling in (said, llama3):
            expected = scaled_frequencies(inverse, said or {}) / scaled_frequencies(inverse, scaling or {})
            if np.allclose(factors, expected, rtol=1e-4, atol=0):
                return scaling
    raise CheckpointError(
        f"{path}: {ROPE_FACTORS} has factors that no supported RoPE scaling gives (llama3 over "
        f"{_LLAMA_3['original_max_position_embeddings']} positions does); use the safetensors checkpoint"
    )


def tensor_name(name: str, path: Path) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    parts = name.split(".")
    if parts[0] == "blk" and len(parts) == 4 and parts[2] in _LAYER_NAMES:
        return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.{parts[3]}"
    if len(parts) == 2 and parts[0] in _TOP_NAMES:
        return f"{_TOP_NAMES[parts[0]]}.{parts[1]}"
    raise CheckpointError(f"{path}: tensor {name!r} is not part of a supported model")


def _unpermute(weight: FloatArray, num_heads: int) -> FloatArray:
    """Rows (head, pair, 2) of interleaved rotary embedding back to (head, 2, pair) of the half-split form."""
    shape = weight.shape
    return weight.reshape(num_heads, shape[0] // num_heads // 2, 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def permute(weight: npt.NDArray[Any], num_heads: int) -> npt.NDArray[Any]:
    """Rows of the half-split form as a GGUF of the llama architecture has them; `_unpermute` takes them back."""
    shape = weight.shape
    return weight.reshape(num_heads, 2, shape[0] // num_heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def _tokenizer(fields: _Fields) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, normalizers

    kind, pre = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2":
        raise CheckpointError(
            f"{fields.path}: tokenizer.ggml.model {kind!r} is not supported (gpt2 is: byte-level BPE)"
        )
    tokens = fields["tokenizer.ggml.tokens"]
    vocab = {token: i for i, token in enumerate(tokens)}
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=pre == "llama-bpe"))
    tokenizer.pre_tokenizer = _pre_tokenizer(pre, fields.path)
    tokenizer.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    _add_special_tokens(tokenizer, tokens, fields["tokenizer.ggml.token_type"])
    if _adds_bos(fields):
        tokenizer.post_processor = _begin_with(tokens[fields["tokenizer.ggml.bos_token_id"]], vocab)
    return tokenizer


def _adds_bos(fields: _Fields) -> bool:
    """Whether plain text begins with a token of its own; where the file says nothing, as llama.cpp has it (Llama 3)."""
    said = fields.get("tokenizer.ggml.add_bos_token", fields.get("tokenizer.ggml.pre") == "llama-bpe")
    return bool(said) and fields.get("tokenizer.ggml.bos_token_id") is not None


def _pre_tokenizer(pre: str, path: Path) -> PreTokenizer:
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

    if pre in _DIGITS_THEN_BYTES:
        return Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)])
    if pre in _SPLIT_PATTERNS:
        split = Split(Regex(_SPLIT_PATTERNS[pre]), "isolated")
        return Sequence([split, ByteLevel(add_prefix_space=False, use_regex=False)])
    raise CheckpointError(f"{path}: tokenizer.ggml.pre {pre!r} is not supported")


def _add_special_tokens(tokenizer: Tokenizer, tokens: list[str], kinds: list[int]) -> None:
    from tokenizers import AddedToken

    for kind, add in ((_CONTROL, tokenizer.add_special_tokens), (_USER_DEFINED, tokenizer.add_tokens)):
        chosen = (token for token, its in zip(tokens, kinds, strict=True) if its == kind)
        add([AddedToken(token, normalized=False, special=kind == _CONTROL) for token in chosen])


def _begin_with(bos: str, vocab: dict[str, int]) -> PostProcessor:
    from tokenizers.processors import TemplateProcessing

    return TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, vocab[bos])])


def _write(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
