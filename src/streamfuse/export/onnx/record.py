"""Writes a graph while a PyTorch method runs on tensors without data.

torch.export would take ten times as long to trace the same methods, and torch.onnx chooses its own names and nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.utils._python_dispatch import TorchDispatchMode

from onnx import TensorProto

from ..graphs import Method
from ..layers import TopK
from ..pruning import Survivors
from .graph import Graph, Value
from .rules import RULES, Result

_DTYPES = {torch.int64: TensorProto.INT32, torch.bool: TensorProto.INT32, torch.uint8: TensorProto.UINT8}
_WIDE = (TensorProto.INT64, TensorProto.BOOL)  # dtypes of a graph's inputs and outputs that are int32 inside
_READABLE = [  # names of tensors in the modules -> names in checkpoints
    (r"^embedding\b", "embed_tokens"),
    (r"^head\.norm\b", "norm"),
    (r"^head\b", "lm_head"),
    (r"^openings\.(\d+)\.norm\b", r"layers.\1.input_layernorm"),
    (r"^closings\.(\d+)\.norm\b", r"layers.\1.post_attention_layernorm"),
    (r"^closings\.(\d+)\.gate\.norm\b", r"layers.\1.input_layernorm"),
    (r"^closings\.(\d+)\.gate\b", r"layers.\1"),
    (r"^(openings|closings)\.", "layers."),
    (r"\.product\b", ""),
]


class UnsupportedOperator(RuntimeError):
    """The method uses a PyTorch operator without a rule in rules.py; the message names it."""


class Names:
    """Readable names of modules, parameters and buffers, the same in every method."""

    def __init__(self, weights: nn.Module, method: nn.Module) -> None:
        self._names: dict[int, str] = {}
        for root in (weights, method):
            for listed in (root.named_modules(), root.named_parameters(), root.named_buffers()):
                for name, item in listed:
                    self._names.setdefault(id(item), _readable(name))

    def of(self, item: object) -> str | None:
        return self._names.get(id(item))


def _readable(name: str) -> str:
    for pattern, text in _READABLE:
        name = re.sub(pattern, text, name)
    return name


class Recorder(TorchDispatchMode):
    """Converts every operator that runs to nodes of `graph`, whose floats have the dtype `float_type`."""

    def __init__(self, graph: Graph, names: Names, float_type: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._graph, self._names, self._float = graph, names, float_type
        self._values: dict[int, tuple[Tensor, Value]] = {}  # the tensors are kept alive, so that ids are unique
        self._shapes: dict[int, Tensor] = {}  # of constants, by id; the method keeps them alive
        self._modules: list[nn.Module] = []

    def bind(self, tensor: Tensor, value: Value) -> None:
        self._values[id(tensor)] = tensor, value

    def value(self, tensor: Tensor) -> Value:
        """The value of a computed tensor; other tensors are constants."""
        if id(tensor) in self._values:
            value = self._values[id(tensor)][1]
            exact = self._full_precision and value.dtype == TensorProto.FLOAT16
            return self._graph.cast(value, TensorProto.FLOAT) if exact else value
        name, dtype = self._names.of(tensor), _DTYPES.get(tensor.dtype) or self._float
        array = tensor.detach().numpy()
        if dtype == TensorProto.INT32:
            array = array.astype(np.int32)
        if dtype == TensorProto.FLOAT16 and self._full_precision:
            name = name and f"{name}.float32"
        elif dtype == TensorProto.FLOAT16:
            array = array.astype(np.float16)
        return self._graph.constant(array, name)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*map(self._shape_only, args), **(kwargs or {}))
        if func.namespace == "prim":
            return out
        if func not in RULES:
            raise UnsupportedOperator(f"there is no ONNX rule for {func}")
        found: Result = RULES[func](self._graph, out, *map(self._argument, args), **(kwargs or {}))
        pairs = [(out, found)] if isinstance(found, Value) else zip(out, found, strict=True)
        for tensor, value in pairs:
            self.bind(tensor, value)
        return out

    def _shape_only(self, argument: Any) -> Any:
        """Constants without their data, so that nothing is computed."""
        if isinstance(argument, (list, tuple)):
            return [self._shape_only(item) for item in argument]
        if not isinstance(argument, Tensor) or argument.is_meta:
            return argument
        if id(argument) not in self._shapes:
            self._shapes[id(argument)] = argument.to("meta")
        return self._shapes[id(argument)]

    def _argument(self, argument: Any) -> Any:
        if isinstance(argument, Tensor):
            return self.value(argument)
        return [self._argument(item) for item in argument] if isinstance(argument, (list, tuple)) else argument

    @property
    def _full_precision(self) -> bool:
        """Path scores and log-probabilities need more precision than float16."""
        return any(isinstance(module, (Survivors, TopK)) for module in self._modules)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Tracks which module runs, to name nodes."""
        handles = [
            hooks.register_module_forward_pre_hook(lambda module, _: self._enter(module)),
            hooks.register_module_forward_hook(lambda module, _, __: self._leave()),
        ]
        try:
            with torch.inference_mode(), self:
                yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, module: nn.Module) -> None:
        self._modules.append(module)
        self._graph.scope = self._names.of(module) or self._graph.scope

    def _leave(self) -> None:
        self._modules.pop()
        self._graph.scope = (self._names.of(self._modules[-1]) or "") if self._modules else ""


def record(
    method: Method,
    inputs: Mapping[str, Tensor],
    bound: Mapping[str, Value],
    graph: Graph,
    names: Names,
    float_type: int,
) -> list[Value]:
    """Run `method` on `inputs`, of which those in `bound` are inputs of the graph; returns the values of its outputs.

    Raises:
        UnsupportedOperator: an operator has no rule.
    """
    recorder = Recorder(graph, names, float_type)
    for name, value in bound.items():
        recorder.bind(inputs[name], graph.cast(value, TensorProto.INT32) if value.dtype in _WIDE else value)
    with recorder.watching():
        outputs = method(*inputs.values())
    graph.scope = ""
    return [recorder.value(tensor) for tensor in outputs]
