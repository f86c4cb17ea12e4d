"""The n-gram table of an adapter: arrays as in docs/contracts.md, and the gain of each context.

It is counted when streams are trained (train/ngram_counts.py); a bundle contains the best contexts up to a size limit.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

ARRAYS = ("keys", "starts", "ids", "log_probs")  # in a bundle; an adapter also has `gains`
MOST_BYTES = 24_000_000  # maximum size of a table
_CONTEXT_BYTES, _ENTRY_BYTES = 12, 6  # of a key and a start; of an id and a log-probability


def bytes_of(arrays: Mapping[str, Tensor]) -> int:
    """The size of a table in a bundle."""
    return sum(arrays[name].nbytes for name in ARRAYS if name in arrays)


def pruned(arrays: Mapping[str, Tensor], vocab_size: int, max_bytes: int) -> dict[str, Tensor]:
    """The contexts with the largest gain that fit into `max_bytes`, as the arrays of a smaller table; {} for none.

    A table without `gains` (of an older adapter) is used as a whole if it fits, else not at all.
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
    """The first key of a context of three or more tokens."""
    return vocab_size * (vocab_size + 1)
