"""What each target and backend can do, as a table: values of the options, the first of each the default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .schemes import GROUP, GROUP_SIZES


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do.

    Attributes:
        quantize, dtype, group_sizes: values of these options, the first the default.
        own: the options that not every backend has, with their defaults here.
        place: module and class of its Target, below this package.
    """

    place: str
    quantize: tuple[str, ...]
    dtype: tuple[str, ...]
    own: Mapping[str, Any] = field(default_factory=dict)
    group_sizes: tuple[int, ...] = GROUP_SIZES


_INTEGERS, _DELEGATE = ("int4", "int8", "none"), ("none", "int4", "int8")
_FLOAT16, _FLOAT32 = ("float16", "float32"), ("float32",)
_COREML = {"compute_units": "cpu_and_ne", "minimum_deployment_target": "iOS18"}
# Backends by target; a target's first one is its default.
BACKENDS: dict[str, dict[str, Capabilities]] = {
    "executorch": {
        "kernels": Capabilities(
            "executorch.kernels:KernelsTarget",
            ("q4_1", "q8_0"),
            _FLOAT32,
            {
                "prune_threshold": 0.0,
                "extra_methods": {},
                "task": {},
                "adapter_dtype": "float16",
                "merge_streams": "auto",  # the adapter decides
            },
            (GROUP,),
        ),
        "xnnpack": Capabilities("executorch.xnnpack.target:XnnpackTarget", ("8da4w", "none"), _FLOAT32),
        "coreml": Capabilities("executorch.coreml:CoreMLDelegateTarget", _DELEGATE, _FLOAT16, {**_COREML}),
        "vulkan": Capabilities("executorch.vulkan:VulkanTarget", _DELEGATE, _FLOAT16),
        "qnn": Capabilities(
            "executorch.qnn:QnnTarget",
            ("none", "int8", "16a8w", "16a4w"),
            ("float16",),
            {"soc": "SM8650", "weight_sharing": "on"},
        ),
        "openvino": Capabilities("executorch.openvino:OpenvinoTarget", _INTEGERS, _FLOAT32, {"device": "cpu"}),
    },
    "coreml": {
        "mlprogram": Capabilities("coreml.target:CoreMLTarget", _INTEGERS, _FLOAT16, {**_COREML, "layout": "plain"})
    },
    "onnx": {"onnxruntime": Capabilities("onnx.target:OnnxTarget", _INTEGERS, _FLOAT16[::-1], {"provider": "cpu"})},
}


def own_options() -> set[str]:
    """The options that not every backend has."""
    return {name for backends in BACKENDS.values() for can in backends.values() for name in can.own}
