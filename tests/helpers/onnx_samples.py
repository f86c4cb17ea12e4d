"""Graphs of a tiny model in ONNX, without the rest of a bundle."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from export_samples import config_for

from streamfuse.export import facts
from streamfuse.export.graphs import Method, Weights, build_methods
from streamfuse.export.onnx.emit import write_models
from streamfuse.export.onnx.form import Form
from streamfuse.export.reference import reference_backend
from streamfuse.model.streams import StreamFused
from streamfuse.runtime.backend import ModelSpec
from streamfuse.runtime.backends.onnx_providers import CPU
from streamfuse.runtime.backends.reference import ReferenceBackend


@dataclass
class Written:
    """The files of `folder`, and the PyTorch modules that they should equal."""

    folder: Path
    model: StreamFused
    spec: ModelSpec
    methods: dict[str, Method]
    facts: dict[str, Any]

    def reference(self) -> ReferenceBackend:
        return reference_backend(self.methods, self.model, self.spec)


def write(
    folder: Path,
    model: StreamFused,
    dtype: str,
    quantize: str,
    schedule: str = "both",
    provider: str = CPU,
    **changes: Any,
) -> Written:
    config = config_for((folder, folder), folder, target="onnx", dtype=dtype, quantize=quantize,
                    schedule=schedule, **changes)  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    weights = Weights(model, config.shapes, Form(config.part_scheme)).eval()
    methods = build_methods(weights)
    found, _ = write_models(weights, methods, folder, config.dtype, lambda _: None, provider)
    return Written(folder, model, facts.model_spec(model, config), methods, found)
