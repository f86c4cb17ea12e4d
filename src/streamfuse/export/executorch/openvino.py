"""OpenVINO: each method is one compiled model of Intel's runtime, for the processor, a GPU or an NPU.

ExecuTorch's delegate binds a method's tensors by index, and only takes a device and the model's bytes. Inside, indices
are int32 and masks are numeric; caches and new rows are float32, so that no pass converts a cache. Tables that are
looked up by token stay outside, where all methods share them; each model has its own copy of all other weights.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from executorch.exir import EdgeProgramManager
from executorch.exir.backend.backend_details import PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch import Tensor, nn

from streamfuse.model.transformer import RMSNorm, capped

from .. import layers
from ..schemes import PartScheme
from ..selftest import FLOORS
from ..target import TargetFacts
from . import stock
from .border import Border, BorderTarget, Columns, Lookups, Narrow, narrowed, taken
from .decomposed import QuantizedEmbedding
from .delegate import Form, GroupedLinear
from .lower import edge_program
from .modules import answers_with_shapes, deduplicated, delegate_module
from .openvino_model import check_device, compiled, release

FLOATS = torch.float32
BACKEND = "OpenvinoBackend"


class Norm(stock.Norm):
    """In a form that OpenVINO fuses into one operator."""

    def rows(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.epsilon) * self.weight


class Decoded(GroupedLinear):
    """A product with integer weights, decoded in a form that OpenVINO fuses into the product.

    Values are [N, G, K / G]: int8 for 8 bits, uint8 from 0 to 15 for 4 bits; the dtype distinguishes the two.
    """

    def __init__(self, linear: nn.Linear, scheme: PartScheme) -> None:
        super().__init__(linear, scheme)
        count = linear.in_features // (scheme.group_size or linear.in_features)
        self.values, self.scales = self.values.unflatten(1, (count, -1)), self.scales.view(-1, count, 1)
        zeros = None if self.zeros is None else self.zeros.float().view(-1, count, 1)
        if scheme.bits == 4:
            self.values = (self.values + 8).to(torch.uint8)
            zeros = (torch.zeros_like(self.scales) if zeros is None else zeros) + 8
        self.zeros = zeros

    def dequantized(self) -> Tensor:
        groups = self.values.to(self.scales.dtype)
        groups = groups if self.zeros is None else groups - self.zeros
        return (groups * self.scales).flatten(1)


class Attention(layers.Attention):
    """Transposes keys in two steps, the second of which OpenVINO fuses into the product; a single step copies them."""

    def scores(self, query: Tensor, key: Tensor, key_cache: Tensor) -> Tensor:
        grouped = layers.by_key(query, key.shape[1])
        turned = [keys.permute(1, 0, 2).transpose(1, 2) for keys in (key_cache, key)]
        return torch.cat([torch.bmm(grouped, keys) for keys in turned], dim=2)


class Head(layers.Head):
    """Finds the best token by comparing with the maximum, since OpenVINO's argmax sorts."""

    columns: Tensor  # int32 [V]

    def __init__(self, form: Form, norm: RMSNorm, weight: Tensor, cap: float) -> None:
        super().__init__(form, norm, weight, cap=cap)
        self.register_buffer("columns", torch.arange(len(weight), dtype=torch.int32))

    def forward(self, x: Tensor, want_logits: Tensor | None) -> tuple[Tensor, ...]:
        (logits,) = self.compute(0, x)
        none = torch.full((), len(self.columns), dtype=torch.int32)
        best = torch.where(logits >= logits.amax(1, keepdim=True), self.columns, none).amin(1)
        return capped(logits, self.cap), best.long()


class OpenvinoForm(Form):
    NORM, ROW_DTYPE = Norm, FLOATS

    @property
    def is_half(self) -> bool:
        return self.config.device != "cpu"  # as openvino_model.py tells OpenVINO

    def attention(self, capacity: int, cache_size: int, scale: float, window: int | None) -> nn.Module:
        return Attention(capacity, cache_size, scale, window)

    def head(self, norm: RMSNorm, weight: Tensor, cap: float) -> nn.Module:
        return Head(self, norm, weight, cap)

    def integers(self, linear: nn.Linear, scheme: PartScheme) -> nn.Module:
        return Decoded(linear, scheme)

    def table(self, weight: Tensor, scheme: PartScheme) -> nn.Module:
        return QuantizedEmbedding(weight, scheme.group_size or weight.shape[1])

    def top_k(self, ids: Tensor, top_k: int) -> nn.Module:
        return Columns(top_k)


class OpenvinoTarget(BorderTarget):
    """The engine runs the file on its device, which must be present on the exporting machine."""

    PROOF = "engine"

    def prepare(self) -> None:
        self.device = self.config.device.upper()
        check_device(self.device)
        self.floor = FLOORS["float32" if self.device == "CPU" else "float16"]
        self.form = OpenvinoForm(self.config)

    def edge(self, constants: dict[str, Any]) -> EdgeProgramManager:
        """Every method as one delegate."""
        specs, examples = [CompileSpec("device", self.device.encode())], self.examples()
        made: dict[str, nn.Module] = {}
        for name, method in self.methods.items():
            self.progress(f"{name}: OpenVINO model")
            lookups = Lookups(method)
            inner = Narrow(lookups.taken_out(method), len(examples[name])).eval()
            inputs = tuple(narrowed(tensor, FLOATS) for tensor in taken(method, lookups.given(examples[name])))
            with torch.no_grad():
                program = deduplicated(torch.export.export(inner, inputs, strict=False)).run_decompositions()
            result = PreprocessResult(processed_bytes=compiled(name, program, self.device))
            module = delegate_module(answers_with_shapes(program), BACKEND, result, specs)
            made[name] = Border(module, method, self.model.stream_vocab, FLOATS, lookups=lookups)
        return edge_program(made, examples, constants)

    def facts(self) -> TargetFacts:
        found = super().facts()
        return replace(found, report={**found.report, "device": self.config.device, "openvino": release()})
