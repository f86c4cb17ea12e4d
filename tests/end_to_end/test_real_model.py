"""The default model on its real weights: the plain path and batched generation against Hugging Face transformers.

Run: python -m pytest tests/end_to_end/test_real_model.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from streamfuse.model.checkpoint import load_base
from streamfuse.model.config import StreamConfig
from streamfuse.model.pull import DEFAULT_MODEL, resolve_model
from streamfuse.model.streams import StreamFused
from streamfuse.model.transformer import Transformer
from streamfuse.train.config import DistillConfig
from streamfuse.train.distill import generate_batch
from streamfuse.train.prompts import open_text

pytestmark = pytest.mark.network

LOGITS_FLOOR = 1e-3  # largest difference, float32
PROMPTS = ["Why is the sky blue?", "Write a haiku about rain.", "What is 17 + 25?"]


@pytest.fixture(scope="module")
def folder() -> Path:
    return resolve_model(DEFAULT_MODEL)


@pytest.fixture(scope="module")
def base(folder: Path) -> Transformer:
    return load_base(folder)


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    transformers = pytest.importorskip(
        "transformers", reason="transformers is not installed: pip install 'streamfuse[train]'"
    )
    return transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def prompt_ids(folder: Path) -> list[list[int]]:
    text = open_text(folder)
    return [text.encode_chat([{"role": "user", "content": prompt}]) for prompt in PROMPTS]


@torch.no_grad()
def test_logits_equal_those_of_transformers(folder: Path, base: Transformer, reference: Any) -> None:
    long = open_text(folder).encode((Path(__file__).parents[2] / "docs" / "contracts.md").read_text(encoding="utf-8"))
    for ids in [*prompt_ids(folder), long[:700]]:
        difference = (reference(torch.tensor([ids])).logits - base(torch.tensor([ids]))).abs()
        assert difference.max() <= LOGITS_FLOOR, f"max {difference.max():.2e}, mean {difference.mean():.2e}"


@torch.no_grad()
def test_streams_leave_the_main_rows_as_they_are(folder: Path, base: Transformer) -> None:
    torch.manual_seed(0)
    model = StreamFused(base, StreamConfig())
    ids = torch.tensor(prompt_ids(folder)[:1])
    lower = base.lower(ids, model.num_lower_layers)
    main = model.stream_states(lower, torch.arange(ids.shape[1])[None]).main
    torch.testing.assert_close(base.lm_head(main), base(ids), atol=1e-4, rtol=1e-4)


def test_the_chat_template_reads_as_the_model_was_trained(folder: Path) -> None:
    rendered = open_text(folder).render([{"role": "user", "content": "Hello"}])
    assert rendered == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )


@torch.no_grad()
def test_a_batch_of_answers_is_what_transformers_generates(folder: Path, base: Transformer, reference: Any) -> None:
    prompts = prompt_ids(folder)
    found = generate_batch(base, prompts, DistillConfig(max_new_tokens=24))
    for ids, tokens in zip(prompts, found, strict=True):
        expected = reference.generate(torch.tensor([ids]), max_new_tokens=24, do_sample=False)[0, len(ids) :].tolist()
        assert tokens == expected
