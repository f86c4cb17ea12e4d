"""Every family on every backend: a tiny model is trained, exported, run, and compared with the model in float32.

A few steps of training on the model's own answers are enough for a loss that falls.

Run: python -m pytest tests/export/test_export_families.py
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bundle_samples import VOCAB_SIZE
from export_samples import TEXT, config_for, decode_rows, tiny_model, verify_rows, write_checkpoint

from streamfuse.bundle import open_bundle
from streamfuse.engines import engines_of, threads_for
from streamfuse.export.capabilities import BACKENDS
from streamfuse.export.config import ExportConfig
from streamfuse.export.pipeline import run_export
from streamfuse.export.preview import preview
from streamfuse.model.checkpoint import load_base
from streamfuse.model.config import ARCHITECTURES, StreamConfig
from streamfuse.options import OptionError, converted
from streamfuse.runtime.backend import Backend
from streamfuse.runtime.config import GenerationConfig
from streamfuse.runtime.session import Session
from streamfuse.train.config import DistillConfig, TrainConfig
from streamfuse.train.distill import distill, in_batches

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'streamfuse[train]'")

from streamfuse.train import main as training
from streamfuse.train import report

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
    "LlamaForCausalLM": {"attention_bias": True, "rope_scaling": LLAMA3},
    "Qwen2ForCausalLM": {"use_sliding_window": True, "sliding_window": 11, "max_window_layers": 1},
    "Qwen3ForCausalLM": {"head_dim": 32, "attention_bias": True, "rope_scaling": YARN, "tie_word_embeddings": True},
    "MistralForCausalLM": {"head_dim": 16, "sliding_window": 9},
    "MinistralForCausalLM": {"sliding_window": 5, "layer_types": ["full_attention", "sliding_attention"]},
    "Ministral3ForCausalLM": {"head_dim": 16},
    "SmolLM3ForCausalLM": {"no_rope_layers": [0, 1], "head_dim": 32},
    "Olmo2ForCausalLM": {"head_dim": 32, "attention_bias": True},
    "Olmo3ForCausalLM": {
        "head_dim": 32,
        "sliding_window": 7,
        "layer_types": ["full_attention", "sliding_attention"],
        "rope_scaling": YARN,
    },
    "Exaone4ForCausalLM": {
        "head_dim": 32,
        "sliding_window": 9,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "Ernie4_5ForCausalLM": {"head_dim": 32},
    "GlmForCausalLM": {"head_dim": 32},
    "HeliumForCausalLM": {"head_dim": 16},
    "GraniteForCausalLM": {**MULTIPLIERS, "tie_word_embeddings": True},
    "GraniteMoeHybridForCausalLM": {
        **MULTIPLIERS,
        "num_local_experts": 0,
        "shared_intermediate_size": 96,
        "position_embedding_type": "rope",
    },
    "HunYuanDenseV1ForCausalLM": {"head_dim": 32, "rope_scaling": YARN},
    "MiniCPMForCausalLM": {"scale_emb": 4.0, "scale_depth": 0.7, "dim_model_base": 32},
    "Phi3ForCausalLM": {"partial_rotary_factor": 0.75, "sliding_window": 20, "rope_scaling": LONGROPE},
    # Streams in its convolution, which is the last layer of prefill too, and whose caches have more heads.
    "Lfm2ForCausalLM": {
        "num_key_value_heads": 1,
        "layer_types": ["full_attention", "conv"],
        "block_auto_adjust_ff_dim": False,
    },
    "Lfm3ForCausalLM": {"head_dim": 16, "sliding_window": 7, "layer_types": ["full_attention", "sliding_attention"]},
    "Qwen3_5ForCausalLM": {
        "head_dim": 32,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 24,
    },
    "Gemma3ForCausalLM": {
        "head_dim": 32,
        "query_pre_attn_scalar": 20,
        "sliding_window": 7,
        "layer_types": ["full_attention", "sliding_attention"],
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    # Streams in a layer with keys and values of its own and in two without, one of which reads that layer's.
    "Gemma4ForCausalLM": {
        "num_hidden_layers": 4,
        "head_dim": 16,
        "global_head_dim": 32,
        "sliding_window": 7,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True,
        "hidden_size_per_layer_input": 32,
        "final_logit_softcapping": 4.0,
    },
}
FORMS: dict[str, dict[str, Any]] = {
    "kernels": {"target": "executorch", "backend": "kernels"},
    # Its delegates are compiled for a number of rows: those of verify_4 serve prefill too.
    "xnnpack": {"target": "executorch", "backend": "xnnpack", "prefill_len": 4},
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
KERNELS_ONLY = ("Qwen3_5ForCausalLM", "Gemma4ForCausalLM")
# Its streams of 64 features, trained for a few steps, lose more to four bits than the floor int4 allows (4.9 dB of 5);
# the rows of a text, which tell a model from noise too, are held to more by the test.
BELOW_INT4 = ("Qwen3ForCausalLM", "xnnpack")
# Where the two best tokens of a step are closer than the rounding of a method's rows, texts may part (docs/limits.md).
NEAR_TIES = {
    ("Phi3ForCausalLM", "core ml"),
    ("Lfm3ForCausalLM", "core ml"),
    ("GraniteMoeHybridForCausalLM", "core ml, layout ane"),
    ("Ernie4_5ForCausalLM", "core ml, layout ane"),
}
# Two families have tied embeddings; a random model with these repeats a token, so there is little to learn.
SIZES: dict[str, Any] = {"num_hidden_layers": 2, "tie_word_embeddings": False}
COSTS = {"decode": 1.0, "verify_4": 1.1, "streams": 0.4}  # ms; drafts are worth their passes
# By default each family runs with our operators or on ONNX Runtime, where its tables of positions are as everywhere.
# Our operators run biases behind a norm (Qwen 3), norms over all heads (OLMo 2), tied embeddings and multipliers
# (Granite), a layer without positions (SmolLM3), partial ones (Phi 3), windows, norms of each head and after products,
# and GELU (Gemma 3): these are the parts of the families left out too. In both forms of Core ML, OLMo 2 runs biases,
# and Gemma 3 the rest in test_export_windows_float.py, on XNNPACK and ONNX Runtime too. XNNPACK's biases are exported
# in test_wheel.py; a deferred bundle of it drafts in the former, one of four bits in test_export_bundle.py.
OPERATORS = (
    "Qwen3ForCausalLM",
    "SmolLM3ForCausalLM",
    "Olmo2ForCausalLM",
    "GraniteForCausalLM",
    "Phi3ForCausalLM",
    "Gemma3ForCausalLM",
    "Lfm2ForCausalLM",
    "Lfm3ForCausalLM",
    "Exaone4ForCausalLM",
    "HunYuanDenseV1ForCausalLM",
    "Qwen3_5ForCausalLM",
    "Gemma4ForCausalLM",
)
# Their graphs use nothing that those of families which are exported by default do not cover (OLMo 3: with Gemma 3's).
AS_ANOTHER = {
    "Ernie4_5ForCausalLM": "LlamaForCausalLM",
    "HeliumForCausalLM": "LlamaForCausalLM",
    "Ministral3ForCausalLM": "MistralForCausalLM",
    "GlmForCausalLM": "Phi3ForCausalLM",
    "MiniCPMForCausalLM": "GraniteForCausalLM",
    "Olmo3ForCausalLM": "Olmo2ForCausalLM",
}
DEFAULT = {
    "kernels": OPERATORS,
    "onnx": (*(f for f in ARCHITECTURES if f not in (*OPERATORS, *AS_ANOTHER)), "Olmo2ForCausalLM"),
    "core ml": ("Olmo2ForCausalLM",),
    "core ml, layout ane": ("Olmo2ForCausalLM",),
}
CASES = [
    pytest.param(family, form, marks=[] if family in DEFAULT.get(form, ()) else pytest.mark.full)
    for family in FAMILIES
    for form in FORMS
]


def test_no_family_and_no_backend_is_left_out() -> None:
    assert set(FAMILIES) == set(ARCHITECTURES) == {*DEFAULT["kernels"], *DEFAULT["onnx"], *AS_ANOTHER}
    claimed = {(target, backend) for target, backends in BACKENDS.items() for backend in backends}
    assert {(form["target"], form["backend"]) for form in FORMS.values()} == claimed


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@dataclass(frozen=True)
class Trained:
    """A base with random weights, an adapter that was trained on its answers, and the loss of each step."""

    checkpoint: tuple[Path, Path]
    losses: list[float]
    prompt: list[int]  # of the answer with most different tokens


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Trained]]:
    """By family: answers are distilled, streams are trained on them, and their n-grams are counted."""

    @cache
    def made(family: str) -> Trained:
        torch.manual_seed(3)
        folder = tmp_path_factory.mktemp(family)
        changes = {**SIZES, **FAMILIES[family], "architectures": [family]}
        model = tiny_model(**changes)
        for name, parameter in model.base.named_parameters():
            if name.endswith("bias"):
                parameter.data.normal_()  # as large as what it is added to
        base, _ = write_checkpoint(folder / "base", model, **changes)
        prompts = torch.randint(4, VOCAB_SIZE, (10, 6)).tolist()
        items = [{"id": i, "source": "random", "prompt": "", "input_ids": ids} for i, ids in enumerate(prompts)]
        list(
            distill(in_batches(load_base(base)), items, folder / "answers.jsonl", DistillConfig(max_new_tokens=24), {})
        )
        (first, *_) = rows_of(folder / "answers.jsonl")
        held_out = {**first, "input_ids": first["input_ids"][::-1]}  # a prompt that is not trained on
        (folder / "held-out.jsonl").write_text(json.dumps(held_out) + "\n")
        config = TrainConfig(
            model=base,
            data=(str(folder / "answers.jsonl"),),
            out_dir=folder / "run",
            adapter=folder / "run" / "adapter.safetensors",
            streams=StreamConfig(
                num_streams=3,
                num_msa_layers=3 if family == "Gemma4ForCausalLM" else 1,
                adapter_rank=2,
                pruner_rank=2,
                parent_rank=4,
                stream_vocab_size=64,
            ),
            max_steps=16,
            batch_size=10,  # all of them, so that the losses of all steps compare
            valid=str(folder / "held-out.jsonl"),
            held_out=1,  # what is measured on them is not tested here
            log_every=1,
            evaluate_every=16,
            learning_rate=0.03,  # most of the steps are of its warm-up
            embedding_learning_rate=0.1,
        )
        assert training.run(config).finished
        rows = rows_of(folder / "run" / "metrics.jsonl")
        longest = max(rows_of(folder / "answers.jsonl"), key=lambda row: len(set(row["completion_ids"])))
        return Trained((base, config.adapter), [row["loss"] for row in rows if "loss" in row], longest["input_ids"])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "plot_metrics", lambda *_: None)  # half of the time of such a run
        yield made


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[pytest.mark.full] if name in AS_ANOTHER else []) for name in FAMILIES]
)
def test_streams_of_a_family_learn_its_answers(family: str, trained: Callable[[str], Trained]) -> None:
    losses = trained(family).losses
    assert len(losses) == 16
    assert losses[-1] < 0.9 * losses[0], losses


def calls_in(pte: Path, methods: tuple[str, ...]) -> dict[str, int]:
    """Operators that methods of a .pte call."""
    from executorch.exir._serialize._program import deserialize_pte_binary

    plans = deserialize_pte_binary(pte.read_bytes()).program.execution_plan
    chains = {plan.name: plan.chains for plan in plans if plan.name in methods}
    assert all(len(of_method) == 1 for of_method in chains.values())
    return {method: len(of_method[0].instructions) for method, of_method in chains.items()}


def gap_where_texts_part(backend: Backend, prompt: list[int], plain: list[int], other: list[int]) -> float:
    """By how much plain decoding prefers its token to that of the other text, where they first differ."""
    assert len(plain) == len(other)
    at = next(i for i, (a, b) in enumerate(zip(plain, other, strict=True)) if a != b)
    logits = decode_rows(backend, [*prompt, *plain[:at]])[-1]
    return float(logits[plain[at]] - logits[other[at]])


@pytest.mark.parametrize(("family", "form"), CASES)
def test_a_family_is_exported_and_run(
    family: str, form: str, trained: Callable[[str], Trained], tmp_path: Path
) -> None:
    """The export holds every method to its floor, through the target's engine or what stands for it here.

    The trained streams draft, drafts of the counted n-grams are accepted, and the text equals the plain one; those of
    NEAR_TIES do up to a near tie.
    """
    one_width = {"widths": (4,), "default_width": 4, "prune_keep": 4}
    floors = {"allow_parity_below": ("int4",)} if (family, form) == BELOW_INT4 else {}
    options = converted(ExportConfig, {**one_width, **floors, "schedule": "deferred", **FORMS[form]})
    plan = config_for(trained(family).checkpoint, tmp_path / "bundle", **options)
    if family in KERNELS_ONLY and form != "kernels":
        with pytest.raises(OptionError, match=f"does not support {family}; use --target executorch"):
            preview(plan)
        return
    planned = preview(plan)
    report = run_export(plan)
    bundle = open_bundle(plan.output_dir)
    assert bundle.manifest.model.architecture == family
    assert set(bundle.manifest.parity) == {"decode", "verify_4", "streams"}
    assert report.parity["float32"]["walk"]["snr_db"] > 10, "a part of the model is missing"
    if form == "kernels":
        methods = ("prefill", "decode")
        assert calls_in(plan.output_dir / "model.pte", methods) == {name: planned.calls[name] for name in methods}
    if form not in HERE:
        return
    make = engines_of(bundle, threads_for(bundle, 1))
    with make() as backend:
        plain = decode_rows(backend, TEXT)
        drafted = verify_rows(backend, "verify_4", TEXT)[: len(plain)]
        if form in EXACT:
            np.testing.assert_array_equal(drafted, plain)
        assert (drafted.argmax(1) == plain.argmax(1)).mean() > 0.9
        noise = float(np.abs(drafted - plain).max())
    with Session(make(), bundle.tables, costs=COSTS) as session:
        plain_text: list[int] | None = None
        for source in (None, "streams", "table"):
            speculative = {"sources": (source,), "width": 4 if source == "streams" else None} if source else {}
            config = GenerationConfig(40, speculative=source is not None, ignore_eos=True, **speculative)
            generation = session.generate(trained(family).prompt, config)
            generation.finish()
            if source is None:
                plain_text = generation.token_ids
            if generation.token_ids != plain_text:
                assert (family, form) in NEAR_TIES, source
                with make() as backend:
                    gap = gap_where_texts_part(backend, trained(family).prompt, plain_text, generation.token_ids)
                assert abs(gap) <= 2 * noise, source
            if source == "streams":  # on the tiny models with a window few of these drafts are right
                assert generation.statistics.draft_tokens_proposed > 0
            if source == "table":
                assert generation.statistics.accepted_by_source["table"] > 0
