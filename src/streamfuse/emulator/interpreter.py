"""Runs one function of a package, operation by operation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# These four modules register their operations on import.
from streamfuse.emulator import compressed, elementwise, movement, products  # noqa: F401
from streamfuse.emulator.errors import EmulatorError
from streamfuse.emulator.program import Argument, Blob, Constant, Function, Operation, Package
from streamfuse.emulator.registry import RULES
from streamfuse.emulator.values import Array, TensorType, settle

_LISTS = ("values",)  # arguments that are always lists


class Constants:
    """Decoded constants of a package, each decoded once for all functions."""

    def __init__(self, package: Package) -> None:
        self._package = package
        self._cache: dict[Hashable, tuple[Array, ...]] = {}

    def get(self, operation: Operation, earlier: Mapping[str, Operation]) -> tuple[Array, ...]:
        """The values of a `const` or `constexpr_*` operation; `earlier` has the constant operations before it."""
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
            if isinstance(argument, str):  # inputs of decoders are not kept
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
    """Equal for constants that are equal by construction, in any function."""

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
    """Text as str; everything else unchanged."""
    return str(value) if value.dtype.kind == "U" else value


def is_constant(operation: Operation) -> bool:
    return operation.kind == "const" or operation.kind.startswith(compressed.PREFIX)


def evaluate(operation: Operation, arguments: Mapping[str, Any]) -> tuple[Array, ...]:
    """The results of one operation, rounded to their declared dtypes and checked against their declared shapes."""
    rule = RULES[operation.kind]
    try:
        with np.errstate(all="ignore"):  # infinities and NaN propagate, as on a device
            found = rule.compute(**arguments)
            results = found if isinstance(found, tuple) else (found,)
            settled = tuple(
                result if rule.moves and result.dtype == kind.carrier else settle(result, kind)
                for result, (_, kind) in zip(results, operation.outputs, strict=True)
            )
    except (TypeError, ValueError, IndexError, KeyError) as error:
        raise EmulatorError(f"{operation.kind} {operation.name!r} failed: {error}") from error
    for value, (name, kind) in zip(settled, operation.outputs, strict=True):
        if not kind.fits(value.shape):
            shape = list(value.shape)
            raise EmulatorError(f"{operation.kind} {name!r} has the shape {shape}, the program declares {kind}")
    return settled


@dataclass(frozen=True, slots=True)
class _Computed:
    """Placeholder for a value that is computed at run time."""

    name: str


@dataclass(frozen=True, slots=True)
class _Step:
    """One operation with its constant arguments."""

    operation: Operation
    arguments: dict[str, list[Any]]  # constants and _Computed
    dead: list[str]  # values that are not used later

    def run(self, values: dict[str, Array]) -> None:
        """Adds the results to `values` and drops values that are not used later."""
        filled = {
            name: [values[item.name] if isinstance(item, _Computed) else item for item in items]
            for name, items in self.arguments.items()
        }
        results = evaluate(self.operation, {n: v if n in _LISTS else v[0] for n, v in filled.items()})
        values.update({name: value for (name, _), value in zip(self.operation.outputs, results, strict=True)})
        for name in self.dead:
            values.pop(name, None)


class Interpreter:
    """A function ready to run. Raises EmulatorError that names all unsupported operations."""

    def __init__(self, function: Function, constants: Constants) -> None:
        missing = sorted({op.kind for op in function.operations if op.kind != "const" and op.kind not in RULES})
        if missing:
            raise EmulatorError(f"the emulator does not know the operations: {', '.join(missing)}")
        types = {**function.inputs, **{name: kind for op in function.operations for name, kind in op.outputs}}
        used = {name for op in function.operations for name in _names(op)}
        if lost := sorted({*used, *function.outputs} - types.keys()):
            raise EmulatorError(f"the model file is damaged: nothing gives the value {lost[0]!r}")
        self.inputs: dict[str, TensorType] = function.inputs
        self.outputs: dict[str, TensorType] = {name: types[name] for name in function.outputs}
        self.operation_counts = Counter(op.kind for op in function.operations if op.kind != "const")
        self._still = {name: op for op in function.operations if is_constant(op) for name, _ in op.outputs}
        self._constants = constants
        moving = [op for op in function.operations if not is_constant(op)]
        self._steps = [
            _Step(op, {name: [self._fixed(item) for item in items] for name, items in op.inputs.items()}, dead)
            for op, dead in zip(moving, _last_uses(moving, {*self.outputs, *self._still}), strict=True)
        ]

    def _fixed(self, argument: Argument) -> Any:
        """A constant's value; a placeholder for a value that is computed at run time."""
        if not isinstance(argument, str):
            return self._constants.value(argument)
        if argument not in self._still:
            return _Computed(argument)
        outputs = [name for name, _ in self._still[argument].outputs]
        return _plain(self._constants.get(self._still[argument], self._still)[outputs.index(argument)])

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """From inputs to outputs, in carrier types."""
        values: dict[str, Array] = dict(inputs)
        for step in self._steps:
            step.run(values)
        return {name: values[name] if name in values else self._fixed(name) for name in self.outputs}


def _names(operation: Operation) -> list[str]:
    """The names of the values that an operation uses."""
    return [item for items in operation.inputs.values() for item in items if isinstance(item, str)]


def _last_uses(operations: Sequence[Operation], kept: set[str]) -> list[list[str]]:
    """For each operation, the values that are not used after it, except those in `kept`."""
    last: dict[str, int] = {}
    for at, operation in enumerate(operations):
        last.update(dict.fromkeys((*_names(operation), *(name for name, _ in operation.outputs)), at))
    dead: list[list[str]] = [[] for _ in operations]
    for name, at in last.items():
        if name not in kept:
            dead[at].append(name)
    return dead
