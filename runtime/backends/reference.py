"""The reference backend: PyTorch modules run eagerly, for tests and parity. Slow and obvious on purpose.

A method is a callable with the inputs and outputs of docs/contracts.md, section 2, for example one of
`streamfuse.model.graphs.build_methods`. The caches are torch tensors [C, Hkv, D], two per layer, owned here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from streamfuse.runtime.backend import DECODE, PREFILL, BackendError, BoolArray, IntArray, ModelSpec, PassOutput

Method = Callable[..., tuple[Any, ...]]


class ReferenceBackend:
    """One sequence over methods by name; `num_msa_layers` (Ns) top layers return rows in `kept` order."""

    def __init__(
        self,
        methods: Mapping[str, Method],
        spec: ModelSpec,
        num_layers: int,
        num_msa_layers: int,
        kv_heads: int,
        head_dim: int,
    ) -> None:
        missing = [name for name in spec.methods if name not in methods]
        if missing:
            raise BackendError(f"the model lacks the methods {', '.join(missing)}")
        self.spec = spec
        self._methods = dict(methods)
        self._num_lower = num_layers - num_msa_layers
        shape = (spec.capacity, kv_heads, head_dim)
        self._caches = [torch.zeros(shape) for _ in range(2 * num_layers)]
        self._length = 0
        self._new: list[torch.Tensor] = []  # new keys and values of the last run, by layer
        self._places: dict[int, int] = {}  # row of the last run -> its index in `kept`

    @property
    def length(self) -> int:
        return self._length

    def run(
        self,
        method: str,
        input_ids: IntArray,
        position_ids: IntArray,
        ancestors: BoolArray,
        want_logits: bool = False,
    ) -> PassOutput:
        count, rows = len(input_ids), self.spec.rows(method)
        if not 1 <= count <= rows:
            raise BackendError(f"{method} takes from 1 to {rows} rows, not {count}")
        ids, positions = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        visible = np.zeros((rows, rows), np.bool_)
        ids[:count], positions[:count], visible[:count, :count] = input_ids, position_ids, ancestors
        with torch.inference_mode():
            outputs = self._methods[method](
                torch.from_numpy(ids),
                torch.from_numpy(positions),
                torch.from_numpy(visible),
                torch.tensor([self._length], dtype=torch.int64),
                *self._caches,
            )
        if method == PREFILL:
            self._remember(outputs, range(count))
            return PassOutput.of_prefill()
        if method == DECODE:
            self._remember(outputs[1:], range(1))
            logits = outputs[0].numpy()
            return PassOutput.of_decode(logits, logits.argmax(axis=1))
        return self._surviving(outputs, count)

    def _surviving(self, outputs: tuple[Any, ...], count: int) -> PassOutput:
        logits, kept, stream_ids, stream_log_probs = (tensor.numpy() for tensor in outputs[:4])
        real = int(np.count_nonzero(kept < count))  # padding rows come last
        self._remember(outputs[4:], kept[:real].tolist())
        logits = logits[:real]
        return PassOutput(logits, logits.argmax(axis=1), kept[:real], stream_ids[:real], stream_log_probs[:real])

    def streams(self, index: int) -> PassOutput:
        raise BackendError("the reference backend has no deferred streams")

    def _remember(self, new: Sequence[torch.Tensor], kept: Sequence[int]) -> None:
        if len(new) != len(self._caches):
            raise BackendError(f"the method returned {len(new)} new keys and values, not {len(self._caches)}")
        self._new = list(new)
        self._places = {row: index for index, row in enumerate(kept)}

    def commit(self, rows: Sequence[int]) -> None:
        lost = [row for row in rows if row not in self._places]
        if lost:
            raise BackendError(f"row {lost[0]} is not among the surviving rows of the last pass")
        end = self._length + len(rows)
        if end > self.spec.capacity:
            raise BackendError(f"{end} rows do not fit into the cache of {self.spec.capacity}")
        nodes, places = list(rows), [self._places[row] for row in rows]
        for index, (cache, new) in enumerate(zip(self._caches, self._new, strict=True)):
            cache[self._length : end] = new[nodes if index // 2 < self._num_lower else places]
        self._length = end

    def truncate(self, length: int) -> None:
        if not 0 <= length <= self._length:
            raise BackendError(f"cannot truncate a cache of {self._length} rows to {length}")
        self._length = length
        self._places = {}

    def close(self) -> None:
        self._caches, self._new, self._places, self._length = [], [], {}, 0
