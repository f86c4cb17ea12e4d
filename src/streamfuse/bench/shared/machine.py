"""Memory bandwidth and free memory of the machine, memory of this process, and the properties of an engine."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from streamfuse.bench.shared.cold_caches import largest_caches_bytes
from streamfuse.runtime.backend import Backend, BackendError
from streamfuse.runtime.backends.executorch import core_distance_ns, read_bandwidth

_BUFFER_BYTES = 128 * 1024 * 1024  # about the weights of a small model, so caches hold as much of one as of the other
_SWEEPS = 5
_PIECES_PER_THREAD = 4


class ReadBandwidth:
    """Measures the read bandwidth of several threads; each call returns GB/s, the best of a few sweeps over a buffer of
    `num_bytes`. With `cold_caches` that is twice what the caches hold, so it is read from memory.

    The native engine reads fastest, with long sequential reads and prefetching. It is used whenever it is built,
    whichever runtime is measured, because a roofline is the limit of the machine. Otherwise a float32 reduction in
    numpy is used, which reaches about three quarters of that.

    Each call also appends the latency between two cores to `core_distance_ns`, if it can be measured: the cores of a
    virtual machine may move, and computing with several threads slows down with that latency, while the bandwidth may
    even increase.
    """

    def __init__(self, threads: int, cold_caches: bool = False, native: bool = True) -> None:
        self._threads, self.is_native = threads, native
        self.num_bytes = 2 * largest_caches_bytes() if cold_caches else _BUFFER_BYTES
        self.core_distance_ns: list[float] = []

    def __call__(self) -> float:
        if self.is_native:
            try:
                if distance := core_distance_ns():  # 0 if other programs use the cores
                    self.core_distance_ns.append(distance)
                return read_bandwidth(self._threads, self.num_bytes)
            except BackendError:
                self.is_native = False
        return max(self._sweeps())

    def _sweeps(self) -> Iterator[float]:
        pieces = np.array_split(np.ones(self.num_bytes // 4, np.float32), self._threads * _PIECES_PER_THREAD)
        with ThreadPoolExecutor(self._threads) as pool:
            for _ in range(_SWEEPS):
                start = time.perf_counter()
                list(pool.map(np.maximum.reduce, pieces))
                yield self.num_bytes / (time.perf_counter() - start) / 1e9


def distance_text(samples: Sequence[float]) -> str:
    """The range of latencies between two cores, as a sentence; empty without samples."""
    return f"a value went from core to core in {min(samples):.0f} to {max(samples):.0f} ns" if samples else ""


def engine_facts(backend: Backend) -> dict[str, Any]:
    """Threads, instruction set, ONNX Runtime's provider and its share of nodes, if the backend describes them."""
    description = getattr(backend, "description", {})
    names = ("threads", "instruction_set", "provider", "nodes", "nodes_on_cpu", "operators_on_cpu")
    return {name: description[name] for name in names if name in description}


def engine_threads(backend: Backend) -> int:
    """Threads in use; one per core if the engine does not report them."""
    return int(engine_facts(backend).get("threads") or os.cpu_count() or 1)


def resident_bytes() -> int | None:
    """Resident memory of this process, including mapped files; None if the system does not report it (Linux does)."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_resident_bytes() -> int:
    """Largest resident memory of this process so far, including mapped files."""
    try:
        # Not ru_maxrss: on Linux that of a new program begins with what its parent had.
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


def available_bytes() -> int:
    """Memory available to a new process; the machine's total if the system does not report it."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
