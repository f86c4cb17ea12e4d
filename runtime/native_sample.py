"""Sampling by the engine's library (kernels/engine/sample.h), where there is one; `sampling.py` is the reference.

The library gives a token only where no rounding of an exponential could turn the choice, and leaves the others (about
one in ten million) to the reference. So both ways give the same text.
"""

from __future__ import annotations

import ctypes

import numpy as np

from streamfuse.kernels.library import LibraryError, load_library
from streamfuse.runtime.backend import FloatArray
from streamfuse.runtime.sampling import Float64Array, SamplingConfig


class _Sampling(ctypes.Structure):
    """sf_sampling."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("logits", "scores")),
        ("vocab_size", ctypes.c_int64),
        ("temperature", ctypes.c_double),
        ("top_k", ctypes.c_int64),
        *((name, ctypes.c_double) for name in ("top_p", "min_p", "uniform", "distance")),
    ]


def native_draw() -> NativeDraw | None:
    """A draw by the engine's library; None where that is not built."""
    try:
        library = load_library()
    except LibraryError:
        return None
    return NativeDraw(library) if hasattr(library, "sf_sample") else None


class NativeDraw:
    """Draws from rows of scores. Not thread-safe."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._sample = library.sf_sample
        self._sample.restype = ctypes.c_int64
        self._sample.argtypes = [ctypes.c_void_p]
        self._sampling = _Sampling()
        self._address = ctypes.addressof(self._sampling)
        self._config: SamplingConfig | None = None

    def __call__(
        self, scores: FloatArray | Float64Array, config: SamplingConfig, number: float
    ) -> tuple[int, float] | None:
        """The token that `number` in [0, 1) falls on, and how near an edge it lies, of the total.

        Scores [V] are logits, float64 after a repetition penalty. None: ask the reference.
        """
        sampling = self._sampling
        if config is not self._config:
            self._config = config
            sampling.temperature, sampling.top_k = config.temperature, min(config.top_k, 1 << 62)
            sampling.top_p, sampling.min_p = config.top_p, config.min_p
        row, exact = np.ascontiguousarray(scores), scores.dtype == np.float64
        address = row.ctypes.data
        sampling.logits, sampling.scores = (None, address) if exact else (address, None)
        sampling.vocab_size, sampling.uniform = len(row), number
        token = self._sample(self._address)
        return None if token < 0 else (token, sampling.distance)
