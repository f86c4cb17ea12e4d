"""The real model as a small Core ML bundle, through the emulator (on a Mac by Core ML): sizes, parity, text.

Run: python -m pytest tests/end_to_end/test_coreml_real.py
"""

from __future__ import annotations

import pytest
import torch

from streamfuse import adapters
from streamfuse.bundle import Bundle, open_bundle
from streamfuse.export.pipeline import export_bundle
from streamfuse.export.plan import ExportPlan
from streamfuse.model.checkpoint import load_base
from streamfuse.model.pull import DEFAULT_MODEL, resolve_model
from streamfuse.runtime.backends.coreml import open_package
from streamfuse.runtime.config import GenerationConfig
from streamfuse.runtime.session import Session
from streamfuse.runtime.tensors import map_tensors
from streamfuse.text_io import TextIO

pytest.importorskip("coremltools")
pytestmark = [pytest.mark.slow]

PROMPT = "Count from one to ten."
TOKENS = 16


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("coreml") / "bundle"
    export_bundle(
        ExportPlan(
            resolve_model(DEFAULT_MODEL),
            adapters.find(adapters.DEFAULT),
            folder,
            target="coreml",
            max_context_len=128,
            prefill_len=32,
            widths=(4,),
            default_width=4,
        )
    )
    return open_bundle(folder)


def test_weights_are_the_ggufs_and_are_stored_once(bundle: Bundle) -> None:
    size = (bundle.graph / "Data/com.apple.CoreML/weights/weight.bin").stat().st_size
    parts = sum(scheme.bytes or 0 for scheme in vars(bundle.manifest.quantization).values())
    assert parts < size < 1.08 * parts  # beside them the adapters of the streams, in float16
    assert size < 115e6
    assert {row.floor for row in bundle.manifest.parity.values()} == {"float16"}


def test_the_text_is_pytorchs_with_and_without_speculation(bundle: Bundle) -> None:
    facts = bundle.manifest.model
    text = TextIO(bundle.tokenizer, facts.chat_template, facts.bos_token_id, facts.eos_token_ids)
    ids = text.encode_chat([{"role": "user", "content": PROMPT}])
    model, want = load_base(resolve_model(DEFAULT_MODEL)), list(ids)
    with torch.inference_mode():
        for _ in range(TOKENS):
            want.append(int(model(torch.tensor([want]))[0, -1].argmax()))
            if want[-1] in facts.eos_token_ids:
                want.pop()
                break
    tables = map_tensors(bundle.draft) if bundle.draft else None
    found = {}
    for speculative in (False, True):
        session = Session(open_package(bundle.graph, bundle.spec()), tables, text.decode)
        generation = session.generate(ids, GenerationConfig(TOKENS, speculative=speculative, width=4))
        generation.finish()
        found[speculative] = generation
    assert found[False].token_ids == want[len(ids) :]
    assert found[True].token_ids == found[False].token_ids
    assert found[True].statistics["draft_tokens_accepted"] > 0
