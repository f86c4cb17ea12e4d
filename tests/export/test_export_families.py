"""Every family of models on every backend: a tiny one is exported, run, and compared with the model in float32.

Run: python -m pytest tests/export/test_export_families.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from export_samples import TEXT, config_for, decode_rows, tiny_model, verify_rows, write_checkpoint

from streamfuse.bundle import open_bundle
from streamfuse.engines import engines_of
from streamfuse.export.capabilities import BACKENDS
from streamfuse.export.config import ExportConfig
from streamfuse.export.pipeline import run_export
from streamfuse.export.preview import preview
from streamfuse.model.config import ARCHITECTURES
from streamfuse.options import converted
from streamfuse.runtime.config import GenerationConfig
from streamfuse.runtime.session import Session

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LONGROPE = {"type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.5, 2.0, 2.5], "long_factor": [2.0] * 6}
MULTIPLIERS = {
    "embedding_multiplier": 4.0,
    "attention_multiplier": 0.2,
    "residual_multiplier": 0.5,
    "logits_scaling": 2.0,
}
# Each with all that its reader takes; a plain Llama is in every other test.
FAMILIES: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"attention_bias": True, "rope_scaling": LLAMA3, "tie_word_embeddings": False},
    "Qwen2ForCausalLM": {"use_sliding_window": True, "sliding_window": 11, "max_window_layers": 1},
    "Qwen3ForCausalLM": {"head_dim": 32, "attention_bias": True, "rope_scaling": YARN},
    "MistralForCausalLM": {"head_dim": 16, "sliding_window": 9, "tie_word_embeddings": False},
    "MinistralForCausalLM": {"sliding_window": 5, "layer_types": ["full_attention", "sliding_attention"]},
    "SmolLM3ForCausalLM": {"no_rope_layers": [0, 1], "head_dim": 32},
    "Olmo2ForCausalLM": {"head_dim": 32, "tie_word_embeddings": False, "attention_bias": True},
    "GraniteForCausalLM": MULTIPLIERS,
    "GraniteMoeHybridForCausalLM": {
        **MULTIPLIERS,
        "num_local_experts": 0,
        "shared_intermediate_size": 96,
        "position_embedding_type": "rope",
    },
    "Phi3ForCausalLM": {"partial_rotary_factor": 0.75, "sliding_window": 20, "rope_scaling": LONGROPE},
    "Gemma3ForCausalLM": {
        "head_dim": 32,
        "query_pre_attn_scalar": 20,
        "sliding_window": 7,
        "layer_types": ["full_attention", "sliding_attention"],
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
}
FORMS: dict[str, dict[str, Any]] = {
    "kernels": {"target": "executorch", "backend": "kernels"},
    "xnnpack": {"target": "executorch", "backend": "xnnpack"},
    "core ml delegate": {"target": "executorch", "backend": "coreml", "quantize": "int4"},
    "vulkan": {"target": "executorch", "backend": "vulkan", "quantize": "int8"},
    "qnn": {"target": "executorch", "backend": "qnn", "weight_sharing": "off"},
    "openvino": {"target": "executorch", "backend": "openvino"},
    "core ml": {"target": "coreml", "backend": "mlprogram"},
    "core ml, layout ane": {"target": "coreml", "backend": "mlprogram", "layout": "ane"},
    "onnx": {"target": "onnx", "backend": "onnxruntime"},
}
HERE = ("kernels", "xnnpack", "core ml", "core ml, layout ane", "onnx", "openvino")  # the other engines are on devices
EXACT = ("kernels",)  # rows of all methods have the same bits
SIZES: dict[str, Any] = {"num_hidden_layers": 2}
# All families run with our operators by default, and on every backend that runs here those that together have every
# part of a family.
EVERY_PART = ("Qwen2ForCausalLM", "Olmo2ForCausalLM", "Gemma3ForCausalLM")
# What only OLMo 2 has, norms over all heads and after products, XNNPACK's delegates have as Gemma 3's norms.
DEFAULT = {"kernels": ARCHITECTURES, **dict.fromkeys(HERE[1:5], EVERY_PART), "xnnpack": (EVERY_PART[0], EVERY_PART[2])}
CASES = [
    pytest.param(family, form, marks=[] if family in DEFAULT.get(form, ()) else pytest.mark.full)
    for family in FAMILIES
    for form in FORMS
]


def test_no_family_and_no_backend_is_left_out() -> None:
    assert set(FAMILIES) == set(ARCHITECTURES)
    claimed = {(target, backend) for target, backends in BACKENDS.items() for backend in backends}
    assert {(form["target"], form["backend"]) for form in FORMS.values()} == claimed


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Random weights and an adapter by family; biases as large as what they are added to."""
    found = {}
    for family, changes in FAMILIES.items():
        torch.manual_seed(3)
        changes = {**SIZES, **changes, "architectures": [family]}
        model = tiny_model({"num_msa_layers": 1}, **changes)
        for name, parameter in model.base.named_parameters():
            if name.endswith("bias"):
                parameter.data.normal_()
        found[family] = write_checkpoint(tmp_path_factory.mktemp(family), model, **changes)
    return found


def calls_in(pte: Path, method: str) -> int:
    """Operators that a method of a .pte calls."""
    from executorch.exir._serialize._program import deserialize_pte_binary

    plans = deserialize_pte_binary(pte.read_bytes()).program.execution_plan
    (chain,) = next(plan for plan in plans if plan.name == method).chains
    return len(chain.instructions)


@pytest.mark.parametrize(("family", "form"), CASES)
def test_a_family_is_exported_and_run(
    family: str, form: str, checkpoints: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    """The export holds every method to its floor, through the target's engine or what stands for it here."""
    one_width = {"widths": (4,), "default_width": 4, "prune_keep": 4}
    options = converted(ExportConfig, {**one_width, "schedule": "deferred", **FORMS[form]})
    plan = config_for(checkpoints[family], tmp_path / "bundle", **options)
    planned = preview(plan)
    report = run_export(plan)
    bundle = open_bundle(plan.output_dir)
    assert bundle.manifest.model.architecture == family
    assert set(bundle.manifest.parity) == {"decode", "verify_4", "streams"}
    assert report.parity["float32"]["walk"]["snr_db"] > 10, "a part of the model is missing"
    if form == "kernels":
        assert all(
            planned.calls[name] == calls_in(plan.output_dir / "model.pte", name) for name in ("prefill", "decode")
        )
    if form not in HERE:
        return
    make = engines_of(bundle, 1)
    with make() as backend:
        plain = decode_rows(backend, TEXT)
        drafted = verify_rows(backend, "verify_4", TEXT)[: len(plain)]
        if form in EXACT:
            np.testing.assert_array_equal(drafted, plain)
        assert (drafted.argmax(1) == plain.argmax(1)).mean() > 0.9
    tables = bundle.tables
    with Session(make(), tables) as session:
        texts = []
        for speculative in (False, True):
            config = GenerationConfig(24, speculative=speculative, width=4 if speculative else None, ignore_eos=True)
            generation = session.generate(TEXT[:9], config)
            generation.finish()
            texts.append(generation.token_ids)
    assert texts[0] == texts[1]
