"""Makes the operators known to PyTorch as torch.ops.streamfuse.*, for torch.export and ExecuTorch's lowering.

Importing this module is enough. Each operator has a functional form, the `.out` form that ExecuTorch's memory planning
turns it into, and a shape function for export; eager calls run kernels/reference.py.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.library import Library

from streamfuse.kernels import reference

NAMESPACE = "streamfuse"
OPERATORS = ("streamfuse::tree_attention.out", "streamfuse::top_k_log_prob.out")  # what a program needs from the engine

_ATTENTION = (
    "Tensor query, Tensor key, Tensor value, Tensor key_cache, Tensor value_cache, "
    "Tensor cache_length, Tensor visible, float scale"
)
_TOP_K = "Tensor logits, Tensor ids, int k"

_library = Library(NAMESPACE, "DEF")
_library.define(f"tree_attention({_ATTENTION}) -> Tensor")
_library.define(f"tree_attention.out({_ATTENTION}, *, Tensor(a!) out) -> Tensor(a!)")
_library.define(f"top_k_log_prob({_TOP_K}) -> (Tensor, Tensor)")
_library.define(
    f"top_k_log_prob.out({_TOP_K}, *, Tensor(a!) out_ids, Tensor(b!) out_log_probs) -> (Tensor(a!), Tensor(b!))"
)


def _tree_attention_out(*arguments: Tensor | float, out: Tensor) -> Tensor:
    return out.copy_(reference.tree_attention(*arguments))  # type: ignore[arg-type]


def _top_k_log_prob_out(
    logits: Tensor, ids: Tensor, k: int, *, out_ids: Tensor, out_log_probs: Tensor
) -> tuple[Tensor, Tensor]:
    best, log_probs = reference.top_k_log_prob(logits, ids, k)
    return out_ids.copy_(best), out_log_probs.copy_(log_probs)


_library.impl("tree_attention", reference.tree_attention, "CompositeExplicitAutograd")
_library.impl("tree_attention.out", _tree_attention_out, "CompositeExplicitAutograd")
_library.impl("top_k_log_prob", reference.top_k_log_prob, "CompositeExplicitAutograd")
_library.impl("top_k_log_prob.out", _top_k_log_prob_out, "CompositeExplicitAutograd")


def _check(condition: bool, what: str) -> None:
    if not condition:
        raise ValueError(what)


@torch.library.register_fake("streamfuse::tree_attention", lib=_library)
def _tree_attention_shape(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    cache_length: Tensor,
    visible: Tensor,
    scale: float,
) -> Tensor:
    _check(
        query.dim() == 3 and key.dim() == 3 and key_cache.dim() == 3,
        "tree_attention: query, key and caches have 3 dimensions",
    )
    rows, heads, dim = query.shape
    _check(
        key.shape == value.shape and key.shape[0] == rows and key.shape[2] == dim,
        "tree_attention: key and value do not fit query",
    )
    _check(
        key_cache.shape == value_cache.shape and key_cache.shape[1:] == key.shape[1:],
        "tree_attention: caches do not fit key",
    )
    _check(heads % key.shape[1] == 0, "tree_attention: query heads must be a multiple of kv heads")
    _check(
        tuple(visible.shape) == (rows, rows) and visible.dtype == torch.bool,
        "tree_attention: visible must be bool [rows, rows]",
    )
    _check(
        tuple(cache_length.shape) == (1,) and cache_length.dtype == torch.int64,
        "tree_attention: cache_length must be int64 [1]",
    )
    return query.new_empty(rows, heads * dim)


@torch.library.register_fake("streamfuse::top_k_log_prob", lib=_library)
def _top_k_log_prob_shape(logits: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
    _check(
        logits.dim() == 2 and ids.shape == logits.shape[1:], "top_k_log_prob: logits [rows, columns] and ids [columns]"
    )
    _check(1 <= k <= logits.shape[1], f"top_k_log_prob: k must lie between 1 and {logits.shape[1]}, not {k}")
    return ids.new_empty(logits.shape[0], k), logits.new_empty(logits.shape[0], k)
