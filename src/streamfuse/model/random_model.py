"""A model of a given shape with random weights, for test exports: `python -m streamfuse.model.random_model --help`.

Its text is meaningless, but its size and latency are those of the real model, and it needs no licence. The same shape
always gets the same weights.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from .checkpoint import save_adapter
from .config import ModelConfig, StreamConfig
from .families import to_checkpoint
from .pull import resolve_model
from .streams import StreamFused
from .tokenizer_file import alphabet, byte_level, byte_level_bpe
from .transformer import Transformer

_SMOLLM_2: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 49152,
    "head_dim": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LLAMA_3: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128256,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "max_position_embeddings": 131072,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
}
_SCALING = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}  # fmt: skip  # noqa: E501
SHAPES: dict[str, dict[str, Any]] = {
    "smollm2-135m": {
        **_SMOLLM_2,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
    "smollm2-360m": {
        **_SMOLLM_2,
        "hidden_size": 960,
        "intermediate_size": 2560,
        "num_hidden_layers": 32,
        "num_attention_heads": 15,
        "num_key_value_heads": 5,
    },
    "lfm2-350m": {
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "vocab_size": 65536,
        "hidden_size": 1024,
        "intermediate_size": 6656,  # before it is adjusted
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "full_attn_idxs": [2, 5, 8, 10, 12, 14],
        "norm_eps": 1e-5,
        "rope_theta": 1000000.0,
        "max_position_embeddings": 128000,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 7,
    },
    "qwen3.5-0.8b": {
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "vocab_size": 248320,
        "hidden_size": 1024,
        "intermediate_size": 3584,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_value_heads": 16,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25},
        "max_position_embeddings": 262144,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": 248044,
    },
    "llama-3.2-1b": {
        **_LLAMA_3,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "head_dim": 64,
        "tie_word_embeddings": True,
        "rope_scaling": {**_SCALING, "factor": 32.0},
    },
    "llama-3.2-3b": {
        **_LLAMA_3,
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 28,
        "num_attention_heads": 24,
        "head_dim": 128,
        "tie_word_embeddings": True,
        "rope_scaling": {**_SCALING, "factor": 32.0},
    },
    "llama-3.1-8b": {
        **_LLAMA_3,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "head_dim": 128,
        "tie_word_embeddings": False,
        "rope_scaling": {**_SCALING, "factor": 8.0},
    },
}
ADAPTER = "streams.safetensors"
_STREAM_VOCAB = 16384
_GROUP, _LEVELS = 32, 16  # of Q4_1
_LEVELS_DEVIATION = ((_LEVELS**2 - 1) / 12) ** 0.5  # of uniformly drawn levels
_NOISE = 0.05  # standard deviation around a level, in steps between levels


def write_random_model(
    folder: Path, shape: dict[str, Any], tokenizer: Path | None = None, weights: bool = True
) -> None:
    """Writes config.json, tokenizer.json, an untrained adapter and, with `weights`, bfloat16 weights, a file per layer.

    Args:
        shape: a Hugging Face `config.json`.
        tokenizer: a checkpoint folder whose tokenizer is copied; its ids must be within the shape's vocabulary.
            None: one token per byte.

    Raises:
        CheckpointError: streamfuse does not support `shape`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shape, indent=2) + "\n", encoding="utf-8")
    if tokenizer is None:
        tokens = byte_level_bpe(alphabet(), [], byte_level(use_regex=False))  # one per byte, no special tokens
        (folder / "tokenizer.json").write_text(json.dumps(tokens, ensure_ascii=False), encoding="utf-8")
    else:
        for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"):
            if (tokenizer / name).is_file() or name == "tokenizer.json":
                shutil.copyfile(tokenizer / name, folder / name)
    config = ModelConfig.load(folder)
    with torch.device("meta"):
        base = Transformer(config)
    streams = StreamConfig(num_msa_layers=min(StreamConfig().num_msa_layers, config.num_layers // 2))
    count = min(_STREAM_VOCAB, config.vocab_size)
    vocab = torch.arange(count) * (config.vocab_size // count)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        save_adapter(StreamFused(base, streams, vocab), folder / ADAPTER, {"steps": "0"})
        if weights:
            _write_weights(folder, base)


def _write_weights(folder: Path, base: Transformer) -> None:
    files: dict[str, dict[str, Tensor]] = {}
    for name, parameter in base.named_parameters():  # a tied head is the embedding
        owner = ".".join(name.split(".")[:2]) if name.startswith("layers.") else "rest"
        files.setdefault(owner, {})[name] = parameter
    places: dict[str, str] = {}
    for owner, parameters in files.items():
        own = {name: _random(name, parameter) for name, parameter in parameters.items()}
        state = to_checkpoint(own, base.config)
        save_file(state, folder / f"model-{owner}.safetensors")
        places |= dict.fromkeys(state, f"model-{owner}.safetensors")
    index = json.dumps({"weight_map": places}, indent=2)
    (folder / "model.safetensors.index.json").write_text(index + "\n", encoding="utf-8")


def _random(name: str, like: Tensor) -> Tensor:
    """Norms of one, small biases, unit-variance embeddings, which dominate the layers' outputs, and variance-preserving
    matrices.

    Such a model has one token that is far more probable than the others, and its weights are near the sixteen levels
    of a Q4_1 group, so it survives four bits as trained models do; Gaussian noise would fail the export's parity
    floors. The weights are not exactly on the levels, so the exporter has to fit them as it does for trained ones.
    """
    if name.endswith("bias"):
        return torch.randn(like.shape, dtype=torch.bfloat16).mul_(_NOISE)
    if like.ndim == 1:
        return torch.ones(like.shape, dtype=torch.bfloat16)
    levels = torch.randint(0, _LEVELS, like.shape, dtype=torch.uint8)
    if like.shape[1] % _GROUP == 0:
        groups = levels.unflatten(1, (-1, _GROUP))
        groups.scatter_(2, groups.argmin(2, keepdim=True), 0).scatter_(2, groups.argmax(2, keepdim=True), _LEVELS - 1)
    size = 1.0 if "embed" in name else like.shape[1] ** -0.5
    step = size / _LEVELS_DEVIATION
    weights = torch.randn(like.shape, dtype=torch.bfloat16).mul_(_NOISE)
    return weights.add_(levels).sub_((_LEVELS - 1) / 2).mul_(step)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m streamfuse.model.random_model", description=__doc__)
    parser.add_argument("folder", type=Path, help="output folder")
    parser.add_argument("--shape", default="llama-3.2-1b", help=f"{', '.join(SHAPES)}, or a config.json")
    parser.add_argument("--tokenizer", help="copy the tokenizer of this model; default: one token per byte")
    parser.add_argument("--no-weights", action="store_true", help="enough for `streamfuse export --dry-run`")
    flags = parser.parse_args()
    shape = SHAPES.get(flags.shape) or json.loads(Path(flags.shape).read_text(encoding="utf-8"))
    tokenizer = None if flags.tokenizer is None else resolve_model(flags.tokenizer)
    write_random_model(flags.folder, shape, tokenizer, not flags.no_weights)
    print(f"streamfuse export --model {flags.folder} --adapter {flags.folder / ADAPTER} --dry-run -o bundle")


if __name__ == "__main__":
    main()
