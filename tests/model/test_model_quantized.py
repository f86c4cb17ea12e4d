"""Checkpoints with 4-bit integers: read exactly where they are on our grid, else refused with the reason.

Run: python -m pytest tests/model/test_model_quantized.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from streamfuse.export import grid
from streamfuse.model.checkpoint import load_base, load_config
from streamfuse.model.fields import CheckpointError, CheckpointWarning

SIZES: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2, "head_dim": 32}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
WEIGHTS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": WEIGHTS}},
}


def packed_rows(q: Tensor) -> Tensor:
    """q [N, K] in 0..15 -> int32 [N, K / 8], the first number in the lowest bits."""
    shifts = torch.arange(0, 32, 4)
    words = (q.long().unflatten(1, (-1, 8)) << shifts).sum(2)
    return torch.where(words >= 2**31, words - 2**32, words).int()


def write(
    folder: Path, settings: dict[str, Any], group: int = 128, zero: int = 7, head: bool = False, **changes: Any
) -> dict[str, Tensor]:
    """A checkpoint whose matrices are packed, with `head` that of an untied head too; returns these in float32 by their
    names."""
    base = tiny.base(**SIZES, **changes)
    tiny.write_base(folder, base, **SIZES, **changes, quantization_config=settings)
    state, expected = {}, {}
    for name, weight in load_file(folder / "model.safetensors").items():
        owner, _, word = name.rpartition(".")
        if not (owner.endswith("_proj") or (head and owner == "lm_head")) or word != "weight":
            state[name] = weight
            continue
        rows, inputs = weight.shape
        q = torch.randint(0, 16, weight.shape)
        scales = (torch.rand(rows, inputs // group) * 0.02 + 0.001).half()
        expected[name] = ((q - 8).float().unflatten(1, (-1, group)) * scales.float().unsqueeze(2)).flatten(1)
        if settings["quant_method"] == "gptq":
            state[f"{owner}.qweight"] = packed_rows(q).T.contiguous()
            state[f"{owner}.scales"] = scales.T.contiguous()
            state[f"{owner}.qzeros"] = packed_rows(torch.full((inputs // group, rows), zero))
            state[f"{owner}.g_idx"] = torch.arange(inputs, dtype=torch.int32) // group
        else:
            state[f"{owner}.weight_packed"] = packed_rows(q)
            state[f"{owner}.weight_scale"] = scales
            state[f"{owner}.weight_shape"] = torch.tensor([rows, inputs])
    save_file(state, folder / "model.safetensors")
    return expected


@pytest.mark.parametrize(
    ("settings", "zero"), [(GPTQ, 7), ({**GPTQ, "checkpoint_format": "gptq_v2"}, 8), (COMPRESSED, 8)]
)
def test_symmetric_integers_come_back_exactly_and_are_on_our_grid(
    settings: dict[str, Any], zero: int, tmp_path: Path
) -> None:
    expected = write(tmp_path, settings, zero=zero)
    config, model = load_config(tmp_path), load_base(tmp_path)
    assert model.config == config
    found = model.state_dict()
    for name, weight in expected.items():
        own = found[name.removeprefix("model.")]
        assert torch.equal(own, weight)
        q, d, m, exact = grid.q4_1(own)
        assert exact.all()
        again = q.float().unflatten(1, (-1, 32)) * d.float().unsqueeze(2) + m.float().unsqueeze(2)
        assert torch.equal(again.flatten(1), weight)


def test_biases_that_the_model_does_not_have_must_be_zero(tmp_path: Path) -> None:
    """AutoGPTQ writes one for each matrix; Qwen2 has those of q, k and v."""
    expected = write(tmp_path, GPTQ, architectures=["Qwen2ForCausalLM"])
    path = tmp_path / "model.safetensors"
    state = load_file(path)
    own = {name: bias for name, bias in state.items() if name.endswith(".bias")}
    owners = [name.removesuffix(".qweight") for name in state if name.endswith(".qweight")]
    state = {f"{owner}.bias": torch.zeros(state[f"{owner}.scales"].shape[1]) for owner in owners} | state
    save_file(state, path)
    config, found = load_config(tmp_path), load_base(tmp_path)
    assert found.config == config
    assert len(own) == 3 * config.num_layers
    tensors = found.state_dict()
    assert all(torch.equal(tensors[name.removeprefix("model.")], value) for name, value in {**own, **expected}.items())
    name = "model.layers.1.mlp.down_proj.bias"
    save_file({**state, name: state[name] + 1}, path)
    with pytest.raises(CheckpointError, match=f"{name}: is not zero, but the model has no such bias"):
        load_base(tmp_path)


@pytest.mark.parametrize("settings", [GPTQ, COMPRESSED])
def test_a_packed_head_is_not_the_embedding_whatever_config_json_says(settings: dict[str, Any], tmp_path: Path) -> None:
    expected = write(tmp_path, settings, zero=7 if settings is GPTQ else 8, head=True, tie_word_embeddings=False)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tie_word_embeddings": True}))
    with pytest.warns(CheckpointWarning, match="tie_word_embeddings is true, but lm_head.weight differs"):
        config = load_config(tmp_path)
    with pytest.warns(CheckpointWarning, match="tie_word_embeddings is true, but lm_head.weight differs"):
        found = load_base(tmp_path)
    assert (found.config, config.tie_word_embeddings) == (config, False)
    assert torch.equal(found.lm_head.weight, expected["lm_head.weight"])


def test_weights_on_no_grid_are_fitted_as_before() -> None:
    torch.manual_seed(0)
    assert not grid.q4_1(torch.randn(64, 64))[3].any()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({**GPTQ, "sym": False}, "sym is False, and only True is on our grid"),
        ({**GPTQ, "desc_act": True}, "desc_act is True"),
        ({**GPTQ, "bits": 8}, "bits is 8, and only 4 is on our grid"),
        ({**GPTQ, "group_size": 48}, "its groups of 48 are no multiple of 32"),
        ({"quant_method": "awq", "bits": 4}, "awq.*zero points times its scales are no float16 numbers"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "the levels of nf4 are unevenly spaced"),
        ({"quant_method": "fp8"}, "the levels of an 8-bit float are unevenly spaced"),
        ({"quant_method": "hqq"}, "this format is not known"),
        ({**COMPRESSED, "format": "float-quantized"}, "format 'float-quantized' is not on our grid"),
        (
            {**COMPRESSED, "config_groups": {"group_0": {"weights": {**WEIGHTS, "symmetric": False}}}},
            "symmetric is False, and only True is on our grid",
        ),
        (
            {**COMPRESSED, "config_groups": {"group_0": {"weights": {**WEIGHTS, "actorder": "group"}}}},
            "groups of inputs that are not next to each other",
        ),
    ],
)
def test_other_formats_are_refused_with_the_reason(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    tiny.write_base(tmp_path, tiny.base(), quantization_config=settings)
    with pytest.raises(CheckpointError, match=words) as caught:
        load_config(tmp_path)
    assert "take the float16" in str(caught.value)


def test_numbers_that_contradict_the_settings_are_named(tmp_path: Path) -> None:
    write(tmp_path, GPTQ, zero=3)
    with pytest.raises(CheckpointError, match=r"qweight: not readable as gptq .a zero point is not 8"):
        load_base(tmp_path)
    write(tmp_path, GPTQ)
    state = load_file(tmp_path / "model.safetensors")
    name = next(name for name in state if name.endswith("g_idx"))
    save_file({**state, name: state[name].flip(0).contiguous()}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"groups of inputs are not next to each other .g_idx"):
        load_base(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="the weights are quantized"):
        load_config(tmp_path)
