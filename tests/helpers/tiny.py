"""Tiny random models for tests of model/ and train/: real code, sizes of a toy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from streamfuse.model.config import ARCHITECTURES, ModelConfig, StreamConfig
from streamfuse.model.families import to_checkpoint
from streamfuse.model.streams import StreamFused
from streamfuse.model.transformer import Transformer

VOCAB_SIZE, EOS = 40, 0
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
    "eos_token_id": EOS,
}


def config(**changes: Any) -> dict[str, Any]:
    """CONFIG with changes, and the model_type of its architecture."""
    changed = {**CONFIG, **changes}
    return {**changed, "model_type": ARCHITECTURES.get(changed["architectures"][0], "?")}


def base(std: float = 0.25, **changes: Any) -> Transformer:
    """A frozen base model with random weights, from torch's current seed."""
    model = Transformer(ModelConfig.from_hf(config(**changes)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=std)
    return model.requires_grad_(False).eval()


def fused(on: Transformer, stream_vocab: torch.Tensor | None = None, **settings: Any) -> StreamFused:
    """Streams on `on` with every weight random, the zeros of a fresh adapter too."""
    config = StreamConfig(
        **{"num_streams": 3, "num_msa_layers": 2, "adapter_rank": 2, "adapter_alpha": 4.0, **settings}
    )
    model = StreamFused(on, config, stream_vocab)
    with torch.no_grad():
        for parameter in model.extra_parameters():
            parameter.normal_(std=0.25)
    return model.eval()


def write_base(folder: Path, model: Transformer, **changes: Any) -> Path:
    """The model as a Hugging Face folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config(**changes)))
    save_file(to_checkpoint(model.state_dict(), model.config), folder / "model.safetensors")
    return folder
