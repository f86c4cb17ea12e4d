"""Runs a saved .mlpackage on any desktop, like coremltools' `MLModel.predict` on a Mac. See docs/targets.md."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from streamfuse.emulator.errors import EmulatorError
from streamfuse.emulator.interpreter import Constants, Interpreter
from streamfuse.emulator.program import Interface, Package
from streamfuse.emulator.values import Array, TensorType, settle


class CoreMLEmulator:
    """Interprets the functions of one package in numpy, operation by operation.

        emulator = CoreMLEmulator("model.mlpackage")
        emulator.functions                     # ("prefill", "decode", "verify_8")
        emulator.inputs("decode")              # name -> TensorType(dtype, shape)
        emulator.predict({"input_ids": ..., "mask": ..., ...}, "decode")   # name -> array, as MLModel.predict

    It reads ML programs with static shapes and all compressed weights of coremltools. Every operation computes in
    float32 and rounds its result once, to the type that the program declares. Functions are decoded on first use, each
    constant once. Not thread-safe.

    Raises EmulatorError for a damaged package, an unknown function, and operations that are not emulated.
    """

    def __init__(self, path: str | Path) -> None:
        self._package = Package(path)
        self._constants = Constants(self._package)
        self._ready: dict[str, Interpreter] = {}

    @property
    def functions(self) -> tuple[str, ...]:
        """Names of the functions; the one of a plain package is called `main`."""
        return self._package.functions

    @property
    def user_metadata(self) -> dict[str, str]:
        """The package's user-defined metadata."""
        return self._package.user_metadata

    def interface(self, function: str | None = None) -> Interface:
        """Names and descriptions of a function's inputs and outputs, in order."""
        return self._package.interfaces[self._named(function)]

    def inputs(self, function: str | None = None) -> dict[str, TensorType]:
        return dict(self._interpreter(function).inputs)

    def outputs(self, function: str | None = None) -> dict[str, TensorType]:
        return dict(self._interpreter(function).outputs)

    def operation_counts(self, function: str | None = None) -> dict[str, int]:
        """How many operations of each type a function has, without constants."""
        return dict(self._interpreter(function).operation_counts)

    @property
    def constants_bytes(self) -> int:
        """Memory of the decoded constants so far; float16 weights take four bytes here."""
        return self._constants.size_bytes

    def predict(self, inputs: Mapping[str, npt.ArrayLike], function: str | None = None) -> dict[str, Array]:
        """Run a function (None: the default one) on arrays by input name.

        Numbers are converted to the declared dtypes, but fractions are not converted to integers. Outputs are new
        arrays of the declared dtypes. EmulatorError if a name or a shape does not match.
        """
        interpreter = self._interpreter(function)
        if unlike := set(inputs) ^ set(interpreter.inputs):
            wanted = "needs the input" if min(unlike) in interpreter.inputs else "has no input"
            raise EmulatorError(f"the function {self._named(function)} {wanted} {min(unlike)!r}")
        carried = {name: _carried(name, inputs[name], kind) for name, kind in interpreter.inputs.items()}
        found = interpreter.run(carried)
        return {name: np.array(found[name], kind.numpy) for name, kind in interpreter.outputs.items()}

    def _named(self, function: str | None) -> str:
        name = function or self._package.default_function
        if name not in self.functions:
            raise EmulatorError(f"{self._package.path} has no function {name!r}; it has {', '.join(self.functions)}")
        return name

    def _interpreter(self, function: str | None) -> Interpreter:
        name = self._named(function)
        if name not in self._ready:
            self._ready[name] = Interpreter(self._package.function(name), self._constants)
        return self._ready[name]


def _carried(name: str, given: Any, kind: TensorType) -> Array:
    value = np.asarray(given)
    if not kind.fits(value.shape):
        raise EmulatorError(f"the input {name!r} has the shape {list(value.shape)}, the program expects {kind}")
    if value.dtype.kind == "f" and kind.carrier not in (np.float32, np.float64):
        raise EmulatorError(f"the input {name!r} is {value.dtype}, the program expects {kind}")
    return value.astype(np.float32) if value.dtype == np.float16 else settle(value, kind)
