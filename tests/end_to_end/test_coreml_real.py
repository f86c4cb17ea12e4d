"""The real model as small Core ML bundles, through the emulator (on a Mac by Core ML): sizes, parity, text.

Run: python -m pytest --slow --full tests/end_to_end/test_coreml_real.py
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch

from streamfuse import adapters
from streamfuse.bundle import Bundle, open_bundle
from streamfuse.export import selftest
from streamfuse.export.config import ExportConfig
from streamfuse.export.pipeline import run_export
from streamfuse.export.resolve import resolve
from streamfuse.model.checkpoint import load_base
from streamfuse.model.pull import DEFAULT_MODEL, resolve_model
from streamfuse.runtime.backends.coreml import open_package
from streamfuse.runtime.backends.coreml_common import CoreMLBackend, Predict
from streamfuse.runtime.config import GenerationConfig
from streamfuse.runtime.session import Session

pytest.importorskip("coremltools", reason="coremltools is not installed: pip install 'streamfuse[coreml]'")

PROMPT = "Count from one to ten."
FORMS: dict[str, dict[str, Any]] = {
    "plain": {"widths": (4,), "default_width": 4},
    "ane-pruned": {"layout": "ane", "widths": (8,), "default_width": 8, "prune_keep": 4},
}

TOKENS = 16
# tests/export/test_export_coreml.py has tiny models of both layouts.
pytestmark = pytest.mark.full


@dataclass(frozen=True, slots=True)
class Made:
    """A bundle. The emulator decodes the weights once for all sessions."""

    bundle: Bundle
    predict: Predict

    def backend(self) -> CoreMLBackend:
        backend = open_package(self.bundle.graph, self.bundle.spec())
        backend.predict = self.predict
        return backend


@pytest.fixture(scope="module", params=FORMS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("coreml") / "bundle"
    config = ExportConfig(
        resolve_model(DEFAULT_MODEL),
        adapters.find(adapters.DEFAULT_ELSEWHERE),
        folder,
        target="coreml",
        max_context_len=128,
        prefill_len=32,
        **FORMS[request.param],
    )
    run_export(resolve(config))
    bundle = open_bundle(folder)
    return Made(bundle, open_package(bundle.graph, bundle.spec()).predict)


@cache
def pytorchs(ids: tuple[int, ...], ends: tuple[int, ...], tokens: int) -> list[int]:
    """The answer of the base model, token by token."""
    model, text = load_base(resolve_model(DEFAULT_MODEL)), list(ids)
    with torch.inference_mode():
        for _ in range(tokens):
            text.append(int(model(torch.tensor([text]))[0, -1].argmax()))
            if text[-1] in ends:
                text.pop()
                break
    return text[len(ids) :]


def test_weights_are_the_ggufs_and_are_stored_once(made: Made) -> None:
    bundle = made.bundle
    size = (bundle.graph / "Data/com.apple.CoreML/weights/weight.bin").stat().st_size
    parts = sum(scheme.bytes or 0 for scheme in vars(bundle.manifest.quantization).values())
    assert parts < size < 1.08 * parts  # beside them the adapters of the streams, in float16
    assert size < 115e6


def test_each_pass_is_as_close_to_pytorch_as_its_floor_asks(made: Made) -> None:
    rows = made.bundle.manifest.parity
    assert {row.floor for row in rows.values()} == {"float16"}
    for method in ("decode", f"verify_{made.bundle.manifest.speculation.default_width}", "streams"):
        assert rows[method].metrics["snr_db"] >= selftest.FLOORS["float16"].snr_db


def test_a_pass_comes_back_to_the_neural_engine_only_where_it_prunes(made: Made) -> None:
    functions = json.loads(made.bundle.file("export_report.json").read_text(encoding="utf-8"))["target"]["functions"]
    assert {name: found["trips"] for name, found in functions.items() if found["trips"]} == (
        {"verify_8": 1} if "verify_8" in functions else {}
    )


def test_the_text_is_pytorchs_with_and_without_speculation(made: Made) -> None:
    bundle = made.bundle
    ids = bundle.tokenizer.encode_chat([{"role": "user", "content": PROMPT}])
    width, found = bundle.manifest.speculation.default_width, {}
    assert bundle.spec().widths[f"verify_{width}"] == (width, 4)  # so the wider one prunes
    for speculative in (False, True):
        session = Session(made.backend(), bundle.tables, bundle.tokenizer)
        generation = session.generate(ids, GenerationConfig(TOKENS, speculative=speculative, width=width))
        generation.finish()
        found[speculative] = generation
    assert found[False].token_ids == pytorchs(tuple(ids), tuple(bundle.manifest.model.eos_token_ids), TOKENS)
    assert found[True].token_ids == found[False].token_ids
    assert found[True].statistics.widths[f"verify_{width}"] > 0
    assert found[True].statistics.draft_tokens_accepted > 0
