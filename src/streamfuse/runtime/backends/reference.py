"""The reference backend: PyTorch modules run eagerly, for tests and parity. Slow and obvious on purpose.

A method is a callable with the inputs and outputs of docs/contracts.md, section 2, for example one of
`streamfuse.export.graphs.build_methods`. The caches are torch tensors [C, Hkv, D], two per layer, owned here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from streamfuse.runtime.backend import (
    DECODE,
    PREFILL,
    STREAMS,
    BackendError,
    BoolArray,
    IntArray,
    ModelSpec,
    PassOutput,
)

from .host import HostBackend, Ring, in_cache

Method = Callable[..., tuple[Any, ...]]


class ReferenceBackend(HostBackend):
    """One sequence over methods by name.

    `caches`: (kv heads, head dimension) of each layer with caches. `num_lower`: layers from this one on return their
    new rows in `kept` order. `first_of_streams`: the first layer whose caches `streams` takes; default: `num_lower`.
    `next_token`: whether `streams` takes the next token.
    `states` are the numbers of each layer's state, 0 for none: methods take them after the caches, float32
    [2, numbers], and bring them up to date.
    `window` is that of the layers whose caches are ring buffers, if there are any; then `positions` are those in the
    caches of each layer. Other caches have positions for the whole context.
    """

    def __init__(
        self,
        methods: Mapping[str, Method],
        spec: ModelSpec,
        caches: Sequence[tuple[int, int]],
        num_lower: int,
        first_of_streams: int | None = None,
        next_token: bool = False,
        positions: Sequence[int] | None = None,
        window: int | None = None,
        states: Sequence[int] = (),
    ) -> None:
        needed = (*spec.methods, *([STREAMS] if spec.deferred else []))
        missing = [name for name in needed if name not in methods]
        if missing:
            raise BackendError(f"the model lacks the methods {', '.join(missing)}")
        positions = positions or [spec.capacity] * len(caches)
        super().__init__(spec, None if window is None else Ring(window, min(positions)))
        self._methods, self._next_token = dict(methods), next_token
        self._num_lower = num_lower
        self._first_of_streams = num_lower if first_of_streams is None else first_of_streams
        shapes = zip(positions, caches, strict=True)
        self._shapes = [(count, *sizes) for count, sizes in shapes for _ in range(2)]
        self._state_sizes = [size for size in states if size]
        self._skipped_states = sum(size > 0 for size in states[: self._first_of_streams])  # by `streams`
        self._caches: list[torch.Tensor] = []  # made by the first run
        self._states: list[torch.Tensor] = []
        self._hidden: torch.Tensor | None = None  # [K, h] of the last run's survivors, where the schedule is deferred
        self._new: list[torch.Tensor] = []  # new keys and values of the last run, by layer

    def run(
        self,
        method: str,
        input_ids: IntArray,
        position_ids: IntArray,
        ancestors: BoolArray,
        want_logits: bool = False,
    ) -> PassOutput:
        count = len(input_ids)
        rows = self._begin(method, count)
        ids, positions = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        visible = np.zeros((rows, rows), np.bool_)
        ids[:count], positions[:count], visible[:count, :count] = input_ids, position_ids, ancestors
        if not self._caches:
            self._caches = [torch.zeros(shape) for shape in self._shapes]
            self._states = [torch.zeros(2, size) for size in self._state_sizes]
        with torch.inference_mode():
            outputs = self._methods[method](
                torch.from_numpy(ids),
                torch.from_numpy(positions),
                torch.from_numpy(visible),
                torch.tensor([self._length], dtype=torch.int64),
                torch.tensor([want_logits]),
                *self._caches,
                *self._states,
            )
        self._hidden = None
        if method == PREFILL:
            self._keep(outputs)
            self._remember(range(count))
            return PassOutput.of_prefill()
        if self.spec.deferred:
            outputs, self._hidden = outputs[:-1], outputs[-1]
        logits, best = (tensor.numpy() for tensor in outputs[:2])
        if method == DECODE:
            self._keep(outputs[2:])
            self._remember(range(1))
            return PassOutput.of_decode(logits, best)
        kept = outputs[2].numpy()
        real = self._survivors(kept, count)
        carrying = self.spec.streams_of(method)
        streams = [tensor[:real].numpy() for tensor in outputs[3 : 5 if carrying else 3]]
        self._keep(outputs[3 + len(streams) :])
        return PassOutput(logits[:real], best[:real], kept[:real], *streams)

    def streams(self, index: int, next_token: int) -> PassOutput:
        self._check_survivor(index, self._hidden is not None)
        assert self._hidden is not None
        with torch.inference_mode():
            ids, log_probs = self._methods[STREAMS](
                self._hidden[index : index + 1],
                torch.tensor([self._length - 1]),
                torch.tensor([self._length], dtype=torch.int64),
                *([torch.tensor([next_token])] if self._next_token else []),
                *self._caches[2 * self._first_of_streams :],
                *self._states[self._skipped_states :],
            )
        nobody = np.zeros(0, np.int64)
        return PassOutput(None, nobody, nobody, ids.numpy(), log_probs.numpy())

    def truncatable(self, length: int) -> int:
        length = super().truncatable(length)
        return length if all(state[0, 0] <= length for state in self._states) else 0

    def _keep(self, new: Sequence[torch.Tensor]) -> None:
        if len(new) != len(self._caches):
            raise BackendError(f"the method returned {len(new)} new keys and values, not {len(self._caches)}")
        self._new = list(new)

    def _write(self, positions: slice, rows: list[int], places: list[int]) -> None:
        for index, (cache, new) in enumerate(zip(self._caches, self._new, strict=True)):
            cache[in_cache(positions, len(cache))] = new[rows if index // 2 < self._num_lower else places]

    def _release(self) -> None:
        self._caches, self._states, self._new, self._hidden = [], [], [], None

    def close(self) -> None:
        super().close()
        self._release()
