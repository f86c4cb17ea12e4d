"""Operator times from ExecuTorch's event tracer. `decode.etdump` is what the engine recorded of one pass of the tiny
bundle of native_samples.py (`ExecuTorchBackend.profile_data`).

Run: python -m pytest tests/bench/test_bench_latency_profile.py
"""

from __future__ import annotations

from pathlib import Path

import fakes
import pytest

from streamfuse.bench.latency.measure import WAIT
from streamfuse.bench.latency.profile import operator_times, profiler_of

ETDUMP = (Path(__file__).parents[1] / "helpers" / "decode.etdump").read_bytes()


class Recording(fakes.ArithmeticBackend):
    """The arithmetic model as a backend that can record."""

    profiling = False

    def profile(self, on: bool) -> None:
        self.profiling = on

    def profile_data(self) -> bytes:
        assert self.profiling
        return ETDUMP

    def waited_ms(self) -> float:
        return 0.25


def test_every_operator_is_named_once_and_wrappers_are_left_out() -> None:
    times = operator_times(ETDUMP)
    assert set(times) == {
        "embedding.out", "streamfuse::embedding_q8.out", "streamfuse::qkv.out", "streamfuse::tree_attention.out",
        "streamfuse::linear.out", "streamfuse::gated_mlp.out", "streamfuse::head.out",
    }  # fmt: skip
    assert times["streamfuse::gated_mlp.out"] == pytest.approx(0.0045, rel=0.2), "three layers, added up"


def test_an_empty_dump_has_no_operators() -> None:
    assert operator_times(b"") == {}


def test_a_recording_backend_is_profiled_and_waits_come_along() -> None:
    backend = Recording(fakes.spec())
    profiler = profiler_of(backend)
    assert profiler is not None
    profiler.start()
    read = profiler.take()
    profiler.stop()
    assert not backend.profiling
    assert read() == {**operator_times(ETDUMP), WAIT: 0.25}


def test_a_backend_that_cannot_record_has_no_profiler() -> None:
    assert profiler_of(fakes.ArithmeticBackend(fakes.spec())) is None
