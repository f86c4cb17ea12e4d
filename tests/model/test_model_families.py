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

from streamfuse.model.checkpoint import load_base, load_config
from streamfuse.model.config import CheckpointError, ModelConfig
from streamfuse.model.families import to_checkpoint
from streamfuse.model.shapes import shapes_in

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'streamfuse[train]'"
)

YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
MULTIPLIERS = {
    "embedding_multiplier": 12.0,
    "attention_multiplier": 0.15,
    "residual_multiplier": 0.22,
    "logits_scaling": 8.0,
}
GRANITE_4 = {
    **MULTIPLIERS,
    "mamba_n_heads": 4,
    "num_local_experts": 0,
    "shared_intermediate_size": 48,
    "layer_types": ["attention"] * 4,
}
LONGROPE = {
    "partial_rotary_factor": 0.75,
    "original_max_position_embeddings": 64,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0, 1.1, 1.2, 1.5, 2.0, 2.5],
        "long_factor": [2.0, 3.0, 4.0, 5.0, 6.0, 7.0],
    },
}
GEMMA_3 = {
    "head_dim": 16,
    "sliding_window": 12,
    "layer_types": ["full_attention", "sliding_attention"] * 2,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    },
}
GEMMA_4 = {
    "head_dim": 8,
    "global_head_dim": 16,
    "sliding_window": 6,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 12,
    "vocab_size_per_layer_input": 48,
    "final_logit_softcapping": 4.0,
}
QWEN3_5 = {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text"}
LINEAR_ATTENTION = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 8,
    "full_attention_interval": 2,
}
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
    "qwen2 with windows": ("Qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}),
    "mistral": ("Mistral", {"sliding_window": None, "head_dim": 16}),
    "mistral with a window": ("Mistral", {"sliding_window": 9, "rope_parameters": YARN}),
    "ministral": (
        "Ministral",
        {"head_dim": 8, "sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"] * 2},
    ),
    "ministral3": ("Ministral3", {"head_dim": 8, "rope_parameters": {**YARN, "llama_4_scaling_beta": 0.1}}),
    "smollm3": ("SmolLM3", {"no_rope_layers": [1, 0, 1, 0]}),
    "smollm3 by interval": ("SmolLM3", {"no_rope_layer_interval": 2, "rope_parameters": YARN}),
    "smollm3 with windows": ("SmolLM3", {"use_sliding_window": True, "sliding_window": 6, "no_rope_layer_interval": 2}),
    "smollm3 with windows of layer_types alone": (
        "SmolLM3",
        {
            "use_sliding_window": False,
            "sliding_window": 6,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "no_rope_layer_interval": 2,
        },
    ),
    "olmo2": ("Olmo2", {"rope_parameters": LINEAR}),
    "olmo2 with biases": ("Olmo2", {"attention_bias": True, "tie_word_embeddings": True}),
    "olmo3": ("Olmo3", {"sliding_window": 7}),
    "olmo3, scaled in layers without a window": (
        "Olmo3",
        {"sliding_window": 9, "layer_types": ["full_attention", "sliding_attention"] * 2, "rope_scaling": YARN},
    ),
    "exaone4": ("Exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 4, "rope_parameters": LLAMA3}),
    "exaone4 with windows": ("Exaone4", {"sliding_window": 7, "tie_word_embeddings": True}),
    "ernie4.5": ("Ernie4_5", {"head_dim": 16}),
    "ernie4.5 with linear rope": ("Ernie4_5", {"head_dim": None, "rope_parameters": LINEAR, "num_key_value_heads": 4}),
    "glm": ("Glm", {"head_dim": 8}),
    "glm without biases, rotated whole": (
        "Glm",
        {"head_dim": 8, "attention_bias": False, "partial_rotary_factor": 1.0},
    ),
    "helium": ("Helium", {"head_dim": 8}),
    "helium with biases": ("Helium", {"head_dim": 8, "attention_bias": True}),
    "granite": ("Granite", {**MULTIPLIERS, "tie_word_embeddings": True}),
    "granite, every default": ("Granite", {"rope_parameters": YARN}),
    "granite 4": ("GraniteMoeHybrid", {**GRANITE_4, "position_embedding_type": "rope"}),
    "granite 4 without positions": ("GraniteMoeHybrid", {**GRANITE_4, "attention_bias": True}),
    "hunyuan": ("HunYuanDenseV1", {"head_dim": 8}),
    "hunyuan with yarn": ("HunYuanDenseV1", {"head_dim": 8, "rope_parameters": YARN}),
    "hunyuan with alpha": (
        "HunYuanDenseV1",
        {
            "head_dim": 16,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 1000.0, "factor": 1.0},
        },
    ),
    "phi3": ("Phi3", {"num_key_value_heads": 4, "sliding_window": 11}),
    "phi3, a part of each head rotated": ("Phi3", {"head_dim": 8, "partial_rotary_factor": 0.75}),
    "phi3 with longrope": ("Phi3", {**LONGROPE, "hidden_size": 64}),
    "gemma3": ("Gemma3", {"head_dim": 16, "sliding_window": 8, "sliding_window_pattern": 2}),
    "gemma4": ("Gemma4", GEMMA_4),
    "gemma4, neither shared keys nor per-layer embeddings": (
        "Gemma4",
        {
            "head_dim": 8,
            "global_head_dim": 8,
            "num_hidden_layers": 5,
            "hidden_size_per_layer_input": 0,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
                "full_attention": {"rope_type": "default", "rope_theta": 2000000.0},
            },
        },
    ),
    "lfm2": ("Lfm2", {"layer_types": ["conv", "full_attention", "conv", "conv"], "block_multiple_of": 8}),
    "lfm2, as the first checkpoints name its fields": (
        "Lfm2",
        {"full_attn_idxs": [1, 3], "conv_L_cache": 4, "block_auto_adjust_ff_dim": False, "tie_embedding": False},
    ),
    "qwen3.5": ("Qwen3_5", {**LINEAR_ATTENTION, "head_dim": 16}),
    "qwen3.5, more heads of values, rotated whole, no attention in between": (
        "Qwen3_5",
        {
            **LINEAR_ATTENTION,
            "head_dim": 8,
            "linear_num_value_heads": 4,
            "linear_conv_kernel_dim": 2,
            "layer_types": ["linear_attention"] * 3 + ["full_attention"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
            "tie_word_embeddings": True,
        },
    ),
    "lfm3": ("Lfm3", {"head_dim": 16, "sliding_window": 9}),
    "lfm3 without gates and norms after its halves": (
        "Lfm3",
        {
            "head_dim": 8,
            "layer_types": ["conv", "full_attention", "conv", "full_attention"],
            "use_attention_gate": False,
            "use_sandwich_norm": False,
            "attention_bias": True,
            "conv_L_cache": 3,
        },
    ),
    "lfm3, top-level rope_theta, full attention without RoPE": (
        "Lfm3",
        {
            "head_dim": 16,
            "sliding_window": 7,
            "rope_theta": 5e5,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "rope_parameters": {
                "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.0},
                "sliding_attention": {"rope_type": "default"},
            },
        },
    ),
    "lfm3, every number of a head rotated": (
        "Lfm3",
        {
            "head_dim": 8,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "sliding_window": 5,
            "rope_parameters": {
                "full_attention": {"rope_type": "proportional", "rope_theta": 5000.0, "factor": 2.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
    ),
    "gemma3, another scale": ("Gemma3", {**GEMMA_3, "query_pre_attn_scalar": 40}),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Of a whole text, and of one token after another with transformers' cache."""
    reference = hf_model(*FAMILIES[name])
    reference.save_pretrained(tmp_path)
    ids = torch.randint(0, SIZES["vocab_size"], (2, 60))
    with torch.no_grad():
        expected, found = reference(ids).logits, load_base(tmp_path)(ids)
        cache, steps = None, []
        for i in range(ids.shape[1]):
            out = reference(ids[:, i : i + 1], cache=cache, use_cache=True)
            cache = out.past_key_values
            steps.append(out.logits)
    for what in (expected, torch.cat(steps, 1)):
        difference = (what - found).abs()
        scale = max(1.0, float(expected.abs().max()) / 10)  # of the float32 numbers that are compared
        assert difference.max() <= FLOOR * scale, f"max {difference.max():.2e}, mean {difference.mean():.2e}"


def test_minicpm_equals_granite_with_the_same_multipliers(tmp_path: Path) -> None:
    """transformers has no class for MiniCPM, whose code is with its checkpoints."""
    layers, hidden = SIZES["num_hidden_layers"], SIZES["hidden_size"]
    head_dim = hidden // SIZES["num_attention_heads"]
    reference = hf_model(
        "Granite",
        {
            "embedding_multiplier": 12.0,
            "residual_multiplier": 1.4 / layers**0.5,
            "logits_scaling": hidden / 8,
            "attention_multiplier": head_dim**-0.5,
        },
    )
    reference.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for name in ("embedding_multiplier", "residual_multiplier", "logits_scaling", "attention_multiplier"):
        del config[name]
    own = {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 8}
    kind = {"architectures": ["MiniCPMForCausalLM"], "model_type": "minicpm"}
    (tmp_path / "config.json").write_text(json.dumps({**config, **own, **kind}))
    ids = torch.randint(0, SIZES["vocab_size"], (2, 60))
    with torch.no_grad():
        expected, found = reference(ids).logits, load_base(tmp_path)(ids)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_checkpoint_is_written_as_it_was_read(name: str, tmp_path: Path) -> None:
    reference = hf_model(*FAMILIES[name])
    reference.save_pretrained(tmp_path)
    base, stored = load_base(tmp_path), load_file(tmp_path / "model.safetensors")
    written = to_checkpoint(base.state_dict(), base.config)
    assert written.keys() == stored.keys()
    for key, value in written.items():
        torch.testing.assert_close(value, stored[key], atol=1e-6, rtol=1e-6)
    assert load_config(tmp_path) == base.config
    assert shapes_in(base.config) == {name: tuple(value.shape) for name, value in base.state_dict().items()}


@pytest.mark.parametrize(
    ("family", "changes"), [("Llama", {}), ("Granite", {"logits_scaling": 8.0}), FAMILIES["gemma3"]]
)
def test_norms_in_bfloat16_are_those_of_transformers(family: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """To the bit: Gemma 3 multiplies by 1 + w in float32. Granite's last norm contains the divisor of its logits, 8."""
    reference = hf_model(family, changes).to(torch.bfloat16)
    reference.save_pretrained(tmp_path)
    base = load_base(tmp_path, torch.bfloat16)
    ours, theirs = base.blocks[1], reference.model.layers[1]
    pairs = [
        (ours.input_layernorm, theirs.input_layernorm, 1.0),
        (base.norm, reference.model.norm, base.config.logits_scale),
    ]
    if family == "Gemma3":
        pairs += [
            (ours.attention_output_norm, theirs.post_attention_layernorm, 1.0),
            (ours.post_attention_layernorm, theirs.pre_feedforward_layernorm, 1.0),
            (ours.mlp_output_norm, theirs.post_feedforward_layernorm, 1.0),
            (ours.self_attn.q_norm, theirs.self_attn.q_norm, 1.0),
            (ours.self_attn.k_norm, theirs.self_attn.k_norm, 1.0),
        ]
    for norm, their, divisor in pairs:
        x = torch.randn(50, norm.weight.shape[0]).bfloat16()
        found = norm(x) * divisor
        assert found.dtype == torch.bfloat16
        assert found.equal(their(x))


def test_a_divisor_of_logits_does_not_round_the_last_norm(tmp_path: Path) -> None:
    """10 is no power of two: divided by it, most numbers of bfloat16 are not in bfloat16."""
    reference = hf_model("Granite", {"logits_scaling": 10.0}).to(torch.bfloat16)
    reference.save_pretrained(tmp_path)
    x = torch.randn(50, SIZES["hidden_size"]).bfloat16()
    exact = reference.float().model.norm(x.float()) / 10
    found = load_base(tmp_path, torch.bfloat16).norm(x)
    assert found.dtype == torch.bfloat16
    assert ((found.float() - exact).abs() <= 1.001 * 2**-8 * exact.abs()).all()  # the last rounding alone


def test_ministral_3_ignores_layer_types(tmp_path: Path) -> None:
    """As its class does, except in its cache, which therefore fails; so only a whole text is compared."""
    kinds = ["sliding_attention", "full_attention"] * 2
    reference = hf_model("Ministral3", {"head_dim": 8, "sliding_window": 7, "layer_types": kinds})
    reference.save_pretrained(tmp_path)
    ids = torch.randint(0, SIZES["vocab_size"], (2, 60))
    with torch.no_grad():
        torch.testing.assert_close(load_base(tmp_path)(ids), reference(ids).logits, atol=FLOOR, rtol=0)


def test_a_context_ends_where_ministral_3_would_scale_its_queries(tmp_path: Path) -> None:
    hf_model(*FAMILIES["ministral3"]).save_pretrained(tmp_path)
    assert load_config(tmp_path).max_position_embeddings == 64
    bare = {**SIZES, "max_position_embeddings": 20000, "architectures": ["Ministral3ForCausalLM"]}
    config = ModelConfig.from_hf(bare)
    assert config.max_position_embeddings == 16384
    assert config.rotaries[0].scaling is not None
    assert config.rotaries[0].scaling["factor"] == 16.0
    unscaled = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}
    assert ModelConfig.from_hf({**bare, "rope_parameters": unscaled}).max_position_embeddings == 20000


def test_an_older_name_of_an_architecture_is_read() -> None:
    config = {**SIZES, "architectures": ["Ernie4_5_ForCausalLM"], "model_type": "ernie4_5"}
    assert ModelConfig.from_hf(config) == ModelConfig.from_hf({**config, "architectures": ["Ernie4_5ForCausalLM"]})


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
    assert new.rotaries == old.rotaries


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "architecture 'MambaForCausalLM' is not supported"),
        (
            {"architectures": ["Gemma2ForCausalLM"]},
            "not supported because of its soft-capping of attention scores .attn_logit_softcapping",
        ),
        ({"architectures": ["GptOssForCausalLM"]}, "not supported because of its attention sinks and experts"),
        ({"hidden_size": None}, "field 'hidden_size' is missing"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"rope_scaling": {"rope_type": "linear"}}, "field 'factor' is missing"),
        (
            {
                "architectures": ["Lfm3ForCausalLM"],
                "model_type": "lfm3",
                "rope_scaling": {"rope_type": "linear", "factor": 2.0},
            },
            "rope_scaling must have an object 'full_attention'",
        ),
        ({"architectures": ["Qwen3_5MoeForCausalLM"]}, "not supported because of its experts .num_experts"),
        (
            {**QWEN3_5, "linear_num_key_heads": 3, "linear_num_value_heads": 4},
            "linear_num_value_heads must be a multiple of linear_num_key_heads .3., not 4",
        ),
        ({**QWEN3_5, "linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim must be from 2 to 16, not 1"),
        ({**QWEN3_5, "attention_bias": True}, "attention_bias True is not supported .only False is."),
        ({**QWEN3_5, "attn_output_gate": False}, "attn_output_gate False is not supported .only True is."),
        ({"attn_output_gate": True}, "attn_output_gate True is not supported .only False is."),
        ({**QWEN3_5, "layer_types": [["linear_attention"]] * 4}, "layer_types .* is not supported"),
        ({**QWEN3_5, "layer_types": ["conv"] * 4}, "layer_types .* is not supported .full_attention and linear_atten"),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "llama_4_scaling_beta": 0.1}},
            "llama_4_scaling_beta is only supported with yarn, not with 'linear'",
        ),
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


def test_gemma4_ignores_keys_and_values_of_layers_that_share_them(tmp_path: Path) -> None:
    """Published checkpoints have these tensors. Per-layer embeddings that are stored in bfloat16 stay in bfloat16."""
    reference = hf_model("Gemma4", GEMMA_4)
    reference.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    ids = torch.randint(0, SIZES["vocab_size"], (2, 20))
    with torch.no_grad():
        expected = load_base(tmp_path)(ids)
    (table,) = (name for name in tensors if name.endswith("embed_tokens_per_layer.weight"))
    tensors[table] = tensors[table].bfloat16()
    for name in ("k_proj.weight", "v_proj.weight", "k_norm.weight"):
        tensors[f"model.layers.3.self_attn.{name}"] = torch.randn_like(tensors[f"model.layers.1.self_attn.{name}"])
    save_file(tensors, path, {"format": "pt"})
    found = load_base(tmp_path)
    assert load_config(tmp_path) == found.config
    assert found.per_layer_embedding.weight.dtype == torch.bfloat16
    with torch.no_grad():
        torch.testing.assert_close(found(ids), expected, atol=0.2, rtol=0.1)
    tensors["model.layers.1.self_attn.v_norm.weight"] = torch.ones(16)
    save_file(tensors, path, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"layers.1.self_attn.v_norm.weight"):
        load_base(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"num_kv_shared_layers": 3},
            "num_kv_shared_layers 3: the last 3 layers have a type in layer_types that no layer",
        ),
        (
            {"num_kv_shared_layers": 4},
            "num_kv_shared_layers 4: the last 4 layers have a type in layer_types that no layer",
        ),
        (
            {"num_kv_shared_layers": 9},
            "num_kv_shared_layers 9: the last 9 layers have a type in layer_types that no layer",
        ),
        ({"global_head_dim": 15}, "global_head_dim must be even, not 15"),
        ({"per_layer_config": {"1": {"head_dim": 32}}}, "it may only set head_dim, to the same number"),
        ({"per_layer_config": {"1": {"num_key_value_heads": 1}}}, "per_layer_config"),
        ({"attention_k_eq_v": True}, "attention_k_eq_v True is not supported"),
        ({"enable_moe_block": True}, "enable_moe_block True is not supported"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention 'all' is not supported"),
        ({"final_logit_softcapping": "x"}, "final_logit_softcapping"),
        ({"final_logit_softcapping": 1e39}, r"final_logit_softcapping must be from 0.001 to 1000000, or 0 for none"),
        ({"hidden_size_per_layer_input": -1}, "hidden_size_per_layer_input"),
        ({"vocab_size_per_layer_input": 47}, "vocab_size_per_layer_input must be vocab_size, 48, not 47"),
    ],
)
def test_settings_of_gemma4_that_are_not_supported_are_named(change: dict[str, Any], words: str) -> None:
    own = {"architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text"}
    with pytest.raises(CheckpointError, match=words):
        ModelConfig.from_hf({**SIZES, **GEMMA_4, **own, **change})
