"""Every supported family against Hugging Face transformers on tiny random weights; what a checkpoint is refused for.

Run: python -m pytest tests/model/test_model_families.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from family_samples import FLOOR, LLAMA3, SIZES, hf_model
from safetensors.torch import load_file, save_file

from streamfuse.model.checkpoint import load_base
from streamfuse.model.config import CheckpointError, ModelConfig

transformers = pytest.importorskip("transformers")

LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama tied": ("Llama", {"tie_word_embeddings": True}),
    "llama untied": ("Llama", {"tie_word_embeddings": False}),
    "llama with biases": ("Llama", {"attention_bias": True}),
    "llama with a head size of its own": ("Llama", {"head_dim": 16}),
    "llama3 rope": ("Llama", {"rope_parameters": LLAMA3}),
    "linear rope": ("Llama", {"rope_parameters": LINEAR}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3 with biases": ("Qwen3", {"head_dim": 8, "attention_bias": True}),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    reference = hf_model(*FAMILIES[name])
    reference.save_pretrained(tmp_path)
    ids = torch.randint(0, SIZES["vocab_size"], (2, 90))
    with torch.no_grad():
        expected, found = reference(ids).logits, load_base(tmp_path)(ids)
    difference = (expected - found).abs()
    assert difference.max() <= FLOOR, f"max {difference.max():.2e}, mean {difference.mean():.2e}"


def test_sharded_checkpoints_are_read_whole(tmp_path: Path) -> None:
    reference = hf_model("Llama", {})
    reference.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    ids = torch.randint(0, 48, (1, 9))
    with torch.no_grad():
        torch.testing.assert_close(load_base(tmp_path)(ids), reference(ids).logits, atol=FLOOR, rtol=0)


def test_the_old_flat_rope_settings_mean_the_same() -> None:
    flat = {**LLAMA3, "type": "llama3"}
    theta = flat.pop("rope_theta")
    del flat["rope_type"]
    new = ModelConfig.from_hf({**tiny.CONFIG, "rope_parameters": LLAMA3})
    old = ModelConfig.from_hf({**tiny.CONFIG, "rope_scaling": flat, "rope_theta": theta})
    assert (new.rope_theta, new.rope_scaling["factor"]) == (old.rope_theta, old.rope_scaling["factor"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["MistralForCausalLM"]}, "architecture 'MistralForCausalLM' is not one of"),
        ({"hidden_size": None}, "field 'hidden_size' is missing"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"rope_scaling": {"rope_type": "linear"}}, "field 'factor' is missing"),
    ],
)
def test_a_config_that_is_not_supported_is_refused_by_name(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**tiny.CONFIG, **changes}))
    with pytest.raises(CheckpointError, match=words) as caught:
        load_base(tmp_path)
    assert "config.json" in str(caught.value)


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config.json: no such file"):
        load_base(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config.json: not valid JSON"):
        load_base(tmp_path)
    tiny.write_base(tmp_path, tiny.base())
    weights = tmp_path / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match=r"model.safetensors: damaged"):
        load_base(tmp_path)
    weights.unlink()
    with pytest.raises(CheckpointError, match=r"model.safetensors: no such file"):
        load_base(tmp_path)


@pytest.mark.parametrize("lost", ["model.embed_tokens.weight", "model.norm.weight"])
def test_a_missing_tensor_is_named(lost: str, tmp_path: Path) -> None:
    weights = tiny.write_base(tmp_path, tiny.base()) / "model.safetensors"
    state = load_file(weights)
    del state[lost]
    save_file(state, weights)
    with pytest.raises(CheckpointError, match=lost.removeprefix("model.")):
        load_base(tmp_path)


def test_generation_config_adds_its_end_tokens(tmp_path: Path) -> None:
    tiny.write_base(tmp_path, tiny.base())
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [0, 3]}')
    assert load_base(tmp_path).config.eos_token_ids == (0, 3)
