"""Streams that are told the token after their node: what is exported, and what the loop tells them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import onnx_samples
import pytest
import torch
from executorch.exir._serialize._program import deserialize_pte_binary
from export_samples import TEXT, config_for, prefill, tiny_model, write_checkpoint
from fakes import ArithmeticBackend, spec

from streamfuse.bundle import Bundle, open_bundle
from streamfuse.engines import engines_of
from streamfuse.export import facts
from streamfuse.export.graphs import Weights, build_methods
from streamfuse.export.pipeline import run_export
from streamfuse.export.preview import preview
from streamfuse.export.reference import reference_backend
from streamfuse.model.streams import StreamFused
from streamfuse.runtime.backend import Backend, BackendError, PassOutput
from streamfuse.runtime.backends.onnxruntime import OnnxBackend, OnnxProgram
from streamfuse.runtime.config import GenerationConfig, SamplingConfig
from streamfuse.runtime.reference.loop import Loop
from streamfuse.runtime.session import Session

BUNDLES: dict[str, dict[str, Any]] = {
    "kernels": {},
    "xnnpack": {"backend": "xnnpack", "quantize": "none", "dtype": "float32"},
    "coreml": {"target": "coreml", "layout": "ane"},
}
LAYERS = {"num_hidden_layers": 2}
ITSELF = np.ones((1, 1), np.bool_)


@pytest.fixture(scope="module")
def model() -> StreamFused:
    torch.manual_seed(2)
    # Whole groups of weights: packed with the kernels.
    return tiny_model({"num_msa_layers": 1, "next_token_rank": 32, "eta_rank": 32}, **LAYERS)


@pytest.fixture(scope="module")
def checkpoint(model: StreamFused, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_checkpoint(tmp_path_factory.mktemp("told"), model, **LAYERS)


# ONNX has the same graphs of PyTorch's operators by default.
XNNPACK = pytest.param("xnnpack", marks=pytest.mark.full)


@pytest.fixture(scope="module", params=[XNNPACK if name == "xnnpack" else name for name in BUNDLES])
def bundle(
    checkpoint: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Bundle:
    folder = tmp_path_factory.mktemp("bundle") / request.param
    one_tree = {"widths": (4,), "default_width": 4, "prune_keep": 4}
    run_export(config_for(checkpoint, folder, schedule="deferred", **one_tree, **BUNDLES[request.param]))
    return open_bundle(folder)


def told(backend: Backend, token: int) -> PassOutput:
    """Streams of the tenth token of the text, told that `token` comes next."""
    prefill(backend, TEXT[:9])
    backend.run("decode", np.array(TEXT[9:10]), np.array([9]), ITSELF)
    backend.commit([0])
    return backend.streams(0, token)


def reference(model: StreamFused, like: Backend) -> Backend:
    config = config_for((Path(), Path()), Path(), schedule="deferred", widths=(4,), default_width=4, prune_keep=4)
    return reference_backend(build_methods(Weights(model, config.shapes).eval()), model, like.spec)


def test_every_engine_tells_the_streams_the_token(model: StreamFused, bundle: Bundle) -> None:
    with closing(engines_of(bundle, None)()) as backend:
        exact, seen = reference(model, backend), []
        for token in (TEXT[10], 7):
            found, expected = told(backend, token), told(exact, token)
            near = (found.stream_ids[..., 0] == expected.stream_ids[..., 0]).mean()
            assert near > 0.6
            np.testing.assert_allclose(found.stream_log_probs[..., 0], expected.stream_log_probs[..., 0], atol=0.5)
            seen.append(found.stream_log_probs.copy())
        assert not np.array_equal(*seen)


def test_their_text_is_plain_decodings(bundle: Bundle) -> None:
    for sampling in (SamplingConfig(), SamplingConfig(temperature=1.0, seed=3)):
        texts = []
        for speculative in (True, False):
            with closing(Session(engines_of(bundle, None)())) as session:
                config = GenerationConfig(24, sampling=sampling, speculative=speculative, width=4 * speculative or None)
                texts.append([piece.token for piece in session.generate(TEXT[:12], config)])
        assert texts[0] == texts[1]


def test_the_kernels_compute_every_product_of_a_streams_pass(bundle: Bundle) -> None:
    if bundle.manifest.kernels:
        plans = deserialize_pte_binary((bundle.folder / "model.pte").read_bytes()).program.execution_plan
        streams = next(plan for plan in plans if plan.name == "streams")
        assert not {operator.name for operator in streams.operators} & {"aten::mm", "aten::addmm", "aten::bmm"}


def test_their_size_is_that_of_packed_weights(tmp_path: Path) -> None:
    sizes = []
    for rank in (32, 64):
        settings = {"num_msa_layers": 1, "next_token_rank": 32, "eta_rank": rank}
        checkpoint = write_checkpoint(tmp_path / str(rank), tiny_model(settings, **LAYERS), **LAYERS)
        sizes.append(preview(config_for(checkpoint, tmp_path / "none", schedule="deferred")).parts["streams"])
    weights = sizes[1].parameters - sizes[0].parameters
    assert weights == 2 * 64 * 32  # of a hidden size of 64
    assert sizes[1].bytes - sizes[0].bytes == weights * 20 // 32


def test_onnx_tells_the_streams_the_token(model: StreamFused, tmp_path: Path) -> None:
    written = onnx_samples.write(tmp_path, model, "float32", "none", "deferred")
    assert [item["name"] for item in written.facts["streams"]["inputs"]][:4] == [
        "hidden", "position_ids", "cache_length", "next_token",
    ]  # fmt: skip
    backend = OnnxBackend(OnnxProgram(tmp_path, 1), written.spec)
    for token in (TEXT[10], 7):
        expected = told(written.reference(), token)
        np.testing.assert_allclose(told(backend, token).stream_log_probs, expected.stream_log_probs, atol=1e-3)


def test_a_token_that_the_model_does_not_have_is_refused(bundle: Bundle) -> None:
    if bundle.manifest.kernels:
        with closing(engines_of(bundle, None)()) as backend, pytest.raises(BackendError, match="token 258 is none of"):
            told(backend, backend.spec.vocab_size)


def test_a_pass_that_verifies_carries_them_untold(model: StreamFused, checkpoint: tuple[Path, Path]) -> None:
    config = config_for(checkpoint, Path(), schedule="both", widths=(1, 4), default_width=4, stream_nodes="all")
    methods = build_methods(Weights(model, config.shapes).eval())
    backend = reference_backend(methods, model, facts.model_spec(model, config))
    prefill(backend, TEXT[:9])
    carried = backend.run("verify_1", np.array(TEXT[9:10]), np.array([9]), ITSELF)
    frozen = model.frozen_states(torch.tensor([TEXT[:10]]))
    untold = model.stream_states(frozen, torch.tensor([[9]])).streams[0, 0]
    expected = torch.log_softmax(untold @ model.head_rows().T, -1).topk(5).values
    np.testing.assert_allclose(carried.stream_log_probs[0], expected.detach().numpy(), atol=1e-4)


class Listener(ArithmeticBackend):
    """Keeps what its streams are told, and how long the text is then."""

    def __init__(self) -> None:
        super().__init__(spec(deferred=True, stream_nodes=dict.fromkeys(("verify_2", "verify_4", "verify_8"), 0)))
        self.told: list[tuple[int, int]] = []

    def streams(self, index: int, next_token: int) -> PassOutput:
        self.told.append((self.length, next_token))
        return super().streams(index, next_token)


@pytest.mark.parametrize("sampling", [SamplingConfig(), SamplingConfig(temperature=1.0, seed=5)])
@pytest.mark.parametrize("core", [True, False], ids=["core", "reference"])
def test_the_loop_tells_what_the_text_goes_on_with(core: bool, sampling: SamplingConfig) -> None:
    backend, text = Listener(), [3, 1, 4]
    config = GenerationConfig(20, sampling=sampling, width=4)
    if core:
        text = text + [piece.token for piece in Session(backend).generate(text, config)]
    else:
        list(Loop(backend, text, config).run())
    assert len(backend.told) > 3
    assert all(text[length] == token for length, token in backend.told)
