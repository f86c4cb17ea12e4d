"""Small Core ML packages for tests, and what can run them: the emulator anywhere, Core ML itself on a Mac."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from streamfuse.emulator import CoreMLEmulator

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)  # coremltools tells at import which parts it cannot use here
    import coremltools as ct

    logging.disable(logging.NOTSET)

ENGINES = ["emulator", *(["coreml"] if sys.platform == "darwin" else [])]
Arrays = Mapping[str, Any]


class Call(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs)


def convert(
    module: torch.nn.Module,
    inputs: Sequence[torch.Tensor],
    names: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    half: bool = False,
    target: Any = None,
) -> Any:
    """A torch module as an ML program with static shapes; float32 inputs and outputs unless `half`.

    A half program also takes and gives float16, so that no cast blurs what its operations do.
    """
    program = torch.export.export(module.eval(), tuple(inputs)).run_decompositions({})
    names = names or [f"x{index}" for index in range(len(inputs))]
    floats = np.float16 if half else np.float32
    types = {torch.float32: floats, torch.int64: np.int32, torch.int32: np.int32, torch.bool: np.bool_}
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = ct.convert(
            program,
            convert_to="mlprogram",
            inputs=[ct.TensorType(name, x.shape, types[x.dtype]) for name, x in zip(names, inputs, strict=True)],
            outputs=[ct.TensorType(name) for name in outputs] if outputs else None,
            minimum_deployment_target=target or ct.target.iOS18,
            compute_precision=ct.precision.FLOAT16 if half else ct.precision.FLOAT32,
            skip_model_load=True,
        )
    logging.disable(logging.NOTSET)
    return model


def predict(engine: str, path: Path, inputs: Arrays, function: str | None = None) -> dict[str, Any]:
    """One pass of a saved package, on the emulator or on Core ML's own CPU path."""
    if engine == "emulator":
        return CoreMLEmulator(path).predict(inputs, function)
    model = ct.models.MLModel(str(path), compute_units=ct.ComputeUnit.CPU_ONLY, function_name=function)
    return dict(model.predict({name: np.asarray(value) for name, value in inputs.items()}))


def save(model: Any, folder: Path, name: str = "model") -> Path:
    path = folder / f"{name}.mlpackage"
    model.save(str(path))
    return path
