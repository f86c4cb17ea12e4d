"""Tiny random models of transformers, which the families are compared with."""

from __future__ import annotations

from typing import Any

import torch

FLOOR = 1e-4  # largest difference of logits
SIZES = {
    "vocab_size": 48,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def hf_model(family: str, changes: dict[str, Any]) -> Any:
    """Weights that are all random: norms and biases too, which start at one and zero."""
    import transformers

    kind = {"Gemma3": "Gemma3Text", "Gemma4": "Gemma4Text", "Qwen3_5": "Qwen3_5Text"}.get(family, family)
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **changes})
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
        for name, scalar in model.named_buffers():
            if name.endswith("layer_scalar"):
                scalar.add_(torch.randn_like(scalar) * 0.2)
    return model
