"""The program of an .mlpackage as a small typed structure: functions, operations, constants.

Field numbers are those of Apple's MIL.proto, Model.proto and FeatureTypes.proto (coremltools/mlmodel/format).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from streamfuse.emulator.blobs import BlobFile
from streamfuse.emulator.errors import EmulatorError
from streamfuse.emulator.values import BITS, Array, TensorType, unpack_bits
from streamfuse.emulator.wire import Message

_DTYPES = {
    **{1: "bool", 2: "string", 10: "fp16", 11: "fp32", 12: "fp64", 21: "int8", 22: "int16", 23: "int32", 24: "int64"},
    **{25: "int4", 31: "uint8", 32: "uint16", 33: "uint32", 34: "uint64", 35: "uint4", 36: "uint2", 37: "uint1"},
    **{38: "uint6", 39: "uint3"},
}
_ML_PROGRAM = 502  # Model.mlProgram


@dataclass(frozen=True, slots=True)
class Blob:
    """A constant in a weights file: `offset` of its metadata."""

    type: TensorType
    file: str
    offset: int


@dataclass(frozen=True, slots=True)
class Immediate:
    """A constant in the program itself, in its carrier type (values.py)."""

    type: TensorType
    value: Array


Constant: TypeAlias = Blob | Immediate
Argument: TypeAlias = str | Constant  # the name of a value, or a constant


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation: every argument is a list, because some arguments (`values` of concat) have many values."""

    kind: str
    inputs: dict[str, list[Argument]]
    outputs: list[tuple[str, TensorType]]
    attributes: dict[str, Constant]

    @property
    def name(self) -> str:
        return self.outputs[0][0] if self.outputs else self.kind


@dataclass(frozen=True, slots=True)
class Feature:
    """An input or output in the package's description."""

    name: str
    description: str


@dataclass(frozen=True, slots=True)
class Function:
    """One entry point: its inputs by name, the names of its outputs, and its operations in order."""

    opset: str
    inputs: dict[str, TensorType]
    outputs: list[str]
    operations: list[Operation]


@dataclass(frozen=True, slots=True)
class Interface:
    """The described inputs and outputs of one function, in order."""

    inputs: tuple[Feature, ...]
    outputs: tuple[Feature, ...]


class Package:
    """An .mlpackage on disk. Functions are decoded on request; weights are memory-mapped.

    Raises EmulatorError if the folder is not a package, is damaged, or is not an ML program.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._model_file = _model_file(self.path)
        model = Message(self._model_file.read_bytes())
        if _ML_PROGRAM not in model:
            raise EmulatorError(f"{self.path} is not an ML program (perhaps an older neural network)")
        self._functions = dict(model.message(_ML_PROGRAM).entries(2))
        self._blobs: dict[str, BlobFile] = {}
        description = model.message(2)
        metadata = description.message(100)
        self.user_metadata = {entry.text(1): entry.text(2) for entry in metadata.messages(100)}
        self.specification_version = model.integer(1)
        described = {item.text(1): _interface(item, 2, 3) for item in description.messages(20)}
        self.interfaces = described or dict.fromkeys(self._functions, _interface(description, 1, 10))
        self.default_function = description.text(21) or next(iter(self._functions))

    @property
    def functions(self) -> tuple[str, ...]:
        """Names of the functions, in the order of the description."""
        return tuple(self.interfaces)

    def function(self, name: str) -> Function:
        """The decoded function. EmulatorError for an unknown name, a control-flow block, a stateful input."""
        if name not in self._functions:
            raise EmulatorError(f"{self.path} has no function {name!r}; it has {', '.join(self.functions)}")
        message = self._functions[name]
        opset = message.text(2)
        blocks = dict(message.entries(3))
        block = blocks[opset] if opset in blocks else next(iter(blocks.values()))
        inputs = {item.text(1): _tensor_type(item.message(2)) for item in message.messages(1)}
        return Function(opset, inputs, block.texts(2), [_operation(item) for item in block.messages(3)])

    def value(self, constant: Constant) -> Array:
        """A constant in its carrier type; for a float16 blob this is a new array."""
        if isinstance(constant, Immediate):
            return constant.value
        return self._blob_file(constant.file).read(constant.offset, constant.type)

    def _blob_file(self, name: str) -> BlobFile:
        if name not in self._blobs:
            folder = self._model_file.parent.resolve()
            path = (folder / name.removeprefix("@model_path/")).resolve()
            if not path.is_relative_to(folder):
                raise EmulatorError(f"{self.path} keeps weights outside the package: {name}")
            self._blobs[name] = BlobFile(path)
        return self._blobs[name]


def _model_file(package: Path) -> Path:
    """The .mlmodel that is the root item in the package's Manifest.json."""
    try:
        manifest = json.loads((package / "Manifest.json").read_text())
        item = manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]
        file = package / "Data" / str(item["path"])
    except OSError:
        raise EmulatorError(f"{package} is not an .mlpackage folder: it has no Manifest.json") from None
    except (ValueError, KeyError, TypeError) as error:
        raise EmulatorError(f"{package}/Manifest.json is damaged: {error}") from error
    if not file.is_file():
        raise EmulatorError(f"{package} lacks its model file Data/{item['path']}")
    return file


def _interface(message: Message, inputs: int, outputs: int) -> Interface:
    def features(number: int) -> tuple[Feature, ...]:
        return tuple(Feature(item.text(1), item.text(2)) for item in message.messages(number))

    return Interface(features(inputs), features(outputs))


def _tensor_type(value_type: Message) -> TensorType:
    if 1 not in value_type:
        kinds = {2: "list", 3: "tuple", 4: "dictionary", 5: "state"}
        kind = next((name for number, name in kinds.items() if number in value_type), "unknown")
        raise EmulatorError(f"values of the kind {kind!r} are not emulated, only tensors")
    tensor = value_type.message(1)
    code = tensor.integer(1)
    if code not in _DTYPES:
        raise EmulatorError(f"tensors of MIL's data type {code} are not emulated")
    shape = tuple(size.message(1).integer(1) if 1 in size else -1 for size in tensor.messages(3))
    return TensorType(_DTYPES[code], shape)


def _operation(message: Message) -> Operation:
    kind = message.text(1)
    if 4 in message:
        raise EmulatorError(f"the operation {kind!r} has nested blocks, which are not emulated")
    inputs = {name: [_argument(item) for item in argument.messages(1)] for name, argument in message.entries(2)}
    if empty := [name for name, values in inputs.items() if not values]:
        raise EmulatorError(f"the model file is damaged: {kind!r} has no value for {empty[0]!r}")
    outputs = [(item.text(1), _tensor_type(item.message(2))) for item in message.messages(3)]
    attributes = {name: _constant(value) for name, value in message.entries(5)}
    if kind == "const" and "val" not in attributes:
        raise EmulatorError("the model file is damaged: a constant has no value")
    return Operation(kind, inputs, outputs, attributes)


def _argument(binding: Message) -> Argument:
    return binding.text(1) if 1 in binding else _constant(binding.message(2))


def _constant(value: Message) -> Constant:
    kind = _tensor_type(value.message(2))
    if 5 in value:
        blob = value.message(5)
        return Blob(kind, blob.text(1), blob.integer(2))
    return Immediate(kind, _immediate(value.message(3).message(1), kind))


def _immediate(tensor: Message, kind: TensorType) -> Array:
    """The elements of a TensorValue, which has a field per dtype."""
    if kind.dtype == "string":
        flat: Array = np.array(tensor.message(4).texts(1))
    elif kind.dtype in BITS:
        packed = np.frombuffer(tensor.message(7).raw(1), np.uint8)
        flat = unpack_bits(packed, BITS[kind.dtype], int(np.prod(kind.shape)), kind.dtype.startswith("int"))
    elif 7 in tensor:
        flat = np.frombuffer(tensor.message(7).raw(1), kind.numpy)
    elif 1 in tensor or 6 in tensor:
        flat = tensor.message(1).numbers(1, "<f4") if 1 in tensor else tensor.message(6).numbers(1, "<f8")
    else:
        field = next((number for number in (2, 3, 5) if number in tensor), 2)
        flat = np.array(tensor.message(field).integers(1))
    if flat.size == 0 and int(np.prod(kind.shape)) == 1:
        flat = np.zeros(1)  # a single default value is not serialized
    if flat.size != np.prod(kind.shape):
        raise EmulatorError(f"the model file is damaged: a constant of {flat.size} elements cannot be {kind}")
    return flat.astype(kind.carrier).reshape(kind.shape)
