"""The text model of checkpoints that also have a part for images, against transformers on tiny random weights.

Run: python -m pytest tests/model/test_model_text_part.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from family_samples import FLOOR, SIZES
from safetensors.torch import load_file, save_file

from streamfuse.model.checkpoint import load_base, load_config
from streamfuse.model.config import CheckpointError, ModelConfig

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'streamfuse[train]'"
)

IMAGES: dict[str, Any] = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 16,
    "patch_size": 8,
}  # fmt: skip
QWEN_IMAGES: dict[str, Any] = {
    "depth": 1, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "patch_size": 8, "out_hidden_size": 32,
    "deepstack_visual_indexes": [0],
}  # fmt: skip
# Architecture, the text model's settings beyond SIZES, the image part's, and those of the whole model.
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "gemma3": (
        "Gemma3",
        {"model_type": "gemma3_text", "head_dim": 16, "sliding_window": 8},
        {"model_type": "siglip_vision_model", **IMAGES},
        {"mm_tokens_per_image": 4, "tie_word_embeddings": True},
    ),
    "lfm2": (
        "Lfm2Vl",
        {"model_type": "lfm2", "layer_types": ["conv", "full_attention"] * 2, "block_multiple_of": 8},
        {"model_type": "siglip2_vision_model", **IMAGES},
        {},
    ),
    "llama": ("SmolVLM", {"model_type": "llama"}, IMAGES, {"scale_factor": 2, "pad_token_id": 0}),
    "ministral3": ("Mistral3", {"model_type": "ministral3", "head_dim": 8}, {"model_type": "pixtral", **IMAGES},
                   {"tie_word_embeddings": False}),
    "qwen3": (
        "Qwen3VL",
        {"model_type": "qwen3_vl_text", "head_dim": 16,
         "rope_parameters": {"rope_type": "default", "rope_theta": 5e5, "mrope_section": [4, 2, 2]}},
        {"model_type": "qwen3_vl_vision", **QWEN_IMAGES},
        {},
    ),
}  # fmt: skip


def whole_model(name: str) -> Any:
    kind, text, images, changes = MODELS[name]
    config = getattr(transformers, f"{kind}Config")(
        text_config={**SIZES, **text}, vision_config=images, image_token_id=40, image_token_index=40, **changes
    )
    torch.manual_seed(2)
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


@pytest.mark.parametrize("name", MODELS)
def test_the_text_model_has_the_logits_of_the_whole_one(name: str, tmp_path: Path) -> None:
    reference = whole_model(name)
    reference.save_pretrained(tmp_path)
    ids = torch.randint(0, 39, (1, 40))
    with torch.no_grad():
        expected, found = reference(ids).logits, load_base(tmp_path)(ids)
    assert (expected - found).abs().max() <= FLOOR * max(1.0, float(expected.abs().max()) / 10)
    assert load_config(tmp_path) == load_base(tmp_path).config


def test_older_names_of_the_tensors_are_read(tmp_path: Path) -> None:
    """As in Gemma 3's own checkpoints, whose config.json leaves out what is the default of its class."""
    reference = whole_model("gemma3")
    reference.save_pretrained(tmp_path)
    path, ids = tmp_path / "model.safetensors", torch.randint(0, 39, (1, 40))
    with torch.no_grad():
        before = load_base(tmp_path)(ids)
    older = {}
    for key, value in load_file(path).items():
        renamed = key.replace("model.language_model.", "language_model.model.") if "language_model" in key else key
        older[renamed.removeprefix("model.") if "language_model" not in key else renamed] = value
    assert {name.partition(".")[0] for name in older} >= {"language_model", "vision_tower", "multi_modal_projector"}
    save_file(older, path, metadata={"format": "pt"})
    with torch.no_grad():
        torch.testing.assert_close(load_base(tmp_path)(ids), before, atol=0, rtol=0)
    bare = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}  # fmt: skip
    config = ModelConfig.from_hf({"model_type": "gemma3", "eos_token_id": [1, 106], "text_config": bare})
    assert (config.vocab_size, config.num_heads, config.num_kv_heads, config.head_dim) == (262208, 8, 4, 256)
    assert (config.eos_token_ids, config.tie_word_embeddings) == ((1, 106), True)


@pytest.mark.parametrize("kind", ["gemma4_text", None])
def test_a_text_model_of_no_family_is_refused_by_its_type(kind: str | None, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "other", "text_config": {"model_type": kind}}))
    with pytest.raises(
        CheckpointError, match=rf"text_config: model_type '{kind}' is not supported; supported are llam"
    ):
        load_base(tmp_path)
