"""sf_sample against the sampling in numpy. Run: pytest tests/unit/test_runtime_native_sample.py"""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from streamfuse.runtime.native_sample import NativeDraw

from streamfuse.runtime.config import SamplingConfig
from streamfuse.runtime.reference.random import uniform
from streamfuse.runtime.reference.sampling import Sampler, penalise

SOURCE = Path(__file__).parents[2] / "kernels" / "engine" / "sample.cpp"
TRACE = Path(__file__).parents[1] / "traces" / "sampling.json"
FLAGS = ["-O3", "-std=c++20", "-Wall", "-Wextra", "-Werror", "-D_GLIBCXX_ASSERTIONS", "-shared", "-fPIC"]


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> NativeDraw:
    """The one file by itself."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    target = tmp_path_factory.mktemp("sample") / "libsample.so"
    subprocess.run([compiler, *FLAGS, "-o", str(target), str(SOURCE)], check=True)
    return NativeDraw(ctypes.CDLL(str(target)))


def reference(scores: np.ndarray, config: SamplingConfig, number: float) -> tuple[int, float]:
    return Sampler(config)._draw(scores, number)


def settings(rng: np.random.Generator, seed: int) -> SamplingConfig:
    return SamplingConfig(
        temperature=float(rng.choice([0.01, 0.3, 0.8, 1, 1.5, 4])),
        top_k=int(rng.choice([0, 0, 1, 5, 40, 900])),
        top_p=float(rng.choice([0.05, 0.5, 0.9, 0.999, 1, 1])),
        min_p=float(rng.choice([0, 0, 0.001, 0.1])),
        repetition_penalty=float(rng.choice([0.7, 1, 1, 1.3])),
        seed=seed,
    )


def test_every_token_that_is_decided_is_the_reference_s(fast: NativeDraw, rng: np.random.Generator) -> None:
    cases = decided = 0
    for size, count in {1: 20, 3: 100, 255: 200, 256: 200, 257: 200, 1000: 300, 20000: 60}.items():
        for case in range(count):
            logits = (rng.normal(size=size) * rng.choice([0.1, 1, 3, 8])).astype(np.float32)
            if case % 4 == 0:
                logits = np.round(logits * 8) / 8  # ties
            config = settings(rng, case)
            scores = penalise(logits, rng.integers(0, size, 20).tolist(), config.repetition_penalty)
            found, number = fast(scores, config, uniform(case, size)), uniform(case, size)
            cases += 1
            if found is not None:
                token, distance = reference(scores, config, number)
                assert found[0] == token, (size, config)
                assert found[1] == pytest.approx(distance, abs=1e-11)
                decided += 1
    assert decided > 0.95 * cases


@pytest.mark.parametrize("top_p", [0.6, 1.0])
def test_what_rounding_decides_is_left_to_the_reference(fast: NativeDraw, top_p: float) -> None:
    """Ten equal weights: their sums are whole numbers, and so are goal and target."""
    level = np.zeros(10, np.float32)
    assert fast(level, SamplingConfig(1.0, top_p=top_p), 0.5) is None
    assert fast(level, SamplingConfig(1.0, min_p=1.0), 0.55) is None
    assert fast(level, SamplingConfig(1.0), 0.55) == (5, pytest.approx(0.05))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_left_to_the_reference(fast: NativeDraw, bad: float) -> None:
    for config in (SamplingConfig(1.0), SamplingConfig(1.0, top_k=2), SamplingConfig(1.0, min_p=0.1)):
        assert fast(np.array([bad, bad, bad], np.float32), config, 0.3) is None
        assert np.isneginf(bad) or fast(np.array([0, bad, 1], np.float32), config, 0.3) is None
    assert fast(np.array([-np.inf, 0.0, -np.inf, 0.0], np.float32), SamplingConfig(1.0), 0.75) is not None


@pytest.mark.parametrize("temperature", [1e-300, 1e-9, 1e300])
def test_extreme_temperatures_agree(fast: NativeDraw, temperature: float) -> None:
    scores = np.array([0, 5, 1, 4.75], np.float32)
    for config in (SamplingConfig(temperature), SamplingConfig(temperature, top_p=0.93, min_p=0.01)):
        found = fast(scores, config, 0.637)
        assert found is None or found[0] == reference(scores, config, 0.637)[0]


def test_the_sampler_takes_the_fast_way_and_falls_back(rng: np.random.Generator) -> None:
    asked = []

    def never(scores: np.ndarray, config: SamplingConfig, number: float) -> None:
        asked.append(number)

    logits = rng.normal(size=300).astype(np.float32)
    config = SamplingConfig(0.9, top_p=0.8, seed=3)
    tokens = [Sampler(config, never).pick(logits, [], position) for position in range(20)]
    assert tokens == [Sampler(config).pick(logits, [], position) for position in range(20)]
    assert asked == [uniform(3, position) for position in range(20)]
    known = Sampler(config, lambda *_: (7, 1e-9))
    assert known.pick(logits, [], 0) == 7
    assert known.near_ties == 1


def test_the_traces_are_replayed(fast: NativeDraw) -> None:
    keys = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    decided = 0
    for step in json.loads(TRACE.read_text(encoding="utf-8"))["steps"]:
        config = SamplingConfig(**{key: step[key] for key in keys if key in step}, seed=int(step["seed"]))
        logits = np.array(step["logits"], np.float32)
        assert Sampler(config, fast).pick(logits, step["history"], step["position"]) == step["token"]
        if not config.greedy:
            scores = penalise(logits, step["history"], config.repetition_penalty)
            decided += fast(scores, config, uniform(config.seed, step["position"])) is not None
    assert decided > 5
