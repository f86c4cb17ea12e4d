"""The drafting tables, docs/contracts.md section 4: from a model to the bundle's draft.safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import save

from streamfuse.durable import replace_file
from streamfuse.model.ngrams import ARRAYS
from streamfuse.model.streams import StreamFused

_ALIGNMENT = 64  # of the first tensor; the others are aligned to their item size


@torch.no_grad()
def draft_arrays(model: StreamFused) -> dict[str, npt.NDArray[Any]]:
    """The tables of a model: the parent term, the stream vocabulary, and the n-gram table if there is one.

    Empty for a model without streams and without a table.
    """
    if not (model.streams_config.num_streams or model.ngrams):
        return {}
    vocab, rank = model.stream_vocab, model.streams_config.parent_rank
    left = torch.zeros(model.base.config.vocab_size, 0)
    right, gate = torch.zeros(len(vocab), 0), torch.zeros(model.streams_config.num_streams, 0)
    if rank:
        left = model.parent.left_rows(model.base.embed_tokens.weight)
        right, gate = model.parent.right_rows(model.head_rows()), model.parent.gate
    return {
        "parent_left": left.to(torch.float16).numpy(),
        "parent_right": right.to(torch.float16).numpy(),
        "gate": gate.detach().to(torch.float32).numpy(),
        "stream_vocab": vocab.to(torch.int32).numpy(),
        **{f"ngram_{name}": model.ngrams[name].numpy() for name in ARRAYS if model.ngrams},
    }


def write_tensors(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write a safetensors file whose numbers can be used in place: each tensor is aligned to its item size.

    The package writes the largest items first, without gaps; spaces after the header align the first tensor to 64
    bytes. An existing file is replaced, not modified, because a process may have it mapped.
    """
    packed = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    length = int.from_bytes(packed[:8], "little")
    blanks = -(8 + length) % _ALIGNMENT
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write((length + blanks).to_bytes(8, "little") + packed[8 : 8 + length] + b" " * blanks)
        file.write(memoryview(packed)[8 + length :])
    replace_file(temporary, path)
