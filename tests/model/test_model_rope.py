"""Every form in which a config.json says rotary embedding, against transformers on the same checkpoint.

Run: python -m pytest tests/model/test_model_rope.py
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from family_samples import FLOOR, LLAMA3, SIZES, hf_model

from streamfuse.model.checkpoint import load_base
from streamfuse.model.config import ModelConfig
from streamfuse.model.fields import CheckpointError, CheckpointWarning

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: pip install 'streamfuse[train]'"
)

YARN = {"rope_type": "yarn", "factor": 4.0}
FLAT_LLAMA3 = {name: value for name, value in LLAMA3.items() if name != "rope_theta"}
WRITTEN_BY_5 = {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}
FORMS: dict[str, dict[str, Any]] = {
    "linear, flat": {"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_theta": 500000.0},
    "linear beside what transformers 5 writes": {**WRITTEN_BY_5, "rope_scaling": {"type": "linear", "factor": 4.0}},
    "llama3, flat": {"rope_scaling": FLAT_LLAMA3, "rope_theta": 500000.0},
    "llama3 beside what transformers 5 writes": {**WRITTEN_BY_5, "rope_scaling": FLAT_LLAMA3, "rope_theta": 500000.0},
    "yarn, flat": {"rope_scaling": {**YARN, "original_max_position_embeddings": 64}, "rope_theta": 500000.0},
    "yarn beside what transformers 5 writes": {
        **WRITTEN_BY_5,
        "rope_scaling": {**YARN, "original_max_position_embeddings": 64, "rope_theta": 500000.0},
    },
    "yarn, nested": {"rope_parameters": {**YARN, "rope_theta": 500000.0, "original_max_position_embeddings": 64}},
    "yarn that says no length": {"rope_parameters": {**YARN, "rope_theta": 10000.0}},
    "yarn whose length stands beside it": {
        "rope_parameters": {**YARN, "rope_theta": 10000.0, "original_max_position_embeddings": 32},
        "original_max_position_embeddings": 64,
    },
    "yarn with every number": {
        "rope_parameters": {
            **YARN,
            "rope_theta": 10000.0,
            "original_max_position_embeddings": 64,
            "attention_factor": 1.5,
            "beta_fast": 16,
            "beta_slow": 2,
            "truncate": False,
        }
    },
    "yarn with two mscales": {
        "rope_parameters": {**YARN, "rope_theta": 10000.0, "mscale": 2.0, "mscale_all_dim": 0.5},
    },
    "yarn of one": {"rope_parameters": {**YARN, "factor": 1.0, "rope_theta": 10000.0}},
    "an empty scaling": {**WRITTEN_BY_5, "rope_scaling": {}},
    "a flat base beside a nested one": {**WRITTEN_BY_5, "rope_theta": 2000.0},
    "no base at all": {"rope_parameters": None},
}


@pytest.mark.parametrize("family", ["Llama", "Qwen3"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("ignore::streamfuse.model.fields.CheckpointWarning")
def test_each_form_gives_the_logits_of_transformers(form: str, family: str, tmp_path: Path) -> None:
    hf_model(family, {"head_dim": 16}).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **FORMS[form]}))
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.randint(0, SIZES["vocab_size"], (1, 200))
    with torch.no_grad():
        expected, found = reference(ids).logits, load_base(tmp_path)(ids)
    difference = (expected - found).abs()
    assert difference.max() <= FLOOR, f"max {difference.max():.2e}, mean {difference.mean():.2e}"


def config(**changes: Any) -> dict[str, Any]:
    return {"architectures": ["LlamaForCausalLM"], **SIZES, **changes}


def test_longrope_is_for_contexts_of_the_trained_length() -> None:
    scaling = {"type": "su", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    phi = {"architectures": ["Phi3ForCausalLM"], "max_position_embeddings": 131072, "rope_scaling": scaling}
    for changes, length in ({}, 4096), ({"original_max_position_embeddings": 8192}, 8192):
        found = ModelConfig.from_hf(config(**{**phi, **changes}))
        assert found.max_position_embeddings == length
        assert found.rotaries[0].scaling["original_max_position_embeddings"] == length


def test_a_base_that_a_scaling_replaces_is_said() -> None:
    with pytest.warns(CheckpointWarning, match=r"rope_scaling replaces rope_parameters with their rope_theta 500000"):
        found = ModelConfig.from_hf(config(**WRITTEN_BY_5, rope_scaling=YARN))
    assert found.rotaries[0].theta == 10000.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ModelConfig.from_hf(config(**WRITTEN_BY_5, rope_scaling={**YARN, "rope_theta": 500000.0}))


@pytest.mark.filterwarnings("ignore::streamfuse.model.fields.CheckpointWarning")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic' is not supported .* up to 256 tokens"),
        (
            {"rope_parameters": {"rope_type": "longrope", "short_factor": [1], "long_factor": [2]}},
            "must have 4 numbers",
        ),
        ({"rope_parameters": {"rope_type": "longrope", "short_factor": "x"}}, "short_factor must be a list of numbers"),
        ({"rope_scaling": {"type": "alibi", "factor": 2.0}}, "'alibi' is not supported"),
        (
            {"rope_parameters": {"rope_type": "proportional", "partial_rotary_factor": 1.1}},
            "partial_rotary_factor must be a number from 0 to 1",
        ),
        ({**WRITTEN_BY_5, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic' is not supported"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "settings per layer type .full_attention"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 2.0}}, "field 'low_freq_factor' is missing"),
        ({"rope_parameters": {**LLAMA3, "high_freq_factor": 1.0}}, "high_freq_factor must be above low_freq_factor"),
        ({"rope_parameters": {**YARN, "factor": "x"}}, "rope_parameters: factor must be a number above 0"),
        ({"rope_parameters": {**YARN, "rope_theta": 1.0}}, "rope_theta must be above 1 with yarn"),
    ],
)
def test_what_is_not_supported_is_refused_in_every_form(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        ModelConfig.from_hf(config(**changes))
