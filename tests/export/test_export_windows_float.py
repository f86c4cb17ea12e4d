"""Ring buffers as float caches, on the backends without our kernels: parity, texts, and how far a session goes back.

Run: python -m pytest tests/export/test_export_windows_float.py

The kernels' caches are in test_export_windows.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from export_samples import (
    VOCAB_SIZE,
    config_for,
    decode_rows,
    prefill,
    text_of,
    tiny_model,
    verify_rows,
    write_checkpoint,
)

import streamfuse
from streamfuse.bundle import Bundle, open_bundle
from streamfuse.engines import engines_of, threads_for
from streamfuse.export import selftest
from streamfuse.export.config import ExportConfig
from streamfuse.export.pipeline import Report, run_export
from streamfuse.export.preview import Preview, preview
from streamfuse.options import converted
from streamfuse.runtime.backend import Backend, BackendError
from streamfuse.runtime.config import SamplingConfig
from streamfuse.runtime.session import Session

CONTEXT, RING = 640, 288  # a text begins its third lap at 576
FAMILIES: dict[str, dict[str, Any]] = {
    "Gemma3ForCausalLM": {
        "head_dim": 32,
        "sliding_window": 7,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "Lfm2ForCausalLM": {  # the caches of the convolution, whose window are its three taps, have more heads
        "num_key_value_heads": 1,
        "layer_types": ["conv", "full_attention"],
        "block_auto_adjust_ff_dim": False,
    },
    "Lfm3ForCausalLM": {"head_dim": 16, "sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"]},
}
GEMMA, LFM2, LFM3 = FAMILIES
FORMS: dict[str, dict[str, Any]] = {
    "onnx": {"target": "onnx", "quantize": "none"},
    # Its delegates are compiled for a number of rows: those of verify_4 serve prefill too.
    "xnnpack": {"target": "executorch", "backend": "xnnpack", "quantize": "none", "prefill_len": 4},
    "core ml": {"target": "coreml", "quantize": "none", "dtype": "float32", "allow_parity_below": ("float32",)},
}
# Other graphs of Core ML: in the other layout and type, and with fewer rows and with streams in the top layers.
PACKAGES: dict[str, dict[str, Any]] = {
    "channels first": {"target": "coreml", "layout": "ane", "quantize": "none"},
    "pruned": {**FORMS["core ml"], "schedule": "fused", "prune_keep": 3, "stream_nodes": {4: 2}},
}
CASES = [
    *(pytest.param((GEMMA, form), id=form) for form in FORMS),
    *(pytest.param((LFM2, form), id=f"{form}, convolution", marks=[] if form != "xnnpack" else pytest.mark.full)
      for form in FORMS),
    *(pytest.param((LFM3, form), id=f"{form}, gates", marks=pytest.mark.full) for form in FORMS),
]  # fmt: skip
TEXT = np.random.default_rng(4).integers(4, VOCAB_SIZE, 620).tolist()
DRAFTS: list[dict[str, Any]] = [{"width": 4, "sources": ("lookup",)}, {"width": 4}]


@dataclass
class Made:
    window: int
    bundle: Bundle
    report: Report
    preview: Preview


def exported(folder: Path, family: str, form: dict[str, Any], walk: int) -> Made:
    """A bundle whose export has compared `walk` tokens with the model in float32, which has whole caches."""
    torch.manual_seed(6)
    changes = {
        **FAMILIES[family], "architectures": [family], "num_hidden_layers": 2, "max_position_embeddings": CONTEXT
    }  # fmt: skip
    model = tiny_model({"num_msa_layers": 1}, **changes)
    checkpoint = write_checkpoint(folder / "checkpoint", model, **changes)
    options = {"widths": (4,), "default_width": 4, "prune_keep": 4, "schedule": "deferred", "prefill_len": 32, **form}
    plan = config_for(checkpoint, folder / "bundle", max_context_len=CONTEXT, **converted(ExportConfig, options))
    expected = preview(plan)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selftest, "HEAD_TOKENS", walk // 2)
        patch.setattr(selftest, "WALK_TOKENS", walk - walk // 2)
        report = run_export(plan)
    window = model.base.config.longest_window
    assert window is not None
    return Made(window, open_bundle(plan.output_dir), report, expected)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Made]:
    """That of each family and form, exported for the first test that asks."""
    return cache(lambda family, form: exported(tmp_path_factory.mktemp(form), family, FORMS[form], walk=310))


@pytest.fixture(params=CASES)
def made(request: pytest.FixtureRequest, bundles: Callable[[str, str], Made]) -> Made:
    return bundles(*request.param)


@pytest.fixture
def backend(made: Made) -> Iterator[Backend]:
    with engines_of(made.bundle, threads_for(made.bundle, 1))() as backend:
        yield backend


def positions_of(made: Made) -> list[int]:
    """Of the caches: keys and values, layer after layer."""
    axis = {"head_position_dim": 2, "channels_position": 3}.get(made.bundle.manifest.cache.layout, 0)
    inputs = made.bundle.manifest.methods["decode"].inputs
    caches = [tensor for tensor in inputs if "key" in tensor.name or "value" in tensor.name]
    sizes = [math.prod(cache.shape) * np.dtype(cache.dtype).itemsize for cache in caches]
    assert made.preview.cache_bytes == sum(sizes)
    return [cache.shape[axis] for cache in caches]


def test_layers_with_a_window_have_rings(made: Made) -> None:
    assert positions_of(made) == [RING, RING, CONTEXT, CONTEXT]
    if made.bundle.manifest.target == "executorch":
        with engines_of(made.bundle, threads_for(made.bundle, 1))() as backend:
            assert backend.description["cache_bytes"] == made.preview.cache_bytes  # type: ignore[attr-defined]
    assert streamfuse.estimate(made.bundle.folder).cache_bytes == made.preview.cache_bytes


def test_parity_holds_after_the_rings_have_wrapped(made: Made) -> None:
    for comparison in ("lowering", "float32"):
        found = {method: row["snr_db"] for method, row in made.report.parity[comparison].items()}
        assert set(found) == {"walk", "decode", "verify_4", "streams"}
        # A package's norms and GELU are less exact, with caches for the whole context too.
        assert min(found.values()) > (60 if made.bundle.manifest.target == "coreml" else 90), comparison


def test_trees_over_many_laps_are_as_plain_decoding(made: Made, backend: Backend) -> None:
    plain = decode_rows(backend, TEXT)
    drafted = verify_rows(backend, "verify_4", TEXT)[: len(TEXT)]
    prefill(backend, TEXT[:580])
    after = decode_rows(backend, TEXT[580:], 580)
    if made.bundle.manifest.target == "onnx":  # its sums over positions are exact enough for equal bits
        np.testing.assert_array_equal(drafted, plain)
        np.testing.assert_array_equal(after, plain[580:])
    np.testing.assert_allclose(drafted, plain, atol=1e-4)
    np.testing.assert_allclose(after, plain[580:], atol=1e-4)


@pytest.mark.parametrize(
    ("made", "temperature"),
    [  # how a token is drawn does not depend on the form: the sampled text of one is enough
        pytest.param(
            (family, form),
            temperature,
            id=f"{family}, {form}, {temperature}",
            marks=[pytest.mark.full] if (temperature and form != "onnx") or (family, form) == (LFM2, "xnnpack") else [],
        )
        for family in FAMILIES
        for form in FORMS
        for temperature in (0.0, 0.7)
    ],
    indirect=["made"],
)
def test_a_text_over_several_laps_is_the_same_with_speculation_and_without(made: Made, temperature: float) -> None:
    texts, accepted = [], 0
    for settings in ({"speculative": False}, *DRAFTS):
        with Session(engines_of(made.bundle, threads_for(made.bundle, 1))(), made.bundle.tables) as session:
            sampling = SamplingConfig(temperature=temperature, top_k=3, seed=3)
            found = text_of(session, TEXT[:250], CONTEXT - 250, sampling=sampling, **settings)
            texts.append(found.token_ids)
            accepted += found.statistics.draft_tokens_accepted
    assert len(texts[0]) == CONTEXT - 250
    assert texts == [texts[0]] * 3
    assert accepted > 20


def answer(made: Made, prompt: list[int]) -> list[int]:
    """What a new session writes."""
    with Session(engines_of(made.bundle, threads_for(made.bundle, 1))(), made.bundle.tables) as session:
        return text_of(session, prompt, 20, width=4).token_ids


@pytest.mark.parametrize(("kept", "reread"), [(20, 20), (400, 0), (609, 0)])
def test_a_text_goes_back_as_far_as_the_rings_have_its_window(made: Made, kept: int, reread: int) -> None:
    with Session(engines_of(made.bundle, threads_for(made.bundle, 1))(), made.bundle.tables) as session:
        text_of(session, TEXT[:590], 20, width=4)
        prompt = [*session.tokens[:kept], 11, 12]
        again = text_of(session, prompt, 20, width=4)
    assert again.statistics.reread_tokens == reread
    assert again.statistics.prefilled_tokens == reread + 1
    assert again.token_ids == answer(made, prompt)


def test_a_restored_session_continues_and_goes_back(made: Made, tmp_path: Path) -> None:
    keeps_caches = made.bundle.manifest.target == "executorch"  # else all of a prompt is read again
    for length in (100, 590):  # before the ring is full, and in its third lap
        with Session(engines_of(made.bundle, threads_for(made.bundle, 1))(), made.bundle.tables) as session:
            text_of(session, TEXT[:length], 20, width=4)
            text = session.tokens
            session.save(tmp_path / "saved")
        for kept in (len(text), *([len(text) - 100] if keeps_caches else []), 30):
            with Session(engines_of(made.bundle, threads_for(made.bundle, 1))(), made.bundle.tables) as session:
                session.restore(tmp_path / "saved")
                prompt = [*text[:kept], 11]
                again = text_of(session, prompt, 20, width=4)
                if keeps_caches:
                    assert again.statistics.reread_tokens == (30 if (kept, length) == (30, 590) else 0)
                assert again.token_ids == answer(made, prompt)


def test_an_engine_says_how_far_it_goes_back(made: Made, backend: Any) -> None:
    prefill(backend, TEXT[:590])
    least = 590 - RING + made.window
    assert [backend.truncatable(length) for length in (1000, 590, least, least - 1, 1, 0)] == [590, 590, least, 0, 0, 0]
    words = rf"cannot truncate to {least - 1}: .* (window|convolution) of {made.window} positions"
    with pytest.raises(BackendError, match=words):
        backend.truncate(least - 1)
    backend.truncate(least)
    assert backend.truncatable(least - 1) == 0
    backend.truncate(0)
    prefill(backend, TEXT[:200])
    assert backend.truncatable(1) == 1


# full: rings of passes that prune are in test_export_windows.py, Core ML's packages that prune in test_export_coreml.py
@pytest.mark.parametrize("form", ["channels first", pytest.param("pruned", marks=pytest.mark.full)])
@pytest.mark.parametrize("family", FAMILIES)
def test_parity_of_other_packages_holds_after_a_lap(tmp_path: Path, family: str, form: str) -> None:
    made = exported(tmp_path, family, PACKAGES[form], walk=310)
    assert positions_of(made) == [RING, RING, CONTEXT, CONTEXT]
    for method, row in made.report.parity["float32"].items():
        assert row["snr_db"] > (60 if form == "pruned" else 30), method
