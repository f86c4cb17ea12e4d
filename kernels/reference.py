"""The operators in PyTorch: their specification, and what eager mode runs. Contract: docs/contracts.md, section 6."""

from __future__ import annotations

import torch
from torch import Tensor


def tree_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    cache_length: Tensor,
    visible: Tensor,
    scale: float,
) -> Tensor:
    """Row i attends to cache rows [0, cache_length), then to rows j with visible[i, j]; zeros where it sees nothing.

    query [R, Hq, D], key/value [R, Hkv, D], caches [C, Hkv, D], cache_length int64 [1], visible bool [R, R]
    -> [R, Hq * D].
    """
    rows, heads, dim = query.shape
    kv_heads, length = key.shape[1], int(cache_length)
    if not 0 <= length <= key_cache.shape[0]:
        raise ValueError(f"cache_length {length} lies outside the cache of {key_cache.shape[0]} positions")
    keys = torch.cat([key_cache[:length], key])
    values = torch.cat([value_cache[:length], value])
    seen = torch.cat([visible.new_ones(rows, length), visible], dim=1)
    grouped = query.reshape(rows, kv_heads, heads // kv_heads, dim)
    scores = torch.einsum("rhgd,thd->rhgt", grouped, keys) * scale
    weights = torch.softmax(scores.masked_fill(~seen[:, None, None, :], float("-inf")), dim=-1)
    weights = torch.where(seen.any(dim=1)[:, None, None, None], weights, torch.zeros_like(weights))
    return torch.einsum("rhgt,thd->rhgd", weights, values).reshape(rows, heads * dim)


def top_k_log_prob(logits: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row, best first, equal values by smaller column: their ids and their log-softmax values.

    logits float32 [R, S], ids int64 [S] -> int64 [R, k], float32 [R, k].
    """
    if not 1 <= k <= logits.shape[1]:
        raise ValueError(f"k must lie between 1 and {logits.shape[1]}, not {k}")
    columns = torch.sort(logits, dim=1, descending=True, stable=True).indices[:, :k]
    return ids[columns], torch.log_softmax(logits, dim=1).gather(1, columns)
