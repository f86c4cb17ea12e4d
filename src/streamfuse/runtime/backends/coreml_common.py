"""A backend on any engine that runs the functions of a Core ML package: the emulator, or Core ML itself.

Core ML cannot update a cache in place on the Neural Engine, so caches are inputs, new rows are outputs, and this class
keeps the caches between passes (docs/contracts.md, sections 2 and 3). Names are those of that page; `ancestors` and
`cache_length` become one additive mask with finite entries, because the Neural Engine turns infinities into NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from streamfuse.runtime.backend import (
    DECODE,
    NEXT_TOKEN,
    PREFILL,
    STREAMS,
    BackendError,
    BoolArray,
    IntArray,
    ModelSpec,
    PassOutput,
)

from .host import HostBackend, Ring, in_cache

NO_ENTRY = -1e4
_Array = npt.NDArray[Any]


class Predict(Protocol):
    """Runs one method: maps arrays by input name to arrays by output name. It must keep no reference to either."""

    def __call__(self, method: str, inputs: Mapping[str, _Array]) -> Mapping[str, _Array]: ...


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """How a package lays out its caches and its mask.

    Plain: caches [C, Hkv, D], mask [R, C + R]. Channels first, for the Neural Engine: caches [1, Hkv * D, 1, C], mask
    [1, C + R, 1, R]. New rows have the layout of the cache, with R or K instead of C. Caches of layers with a sliding
    window can have fewer positions than C, which the mask has: position t is at t modulo their number. Those of a
    convolution, whose window is its number of taps, may have a different number of heads.
    `dtype` is the package's: float16 caches in a float32 package would round committed rows but not new ones.
    """

    num_msa_layers: int  # top layers, whose new rows are in the order of `kept`
    kv_heads: tuple[int, ...]  # of each layer
    head_dim: int
    channels_first: bool = False
    dtype: type[Any] = np.float16
    next_token: bool = False  # whether `streams` has this input
    window: int | None = None  # of layers with a sliding window or a convolution; None: no method has `cache_length`
    positions: tuple[int, ...] = ()  # in the caches of each layer, if there is a window

    @property
    def num_layers(self) -> int:
        return len(self.kv_heads)

    @property
    def row_axis(self) -> int:
        return 3 if self.channels_first else 0

    def empty(self, layer: int, capacity: int) -> _Array:
        """A cache of a layer."""
        positions, heads = self.positions[layer] if self.positions else capacity, self.kv_heads[layer]
        if self.channels_first:
            return np.zeros((1, heads * self.head_dim, 1, positions), self.dtype)
        return np.zeros((positions, heads, self.head_dim), self.dtype)

    def mask(self, visible: BoolArray, capacity: int, length: int) -> _Array:
        """The additive mask from `visible` bool [R, R] and `length` cached rows: 0 if a row may attend, else NO_ENTRY.

        All entries of a padding row are equal, so it averages over everything; its result is not read.
        """
        rows = len(visible)
        seen = np.zeros((rows, capacity + rows), np.bool_)
        seen[:, :length] = visible.any(axis=1, keepdims=True)
        seen[:, capacity:] = visible
        mask = np.where(seen, np.float32(0), np.float32(NO_ENTRY)).astype(self.dtype)
        return np.ascontiguousarray(mask.T[None, :, None]) if self.channels_first else mask


class CoreMLBackend(HostBackend):
    """One sequence on a package's methods. It owns the caches; `predict` is the caller's, who may replace it."""

    def __init__(self, predict: Predict, spec: ModelSpec, layout: CacheLayout) -> None:
        smallest = min(layout.positions, default=spec.capacity)
        super().__init__(spec, None if layout.window is None else Ring(layout.window, smallest))
        self._layout, self.predict = layout, predict
        self._lower = 2 * (layout.num_layers - layout.num_msa_layers)  # caches of the layers below the top ones
        pairs = [(kind, layer) for layer in range(layout.num_layers) for kind in ("key", "value")]
        self._layers = {f"{kind}_cache_{layer}": layer for kind, layer in pairs}
        self._caches: dict[str, _Array] = {}  # made by the first run
        self._new_names = [f"new_{kind}_{layer}" for kind, layer in pairs]
        self._hidden: _Array | None = None  # of the last run's survivors, if the schedule is deferred
        self._new: list[_Array] = []  # new keys and values of the last run, in the order of the caches

    def run(
        self,
        method: str,
        input_ids: IntArray,
        position_ids: IntArray,
        ancestors: BoolArray,
        want_logits: bool = False,
    ) -> PassOutput:
        """See `Backend.run`. A function always computes its logits; they are concatenated only if requested."""
        count = len(input_ids)
        rows = self._begin(method, count)
        ids, positions = np.zeros(rows, np.int32), np.zeros(rows, np.int32)
        visible = np.zeros((rows, rows), np.bool_)
        ids[:count], positions[:count], visible[:count, :count] = input_ids, position_ids, ancestors
        if not self._caches:
            capacity = self.spec.capacity
            self._caches = {name: self._layout.empty(layer, capacity) for name, layer in self._layers.items()}
        inputs = {"input_ids": ids, "position_ids": positions, **self._seen(visible), **self._caches}
        outputs = self.predict(method, inputs)
        missing = [name for name in self._new_names if name not in outputs]
        if missing:
            raise BackendError(f"the method {method} has no output {missing[0]!r}")
        self._new = [np.asarray(outputs[name]) for name in self._new_names]
        self._hidden = outputs.get("hidden")
        if method == PREFILL:
            self._remember(range(count))
            return PassOutput.of_prefill()
        kept = np.asarray(outputs["kept"]).astype(np.int64) if "kept" in outputs else np.arange(rows)
        real = self._survivors(kept, count)
        logits = _logits(outputs)[:real] if want_logits or "best" not in outputs else None
        if "best" in outputs:
            best = np.asarray(outputs["best"]).astype(np.int64)[:real]
        else:
            best = np.asarray(logits).argmax(-1)
        if method == DECODE:
            return PassOutput.of_decode(logits, best)
        if not self.spec.streams_of(method):
            return PassOutput(logits, best, kept[:real])
        stream_ids = np.asarray(outputs["stream_ids"]).astype(np.int64)[:real]
        return PassOutput(
            logits, best, kept[:real], stream_ids, np.asarray(outputs["stream_log_probs"], np.float32)[:real]
        )

    def streams(self, index: int, next_token: int) -> PassOutput:
        self._check_survivor(index, self._hidden is not None)
        assert self._hidden is not None
        own = np.tri(self.spec.num_streams, dtype=np.bool_)
        outputs = self.predict(
            STREAMS,
            {
                "hidden": np.take(self._hidden, [index], self._layout.row_axis),
                "position_ids": np.array([self._length - 1], np.int32),
                **self._seen(own),
                **({NEXT_TOKEN: np.array([next_token], np.int32)} if self._layout.next_token else {}),
                **dict(list(self._caches.items())[self._lower :]),
            },
        )
        nobody = np.zeros(0, np.int64)
        ids, log_probs = np.asarray(outputs["stream_ids"]), np.asarray(outputs["stream_log_probs"], np.float32)
        return PassOutput(None, nobody, nobody, ids.astype(np.int64), log_probs)

    def _seen(self, visible: BoolArray) -> dict[str, _Array]:
        """The inputs that say what rows attend to."""
        inputs = {"mask": self._layout.mask(visible, self.spec.capacity, self._length)}
        if self._layout.window is not None:
            inputs["cache_length"] = np.array([self._length], np.int32)
        return inputs

    def _write(self, positions: slice, rows: list[int], places: list[int]) -> None:
        axis = self._layout.row_axis
        for index, (cache, new) in enumerate(zip(self._caches.values(), self._new, strict=True)):
            taken = np.take(new, rows if index < self._lower else places, axis)
            np.moveaxis(cache, axis, 0)[in_cache(positions, cache.shape[axis])] = np.moveaxis(taken, axis, 0)

    def _release(self) -> None:
        self._caches, self._new, self._hidden = {}, [], None

    def close(self) -> None:
        super().close()
        self._release()


def _logits(outputs: Mapping[str, _Array]) -> npt.NDArray[np.float32]:
    """float32 [K, V], from one output or from chunks [1, V_i, 1, K]."""
    if "logits" in outputs:
        return np.asarray(outputs["logits"], np.float32)
    chunks = [outputs[f"logits_{i}"] for i in range(sum(name.startswith("logits_") for name in outputs))]
    return np.concatenate([np.asarray(chunk, np.float32)[0, :, 0].T for chunk in chunks], axis=1)
