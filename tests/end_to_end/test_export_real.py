"""The real bundle through the engine: its self-test, bit equality of all methods, equal texts. `make bundle` makes it.

Run: python -m pytest tests/end_to_end/test_export_real.py
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from export_samples import decode_rows, prefill, verify_rows

import streamfuse
from streamfuse.bundle import Bundle, open_bundle
from streamfuse.model.checkpoint import load_base
from streamfuse.model.pull import DEFAULT_MODEL, resolve_model
from streamfuse.runtime.backends.executorch import ExecuTorchBackend
from streamfuse.runtime.config import GenerationConfig, SamplingConfig
from streamfuse.runtime.session import Session
from streamfuse.runtime.text import Tokenizer

BUNDLE = Path(__file__).parents[2] / "build" / "demo"
DOCS = Path(__file__).parents[2] / "docs"
PROMPTS = ["Why is the sky blue?", "Write a haiku about rain.", "Count from one to twenty."]
TEXT_TOKENS = 64
# Of 2,048 tokens the ratio moves by half a percent with the text of the pages.
PERPLEXITY_TOKENS = int(os.environ.get("STREAMFUSE_PERPLEXITY_TOKENS", 8192))
PERPLEXITY_RATIO = 1.005  # the bundle to the GGUF

pytestmark = [
    pytest.mark.alone,  # the engine takes all cores
    pytest.mark.skipif(not (BUNDLE / "manifest.json").is_file(), reason="build/demo is missing; run: make bundle"),
]


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return open_bundle(BUNDLE)


@pytest.fixture(scope="module")
def engine(bundle: Bundle) -> Iterator[ExecuTorchBackend]:
    with ExecuTorchBackend(bundle.graph, bundle.spec()) as backend:
        yield backend


@pytest.fixture(scope="module")
def text(bundle: Bundle) -> Tokenizer:
    return bundle.tokenizer


def natural_text(text: Tokenizer) -> list[int]:
    return text.encode((DOCS / "runtime.md").read_text(encoding="utf-8"))[:TEXT_TOKENS]


def pages(text: Tokenizer) -> list[int]:
    return text.encode("\n".join(page.read_text(encoding="utf-8") for page in sorted(DOCS.glob("*.md"))))


def test_the_self_test_repeats_to_the_bit(bundle: Bundle) -> None:
    with streamfuse.load(bundle) as model:
        found = model.self_test()
    assert set(found.methods) == set(bundle.manifest.methods) - {"prefill"}
    assert found.equal, found.differences


def test_weights_are_those_of_the_gguf_bit_for_bit(bundle: Bundle) -> None:
    grid = json.loads(bundle.file("export_report.json").read_text(encoding="utf-8"))["target"]["grid"]
    assert {part: facts["exact_share"] for part, facts in grid.items() if part != "streams"} == {
        "embedding": 1.0,
        "attention": 1.0,
        "mlp": 1.0,
    }
    assert grid["attention"]["groups"] + grid["mlp"]["groups"] == 3_317_760


def test_every_width_gives_the_bits_of_decode(engine: ExecuTorchBackend, text: Tokenizer) -> None:
    tokens = natural_text(text)
    plain = decode_rows(engine, tokens)
    for method in engine.spec.widths:
        assert np.array_equal(verify_rows(engine, method, tokens)[: len(plain)], plain), method


def test_a_cache_written_by_prefill_gives_the_bits_of_decode(engine: ExecuTorchBackend, text: Tokenizer) -> None:
    tokens = natural_text(text)
    plain = decode_rows(engine, tokens)
    for length in (1, 17, 63):
        prefill(engine, tokens[:length])
        assert np.array_equal(decode_rows(engine, tokens[length:], length), plain[length:])


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_speculation_changes_no_token(bundle: Bundle, text: Tokenizer, temperature: float) -> None:
    tables, accepted = bundle.tables, 0
    with Session(ExecuTorchBackend(bundle.graph, bundle.spec()), tables) as session:
        for seed, prompt in enumerate(PROMPTS):
            ids = text.encode_chat([{"role": "user", "content": prompt}])
            sampling = SamplingConfig(temperature=temperature, seed=seed)
            plain = session.generate(ids, GenerationConfig(48, sampling, speculative=False))
            plain.finish()
            for width in bundle.spec().verify_widths:
                fused = session.generate(ids, GenerationConfig(48, sampling, width=width))
                fused.finish()
                assert fused.token_ids == plain.token_ids, (prompt, width)
                accepted += fused.statistics.accepted_by_source["streams"]
    assert accepted > 0


def chain_rows(backend: ExecuTorchBackend, tokens: list[int]) -> np.ndarray:
    """The logits of plain decoding in fewer passes: a method that prunes nothing gives its bits (see above)."""
    width, method = max((rows, name) for name, (rows, keep) in backend.spec.widths.items() if rows == keep)
    backend.truncate(0)
    found = []
    for start in range(0, len(tokens), width):
        part = np.array(tokens[start : start + width])
        out = backend.run(method, part, start + np.arange(len(part)), np.tri(len(part), dtype=np.bool_), True)
        found.append(np.array(out.logits))
        backend.commit(range(len(part)))
    return np.concatenate(found)


def surprise(logits: np.ndarray, tokens: list[int]) -> float:
    """Sum of -log p over `tokens`, each predicted by its row of logits."""
    log_probs = torch.log_softmax(torch.from_numpy(logits).double(), -1)
    return -float(log_probs[torch.arange(len(tokens)), torch.tensor(tokens)].sum())


@pytest.mark.full  # the weights are the GGUF's, see above, and the export has held every method to its floor
@pytest.mark.network
@torch.no_grad()
def test_quantization_costs_little_perplexity(engine: ExecuTorchBackend, text: Tokenizer) -> None:
    """Over this project's pages in pieces of 512 tokens, through the engine and in PyTorch with the GGUF's weights."""
    base, tokens = load_base(resolve_model(DEFAULT_MODEL)), pages(text)
    exact = quantized = count = 0.0
    for start in range(0, PERPLEXITY_TOKENS, 512):
        piece = tokens[start : min(start + 512, PERPLEXITY_TOKENS)]
        exact += surprise(base(torch.tensor([piece[:-1]]))[0].numpy(), piece[1:])
        quantized += surprise(chain_rows(engine, piece[:-1]), piece[1:])
        count += len(piece) - 1
    found, float32 = np.exp(quantized / count), np.exp(exact / count)
    print(f"perplexity over {count:.0f} tokens: GGUF in float32 {float32:.3f}, bundle {found:.3f}")
    assert found <= PERPLEXITY_RATIO * float32
