"""The target ONNX: a file per method and one file of weights, for ONNX Runtime. See docs/targets.md."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import onnxruntime

import onnx
from streamfuse.runtime.backend import Backend
from streamfuse.runtime.backends.onnxruntime import OnnxBackend, OnnxProgram

from .. import selftest
from ..graphs import Method, Weights, build_methods
from ..schemes import GROUP, PARTS, Part
from ..sizes import part_facts, sizes_of
from ..target import Target, TargetFacts
from .emit import contrib_operators, write_models
from .form import Form
from .graph import CONTRIB_OPSET, OPSET
from .rules import ACCURACY_LEVEL

_ADAPTERS = r"layers\.\d+\.\w+\.adapter"  # of the streams, or of the base, whose parts then have them too
_PARTS_OF = {  # the parts of stored tensors, by prefix of their names
    "embedding": r"embed_tokens",
    "streams": r"stream_head|insert|survivors",
    "attention": r"layers\.\d+\.(qkv_proj|o_proj|g_proj|q_norm|k_norm|input_layernorm)|attentions\.\d+\.taps",
    "mlp": r"layers\.\d+\.",
    "head": r"lm_head|norm|candidates",
}


class OnnxTarget(Target):
    def prepare(self) -> None:
        # What integer weights leave to lose is the rounding of activations to int8, whatever the weights' bits are.
        self.rounds = any(self.config.part_scheme(part).bits < 16 for part in PARTS)
        self.floor = selftest.FLOORS["int8" if self.rounds else self.config.dtype]
        self.form = Form(self.config.part_scheme)

    def quantize(self) -> dict[str, Method] | None:
        self.weights = Weights(self.model, self.config.shapes, self.form).eval()
        self.methods = build_methods(self.weights)
        return self.methods if self.rounds else None

    def lower(self) -> None:
        self.method_facts, self.stored = write_models(
            self.weights, self.methods, self.folder, self.config.dtype, self.progress, self.config.provider
        )

    def open(self) -> Backend:
        return OnnxBackend(OnnxProgram(self.folder, frugal=True), self.spec)

    def facts(self) -> TargetFacts:
        operators = contrib_operators(self.folder)
        report = {
            "opset": OPSET,
            "provider": self.config.provider,
            "parity_provider": "cpu",  # see `open`; the exporting machine may not have `provider`
            "contrib_opset": CONTRIB_OPSET if operators else None,
            "contrib_operators": operators,
            "accuracy_level": ACCURACY_LEVEL if operators else None,
            "packages": {"onnx": onnx.__version__, "onnxruntime": onnxruntime.__version__},
            "weights": {part: found.to_dict() for part, found in self.form.report.items()},
        }
        return TargetFacts(
            backend=self.config.backend,
            kernels=False,
            required_operators=[],  # the project's own operators
            methods=self.method_facts,
            cache_dtype=self.config.dtype,
            cache_layout="head_position_dim",
            quantization={part: self._part(part) for part in PARTS},
            report=report,
        )

    def _part(self, part: Part) -> dict[str, Any]:
        scheme = self.config.part_scheme(part)
        if scheme.bits < 16:
            scheme = replace(scheme, group_size=scheme.group_size or GROUP)
        tunes_base = bool(self.model.streams_config.base_rank)
        size = sum(size for name, size in self.stored.items() if _part_of(name, tunes_base) == part)
        parameters = sizes_of(self.model, self.config)[part].parameters
        return {**part_facts(scheme), "parameters": parameters, "bytes": size}


def _part_of(name: str, tunes_base: bool) -> str | None:
    """The part of a stored tensor. `tunes_base`: the adapters are those of the base, which every pass reads."""
    if not tunes_base and re.match(_ADAPTERS, name):
        return "streams"
    return next((part for part, beginning in _PARTS_OF.items() if re.match(beginning, name)), None)
