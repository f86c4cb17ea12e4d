"""Opens a package that streamfuse exported: in Core ML on a Mac, in the emulator elsewhere. See docs/targets.md.

The layout of its caches is in the package's metadata (its keys `streamfuse.*`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from streamfuse.emulator import CoreMLEmulator, EmulatorError
from streamfuse.runtime.backend import BackendError, ModelSpec
from streamfuse.runtime.backends.coreml_common import CacheLayout, CoreMLBackend, Predict


def open_package(path: str | Path, spec: ModelSpec, compute_units: str | None = None) -> CoreMLBackend:
    """A backend over model.mlpackage.

    Args:
        compute_units: all, cpu_and_ne, cpu_and_gpu or cpu_only; None: as exported. Only used on a Mac.

    Raises:
        BackendError: the package is damaged or was not exported by streamfuse.
    """
    try:
        emulator = CoreMLEmulator(path)
    except EmulatorError as error:
        raise BackendError(str(error)) from error
    metadata = emulator.user_metadata
    try:
        layout = CacheLayout(
            num_layers=int(metadata["streamfuse.num_layers"]),
            num_msa_layers=int(metadata["streamfuse.num_msa_layers"]),
            kv_heads=int(metadata["streamfuse.num_kv_heads"]),
            head_dim=int(metadata["streamfuse.head_dim"]),
            channels_first=metadata["streamfuse.layout"] == "ane",
            dtype=np.float16 if metadata["streamfuse.dtype"] == "float16" else np.float32,
            next_token=metadata.get("streamfuse.next_token") == "true",  # missing in older packages
            window=int(window) if (window := metadata.get("streamfuse.sliding_window")) else None,
            positions=tuple(json.loads(metadata.get("streamfuse.cache_positions", "[]"))),
        )
        units = compute_units or metadata["streamfuse.compute_units"]
    except KeyError as error:
        raise BackendError(f"{path} was not exported by streamfuse: it has no metadata key {error}") from error
    except ValueError as error:
        raise BackendError(f"{path} has damaged metadata: {error}") from error
    predict = _core_ml(path, units) if sys.platform == "darwin" else _emulated(emulator)
    return CoreMLBackend(predict, spec, layout)


def _emulated(emulator: CoreMLEmulator) -> Predict:
    def predict(method: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        return emulator.predict(inputs, method)

    return predict


def _core_ml(path: str | Path, compute_units: str) -> Predict:
    """Functions are loaded when they are first called; Core ML shares their weights."""
    import coremltools as ct

    units, loaded = getattr(ct.ComputeUnit, compute_units.upper()), dict[str, Any]()

    def predict(method: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        if method not in loaded:
            loaded[method] = ct.models.MLModel(str(path), compute_units=units, function_name=method)
        found: Mapping[str, Any] = loaded[method].predict(dict(inputs))
        return found

    return predict
