"""The capabilities of each target and backend: the values of the flags, the default first."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .schemes import PlanError

AUTO = "auto"
LAYOUTS = ("plain", "ane")
COMPUTE_UNITS = ("all", "cpu_and_ne", "cpu_and_gpu", "cpu_only")
SOCS = ("SM8550", "SM8650", "SM8750", "SM8850")  # Snapdragon 8 Gen 2 and 3, 8 Elite and 8 Elite Gen 5
DEVICES = ("cpu", "gpu", "npu")  # OpenVINO's devices
DEPLOYMENT_TARGETS = ("iOS18", "iOS26", "macOS15", "macOS26")


class Quantize(str, Enum):
    """Weights and activations of the products; docs/quantization.md has the format of each part."""

    AUTO = AUTO  # the target's default
    NONE = "none"
    Q4_1 = "q4_1"  # GGUF formats, with int8 activations
    Q8_0 = "q8_0"
    INT4 = "8da4w"  # ExecuTorch's format, with int8 activations
    INT8 = "8da8w"
    INT4_WEIGHTS = "int4"  # with activations in the plan's dtype
    INT8_WEIGHTS = "int8"
    A16W8 = "16a8w"  # with activations in 16-bit integers, calibrated
    A16W4 = "16a4w"

    @property
    def bits(self) -> int:
        """Bits of the layers' weights; 0: floats."""
        four, eight = ("q4_1", "8da4w", "int4", "16a4w"), ("q8_0", "8da8w", "int8", "16a8w")
        return {"none": 0, **dict.fromkeys(four, 4), **dict.fromkeys(eight, 8)}[self.value]

    @property
    def integer_activations(self) -> bool:
        """Whether activations are integers whose ranges are calibrated."""
        return self in (Quantize.A16W8, Quantize.A16W4)


@dataclass(frozen=True, slots=True)
class Choices:
    """The capabilities of a backend; the first value of each is the default."""

    quantize: tuple[Quantize, ...]
    dtype: tuple[str, ...]


_INTEGERS = (Quantize.INT4_WEIGHTS, Quantize.INT8_WEIGHTS, Quantize.NONE)
_DELEGATE = Choices((Quantize.NONE, *_INTEGERS[:2]), ("float16", "float32"))
# Backends by target; a target's first one is its default.
BACKENDS: dict[str, dict[str, Choices]] = {
    "executorch": {
        "kernels": Choices((Quantize.Q4_1, Quantize.Q8_0), ("float32",)),
        "xnnpack": Choices((Quantize.INT4, Quantize.NONE), ("float32",)),
        "coreml": _DELEGATE,
        "vulkan": _DELEGATE,
        "qnn": Choices((Quantize.NONE, Quantize.INT8_WEIGHTS, Quantize.A16W8, Quantize.A16W4), ("float16",)),
        "openvino": Choices(_INTEGERS, ("float32",)),
    },
    "coreml": {"mlprogram": Choices(_INTEGERS, ("float16", "float32"))},
    "onnx": {"onnxruntime": Choices(_INTEGERS, ("float32", "float16"))},
}
NO_VULKAN = (
    "no library of streamfuse runs --backend vulkan, unless its Android library was built with "
    "-DSTREAMFUSE_VULKAN=ON (docs/android.md)"
)


def check_choice(flag: str, value: str, choices: tuple[str, ...], where: str = "") -> None:
    """PlanError if `value` is not one of the choices; `where` says to what they apply."""
    if value not in choices:
        allowed = choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}"
        raise PlanError(f"{flag} must be {allowed}{where}, not {value}")
