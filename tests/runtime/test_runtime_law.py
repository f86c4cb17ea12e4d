"""Losslessness: speculative output equals plain output, token for token.

Run: pytest tests/runtime/test_runtime_law.py
"""

from __future__ import annotations

import numpy as np
import pytest
from fakes import ArithmeticBackend, spec
from tiers import cases

from streamfuse.runtime.backend import ModelSpec
from streamfuse.runtime.config import GenerationConfig, SamplingConfig
from streamfuse.runtime.reference.draft import DraftTables, StreamDrafter
from streamfuse.runtime.reference.loop import Loop

PROMPTS = ([1], [9, 2, 6, 5, 3, 5], list(range(40)))
SEEDS = (0, 1, 2**64 - 1)
# Each prompt and each seed once, then the other pairs.
PAIRS = [(prompt, SEEDS[(i + shift) % 3]) for shift in range(3) for i, prompt in enumerate(PROMPTS)]
SAMPLINGS = (
    {"temperature": 0.0},
    {"temperature": 0.0, "repetition_penalty": 1.3},
    {"temperature": 0.6, "top_k": 10},
    {"temperature": 1.0},
    {"temperature": 1.0, "top_p": 0.8},
    {"temperature": 1.5, "min_p": 0.05, "repetition_penalty": 1.1},
    {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.2},
)


def run(loop: Loop) -> Loop:
    list(loop.run())
    assert loop.backend.cache == loop.tokens[: loop.backend.length], "the cache holds a prefix of the tokens"
    return loop


def loop_of(model: ModelSpec, prompt: list[int], config: GenerationConfig, accuracy: int = 12) -> Loop:
    return run(Loop(ArithmeticBackend(model, accuracy), list(prompt), config))


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=lambda setting: ",".join(f"{k}={v}" for k, v in setting.items()))
def test_speculation_never_changes_a_token(sampling: dict[str, float]) -> None:
    model = spec()
    for prompt, seed in PAIRS[: cases(3, 9) if sampling["temperature"] else 3]:  # greedy decoding takes no seed
        choice = SamplingConfig(**sampling, seed=seed)
        plain = loop_of(model, prompt, GenerationConfig(40, choice, speculative=False))
        for width, accuracy in ((2, 16), (4, 0), (4, 12), (8, 12)):
            fused = loop_of(model, prompt, GenerationConfig(40, choice, width=width), accuracy)
            assert fused.tokens == plain.tokens
            assert fused.counts.finish_reason == plain.counts.finish_reason
            assert fused.backend.cache == plain.backend.cache
            assert len(fused.tokens) == len(prompt) + 40


@pytest.mark.parametrize("keep", [1, 2, 5, 16])
def test_pruning_never_changes_a_token(keep: int) -> None:
    model = spec(widths={"verify_16": (16, keep)}, num_streams=4, top_k=4)
    plain = loop_of(model, [7, 7], GenerationConfig(50, speculative=False))
    fused = loop_of(model, [7, 7], GenerationConfig(50))
    assert fused.tokens == plain.tokens
    assert (fused.counts.draft_tokens_accepted > 0) == (keep > 1)


def test_the_parent_term_never_changes_a_token(rng: np.random.Generator) -> None:
    model, choice = spec(), SamplingConfig(temperature=0.9, seed=5)
    tables = DraftTables.of(
        rng.normal(size=(64, 8)).astype(np.float16),
        rng.normal(size=(64, 8)).astype(np.float16),
        rng.normal(size=(3, 8)).astype(np.float32),
        np.arange(64, dtype=np.int32),
    )
    plain = loop_of(model, [7, 7], GenerationConfig(60, choice, speculative=False))
    fused = run(Loop(ArithmeticBackend(model), [7, 7], GenerationConfig(60, choice), StreamDrafter(tables)))
    assert fused.tokens == plain.tokens


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_when_every_draft_is_right_each_pass_brings_all_it_can(temperature: float) -> None:
    config = GenerationConfig(41, SamplingConfig(temperature=temperature, seed=3), width=4)
    plain = loop_of(spec(), [1, 2], GenerationConfig(41, config.sampling, speculative=False))
    backend = ArithmeticBackend(spec(top_k=1), script=plain.tokens)
    fused = run(Loop(backend, [1, 2], config))
    assert fused.tokens == plain.tokens
    # One token from the pass without drafts, then ten passes with three drafted tokens and the bonus.
    assert fused.counts.target_forward_passes == 11
    assert fused.counts.mean_accepted_tokens == 41 / 11
    assert fused.counts.draft_tokens_accepted == 30


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_when_no_draft_is_right_each_pass_still_brings_one_token(temperature: float) -> None:
    config = GenerationConfig(20, SamplingConfig(temperature=temperature, seed=3))
    plain = loop_of(spec(), [1, 2], GenerationConfig(20, config.sampling, speculative=False))
    wrong = [(token + 1) % 64 for token in plain.tokens]
    fused = run(Loop(ArithmeticBackend(spec(top_k=1), script=wrong), [1, 2], config))
    assert fused.tokens == plain.tokens
    assert fused.counts.draft_tokens_accepted == 0
    assert fused.counts.draft_tokens_proposed > 0
    assert fused.counts.mean_accepted_tokens == 1


def test_the_divergent_twin_forces_rejections_and_changes_nothing() -> None:
    fused = loop_of(spec(top_k=1), [4, 4], GenerationConfig(30), accuracy=0)
    plain = loop_of(spec(top_k=1), [4, 4], GenerationConfig(30, speculative=False))
    assert fused.tokens == plain.tokens
    assert fused.counts.draft_tokens_accepted == 0


@pytest.mark.parametrize("budget", range(1, 14))
def test_the_law_holds_at_every_token_budget(budget: int) -> None:
    fused = loop_of(spec(), [4, 4], GenerationConfig(budget), accuracy=16)
    plain = loop_of(spec(), [4, 4], GenerationConfig(budget, speculative=False))
    assert fused.tokens == plain.tokens
    assert fused.counts.finish_reason == "length"
    assert fused.backend.length == len(fused.tokens) - 1


@pytest.mark.parametrize("capacity", range(3, 20))
def test_the_law_holds_at_every_capacity(capacity: int) -> None:
    model = spec(capacity=capacity)
    fused = loop_of(model, [4, 4, 4], GenerationConfig(99), accuracy=16)
    plain = loop_of(model, [4, 4, 4], GenerationConfig(99, speculative=False))
    assert fused.tokens == plain.tokens
    assert len(fused.tokens) == capacity
    assert fused.counts.finish_reason == plain.counts.finish_reason == "context"


@pytest.mark.parametrize("eos", range(64))
def test_the_law_holds_for_every_end_token(eos: int) -> None:
    model = spec(eos_token_ids=(eos,))
    fused = loop_of(model, [4, 4, 4], GenerationConfig(30), accuracy=16)
    plain = loop_of(model, [4, 4, 4], GenerationConfig(30, speculative=False))
    assert fused.tokens == plain.tokens
    assert eos not in fused.tokens[3:]
    assert fused.counts.finish_reason == plain.counts.finish_reason
