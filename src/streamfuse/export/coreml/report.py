"""Reports the operations of a package, and which of them leave the Neural Engine or are slow on it, without running it.

The rules come from Apple and from users' measurements (docs/targets.md). Where an operation runs is the device's
decision, so a rule is only a hint.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from streamfuse.emulator.program import Operation, Package
from streamfuse.emulator.values import TensorType

from .ane import WIDEST

_ALIGNMENT = 64  # of the last axis, in bytes
_SEARCHES = ("gather", "gather_along_axis", "topk", "argsort", "reduce_argmax", "select")
_PRODUCTS = ("conv", "linear", "matmul", "einsum", "scaled_dot_product_attention")
_FLOATS = ("fp16", "fp32")

_Rule = Callable[[str, list[TensorType]], bool]  # arguments: an operation's type and the types of its results

LEAVES: dict[str, tuple[str, _Rule]] = {
    "look-ups and searches": (
        "run on the CPU: look-ups of ids at the beginning, searches at the end",
        lambda kind, results: kind in _SEARCHES,
    ),
    "integers": (
        "the Neural Engine computes in float16; integers and truth values run on the CPU",
        lambda kind, results: any(one.dtype not in _FLOATS for one in results),
    ),
    "float32": (
        "runs on the CPU or the GPU",
        lambda kind, results: any(one.dtype == "fp32" for one in results),
    ),
    "wide": (
        f"a dimension above {WIDEST} does not fit the Neural Engine",
        lambda kind, results: any(size > WIDEST for one in results for size in one.shape),
    ),
}
SUITS_LESS: dict[str, tuple[str, _Rule]] = {
    "products": (
        "a 1x1 convolution suits the Neural Engine better (--layout ane)",
        lambda kind, results: kind in ("linear", "matmul"),
    ),
    "axes": (
        "the Neural Engine works on four axes, channels first (--layout ane)",
        lambda kind, results: any(len(one.shape) != 4 and one.dtype in _FLOATS for one in results),
    ),
}
PADDING: dict[str, tuple[str, _Rule]] = {  # for the layout `ane`, whose last axis are the rows
    "padding": (
        f"a last axis that is no multiple of {_ALIGNMENT} bytes is padded in memory; few rows cost as much as many",
        lambda kind, results: any(
            len(one.shape) == 4 and one.shape[-1] * 2 % _ALIGNMENT and one.dtype in _FLOATS for one in results
        ),
    ),
}


def describe(package: Path, channels: bool) -> dict[str, Any]:
    """Per function of a saved package, its operations by type and count, and the results of the rules.

    `leaves` has every operation that leaves the Neural Engine, under the first rule that applies. `trips` is how often
    a pass returns to the Neural Engine: products there, then operations elsewhere, then products there again.
    """
    opened, rules = Package(package), SUITS_LESS | (PADDING if channels else {})
    functions = {name: _function(opened.function(name).operations, rules) for name in opened.functions}
    return {"functions": functions, "rules": {rule: text for rule, (text, _) in (LEAVES | rules).items()}}


def _function(operations: list[Operation], suits_less: dict[str, tuple[str, _Rule]]) -> dict[str, Any]:
    operations = [operation for operation in operations if operation.kind != "const"]
    running = [operation for operation in operations if not operation.kind.startswith("constexpr_")]
    left = {operation.name: rules[0] for operation in running if (rules := _broken(LEAVES, operation))}
    leaves, less = defaultdict[str, Counter[str]](Counter), defaultdict[str, Counter[str]](Counter)
    for operation in running:
        if operation.name in left:
            leaves[left[operation.name]][operation.kind] += 1
        for rule in _broken(suits_less, operation):
            less[rule][operation.kind] += 1
    return {
        "operations": dict(Counter(operation.kind for operation in operations).most_common()),
        "leaves": {rule: dict(kinds.most_common()) for rule, kinds in leaves.items()},
        "trips": _trips(running, left),
        "suits_less": {rule: dict(kinds.most_common()) for rule, kinds in less.items()},
    }


def _broken(rules: dict[str, tuple[str, _Rule]], operation: Operation) -> list[str]:
    results = [kind for _, kind in operation.outputs]
    return [rule for rule, (_, says) in rules.items() if says(operation.kind, results)]


def _trips(operations: list[Operation], left: Collection[str]) -> int:
    """A value's stage is the maximum of its inputs': odd after a product, even after leaving the engine."""
    stages: dict[str, int] = {}
    for operation in operations:
        names = (one for argument in operation.inputs.values() for one in argument if isinstance(one, str))
        stage = max((stages.get(name, 0) for name in names), default=0)
        on_cpu, odd = operation.name in left, stage % 2 == 1
        if odd if on_cpu else operation.kind in _PRODUCTS and not odd:
            stage += 1
        stages.update((name, stage) for name, _ in operation.outputs)
    return max(0, max(stages.values(), default=0) - 1) // 2
