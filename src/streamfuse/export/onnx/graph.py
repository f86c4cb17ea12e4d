"""An ONNX graph under construction: typed values, nodes without duplicates, and weights in one file for all graphs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper
from streamfuse.runtime.backends.onnx_providers import CPU

OPSET = 23
CONTRIB = "com.microsoft"
CONTRIB_OPSET = 1
_INLINE_BYTES = 1024  # smaller constants are stored in the graph itself
_ALIGNMENT = 4096  # pages, so that a runtime can map the file

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the graph; `dtype` is one of TensorProto's."""

    name: str
    shape: tuple[int, ...]
    dtype: int


class WeightsFile:
    """Raw tensors, each content stored once; `stored` has the bytes of each by its first name."""

    def __init__(self, path: Path) -> None:
        self.path, self._file = path, path.open("wb")
        self.stored: dict[str, int] = {}
        self._places: dict[bytes, tuple[int, int]] = {}

    def place(self, name: str, array: Array) -> tuple[int, int]:
        """Offset and length of the array's bytes, which are written if they are not in the file yet."""
        data = np.ascontiguousarray(array).view(np.uint8).reshape(-1).data
        digest = hashlib.blake2b(data).digest()
        if digest not in self._places:
            self._file.write(b"\0" * (-self._file.tell() % _ALIGNMENT))
            self._places[digest] = self._file.tell(), len(data)
            self.stored[name] = len(data)
            self._file.write(data)
        return self._places[digest]

    def __enter__(self) -> WeightsFile:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._file.close()


@dataclass
class Graph:
    """One method's graph. Identical nodes are stored once."""

    weights: WeightsFile
    provider: str = CPU  # the execution provider that the graph is for
    scope: str = ""
    inputs: list[Value] = field(default_factory=list)
    _nodes: list[NodeProto] = field(default_factory=list)
    _constants: dict[str, TensorProto] = field(default_factory=dict)
    _known: dict[Any, list[Value]] = field(default_factory=dict)
    _producers: dict[str, tuple[str, Sequence[Value | None]]] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)

    @property
    def sums(self) -> int:
        """The dtype of attention's sums over positions."""
        return TensorProto.DOUBLE if self.provider == CPU else TensorProto.FLOAT

    @property
    def rotates(self) -> bool:
        """Whether the provider supports RotaryEmbedding, which is new in the standard."""
        return self.provider in (CPU, "webgpu")

    def input(self, name: str, dtype: int, *shape: int) -> Value:
        self.inputs.append(Value(name, shape, dtype))
        return self.inputs[-1]

    def node(
        self,
        op: str,
        inputs: Sequence[Value | None],
        results: Sequence[tuple[tuple[int, ...], int]],
        domain: str = "",
        **attributes: Any,
    ) -> list[Value]:
        """Outputs of a node, one per (shape, dtype) of `results`."""
        names = ["" if value is None else value.name for value in inputs]
        key = op, domain, tuple(names), repr(sorted(attributes.items())), tuple(results)
        if key not in self._known:
            name = self._unique(f"{self.scope}/{op}" if self.scope else op)
            outputs = [name] if len(results) == 1 else [f"{name}.{i}" for i in range(len(results))]
            while names and not names[-1]:
                names.pop()
            self._nodes.append(helper.make_node(op, names, outputs, name, domain=domain, **attributes))
            self._producers.update(dict.fromkeys(outputs, (op, inputs)))
            self._known[key] = [Value(n, shape, dtype) for n, (shape, dtype) in zip(outputs, results, strict=True)]
        return self._known[key]

    def op(
        self, op: str, *inputs: Value | None, shape: Iterable[int], dtype: int, domain: str = "", **attributes: Any
    ) -> Value:
        """The output of a node that has one."""
        return self.node(op, inputs, [(tuple(shape), dtype)], domain, **attributes)[0]

    def constant(self, array: Array, name: str | None = None) -> Value:
        """An initializer; without a name it is one of the graph's own small constants."""
        key = (array.dtype.str, array.shape, array.tobytes()) if name is None else name
        if key not in self._known:
            name = self._unique(name or "constant")
            self._constants[name] = self._stored(array, name)
            self._known[key] = [Value(name, array.shape, helper.np_dtype_to_tensor_dtype(array.dtype))]
        return self._known[key][0]

    def reshaped_constant(self, value: Value, *shape: int) -> Value:
        """A constant with another shape, sharing its bytes in the file."""
        name = f"{value.name}.{'x'.join(map(str, shape))}"
        if name not in self._constants:
            tensor = TensorProto()
            tensor.CopyFrom(self._constants[value.name])
            tensor.name, tensor.dims[:] = name, shape
            self._constants[name] = tensor
        return Value(name, shape, value.dtype)

    def numbers(self, *numbers: int) -> Value:
        """A constant int64 [n]."""
        return self.constant(np.array(numbers, np.int64))

    def scalar(self, number: float, dtype: int) -> Value:
        return self.constant(np.array(number, helper.tensor_dtype_to_np_dtype(dtype)))

    def reshape(self, value: Value, *shape: int) -> Value:
        while self._producers.get(value.name, ("",))[0] == "Reshape":  # of nested views, only the last one matters
            source = self._producers[value.name][1][0]
            assert source is not None
            value = source
        if value.shape == shape:
            return value
        return self.op("Reshape", value, self.numbers(*shape), shape=shape, dtype=value.dtype)

    def transpose(self, value: Value, *axes: int) -> Value:
        """A transpose; a reshape if only axes of length 1 move, since the values stay in place."""
        shape = tuple(value.shape[axis] for axis in axes)
        if [axis for axis in axes if value.shape[axis] > 1] == [a for a, n in enumerate(value.shape) if n > 1]:
            return self.reshape(value, *shape)
        return self.op("Transpose", value, shape=shape, dtype=value.dtype, perm=list(axes))

    def cast(self, value: Value, dtype: int) -> Value:
        return value if value.dtype == dtype else self.op("Cast", value, shape=value.shape, dtype=dtype, to=dtype)

    def model(
        self, name: str, outputs: dict[str, Value], describe: Callable[[str], str], facts: dict[str, str]
    ) -> onnx.ModelProto:
        """The graph that computes `outputs`, without operators and caches that they do not need.

        `describe`: a description for a tensor's name.
        """
        renamed: dict[str, str] = {}
        for output, value in outputs.items():
            if value.name in self._producers and value.name not in renamed:
                renamed[value.name] = output
            else:  # an input, a constant, or already an output
                self._nodes.append(helper.make_node("Identity", [value.name], [output], output))
        for node in self._nodes:
            for names in (node.input, node.output):
                names[:] = [renamed.get(name, name) for name in names]
        nodes = self._needed(set(outputs))
        used = {name for node in nodes for name in node.input}
        # All passes have the same inputs, except for caches that they do not read.
        used |= {value.name for value in self.inputs if not value.name.startswith("past_key_values.")}
        shown = [*(v for v in self.inputs if v.name in used), *(Value(n, v.shape, v.dtype) for n, v in outputs.items())]
        infos = [helper.make_tensor_value_info(v.name, v.dtype, v.shape, describe(v.name)) for v in shown]
        count = len(shown) - len(outputs)
        constants = [tensor for name, tensor in self._constants.items() if name in used]
        graph = helper.make_graph(nodes, name, infos[:count], infos[count:], constants)
        opsets = [helper.make_opsetid("", OPSET)]
        if any(node.domain == CONTRIB for node in nodes):
            opsets.append(helper.make_opsetid(CONTRIB, CONTRIB_OPSET))
        model = helper.make_model(graph, opset_imports=opsets, producer_name="streamfuse")
        model.ir_version = helper.find_min_ir_version_for(opsets[:1])
        helper.set_model_props(model, {**facts, "streamfuse.nodes": str(len(nodes))})
        return model

    def _needed(self, wanted: set[str]) -> list[NodeProto]:
        nodes = []
        for node in reversed(self._nodes):
            if wanted.intersection(node.output):
                wanted |= set(node.input)
                nodes.append(node)
        return nodes[::-1]

    def _unique(self, name: str) -> str:
        count = self._counts[name] = self._counts.get(name, 0) + 1
        return name if count == 1 else f"{name}_{count}"

    def _stored(self, array: Array, name: str) -> TensorProto:
        if array.nbytes < _INLINE_BYTES:
            return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)
        tensor = TensorProto(name=name, dims=array.shape, data_location=TensorProto.EXTERNAL)
        tensor.data_type = helper.np_dtype_to_tensor_dtype(array.dtype)
        offset, length = self.weights.place(name, array)
        for key, value in (("location", self.weights.path.name), ("offset", offset), ("length", length)):
            tensor.external_data.add(key=key, value=str(value))
        return tensor
