"""Losslessness on a tiny stream-fused PyTorch model, eagerly. Run: pytest tests/runtime/test_runtime_tiny.py"""

from __future__ import annotations

import zlib
from dataclasses import replace

import pytest
import tiny
import torch

from streamfuse.export.graphs import GraphShapes, Weights, build_methods
from streamfuse.model.config import ModelConfig, StreamConfig
from streamfuse.model.streams import StreamFused
from streamfuse.model.transformer import Transformer
from streamfuse.runtime.backend import ModelSpec
from streamfuse.runtime.backends.reference import ReferenceBackend
from streamfuse.runtime.config import GenerationConfig, SamplingConfig
from streamfuse.runtime.reference.loop import Loop
from streamfuse.runtime.session import Session

SHAPES = GraphShapes(capacity=80, prefill_rows=8, widths=((4, 4), (8, 8), (16, 6)), top_k=6)
SPEC = ModelSpec(80, 24, 3, 6, 8, {f"verify_{rows}": (rows, keep) for rows, keep in SHAPES.widths})


@pytest.fixture(scope="module")
def methods() -> dict[str, torch.nn.Module]:
    torch.manual_seed(zlib.crc32(b"tiny"))
    config = ModelConfig.from_hf({**tiny.CONFIG, "vocab_size": 24})
    model = StreamFused(Transformer(config), StreamConfig(num_streams=3, num_msa_layers=2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.25)
    return build_methods(Weights(model.eval(), SHAPES))


def backend(methods: dict[str, torch.nn.Module]) -> ReferenceBackend:
    return ReferenceBackend(methods, SPEC, [(2, 8)] * 4, num_lower=2)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.2])
@pytest.mark.parametrize("width", [4, 8, 16])
def test_speculation_never_changes_a_token_of_the_tiny_model(
    methods: dict[str, torch.nn.Module], width: int, temperature: float
) -> None:
    sampling = SamplingConfig(temperature=temperature, seed=width, repetition_penalty=1.1)
    plain = Loop(backend(methods), [3, 1, 4, 1, 5, 9, 2, 6, 5, 3], GenerationConfig(60, sampling, speculative=False))
    fused = Loop(backend(methods), list(plain.tokens), GenerationConfig(60, sampling, width=width))
    list(plain.run())
    list(fused.run())
    assert fused.tokens == plain.tokens
    assert fused.counts.draft_tokens_accepted > 0
    assert fused.counts.generated_tokens > fused.counts.target_forward_passes


@pytest.mark.parametrize("threshold", [1e-6, 0.02, 0.3])
def test_a_pruner_by_softmax_and_threshold_changes_no_token(threshold: float) -> None:
    torch.manual_seed(zlib.crc32(b"tiny"))
    config = ModelConfig.from_hf({**tiny.CONFIG, "vocab_size": 24})
    streams = StreamConfig(num_streams=3, num_msa_layers=2, pruner_score="softmax")
    model = StreamFused(Transformer(config), streams)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.25)
    built = build_methods(Weights(model.eval(), replace(SHAPES, prune_threshold=threshold)))
    plain = Loop(backend(built), [3, 1, 4, 1, 5, 9, 2, 6, 5, 3], GenerationConfig(60, speculative=False))
    fused = Loop(backend(built), list(plain.tokens), GenerationConfig(60, width=16))
    list(plain.run())
    list(fused.run())
    assert fused.tokens == plain.tokens
    assert fused.counts.generated_tokens >= fused.counts.target_forward_passes


def test_a_second_turn_of_the_tiny_model_equals_a_fresh_one(methods: dict[str, torch.nn.Module]) -> None:
    session = Session(backend(methods))
    session.generate([1, 2, 3, 4, 5], GenerationConfig(20)).finish()
    prompt = [*session.tokens, 7, 8, 9]
    second = session.generate(prompt, GenerationConfig(20))
    second.finish()
    fresh = Session(backend(methods)).generate(prompt, GenerationConfig(20, speculative=False))
    fresh.finish()
    assert second.token_ids == fresh.token_ids
    assert second.statistics.prefilled_tokens == 3
