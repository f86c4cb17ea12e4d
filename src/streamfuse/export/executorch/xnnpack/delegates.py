"""XNNPACK: one delegate per `layers.Layer` (half of a layer, or a head), for its `compute`.

Passing whole methods to the partitioner would retrace graphs of a thousand nodes some twenty times, and each of 300
partitions another seventeen times. But layers of the same kind only differ in their weights. So each kind is exported
and transformed once (the template), the other layers of the kind are copies of the template with their own weights, and
the methods are exported with the delegates in place.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial

import torch
from executorch.backends.xnnpack.xnnpack_preprocess import XnnpackBackend
from executorch.exir import EdgeCompileConfig
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.func import functional_call

from ...layers import Layer
from ..lower import edge_dialect
from ..modules import LoweringError, answers_with_shapes, delegate_module
from ..stock import Factor
from .form import Norm

# The only one of XNNPACK's seventeen graph passes that our operators need (products to linear).
_SPECS = [CompileSpec("dqlinear_partitioner", b"")]

Call = tuple[int, tuple[Tensor, ...]]  # first adapted row, inputs


def with_delegates(
    methods: Mapping[str, nn.Module],
    inputs: Mapping[str, tuple[Tensor, ...]],
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, nn.Module]:
    """The methods with a delegate instead of every layer; methods without layers are unchanged.

    Raises:
        LoweringError: XNNPACK does not support a layer.
    """
    delegates, made = _Delegates(), {}
    for name, method in methods.items():
        calls = _calls_of_layers(method, inputs[name])
        made[name] = _replaced(method, calls, delegates, lambda: progress(f"{name}: delegate"))  # noqa: B023
    return made


def _calls_of_layers(method: nn.Module, inputs: tuple[Tensor, ...]) -> dict[Layer, Call]:
    """The inputs of every layer of a method, recorded by running the method once. It is not run if it has no layers."""
    layers = [module for module in method.modules() if isinstance(module, Layer)]
    calls: dict[Layer, Call] = {}

    def watched(layer: Layer, first: int, *inputs: Tensor) -> tuple[Tensor, ...]:
        calls[layer] = (first, inputs)
        return type(layer).compute(layer, first, *inputs)

    for layer in layers:
        vars(layer)["compute"] = partial(watched, layer)
    if layers:
        method(*inputs)
    for layer in layers:
        del vars(layer)["compute"]
    return calls


def _replaced(
    module: nn.Module, calls: dict[Layer, Call], delegates: _Delegates, progress: Callable[[], None]
) -> nn.Module:
    """A copy of `module` with a delegate instead of each layer's `compute`; other submodules are shared."""
    if not any(isinstance(inner, Layer) for inner in module.modules()):
        return module
    result = copy.copy(module)
    if isinstance(module, Layer):
        progress()
        delegate = delegates(module, *calls[module])
        result._modules = {"delegate": delegate, **{name: module._modules[name] for name in module.AROUND}}
        vars(result)["compute"] = delegate  # an instance attribute, which shadows the method
        return result
    children = module._modules.items()
    result._modules = {
        name: None if child is None else _replaced(child, calls, delegates, progress) for name, child in children
    }
    return result


class _Delegate(nn.Module):
    """Replaces a layer's `compute`."""

    def __init__(self, lowered: LoweredBackendModule, norms: list[nn.Parameter]) -> None:
        super().__init__()
        self.lowered = lowered
        self.norms = nn.ParameterList(norms)

    def forward(self, first: int, *inputs: Tensor) -> tuple[Tensor, ...]:
        outputs: tuple[Tensor, ...] = self.lowered(*inputs, *self.norms)
        return outputs


class _Compute(nn.Module):
    """A layer's `compute` as a module."""

    def __init__(self, layer: Layer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, first: int, *inputs: Tensor) -> tuple[Tensor, ...]:
        return self.layer.compute(first, *inputs)


class _Flat(nn.Module):
    """A layer's `compute` as a function of tensors for export; the last ones are constants outside of products."""

    def __init__(self, layer: Layer, first: int, n_inputs: int) -> None:
        super().__init__()
        self.inner, self.first, self.n_inputs = _Compute(layer), first, n_inputs
        self.norms = [
            f"{name}.weight" for name, module in self.inner.named_modules() if isinstance(module, (Norm, Factor))
        ]

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        norms = dict(zip(self.norms, tensors[self.n_inputs :], strict=True))
        found: tuple[Tensor, ...] = functional_call(self.inner, norms, (self.first, *tensors[: self.n_inputs]))
        return found

    def tensors(self) -> dict[str, Tensor]:
        return {**dict(self.named_parameters()), **dict(self.named_buffers())}


class _Delegates:
    """Lowers layers, reusing the template of an earlier layer of the same kind."""

    def __init__(self) -> None:
        self._templates: dict[tuple[object, ...], ExportedProgram] = {}

    def __call__(self, layer: Layer, first: int, inputs: tuple[Tensor, ...]) -> _Delegate:
        flat = _Flat(layer, first, len(inputs))
        norms = [flat.inner.get_parameter(name) for name in flat.norms]
        tensors = (*inputs, *(norm.detach() for norm in norms))
        kind = _kind(flat, tensors)
        if kind not in self._templates:
            self._templates[kind] = _template(flat, tensors)
        template = self._templates[kind]
        try:
            result = XnnpackBackend.preprocess(_with_weights(template, flat), _SPECS)
        except RuntimeError as error:  # an unsupported operator; form.py avoids them
            raise LoweringError(f"XNNPACK does not support a layer: {error}") from error
        return _Delegate(delegate_module(template, XnnpackBackend.__name__, result, _SPECS), norms)


def _kind(flat: _Flat, inputs: tuple[Tensor, ...]) -> tuple[object, ...]:
    """Equal for parts that only differ in their weights."""
    shapes = ((name, tuple(tensor.shape), tensor.dtype) for name, tensor in flat.tensors().items())
    return (type(flat.inner.layer), flat.first, *(tuple(t.shape) for t in inputs), *shapes)


def _template(flat: _Flat, inputs: tuple[Tensor, ...]) -> ExportedProgram:
    program = torch.export.export(flat.eval(), inputs, strict=False)
    config = EdgeCompileConfig(
        _check_ir_validity=False, _skip_dim_order=True, preserve_ops=[torch.ops.aten.linear.default]
    )
    return answers_with_shapes(edge_dialect(program, config))


def _with_weights(template: ExportedProgram, flat: _Flat) -> ExportedProgram:
    """A copy of the template with the tensors of `flat`; a copy, since XNNPACK's preprocessing modifies its input."""
    state = flat.tensors()
    return ExportedProgram(
        root=copy.deepcopy(template.graph_module),
        graph=template.graph_module.graph,
        graph_signature=template.graph_signature,
        state_dict={name: state.get(name, value) for name, value in template.state_dict.items()},
        range_constraints=template.range_constraints,
        module_call_graph=template.module_call_graph,
        example_inputs=template.example_inputs,
        constants={name: state.get(name, value) for name, value in template.constants.items()},
        verifiers=template.verifiers,
    )
