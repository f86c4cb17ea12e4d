"""Which of a checkpoint folder's files and fields rule, compared with transformers, and what is refused by its name.

Run: python -m pytest tests/model/test_model_checkpoint.py
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from family_samples import FLOOR, SIZES, hf_model
from safetensors.torch import load_file, save_file

from streamfuse import digest
from streamfuse.model import shards
from streamfuse.model.checkpoint import load_base, load_config
from streamfuse.model.config import ModelConfig
from streamfuse.model.fields import CheckpointError, CheckpointWarning

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'streamfuse[train]'"
)


def test_a_process_reads_an_unchanged_checkpoint_once_for_its_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, whole = tiny.write_base(tmp_path / "base", tiny.base()), digest.sha256_of
    digests: list[str] = []

    def counted(files: Iterable[Path]) -> str:
        digests.append(whole(files))
        return digests[-1]

    monkeypatch.setattr(shards, "sha256_of", counted)
    assert shards.checkpoint_digest(folder) == shards.checkpoint_digest(folder)
    assert len(digests) == 1
    config = folder / "config.json"
    config.write_text(config.read_text() + "\n")
    assert shards.checkpoint_digest(folder) == digests[1][:16] != digests[0][:16]


def assert_same_logits(folder: Path) -> None:
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.randint(0, SIZES["vocab_size"], (1, 60))
    with torch.no_grad():
        torch.testing.assert_close(load_base(folder)(ids), reference(ids).logits, atol=FLOOR, rtol=0)


def change(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def change_weights(folder: Path, **changes: torch.Tensor) -> None:
    path = folder / "model.safetensors"
    save_file({**load_file(path), **changes}, path, metadata={"format": "pt"})


@pytest.mark.parametrize("shards_are_there", [True, False])
def test_one_file_of_weights_rules_over_an_old_index(shards_are_there: bool, tmp_path: Path) -> None:
    hf_model("Llama", {}).save_pretrained(tmp_path, max_shard_size="20KB")
    old = list(tmp_path.glob("model-*.safetensors"))
    hf_model("Llama", {}).save_pretrained(tmp_path / "new")
    shutil.copyfile(tmp_path / "new" / "model.safetensors", tmp_path / "model.safetensors")
    for path in [] if shards_are_there else old:
        path.unlink()
    assert (tmp_path / "model.safetensors.index.json").is_file()
    load_config(tmp_path)
    assert_same_logits(tmp_path)


def test_a_head_of_its_own_in_a_tied_checkpoint_is_kept_with_a_warning(tmp_path: Path) -> None:
    hf_model("Llama", {"tie_word_embeddings": True}).save_pretrained(tmp_path)
    head = torch.randn(SIZES["vocab_size"], SIZES["hidden_size"])
    change_weights(tmp_path, **{"lm_head.weight": head})
    for read in (load_config, load_base):
        with pytest.warns(
            CheckpointWarning, match="tie_word_embeddings is true, but lm_head.weight differs from the embedding"
        ):
            read(tmp_path)
    with pytest.warns(CheckpointWarning):
        assert load_config(tmp_path).tie_word_embeddings is False
    with pytest.warns(CheckpointWarning):
        assert_same_logits(tmp_path)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kept", ["both", "lm_head.weight", "model.embed_tokens.weight"])
def test_a_tied_pair_is_tied_whichever_the_file_has(kept: str, tmp_path: Path) -> None:
    reference = hf_model("Llama", {"tie_word_embeddings": True})
    reference.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    state["lm_head.weight"] = state["model.embed_tokens.weight"].clone()
    for name in ("lm_head.weight", "model.embed_tokens.weight"):
        if kept not in ("both", name):
            del state[name]
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert load_config(tmp_path).tie_word_embeddings
    ids = torch.randint(0, SIZES["vocab_size"], (1, 60))
    with torch.no_grad():
        torch.testing.assert_close(load_base(tmp_path)(ids), reference(ids).logits, atol=FLOOR, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16])
def test_floating_point_weights_of_every_width_are_read(dtype: torch.dtype, tmp_path: Path) -> None:
    hf_model("Llama", {}).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    change_weights(tmp_path, **{name: value.to(dtype) for name, value in weights.items() if value.ndim == 2})
    found = load_base(tmp_path).state_dict()
    for name, value in weights.items():
        expected = value.to(dtype).float() if value.ndim == 2 else value
        assert torch.equal(found[name.removeprefix("model.")], expected), name


@pytest.mark.parametrize("read", [load_config, load_base])
@pytest.mark.parametrize(
    ("added", "words"),
    [
        ({"qweight": torch.int32}, r"unexpected: layers.0.mlp.up_proj.qweight; the weights are quantized: take the"),
        (
            {"weight": torch.float8_e4m3fn, "weight_scale_inv": torch.float32},
            r"weight_scale_inv; the weights are quant",
        ),
        ({"weight": torch.int8, "SCB": torch.float32}, r"up_proj.weight' has the dtype I8, which is not supported"),
        ({"weight_packed": torch.int32, "weight_scale": torch.float16}, r"weight_packed and 1 more; the weights are"),
    ],
)
def test_quantized_weights_are_named_before_any_work(
    read: Any, added: dict[str, torch.dtype], words: str, tmp_path: Path
) -> None:
    folder = tiny.write_base(tmp_path, tiny.base())
    change_weights(
        folder, **{f"model.layers.0.mlp.up_proj.{name}": torch.ones(48, 32).to(dtype) for name, dtype in added.items()}
    )
    with pytest.raises(CheckpointError, match=words):
        read(folder)


@pytest.mark.parametrize("method", ["gptq", "compressed-tensors", "bitsandbytes", "awq", "fp8", None])
def test_a_quantization_config_is_named_with_what_to_take(method: str | None, tmp_path: Path) -> None:
    folder = tiny.write_base(tmp_path, tiny.base(), quantization_config={"quant_method": method, "bits": 4})
    words = rf"config.json: quantization_config: the weights are quantized \({method or 'no quant_method'}\), .* take"
    with pytest.raises(CheckpointError, match=words):
        load_config(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "mistral"}, "model_type 'mistral' does not go with the architecture LlamaForCausalLM"),
        ({"attention_multiplier": 0.5}, "attention_multiplier 0.5 is not supported"),
        ({"residual_multiplier": 0.2}, "residual_multiplier 0.2 is not supported"),
        ({"embedding_multiplier": 12.0}, "embedding_multiplier 12.0"),
        ({"logits_scaling": 8.0}, "logits_scaling 8.0"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping 30.0"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0"),
        ({"mlp_bias": True}, "mlp_bias True"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"is_causal": False}, "is_causal False"),
        ({"per_layer_config": {"0": {"hidden_act": "relu"}}}, "per_layer_config"),
        ({"transformers_weights": "other.safetensors"}, "transformers_weights 'other.safetensors'"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
    ],
)
def test_a_field_that_would_change_the_numbers_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    folder = tiny.write_base(tmp_path, tiny.base(), **{"num_hidden_layers": 2})
    change(folder, **changes)
    with pytest.raises(CheckpointError, match=words):
        ModelConfig.load(folder)


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("Llama", {"sliding_window": 8, "use_sliding_window": True}),
        ("Llama", {"attention_multiplier": None, "logits_scaling": 1.0, "hidden_act": "swish"}),
        ("Qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 3, "layer_types": None}),
        ("Qwen2", {"use_sliding_window": False, "sliding_window": 8}),
        ("Qwen2", {"attention_bias": False}),
        ("Llama", {"architectures": None}),
    ],
)
def test_a_field_that_changes_nothing_in_transformers_changes_nothing(
    family: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    hf_model(family, {}).save_pretrained(tmp_path)
    change(tmp_path, **changes)
    assert_same_logits(tmp_path)


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"max_window_layers": 1}, (None, 8, 8, 8)),
        ({"layer_types": ["full_attention"] * 3 + ["sliding_attention"]}, (None, None, None, 8)),
        ({"sliding_window": 256}, (None,) * 4),  # no text is longer
        ({"sliding_window": None}, (None,) * 4),
        ({}, (None, None, 8, 8)),
    ],
)
def test_layers_have_the_window_that_a_config_says(
    changes: dict[str, Any], windows: tuple[int | None, ...], tmp_path: Path
) -> None:
    hf_model("Qwen3", {"head_dim": 8}).save_pretrained(tmp_path)
    sliding = {"use_sliding_window": True, "sliding_window": 8, "layer_types": None, "max_window_layers": 2}
    change(tmp_path, **{**sliding, **changes})
    assert load_config(tmp_path).layer_windows == windows
    if changes.get("sliding_window", 8) is not None:
        assert_same_logits(tmp_path)


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({}, (None, 8, None, 8)),
        ({"no_rope_layers": [0, 1, 1, 1]}, (8, None, None, None)),
        ({"sliding_window": None}, (None,) * 4),
        ({"use_sliding_window": False}, (None,) * 4),
    ],
)
def test_layers_of_smollm3_without_a_rotary_embedding_have_the_window(
    changes: dict[str, Any], windows: tuple[int | None, ...], tmp_path: Path
) -> None:
    hf_model("SmolLM3", {}).save_pretrained(tmp_path)
    own = {"no_rope_layers": None, "no_rope_layer_interval": 2, "max_window_layers": 1, "layer_types": None}
    change(tmp_path, **{**own, "use_sliding_window": True, "sliding_window": 8, **changes})
    assert load_config(tmp_path).layer_windows == windows
    assert_same_logits(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"architectures": ["Gemma3nForConditionalGeneration"]},
            "architecture 'Gemma3nForConditionalGeneration' is not",
        ),
        ({"hidden_activation": "gelu"}, "hidden_activation 'gelu' is not supported .only 'gelu_pytorch_tanh' is"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping 30.0 is not supported"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention True is not supported"),
        ({"layer_types": ["chunked_attention"] * 4}, "layer_types .* is not supported .full_attention and sliding_att"),
        ({"rope_parameters": {"rope_type": "default"}}, "rope_parameters must have settings per layer type"),
        ({"rope_parameters": {"full_attention": {"rope_type": "dynamic"}}}, "'dynamic' is not supported"),
    ],
)
def test_what_a_gemma_has_beyond_the_text_model_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        ModelConfig.from_hf({**SIZES, "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", **changes})


def test_experts_are_refused_where_a_family_has_them_by_default() -> None:
    config = {**SIZES, "architectures": ["GraniteMoeHybridForCausalLM"], "shared_intermediate_size": 40}
    with pytest.raises(CheckpointError, match=r"num_local_experts 8 is not supported .only 0 is"):
        ModelConfig.from_hf(config)
    with pytest.raises(CheckpointError, match=r"layer_types .* is not supported"):
        ModelConfig.from_hf({**config, "num_local_experts": 0, "layer_types": ["mamba", "attention"] * 2})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"full_attn_idxs": 2}, "full_attn_idxs must be a list of numbers from 0 to 3, not 2"),
        ({"full_attn_idxs": ["2"]}, "full_attn_idxs must be a list"),
        ({"full_attn_idxs": [4]}, "full_attn_idxs must be a list"),
        ({"layer_types": ["conv", "sliding_attention"] * 2}, r"layer_types .* \(full_attention and conv, one for"),
        ({"layer_types": ["conv"] * 4, "conv_L_cache": 0}, "conv_L_cache"),
        ({"layer_types": ["conv"] * 4, "conv_bias": True}, "conv_bias True is not supported"),
        ({"layer_types": ["conv"] * 4, "hidden_size": 24}, "hidden_size must be a multiple of 16"),
    ],
)
def test_a_wrong_setting_of_convolutions_is_named(changes: dict[str, Any], words: str) -> None:
    config = tiny.config(architectures=["Lfm2ForCausalLM"], head_dim=8)
    with pytest.raises(CheckpointError, match=words):
        ModelConfig.from_hf({**config, **changes})


def test_the_first_checkpoints_of_lfm2_say_the_mlp_in_other_fields() -> None:
    config = tiny.config(architectures=["Lfm2ForCausalLM"], block_ff_dim=6656, block_multiple_of=256)
    assert ModelConfig.from_hf(config).layer_mlp_sizes[0] == 4608  # of LFM2-350M
    assert ModelConfig.from_hf({**config, "block_ff_dim": None}).layer_mlp_sizes[0] == 256
    assert ModelConfig.from_hf({**config, "block_auto_adjust_ff_dim": False}).layer_mlp_sizes[0] == 6656


def test_what_a_file_leaves_out_has_the_familys_own_default() -> None:
    config = {"architectures": ["Qwen3ForCausalLM"], **SIZES, "num_attention_heads": 32}
    del config["num_key_value_heads"], config["max_position_embeddings"]
    found, theirs = ModelConfig.from_hf(config), transformers.Qwen3Config(**{**config, "pad_token_id": None})
    assert (found.head_dim, found.num_kv_heads) == (theirs.head_dim, theirs.num_key_value_heads) == (128, 32)
    assert found.max_position_embeddings == theirs.max_position_embeddings


def test_a_missing_or_wrong_tensor_is_named_before_any_work(tmp_path: Path) -> None:
    folder = tiny.write_base(tmp_path, tiny.base())
    state = load_file(folder / "model.safetensors")
    save_file({**state, "model.norm.weight": torch.ones(5)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"norm.weight is \[5\], not \[32\]"):
        load_config(folder)
    del state["model.norm.weight"], state["model.layers.0.mlp.up_proj.weight"]
    save_file(state, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"missing: layers.0.mlp.up_proj.weight and 1 more"):
        load_config(folder)


def test_a_folder_without_weights_is_enough_to_plan(tmp_path: Path) -> None:
    folder = tiny.write_base(tmp_path, tiny.base())
    (folder / "model.safetensors").unlink()
    assert load_config(folder).num_layers == 4
