"""What the machine itself allows, and what an engine says about itself."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from streamfuse.runtime.backend import Backend

_BUFFER_BYTES = 256 * 1024 * 1024  # far above any cache of a processor that runs these models
_SWEEPS = 5
_PIECES_PER_THREAD = 4


class ReadBandwidth:
    """Reads memory with several threads; call it for GB/s now, the best of a few sweeps over one buffer.

    A reduction over float32 in numpy, which is vectorised and lets other threads run, reads as fast as two cores of a
    server processor can (plain sums, maxima and bit operations all give the same figure).
    """

    def __init__(self, threads: int, buffer_bytes: int = _BUFFER_BYTES) -> None:
        buffer = np.ones(buffer_bytes // 4, np.float32)
        self._bytes = buffer.nbytes
        self._pieces = np.array_split(buffer, threads * _PIECES_PER_THREAD)
        self._pool = ThreadPoolExecutor(threads)

    def __call__(self) -> float:
        return max(self._sweep() for _ in range(_SWEEPS))

    def _sweep(self) -> float:
        start = time.perf_counter()
        list(self._pool.map(np.maximum.reduce, self._pieces))
        return self._bytes / (time.perf_counter() - start) / 1e9


def engine_facts(backend: Backend) -> dict[str, Any]:
    """Threads and instruction set, where the engine says them."""
    description = getattr(backend, "description", {})
    return {name: description[name] for name in ("threads", "instruction_set") if name in description}


def engine_threads(backend: Backend) -> int:
    """Threads in use; one per core where the engine does not say."""
    return int(engine_facts(backend).get("threads") or os.cpu_count() or 1)
