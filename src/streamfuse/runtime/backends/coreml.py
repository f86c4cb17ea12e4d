"""Opens a package that streamfuse exported: in Core ML on a Mac, in the emulator elsewhere. See docs/targets.md.

The layout of its caches is in the package's metadata (its keys `streamfuse.*`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from streamfuse.emulator import CoreMLEmulator, EmulatorError
from streamfuse.runtime.backend import BackendError, ModelSpec
from streamfuse.runtime.backends.coreml_common import CacheLayout, CoreMLBackend, Predict

_MOST = 1 << 16  # layers, heads, numbers per head
_COMPUTE_UNITS = ("all", "cpu_and_ne", "cpu_and_gpu", "cpu_only")


def open_package(path: str | Path, spec: ModelSpec, compute_units: str | None = None) -> CoreMLBackend:
    """A backend over model.mlpackage.

    Args:
        compute_units: all, cpu_and_ne, cpu_and_gpu or cpu_only; None: as exported. Only used on a Mac.

    Raises:
        BackendError: the package is damaged or was not exported by streamfuse; names the file and the key.
    """
    try:
        emulator = CoreMLEmulator(path)
    except EmulatorError as error:
        raise BackendError(str(error)) from error
    facts = _Metadata(path, emulator.user_metadata)
    layout = _layout(facts, spec.capacity)
    units = compute_units or facts.one_of("compute_units", _COMPUTE_UNITS)
    predict = _core_ml(path, units) if sys.platform == "darwin" else _emulated(emulator)
    return CoreMLBackend(predict, spec, layout)


@dataclass(frozen=True, slots=True)
class _Metadata:
    """The keys `streamfuse.*` of a package."""

    path: str | Path
    texts: Mapping[str, str]

    def text(self, key: str) -> str:
        try:
            return self.texts[f"streamfuse.{key}"]
        except KeyError as error:
            raise BackendError(
                f"{self.path} was not exported by this version of streamfuse: it has no metadata key {error}; export "
                "it again"
            ) from None

    def one_of(self, key: str, known: Collection[str]) -> str:
        if (text := self.text(key)) not in known:
            raise self.damaged(key, f"must be one of {', '.join(known)}")
        return text

    def count(self, key: str, least: int, most: int) -> int:
        text = self.text(key)
        if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
            raise self.damaged(key, f"must be an integer from {least} to {most}")
        return int(text)

    def counts(self, key: str, layers: int) -> tuple[int, ...]:
        """One integer per layer."""
        try:
            found = json.loads(self.text(key))
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, list) or len(found) != layers or not all(type(one) is int for one in found):
            raise self.damaged(key, f"must be a list of {layers} integers")
        return tuple(found)

    def damaged(self, key: str, must: str) -> BackendError:
        return BackendError(f"{self.path} has damaged metadata: streamfuse.{key} {must}, is {self.text(key):.80}")


def _layout(facts: _Metadata, capacity: int) -> CacheLayout:
    """The layout that the metadata describe. PackageLayout.swift checks the same."""
    layers = facts.count("num_layers", 1, _MOST)
    window = facts.count("sliding_window", 1, sys.maxsize) if "streamfuse.sliding_window" in facts.texts else None
    return CacheLayout(
        num_msa_layers=facts.count("num_msa_layers", 0, layers),
        kv_heads=_kv_heads(facts, layers),
        head_dim=facts.count("head_dim", 1, _MOST),
        channels_first=facts.one_of("layout", ("plain", "ane")) == "ane",
        dtype=np.float16 if facts.one_of("dtype", ("float16", "float32")) == "float16" else np.float32,
        next_token=facts.texts.get("streamfuse.next_token") == "true",
        window=window,
        positions=() if window is None else _positions(facts, layers, window, capacity),
    )


def _kv_heads(facts: _Metadata, layers: int) -> tuple[int, ...]:
    found = facts.counts("kv_heads", layers)
    if not all(1 <= heads <= _MOST for heads in found):
        raise facts.damaged("kv_heads", f"must have integers from 1 to {_MOST}")
    return found


def _positions(facts: _Metadata, layers: int, window: int, capacity: int) -> tuple[int, ...]:
    """Of each layer: those of the whole context, or fewer but more than the window."""
    key = "cache_positions"
    found = facts.counts(key, layers)
    if not all(min(window, capacity - 1) < positions <= capacity for positions in found):
        raise facts.damaged(key, f"must be {capacity}, the context, or between that and the window of {window}")
    return found


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
