"""Times of operators from ExecuTorch's event tracer (an ETDump per pass, read by its Inspector), and waits."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol, runtime_checkable

from streamfuse.runtime.backend import Backend

from .measure import WAIT

_WRAPPERS = ("OPERATOR_CALL", "Method::execute", "Program::load_method")  # events around the operators' own
_PREFIX = "native_call_"  # of ExecuTorch's own operators


@runtime_checkable
class Recorder(Protocol):
    """A backend that can record (runtime/backends/executorch.py)."""

    def profile(self, on: bool) -> None: ...

    def profile_data(self) -> bytes: ...

    def waited_ms(self) -> float: ...


class EtDumpProfiler:
    """`bench.latency.measure.Profiler` over a recording backend."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def start(self) -> None:
        self._recorder.profile(True)

    def take(self) -> Callable[[], Mapping[str, float]]:
        return partial(_times, self._recorder.profile_data(), self._recorder.waited_ms())

    def stop(self) -> None:
        self._recorder.profile(False)


def profiler_of(backend: Backend) -> EtDumpProfiler | None:
    """None where the engine cannot record."""
    return EtDumpProfiler(backend) if isinstance(backend, Recorder) else None


def _times(etdump: bytes, waited_ms: float) -> dict[str, float]:
    return {**operator_times(etdump), WAIT: waited_ms}


def operator_times(etdump: bytes) -> dict[str, float]:
    """Milliseconds per operator, all calls and passes of the dump added up; empty for an empty dump."""
    # The Inspector brings PyTorch and pandas, so it is imported when there is something to inspect.
    from executorch.devtools import Inspector

    found: dict[str, float] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no outputs of operators were asked for
        blocks = Inspector(etdump_data=etdump).event_blocks if etdump else []
    for block in blocks:
        for event in block.events:
            if event.name not in _WRAPPERS and event.perf_data is not None:
                name = event.name.removeprefix(_PREFIX)
                found[name] = found.get(name, 0.0) + sum(event.perf_data.raw)
    return found
