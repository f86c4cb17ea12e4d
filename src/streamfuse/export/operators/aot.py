"""Registers the operators with PyTorch as torch.ops.streamfuse.*, for torch.export and ExecuTorch's lowering.

Importing this module is sufficient. Each operator has a functional form, the `.out` form into which ExecuTorch's memory
planning converts it, and a shape function for export (export/operators/shapes.py); eager calls run reference.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.library import Library

from streamfuse.export.operators import reference, shapes

NAMESPACE = "streamfuse"
_ADAPTER = "Tensor? down, Tensor? up, int first_adapted_row"
_LINEAR = f"Tensor x, Tensor? norm, float eps, Tensor weight, int out_features, Tensor? residual, {_ADAPTER}"
_QKV = (
    "Tensor x, Tensor? norm, float eps, Tensor weight, Tensor cos, Tensor sin, int heads, int kv_heads, "
    f"Tensor? q_norm, Tensor? k_norm, {_ADAPTER}"
)

_QUERY = (
    f"Tensor x, Tensor? norm, float eps, Tensor weight, Tensor cos, Tensor sin, int heads, Tensor? q_norm, {_ADAPTER}"
)
_CACHED = (
    "Tensor query, Tensor key, Tensor value, Tensor key_cache, Tensor value_cache, Tensor cache_length, Tensor visible"
)
_ATTENTION = f"{_CACHED}, float scale"
_MLP = (
    "float eps, Tensor gate_up, Tensor down_proj, int intermediate, Tensor? gate_up_down, Tensor? gate_up_up, "
    "Tensor? down_down, Tensor? down_up, int first_adapted_row"
)
_HEAD = "Tensor x, Tensor norm, float eps, Tensor weight, int vocab_size, Tensor want_logits"

# Operator -> its arguments and the names of its results in the `.out` form.
SCHEMAS: dict[str, tuple[str, tuple[str, ...]]] = {
    "tree_attention": (_ATTENTION, ("out",)),
    "window_attention": (f"{_ATTENTION}, int window", ("out",)),
    "short_convolution": (f"{_CACHED}, Tensor taps", ("out",)),
    "embedding_q8": ("Tensor weight, Tensor ids", ("out",)),
    "embedding_q4": ("Tensor weight, Tensor ids", ("out",)),
    "linear": (_LINEAR, ("out",)),
    "biased_linear": (f"{_LINEAR}, Tensor bias", ("out",)),
    "qkv": (_QKV, ("out_query", "out_key", "out_value")),
    "biased_qkv": (f"{_QKV}, Tensor bias", ("out_query", "out_key", "out_value")),
    "query": (_QUERY, ("out",)),
    "gated_mlp": (f"Tensor x, Tensor norm, {_MLP}", ("out",)),
    "gated_branch": (f"Tensor x, Tensor? norm, {_MLP}, bool gelu", ("out",)),
    "add_normed": ("Tensor x, Tensor norm, float eps, Tensor residual", ("out",)),
    "gate_heads": ("Tensor x, Tensor gates", ("out",)),
    "silu_gate": ("Tensor x, Tensor gates", ("out",)),
    "gelu_gate": ("Tensor x, Tensor gates", ("out",)),
    "delta_rows": ("Tensor projected, int value_heads, int kv_heads, int head_dim", ("out_key", "out_value")),
    "gated_delta_rule": (
        "Tensor key, Tensor value, Tensor key_cache, Tensor value_cache, Tensor cache_length, Tensor visible, "
        "Tensor states, Tensor taps, Tensor rates, Tensor dt_bias, Tensor norm, float eps, int key_heads, "
        "int rewindable",
        ("out",),
    ),
    "head": (_HEAD, ("out_logits", "out_best")),
    "capped_head": (f"{_HEAD}, float cap", ("out_logits", "out_best")),
    "stream_top_k": (
        "Tensor x, Tensor norm, float eps, Tensor weight, Tensor ids, int k",
        ("out_ids", "out_log_probs"),
    ),
}
OPERATORS = tuple(f"{NAMESPACE}::{name}.out" for name in SCHEMAS)  # the engine's operators

_library = Library(NAMESPACE, "DEF")


def _out_form(function: Callable[..., Any], names: tuple[str, ...]) -> Callable[..., Any]:
    """`function` writing its results to the tensors passed under `names`."""

    def run(*arguments: Any, **outs: Tensor) -> Any:
        results = function(*arguments)
        written = tuple(
            outs[name].copy_(result)
            for name, result in zip(names, results if isinstance(results, tuple) else (results,), strict=True)
        )
        return written if len(names) > 1 else written[0]

    return run


def _register(name: str, arguments: str, outs: tuple[str, ...]) -> None:
    function = getattr(reference, name)
    marks = [f"Tensor({letter}!)" for letter in "abc"[: len(outs)]]
    plain, marked = ("Tensor", marks[0]) if len(outs) == 1 else (_tuple(["Tensor"] * len(outs)), _tuple(marks))
    out_arguments = ", ".join(f"{mark} {out}" for mark, out in zip(marks, outs, strict=True))
    _library.define(f"{name}({arguments}) -> {plain}")
    _library.define(f"{name}.out({arguments}, *, {out_arguments}) -> {marked}")
    _library.impl(name, function, "CompositeExplicitAutograd")
    _library.impl(f"{name}.out", _out_form(function, outs), "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", getattr(shapes, name), lib=_library)


def _tuple(types: list[str]) -> str:
    return f"({', '.join(types)})"


for _name, (_arguments, _outs) in SCHEMAS.items():
    _register(_name, _arguments, _outs)
