"""The real model in ONNX, exported here: along its own text and along that of the native bundle.

Run: python -m pytest tests/end_to_end/test_onnx_real.py
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from streamfuse.adapters import DEFAULT_ELSEWHERE, find
from streamfuse.bench.parity import Replay, replay, write_text
from streamfuse.bundle import Bundle, open_bundle
from streamfuse.model.pull import DEFAULT_MODEL, resolve_model
from streamfuse.runtime.backend import Backend
from streamfuse.runtime.backends.executorch import ExecuTorchBackend
from streamfuse.runtime.reference.draft import DraftTables, StreamDrafter

NATIVE = Path(__file__).parents[2] / "build" / "demo"
PROMPTS = ["Why is the sky blue?", "Count from one to twenty."]
NEW, WIDTH = 32, 8
NEAR_TIE = 1.0  # logits; activations are rounded to int8, in each engine in its own way

pytestmark = [
    pytest.mark.alone,  # the engine takes all cores
    pytest.mark.full,  # tests/export/test_export_onnx.py and test_export_families.py have tiny models
    pytest.mark.skipif(not (NATIVE / "manifest.json").is_file(), reason="build/demo is missing; run: make bundle"),
]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'streamfuse[onnx]'")
    from streamfuse.export.config import ExportConfig
    from streamfuse.export.pipeline import run_export
    from streamfuse.export.resolve import resolve

    folder = tmp_path_factory.mktemp("onnx") / "bundle"
    config = ExportConfig(resolve_model(DEFAULT_MODEL), find(DEFAULT_ELSEWHERE), folder, target="onnx", widths=(WIDTH,))
    run_export(resolve(config))
    return open_bundle(folder)


def along(bundle: Bundle, backend: Backend, texts: Sequence[tuple[int, list[int]]]) -> Replay:
    drafter = StreamDrafter(DraftTables.load(bundle.tables) if bundle.tables else None)
    return replay(backend, drafter, texts, WIDTH, lambda: None)


def test_the_onnx_bundle_keeps_the_law_and_agrees_with_the_native_one(bundle: Bundle) -> None:
    from streamfuse.runtime.backends.onnxruntime import OnnxBackend

    text = bundle.tokenizer
    prompts = [text.encode_chat([{"role": "user", "content": prompt}]) for prompt in PROMPTS]
    native = open_bundle(NATIVE)
    with ExecuTorchBackend(native.graph, native.spec()) as engine:
        theirs = [(len(prompt), write_text(engine, prompt, NEW)) for prompt in prompts]
        first = along(native, engine, theirs)
    with OnnxBackend(bundle.graph, bundle.spec()) as backend:
        own = [(len(prompt), write_text(backend, prompt, NEW)) for prompt in prompts]
        speculative, across = along(bundle, backend, own), along(bundle, backend, theirs)
    assert not first.differences  # the native engine gives the same bits in every method
    assert len(speculative.differences) <= 1
    for difference in (*speculative.differences, *across.differences):
        assert difference.gap < NEAR_TIE
    figures = across.figures(first, NEAR_TIE)
    assert figures["differences"] <= 0.2 * figures["choices"], figures
    assert figures["same_path"] >= 0.8 * figures["same_start"]
    assert figures["tokens_per_pass"] > 1.2
