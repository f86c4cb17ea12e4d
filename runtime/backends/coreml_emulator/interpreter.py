"""Runs one function of a package, operation by operation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

# The four modules register their operations when imported.
from streamfuse.runtime.backends.coreml_emulator import compressed, elementwise, movement, products  # noqa: F401
from streamfuse.runtime.backends.coreml_emulator.errors import EmulatorError
from streamfuse.runtime.backends.coreml_emulator.program import Argument, Blob, Constant, Function, Operation, Package
from streamfuse.runtime.backends.coreml_emulator.registry import RULES
from streamfuse.runtime.backends.coreml_emulator.values import Array, TensorType, settle

_LISTS = ("values",)  # arguments that stay a list, however many they are


class Constants:
    """Decoded constants of a package, each once, however many functions use it."""

    def __init__(self, package: Package) -> None:
        self._package = package
        self._cache: dict[Hashable, tuple[Array, ...]] = {}

    def get(self, operation: Operation, earlier: Mapping[str, Operation]) -> tuple[Array, ...]:
        """The values of a `const` or `constexpr_*` operation; `earlier` holds the constant operations before it."""
        key = _key(operation, earlier)
        if key not in self._cache:
            self._cache[key] = self._decode(operation, earlier)
        return self._cache[key]

    @property
    def size_bytes(self) -> int:
        return sum(value.nbytes for values in self._cache.values() for value in values)

    def value(self, constant: Constant) -> Any:
        return _plain(self._package.value(constant))

    def _decode(self, operation: Operation, earlier: Mapping[str, Operation]) -> tuple[Array, ...]:
        if operation.kind == "const":
            return (self._package.value(operation.attributes["val"]),)
        arguments = {}
        for name, argument in _constant_arguments(operation).items():
            if isinstance(argument, str):  # what only feeds a decoder need not be kept
                source = earlier[argument]
                outputs = [output for output, _ in source.outputs]
                arguments[name] = _plain(self._decode(source, earlier)[outputs.index(argument)])
            else:
                arguments[name] = self.value(argument)
        return evaluate(operation, arguments)


def _constant_arguments(operation: Operation) -> dict[str, Argument]:
    """The arguments of a constexpr: attributes before iOS 18, inputs since."""
    given: dict[str, Argument] = {name: value for name, value in operation.attributes.items() if name != "name"}
    return {**given, **{name: values[0] for name, values in operation.inputs.items()}}


def _key(operation: Operation, earlier: Mapping[str, Operation]) -> Hashable:
    """Equal for constants that are equal by construction, in whatever function they stand."""

    def of(argument: Argument) -> Hashable:
        if isinstance(argument, str):
            place = [output for output, _ in earlier[argument].outputs].index(argument)
            return place, _key(earlier[argument], earlier)
        if isinstance(argument, Blob):
            return argument
        return argument.type, argument.value.tobytes()

    arguments = _constant_arguments(operation)
    return operation.kind, tuple((name, of(arguments[name])) for name in sorted(arguments))


def _plain(value: Array) -> Any:
    """Text as str; everything else as it is."""
    return str(value) if value.dtype.kind == "U" else value


def is_constant(operation: Operation) -> bool:
    return operation.kind == "const" or operation.kind.startswith(compressed.PREFIX)


def evaluate(operation: Operation, arguments: Mapping[str, Any]) -> tuple[Array, ...]:
    """The results of one operation, rounded to their declared types and checked against their declared shapes."""
    rule = RULES[operation.kind]
    try:
        with np.errstate(all="ignore"):  # infinities and NaN go on, as on a device
            found = rule.compute(**arguments)
    except (TypeError, ValueError, IndexError, KeyError) as error:
        raise EmulatorError(f"{operation.kind} {operation.name!r} failed: {error}") from error
    results = found if isinstance(found, tuple) else (found,)
    if len(results) != len(operation.outputs):
        raise EmulatorError(
            f"{operation.kind} {operation.name!r} declares {len(operation.outputs)} results, not {len(results)}"
        )
    settled = tuple(
        np.asarray(result) if rule.moves and np.asarray(result).dtype == kind.carrier else settle(result, kind)
        for result, (_, kind) in zip(results, operation.outputs, strict=True)
    )
    for value, (name, kind) in zip(settled, operation.outputs, strict=True):
        if not kind.fits(value.shape):
            raise EmulatorError(
                f"{operation.kind} {name!r} gives the shape {list(value.shape)}, the program says {kind}"
            )
    return settled


@dataclass(frozen=True, slots=True)
class _Step:
    """One operation with its constants in place."""

    operation: Operation
    fixed: dict[str, Any]
    moving: dict[str, list[str | Array]]  # arguments with at least one value that a run computes
    dead: list[str]  # values that nothing later uses


class Interpreter:
    """A function ready to run. Raises EmulatorError naming every operation that is not emulated."""

    def __init__(self, function: Function, constants: Constants) -> None:
        self.inputs: dict[str, TensorType] = function.inputs
        missing = sorted({op.kind for op in function.operations if op.kind != "const" and op.kind not in RULES})
        if missing:
            raise EmulatorError(f"the emulator does not know the operations: {', '.join(missing)}")
        still = {name: op for op in function.operations if is_constant(op) for name, _ in op.outputs}
        moving = [op for op in function.operations if not is_constant(op)]
        types = dict(function.inputs)
        types.update({name: kind for op in function.operations for name, kind in op.outputs})
        self.outputs: dict[str, TensorType] = {name: types[name] for name in function.outputs}
        self.operation_counts = Counter(op.kind for op in function.operations if op.kind != "const")

        def constant(name: str) -> Array:
            outputs = [output for output, _ in still[name].outputs]
            return constants.get(still[name], still)[outputs.index(name)]

        self._still = {name: constant(name) for name in self.outputs if name in still}
        last = {name: at for at, op in enumerate(moving) for name in _names(op)}
        self._steps: list[_Step] = []
        for at, op in enumerate(moving):
            fixed: dict[str, Any] = {}
            open_: dict[str, list[str | Array]] = {}
            for parameter, arguments in op.inputs.items():
                values: list[Any] = [
                    argument
                    if isinstance(argument, str) and argument not in still
                    else _plain(constant(argument))
                    if isinstance(argument, str)
                    else constants.value(argument)
                    for argument in arguments
                ]
                computed = any(isinstance(a, str) and a not in still for a in arguments)
                if computed:
                    open_[parameter] = values
                else:
                    fixed[parameter] = values if parameter in _LISTS else values[0]
            results = {name for name, _ in op.outputs}
            dead = [name for name in {*_names(op), *results} - {*self.outputs, *still} if last.get(name, at) == at]
            self._steps.append(_Step(op, fixed, open_, dead))

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Carried inputs to carried outputs."""
        values: dict[str, Array] = dict(inputs)
        for step in self._steps:
            arguments = dict(step.fixed)
            for parameter, given in step.moving.items():
                found = [values[item] if isinstance(item, str) else item for item in given]
                arguments[parameter] = found if parameter in _LISTS else found[0]
            results = evaluate(step.operation, arguments)
            values.update({name: value for (name, _), value in zip(step.operation.outputs, results, strict=True)})
            del arguments, results
            for name in step.dead:
                values.pop(name, None)
        values.update(self._still)
        return {name: values[name] for name in self.outputs}


def _names(operation: Operation) -> Iterable[str]:
    return (argument for arguments in operation.inputs.values() for argument in arguments if isinstance(argument, str))
