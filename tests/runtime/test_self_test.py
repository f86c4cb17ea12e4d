"""The self-test of a bundle: the core repeats the exporter's passes and finds the exporter's figures.

Run: python -m pytest tests/runtime/test_self_test.py
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import fakes
import numpy as np
import pytest

import streamfuse
from streamfuse.export.selftest import WALK, Script, compare
from streamfuse.runtime.backend import ModelSpec, PassOutput
from streamfuse.runtime.core import CoreError, CoreModel
from streamfuse.runtime.self_test import SelfTest
from streamfuse.runtime.structures import Tensor

TEXT = [(7 * i + 3) % 64 for i in range(90)]


class NoisyBackend(fakes.ArithmeticBackend):
    """The arithmetic model with an error in every logit and log-probability."""

    def run(self, *arguments: Any, **settings: Any) -> PassOutput:
        output = super().run(*arguments, **settings)
        return output if output.logits is None else self._with_noise(output)

    def streams(self, *arguments: Any) -> PassOutput:
        return self._with_noise(super().streams(*arguments))

    def _with_noise(self, output: PassOutput) -> PassOutput:
        def noisy(values: Any) -> Any:
            noise = np.random.default_rng(values.shape[-1]).normal(0, 0.8, values.shape)
            return (values + noise).astype(np.float32)

        changed = replace(output, stream_log_probs=noisy(output.stream_log_probs))
        if output.logits is None or not output.logits.size:
            return changed
        logits = noisy(output.logits)
        return replace(changed, logits=logits, best=logits.argmax(axis=1))


def tensors(arrays: dict[str, Any]) -> tuple[Any, int, list[Any]]:
    """As the text library gives them, and what they point to."""
    kept = [np.ascontiguousarray(array) for array in arrays.values()]
    found = (Tensor * len(kept))()
    for tensor, name, array in zip(found, arrays, kept, strict=True):
        tensor.name, tensor.dtype = name.encode(), {"float32": 2, "int64": 4}[str(array.dtype)]
        tensor.rank, tensor.data = min(array.ndim, 2), array.ctypes.data
        tensor.shape[:] = [array.shape[0], int(np.prod(array.shape[1:]))]
    return found, len(kept), kept


def recorded(spec: ModelSpec, snr_db: float = 200.0) -> tuple[Script, list[Any], dict[str, Any]]:
    script = Script.of(spec, TEXT)
    expected = script.run(fakes.ArithmeticBackend(spec))
    arrays = script.to_arrays(expected)
    for result in expected:
        arrays[f"{result.method}.snr_db"] = np.array([snr_db], np.float32)
    return script, expected, arrays


SPECS = {
    "fused": fakes.spec(),
    "deferred": fakes.spec(deferred=True, stream_nodes={"verify_2": 0, "verify_4": 0, "verify_8": 0}),
    "no verify method": fakes.spec(num_streams=0, widths={"verify_2": (2, 2)}),
}


def report(spec: ModelSpec, engine: fakes.ArithmeticBackend, arrays: dict[str, Any]) -> SelfTest:
    found, count, _kept = tensors(arrays)
    return SelfTest.of(CoreModel(spec).self_test(engine, found, count))


@pytest.mark.parametrize("spec", SPECS.values(), ids=list(SPECS))
def test_the_same_model_gives_the_recorded_outputs(spec: ModelSpec) -> None:
    *_, arrays = recorded(spec)
    engine = fakes.ArithmeticBackend(spec)
    found = report(spec, engine, arrays)
    assert (found.passed, found.equal, found.tokens_equal, found.differences) == (True, True, True, [])
    assert engine.closed
    assert {name.partition(".")[0] for name in arrays} - {"text", WALK} == set(found.methods)
    mixed = fakes.ArithmeticBackend(spec, mixed=True)  # survivors in another order
    assert report(spec, mixed, arrays).equal


@pytest.mark.parametrize("spec", SPECS.values(), ids=list(SPECS))
def test_the_figures_of_another_model_are_the_exporter_s(spec: ModelSpec) -> None:
    script, expected, arrays = recorded(spec)
    theirs = compare(script.run(NoisyBackend(spec)), expected)
    found = report(spec, NoisyBackend(spec), arrays)
    assert not found.passed
    assert set(theirs) - {WALK} == set(found.methods)
    for name, parity in found.methods.items():
        for figure in theirs[name].keys() & asdict(parity).keys():
            if name == "streams" and figure == "top1_agreement":
                continue  # of log-probabilities, which the core leaves out
            value = theirs[name][figure]
            assert getattr(parity, figure) == pytest.approx(value, rel=1e-6, abs=0.06), (name, figure)
        assert any(line.startswith(f"{name}: snr_db is ") for line in found.differences)


def test_twice_the_noise_of_the_exporter_is_no_fault() -> None:
    spec = SPECS["fused"]
    script, expected, _ = recorded(spec)
    theirs = compare(script.run(NoisyBackend(spec)), expected)
    least = min(figures["snr_db"] for name, figures in theirs.items() if name != WALK)
    assert report(spec, NoisyBackend(spec), recorded(spec, least + 5.8)[2]).passed
    assert not report(spec, NoisyBackend(spec), recorded(spec, least + 6.2)[2]).passed


def test_an_engine_that_overflows_fails_with_figures() -> None:
    class Overflowing(fakes.ArithmeticBackend):
        def run(self, *arguments: Any, **settings: Any) -> PassOutput:
            output = super().run(*arguments, **settings)
            if output.logits is not None:
                output.logits[..., 3] = np.inf
            return output

    found = report(spec := SPECS["fused"], Overflowing(spec), recorded(spec)[2])
    assert not found.passed
    assert all(np.isfinite(figures.max_abs_difference) for figures in found.methods.values())


def test_what_an_engine_raises_is_raised_again_and_what_does_not_fit_is_named() -> None:
    spec = SPECS["fused"]
    *_, arrays = recorded(spec)

    class Broken(fakes.ArithmeticBackend):
        def commit(self, rows: Any) -> None:
            raise ArithmeticError("no")

    with pytest.raises(ArithmeticError, match="no"):
        report(spec, Broken(spec), arrays)
    for name, value in [
        ("text", np.full(90, 64)),
        ("verify_8.parents", np.full(8, 7)),
        ("decode.nodes", np.zeros(2, np.int64)),
    ]:
        with pytest.raises(CoreError, match=r"selftest\.npz: (text|verify_8\.parents|decode\.logits)"):
            report(spec, fakes.ArithmeticBackend(spec), {**arrays, name: value})


def test_a_bundle_repeats_what_its_exporter_recorded(chat_bundle: Path) -> None:
    """The streamfuse kernels give the same bits on every machine."""
    with streamfuse.load(chat_bundle) as model:
        found = model.self_test()
        assert found.passed
        assert found.equal, found.differences
        assert model.generate("Who?", max_new_tokens=3).tokens  # an engine of its own: the model's goes on
