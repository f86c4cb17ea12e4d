"""The n-gram table that a model carries: arrays as docs/contracts.md has them, and what each context is worth.

It is counted where streams are trained (train/ngram_counts.py); a bundle has room for a part of it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

ARRAYS = ("keys", "starts", "ids", "log_probs")  # those of a bundle; an adapter has `gains` as well
MOST_BYTES = 24_000_000  # that a table may have
_CONTEXT_BYTES, _ENTRY_BYTES = 12, 6  # of a key and a start; of an id and a log-probability


def bytes_of(arrays: Mapping[str, Tensor]) -> int:
    """What a table takes in a bundle."""
    return sum(arrays[name].nbytes for name in ARRAYS if name in arrays)


def pruned(arrays: Mapping[str, Tensor], vocab_size: int, max_bytes: int) -> dict[str, Tensor]:
    """The contexts of most gain that have room in `max_bytes`, as the arrays of a smaller table; {} for none.

    A table without `gains` (of an older adapter) is taken whole where it has room, else not at all.
    """
    if not arrays or bytes_of(arrays) <= max_bytes:
        return dict(arrays)
    if "gains" not in arrays:
        return {}
    keys, starts, gains = (arrays[name].numpy() for name in ("keys", "starts", "gains"))
    lengths = np.diff(starts)
    order = np.lexsort((np.arange(len(keys)), -gains))
    room = np.cumsum(_CONTEXT_BYTES + _ENTRY_BYTES * lengths[order]) <= max_bytes - starts.itemsize
    if not room.any():
        return {}
    keep = np.zeros(len(keys), bool)
    keep[order[room]] = True
    entry = torch.from_numpy(np.repeat(keep, lengths))
    longer = np.flatnonzero(keys >= _longer(vocab_size))
    shorter, token = np.divmod(keys[longer] - _longer(vocab_size), vocab_size)
    keys = keys.copy()
    keys[longer] = _longer(vocab_size) + (np.cumsum(keep) - 1)[shorter] * vocab_size + token
    return {
        "keys": torch.from_numpy(keys[keep]),
        "starts": torch.from_numpy(np.concatenate([[0], np.cumsum(lengths[keep])]).astype(np.int32)),
        "ids": arrays["ids"][entry],
        "log_probs": arrays["log_probs"][entry],
        "gains": arrays["gains"][torch.from_numpy(keep)],
    }


def _longer(vocab_size: int) -> int:
    """The first key of a context of three tokens or more."""
    return vocab_size * (vocab_size + 1)
