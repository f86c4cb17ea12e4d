"""Whole decoders through the emulator: two layouts, several functions in one package, compressed weights.

pytest tests/coreml/test_coreml_emulator_models.py
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import coreml_decoder as decoder
import coreml_samples as samples
import numpy as np
import pytest
import torch

from streamfuse.emulator import CoreMLEmulator
from streamfuse.runtime.backend import ModelSpec
from streamfuse.runtime.backends.coreml_common import CacheLayout, CoreMLBackend

ROWS = {"decode": 1, "verify_4": 4}
ANSWERS = ["logits", "top_ids", "top_log_probs"]
CACHES = [f"{kind}_cache_{layer}" for layer in range(decoder.LAYERS) for kind in ("key", "value")]
NEW = [f"new_{name.replace('_cache', '')}" for name in CACHES]
INPUTS = {
    decoder.Decoder: ["input_ids", "position_ids", "mask", *CACHES],
    decoder.ChannelsFirst: ["input_ids", "cos", "sin", "mask", *CACHES],
}
# Signal to noise in dB of a float16 or compressed program's logits against float32 PyTorch: floors, never lowered.
FLOORS = {"float32": 100.0, "float16": 50.0, "int4": 12.0}


def _decibels(found: np.ndarray, want: np.ndarray) -> float:
    noise = np.square(found.astype(np.float64) - want).sum()
    return float(10 * np.log10(np.square(want.astype(np.float64)).sum() / max(noise, 1e-30)))


def _inputs(model: decoder.Decoder, rows: int, length: int = 9) -> tuple[torch.Tensor, ...]:
    plain = decoder.example(rows, length, torch.Generator().manual_seed(rows))
    return decoder.channels_first(model, plain) if isinstance(model, decoder.ChannelsFirst) else plain


def _compressed(model: Any) -> Any:
    cto = samples.ct.optimize.coreml
    config = cto.OpLinearQuantizerConfig(
        mode="linear_symmetric", dtype="int4", granularity="per_block", block_size=32, weight_threshold=1024
    )
    return cto.linear_quantize_weights(model, cto.OptimizationConfig(global_config=config))


@functools.cache
def _model(kind: type[decoder.Decoder]) -> decoder.Decoder:
    torch.manual_seed(6)
    return kind().eval()


@functools.cache
def _converted(kind: type[decoder.Decoder], rows: int, half: bool) -> Any:
    """Each conversion once: it takes seconds."""
    model = _model(kind)
    return samples.convert(model, _inputs(model, rows), INPUTS[kind], [*ANSWERS, *NEW], half=half)


LAYOUTS = {"plain": decoder.Decoder, "channels_first": decoder.ChannelsFirst}
# Both layouts and every precision by default; the others cross them.
DEFAULT = [("plain", "float16"), ("plain", "int4"), ("channels_first", "float32")]
PACKAGES = [
    pytest.param(kind, id="-".join(kind), marks=[] if kind in DEFAULT else pytest.mark.full)
    for kind in ((layout, precision) for layout in LAYOUTS for precision in FLOORS)
]


@pytest.fixture(scope="module", params=PACKAGES)
def kind(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A layout and a precision."""
    return request.param


@pytest.fixture(scope="module")
def model(kind: tuple[str, str]) -> decoder.Decoder:
    return _model(LAYOUTS[kind[0]])


@pytest.fixture(scope="module")
def package(
    kind: tuple[str, str], model: decoder.Decoder, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """A multifunction package with every width, and its precision."""
    precision = kind[1]
    folder, merged = tmp_path_factory.mktemp("models"), samples.ct.utils.MultiFunctionDescriptor()
    logging.disable(logging.WARNING)
    for name, rows in ROWS.items():
        part = _converted(type(model), rows, half=precision != "float32")
        if precision == "int4":
            part = _compressed(part)
        merged.add_function(str(samples.save(part, folder, name)), "main", name)
    merged.default_function_name = "decode"
    samples.ct.utils.save_multifunction(merged, str(folder / "all.mlpackage"))
    logging.disable(logging.NOTSET)
    return folder / "all.mlpackage", precision


@pytest.mark.parametrize("engine", samples.ENGINES)
@pytest.mark.parametrize("function", ROWS)
def test_every_function_of_a_package_follows_pytorch(
    function: str, engine: str, package: tuple[Path, str], model: decoder.Decoder
) -> None:
    path, precision = package
    inputs = _inputs(model, ROWS[function])
    given = dict(zip(INPUTS[type(model)], (x.numpy() for x in inputs), strict=True))
    found = samples.predict(engine, path, given, function)
    with torch.inference_mode():
        want = dict(zip([*ANSWERS, *NEW], (x.numpy() for x in model(*inputs)), strict=True))
    assert set(found) == set(want)
    for name in ("logits", *NEW):
        assert found[name].shape == want[name].shape
        assert _decibels(found[name], want[name]) > FLOORS[precision], name
    if precision in ("float32", "float16"):
        assert found["top_ids"].tolist() == want["top_ids"].tolist()
        np.testing.assert_allclose(found["top_log_probs"], want["top_log_probs"], rtol=0.01, atol=0.03)


def test_the_two_layouts_agree_on_the_same_weights() -> None:
    torch.manual_seed(6)
    plain, turned = decoder.Decoder().eval(), decoder.ChannelsFirst().eval()
    turned.load_state_dict(plain.state_dict())
    inputs = decoder.example(4, 9, torch.Generator().manual_seed(4))
    with torch.inference_mode():
        torch.testing.assert_close(plain(*inputs)[0], turned(*decoder.channels_first(turned, inputs))[0])


def test_functions_share_their_constants(package: tuple[Path, str], model: decoder.Decoder) -> None:
    path, _ = package
    emulator = CoreMLEmulator(path)
    assert set(emulator.functions) == set(ROWS)
    emulator.inputs("decode")
    one = emulator.constants_bytes
    emulator.inputs("verify_4")
    assert one > 0
    assert emulator.constants_bytes < 1.1 * one


def test_the_backend_runs_on_the_emulator(package: tuple[Path, str], model: decoder.Decoder) -> None:
    """A tree pass and decoding token by token give the same logits, as far as the precision goes."""
    path, precision = package
    emulator, turned = CoreMLEmulator(path), isinstance(model, decoder.ChannelsFirst)

    def predict(method: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
        given = dict(inputs)
        if turned:
            at = torch.from_numpy(given.pop("position_ids"))
            given.update(cos=model.cos[at].T[None, :, None].numpy(), sin=model.sin[at].T[None, :, None].numpy())
        return emulator.predict(given, method)

    spec = ModelSpec(decoder.CAPACITY, decoder.VOCAB, 0, 0, prefill_rows=1, widths={"verify_4": (4, 4)})
    floats = np.float32 if precision == "float32" else np.float16
    layout = CacheLayout(0, (decoder.KV_HEADS,) * decoder.LAYERS, decoder.HEAD_DIM, turned, floats)
    plain, tree = (CoreMLBackend(predict, spec, layout) for _ in range(2))
    want = []
    for at, token in enumerate([5, 17, 3, 41]):
        want.append(plain.run("decode", np.array([token]), np.array([at]), np.ones((1, 1), np.bool_)).logits[0])
        plain.commit([0])
    found = []
    for at, tokens in ((0, [5, 17]), (2, [3, 41])):
        rows = np.arange(len(tokens))
        found += [*tree.run("verify_4", np.array(tokens), at + rows, rows[:, None] >= rows).logits]
        tree.commit(rows.tolist())
    assert _decibels(np.stack(found), np.stack(want)) > FLOORS["float32" if precision == "float32" else "float16"]


def test_masked_cache_rows_do_not_matter(tmp_path: Path) -> None:
    """What lies beyond the cache's length is whatever was there; the finite mask must keep it out, in float16 too."""
    inputs = _inputs(_model(decoder.Decoder), 4)
    emulator = CoreMLEmulator(samples.save(_converted(decoder.Decoder, 4, half=True), tmp_path))
    given = dict(zip(INPUTS[decoder.Decoder], (x.numpy() for x in inputs), strict=True))
    before = emulator.predict(given)
    for name in CACHES:
        given[name] = np.where(np.arange(decoder.CAPACITY)[:, None, None] < 9, given[name], 7.0)
    after = emulator.predict(given)
    np.testing.assert_array_equal(before["logits"], after["logits"])
