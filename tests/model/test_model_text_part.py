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

from streamfuse.bench.external.checkpoints import write_merged
from streamfuse.model.checkpoint import load_base, load_config, save_ngrams
from streamfuse.model.config import CheckpointError, ModelConfig
from streamfuse.research.first_layers import write_first_layers

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
    "gemma4": (
        "Gemma4",
        {"model_type": "gemma4_text", "head_dim": 8, "global_head_dim": 16, "sliding_window": 8,
         "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2,
         "hidden_size_per_layer_input": 4, "vocab_size_per_layer_input": 48, "final_logit_softcapping": 20.0,
         "pad_token_id": 0},
        {"model_type": "gemma4_vision", **IMAGES, "head_dim": 8, "num_key_value_heads": 2},
        {"audio_config": None, "audio_token_id": 41, "video_token_id": 42, "boi_token_id": 43, "eoi_token_id": 44,
         "boa_token_id": 45, "eoa_token_index": 46},
    ),
    "lfm2": (
        "Lfm2Vl",
        {"model_type": "lfm2", "layer_types": ["conv", "full_attention"] * 2, "block_multiple_of": 8},
        {"model_type": "siglip2_vision_model", **IMAGES},
        {},
    ),
    "lfm3": (
        "Lfm3Vl",
        {"model_type": "lfm3", "head_dim": 16, "sliding_window": 8,
         "layer_types": ["conv", "sliding_attention", "full_attention", "conv"]},
        {"model_type": "lfm3_vl_vision", **IMAGES},
        {},
    ),
    "llama": ("SmolVLM", {"model_type": "llama"}, IMAGES, {"scale_factor": 2, "pad_token_id": 0}),
    "ministral3": ("Mistral3", {"model_type": "ministral3", "head_dim": 8}, {"model_type": "pixtral", **IMAGES},
                   {"tie_word_embeddings": False}),
    "qwen3.5": (
        "Qwen3_5",
        {"model_type": "qwen3_5_text", "head_dim": 16, "full_attention_interval": 2, "linear_num_key_heads": 2,
         "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
         "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25,
                             "mrope_section": [1, 1, 0], "mrope_interleaved": True}},
        {"model_type": "qwen3_5_vision", **{k: v for k, v in QWEN_IMAGES.items() if k != "deepstack_visual_indexes"}},
        {},
    ),
    "qwen3": (
        "Qwen3VL",
        {"model_type": "qwen3_vl_text", "head_dim": 16,
         "rope_parameters": {"rope_type": "default", "rope_theta": 5e5, "mrope_section": [4, 2, 2]}},
        {"model_type": "qwen3_vl_vision", **QWEN_IMAGES},
        {},
    ),
}  # fmt: skip


MODELS["qwen2.5"] = (
    "Qwen2_5_VL",
    {"model_type": "qwen2_5_vl_text",
     "rope_parameters": {"rope_type": "default", "rope_theta": 5e5, "mrope_section": [2, 1, 1]}},
    {"model_type": "qwen2_5_vl_vision", **{**QWEN_IMAGES, "fullatt_block_indexes": [0]}},
    {},
)  # fmt: skip


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


def test_settings_without_a_text_config_are_read(tmp_path: Path) -> None:
    """As Qwen2.5-VL was published: all in one object, with tensors as in a text model and those of `visual`."""
    reference = whole_model("qwen2.5")
    reference.save_pretrained(tmp_path)
    ids = torch.randint(0, 39, (1, 40))
    with torch.no_grad():
        before = load_base(tmp_path)(ids)
    path, config = tmp_path / "model.safetensors", json.loads((tmp_path / "config.json").read_text())
    rope = {"rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]}, "rope_theta": 5e5}
    own = {name: value for name, value in config["text_config"].items() if name != "rope_parameters"}
    flat = {**{name: value for name, value in config.items() if name != "text_config"}, **own, **rope}
    (tmp_path / "config.json").write_text(json.dumps({**flat, "model_type": "qwen2_5_vl"}))
    renamed = {
        name.replace("model.language_model.", "model.").replace("model.visual.", "visual."): value
        for name, value in load_file(path).items()
    }
    assert any(name.startswith("visual.") for name in renamed)
    save_file(renamed, path, metadata={"format": "pt"})
    with torch.no_grad():
        torch.testing.assert_close(load_base(tmp_path)(ids), before, atol=0, rtol=0)
    assert load_config(tmp_path) == load_base(tmp_path).config


@pytest.mark.parametrize("kind", ["qwen2_5_vl_text", "qwen3_vl_text"])
def test_what_is_missing_is_as_in_the_class_of_the_text_model(kind: str) -> None:
    sizes = dict.fromkeys(("hidden_size", "intermediate_size", "vocab_size", "num_attention_heads"), 32)
    text = {**sizes, "model_type": kind, "num_hidden_layers": 2}
    theirs = transformers.AutoConfig.for_model(**text)
    ours = ModelConfig.from_hf({"model_type": "a", "text_config": {**text, "head_dim": 16}})
    assert ours.rotaries[0].theta == theirs.rope_parameters["rope_theta"]
    assert (ours.rms_norm_eps, ours.num_kv_heads) == (theirs.rms_norm_eps, theirs.num_key_value_heads)
    assert ours.max_position_embeddings == theirs.max_position_embeddings


def test_tokens_of_the_whole_model_take_precedence() -> None:
    text = {**SIZES, "model_type": "llama", "bos_token_id": 1, "eos_token_id": 2}
    config = ModelConfig.from_hf({"text_config": text, "eos_token_id": [3, 4], "bos_token_id": None})
    assert (config.eos_token_ids, config.bos_token_id) == ((3, 4), 1)


def test_parts_of_other_names_are_not_read(tmp_path: Path) -> None:
    whole_model("llama").save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    before = load_base(tmp_path).state_dict()
    others = {"image_newline": torch.ones(3), "aligner.0.weight": torch.full((2,), torch.nan)}
    save_file({**load_file(path), **others}, path)
    assert all(torch.equal(value, before[name]) for name, value in load_base(tmp_path).state_dict().items())
    assert load_config(tmp_path).num_layers == 4


def test_a_draft_model_of_its_first_layers_is_a_text_model(tmp_path: Path) -> None:
    whole_model("gemma3").save_pretrained(tmp_path / "whole")
    write_first_layers(tmp_path / "whole", 2, tmp_path / "draft")
    base, whole = load_base(tmp_path / "draft"), load_base(tmp_path / "whole").state_dict()
    assert base.config.num_layers == 2
    assert all(torch.equal(value, whole[name]) for name, value in base.state_dict().items())


def test_a_merged_checkpoint_for_other_programs_is_a_text_model(tmp_path: Path) -> None:
    reference = whole_model("gemma3")
    reference.save_pretrained(tmp_path / "whole")
    save_ngrams(tmp_path / "adapter.safetensors", load_config(tmp_path / "whole"), {}, {})
    write_merged(tmp_path / "whole", tmp_path / "adapter.safetensors", tmp_path / "merged")
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32).eval()
    assert type(merged).__name__ == "Gemma3ForCausalLM"
    ids = torch.randint(0, 39, (1, 40))
    with torch.no_grad():
        expected = reference(ids).logits
        torch.testing.assert_close(merged(ids).logits, expected, atol=FLOOR * float(expected.abs().max()), rtol=0)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("gemma3n_text", " because of its AltUp and LAuReL blocks .altup_num_inputs, laurel_rank."),
        ("other", ""),
        (None, ""),
    ],
)
def test_a_text_model_of_no_family_is_refused_by_its_type(kind: str | None, reason: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "other", "text_config": {"model_type": kind}}))
    with pytest.raises(CheckpointError, match=rf"text_config: model_type '{kind}' is not supported{reason}; supported"):
        load_base(tmp_path)
