"""A backend over any engine that runs a function of a Core ML package: the emulator, or Core ML itself.

Core ML cannot update a cache in place on the Neural Engine, so caches are inputs, new rows are outputs, and this class
owns the memory between them (docs/contracts.md, sections 2 and 3). Names are those of the contract; `ancestors` and
`cache_length` become one additive mask with finite entries, because the Neural Engine makes NaN of infinities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from streamfuse.runtime.backend import DECODE, PREFILL, BackendError, BoolArray, IntArray, ModelSpec, PassOutput

NO_ENTRY = -1e4
STREAMS = "streams"
_Array = npt.NDArray[Any]


class Predict(Protocol):
    """Runs one method: arrays by input name to arrays by output name. It may keep neither."""

    def __call__(self, method: str, inputs: Mapping[str, _Array]) -> Mapping[str, _Array]: ...


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """How a package lays out its caches and its mask.

    Plain: caches [C, Hkv, D], mask [R, C + R]. Channels first, for the Neural Engine: caches [1, Hkv * D, 1, C], mask
    [1, C + R, 1, R]. New rows lie as the cache does, with R or K instead of C.
    `dtype` is the package's own: float16 caches in a float32 package would round what is committed and not what is new.
    """

    num_layers: int
    num_msa_layers: int  # top layers, whose new rows come in the order of `kept`
    kv_heads: int
    head_dim: int
    channels_first: bool = False
    dtype: type[Any] = np.float16

    @property
    def row_axis(self) -> int:
        return 3 if self.channels_first else 0

    def empty(self, capacity: int) -> _Array:
        if self.channels_first:
            return np.zeros((1, self.kv_heads * self.head_dim, 1, capacity), self.dtype)
        return np.zeros((capacity, self.kv_heads, self.head_dim), self.dtype)

    def mask(self, visible: BoolArray, capacity: int, length: int) -> _Array:
        """The additive mask of visible bool [R, R] over `length` cached rows: 0 where a row may look, else NO_ENTRY.

        A padding row sees nothing; all its entries being equal, it averages, and nobody reads it.
        """
        rows = len(visible)
        seen = np.zeros((rows, capacity + rows), np.bool_)
        seen[:, :length] = visible.any(axis=1, keepdims=True)
        seen[:, capacity:] = visible
        mask = np.where(seen, np.float32(0), np.float32(NO_ENTRY)).astype(self.dtype)
        return np.ascontiguousarray(mask.T[None, :, None]) if self.channels_first else mask


class CoreMLBackend:
    """One sequence on a package's methods. `predict` belongs to the caller, the caches belong here."""

    def __init__(self, predict: Predict, spec: ModelSpec, layout: CacheLayout) -> None:
        self._spec, self._layout, self._predict = spec, layout, predict
        names = [f"{kind}_{{}}_{layer}" for layer in range(layout.num_layers) for kind in ("key", "value")]
        self._caches = {name.replace("{}", "cache"): layout.empty(spec.capacity) for name in names}
        self._new_names = [f"new_{name.replace('_{}', '')}" for name in names]
        self._length = 0
        self._hidden: _Array | None = None  # of the last run's survivors, where the schedule is deferred
        self._new: list[_Array] = []  # new keys and values of the last run, in the order of the caches
        self._places: dict[int, int] = {}  # row of the last run -> its index in `kept`

    @property
    def spec(self) -> ModelSpec:
        return self._spec

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
        """As the protocol says. A function always computes its logits; they are joined where they are asked for."""
        count, rows = len(input_ids), self.spec.rows(method)
        if not 1 <= count <= rows:
            raise BackendError(f"{method} takes from 1 to {rows} rows, not {count}")
        ids, positions = np.zeros(rows, np.int32), np.zeros(rows, np.int32)
        visible = np.zeros((rows, rows), np.bool_)
        ids[:count], positions[:count], visible[:count, :count] = input_ids, position_ids, ancestors
        mask = self._layout.mask(visible, self.spec.capacity, self._length)
        outputs = self._predict(method, {"input_ids": ids, "position_ids": positions, "mask": mask, **self._caches})
        missing = [name for name in self._new_names if name not in outputs]
        if missing:
            raise BackendError(f"the method {method} has no output {missing[0]!r}")
        self._new = [np.asarray(outputs[name]) for name in self._new_names]
        self._hidden = outputs.get("hidden")
        if method == PREFILL:
            self._places = {row: row for row in range(count)}
            return PassOutput.of_prefill()
        kept = np.asarray(outputs["kept"]).astype(np.int64) if "kept" in outputs else np.arange(rows)
        real = int(np.count_nonzero(kept < count))  # padding rows come last
        self._places = {row: index for index, row in enumerate(kept[:real].tolist())}
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

    def streams(self, index: int) -> PassOutput:
        if not self.spec.deferred:
            raise BackendError("this bundle has no method 'streams'")
        if self._hidden is None or not 0 <= index < len(self._places):
            raise BackendError(f"the last pass has no survivor {index} with a hidden state")
        axis, own = self._layout.row_axis, np.tri(self.spec.num_streams, dtype=np.bool_)
        lower = 2 * (self._layout.num_layers - self._layout.num_msa_layers)
        outputs = self._predict(
            STREAMS,
            {
                "hidden": np.take(self._hidden, [index], axis),
                "position_ids": np.array([self._length - 1], np.int32),
                "mask": self._layout.mask(own, self.spec.capacity, self._length),
                **dict(list(self._caches.items())[lower:]),
            },
        )
        nobody = np.zeros(0, np.int64)
        ids, log_probs = np.asarray(outputs["stream_ids"]), np.asarray(outputs["stream_log_probs"], np.float32)
        return PassOutput(None, nobody, nobody, ids.astype(np.int64), log_probs)

    def commit(self, rows: Sequence[int]) -> None:
        lost = [row for row in rows if row not in self._places]
        if lost:
            raise BackendError(f"row {lost[0]} is not among the surviving rows of the last pass")
        end = self._length + len(rows)
        if end > self.spec.capacity:
            raise BackendError(f"{end} rows do not fit into the cache of {self.spec.capacity}")
        axis, lower = self._layout.row_axis, 2 * (self._layout.num_layers - self._layout.num_msa_layers)
        nodes, places = list(rows), [self._places[row] for row in rows]
        for index, (cache, new) in enumerate(zip(self._caches.values(), self._new, strict=True)):
            taken = np.take(new, nodes if index < lower else places, axis)
            np.moveaxis(cache, axis, 0)[self._length : end] = np.moveaxis(taken, axis, 0)
        self._length = end

    def truncate(self, length: int) -> None:
        if not 0 <= length <= self._length:
            raise BackendError(f"cannot truncate a cache of {self._length} rows to {length}")
        self._length, self._places = length, {}

    def close(self) -> None:
        self._caches, self._new, self._hidden, self._places, self._length = {}, [], None, {}, 0


def _logits(outputs: Mapping[str, _Array]) -> npt.NDArray[np.float32]:
    """float32 [K, V], from one output or from chunks [1, V_i, 1, K]."""
    if "logits" in outputs:
        return np.asarray(outputs["logits"], np.float32)
    chunks = [outputs[f"logits_{i}"] for i in range(sum(name.startswith("logits_") for name in outputs))]
    return np.concatenate([np.asarray(chunk, np.float32)[0, :, 0].T for chunk in chunks], axis=1)
