"""Which operations a program holds, and which of the Neural Engine's rules they might break. Nothing here runs them.

The rules are Apple's and those that users found (docs/coreml.md); what a device makes of an operation is its own
decision, so a note is a hint where to look, not a verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from coremltools.converters.mil.mil import Program, types

from .ane import WIDEST

_ALIGNMENT = 64  # bytes of the last axis
_ON_CPU = ("gather", "gather_along_axis", "topk", "argsort", "reduce_argmax", "select")

_Rule = Callable[[Any, bool], bool]


def _tensors(op: Any) -> Iterator[Any]:
    """Results that are tensors."""
    return (var for var in op.outputs if types.is_tensor(var.sym_type))


RULES: dict[str, tuple[str, _Rule]] = {
    "look-ups and searches": (
        "often run on the CPU: look-ups of ids at the beginning, searches at the end",
        lambda op, channels: op.op_type in _ON_CPU,
    ),
    "integers": (
        "the Neural Engine computes in float16; integers and truth values run on the CPU",
        lambda op, channels: op.op_type not in _ON_CPU and any(not types.is_float(v.dtype) for v in _tensors(op)),
    ),
    "float32": (
        "runs on the CPU or the GPU",
        lambda op, channels: any(v.dtype == types.fp32 for v in _tensors(op)),
    ),
    "wide": (
        f"a dimension above {WIDEST} does not fit the Neural Engine",
        lambda op, channels: any(size > WIDEST for v in _tensors(op) for size in v.shape),
    ),
    "products": (
        "a 1x1 convolution suits the Neural Engine better (--layout ane)",
        lambda op, channels: op.op_type in ("linear", "matmul"),
    ),
    "axes": (
        "the Neural Engine works on four axes, channels first (--layout ane)",
        lambda op, channels: any(v.rank != 4 and types.is_float(v.dtype) for v in _tensors(op)),
    ),
    "padding": (
        f"a last axis that is no multiple of {_ALIGNMENT} bytes is padded in memory; few rows cost as much as many",
        lambda op, channels: (
            channels
            and any(v.rank == 4 and v.shape[-1] * 2 % _ALIGNMENT and types.is_float(v.dtype) for v in _tensors(op))
        ),
    ),
}


def describe(program: Program, channels: bool) -> dict[str, Any]:
    """Per function its operations by type and count, and the counts of those that a rule speaks of."""
    functions = {}
    for name, function in program.functions.items():
        operations = [op for op in function.operations if op.op_type != "const"]
        running = [op for op in operations if not op.op_type.startswith("constexpr_")]
        broken = {
            rule: Counter(op.op_type for op in running if test(op, channels)) for rule, (_, test) in RULES.items()
        }
        functions[name] = {
            "operations": dict(Counter(op.op_type for op in operations).most_common()),
            "might_break": {rule: dict(counts.most_common()) for rule, counts in broken.items() if counts},
        }
    return {"functions": functions, "rules": {rule: text for rule, (text, _) in RULES.items()}}
