"""The methods with Core ML's inputs and outputs (docs/targets.md): an additive mask in, caches in, new rows out.

The methods are those of `export.graphs`. Their `cache_length` is a `Cached` here, whose mask is the whole mask if the
graph's rows are the input's rows, otherwise the part for cached rows, with `ancestors` computed from the other part.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from streamfuse.model.streams import StreamFused
from streamfuse.runtime.backends.coreml_common import NO_ENTRY

from .. import facts
from ..config import ExportConfig
from ..graphs import Method, Streams, Verify, build_methods
from ..layers import CachedPositions, within
from ..pruning import Survivors
from ..weights import Positions, Span, Turn, Weights
from . import ane, plain
from .plain import MaskKey
from .stored import Store


class MaskedWeights(Weights):
    """The weights of traced graphs: placeholders, and spans of layers with an additive mask."""

    def __init__(self, model: StreamFused, config: ExportConfig, store: Store) -> None:
        dtype, model_config = getattr(torch, config.dtype), model.base.config
        self.channels, self.group = config.layout == "ane", model_config.num_heads // model_config.num_kv_heads
        form = ane.Form(store, dtype, model_config.num_kv_heads) if self.channels else plain.TracedForm(store, dtype)
        super().__init__(model, config.shapes, form)
        if model.streams_config.num_streams:
            self.insert = copy.deepcopy(self.insert)  # its parts belong to the model; they are replaced by float16
        self.dtype = dtype

    def span(self, *args: Any, **options: Any) -> MaskedSpan:  # type: ignore[override]
        span = super().span(*args, **options)
        if self.channels and span.turn is not None:
            span.turn = cast("Turn", ChannelsTurn(span.turn, self.config.head_dim))
        return MaskedSpan(span, self)

    def survivors(self, rows: int, keep: int, carrying: int) -> Survivors | None:
        chosen = super().survivors(rows, keep, carrying)
        return None if chosen is None else cast("Survivors", WideSurvivors(chosen))

    def graphs(self) -> dict[str, Graph]:
        return {name: Graph(method, self) for name, method in build_methods(self).items()}


class Cached(NamedTuple):
    """What is in the caches: the mask, whole or only its part [1, C] for cached rows, and the length of the sequence,
    int32 [1], if the model has windows."""

    mask: Tensor
    length: Tensor | None


class MaskedSpan(nn.Module):
    """Layers with an additive mask for each window, and the matrices of `EarlierRows` for convolutions; inputs and
    outputs are rows [R, h], whatever the layout inside.

    If the mask has only the part for cached rows, `visible` [R, R] has ones and zeros for the new rows.
    """

    no_entry: Tensor  # [1]

    def __init__(self, span: Span, weights: MaskedWeights) -> None:
        super().__init__()
        self.span, self.capacity = span, weights.shapes.capacity
        self.group, self.channels = weights.group, weights.channels
        keys = dict.fromkeys(cast("MaskKey", attention.mask_key) for attention in span.attentions)
        self.builders = {key: _builder_of(key, weights) for key in keys}
        self.mask_builders = nn.ModuleList(builder for builder in self.builders.values() if builder is not None)
        self.register_buffer("no_entry", torch.full((1,), NO_ENTRY))

    def forward(
        self,
        x: Tensor,
        positions: Positions,
        cached: Cached,
        visible: Tensor,
        caches: tuple[Tensor, ...],
        per_layer: Tensor | None = None,
        below: Sequence[Tensor] = (),
    ) -> tuple[Tensor, list[Tensor]]:
        rows, mask = x.shape[0], cached.mask
        if mask.shape[1] == self.capacity:
            hidden = self.no_entry - visible.to(x.dtype) * self.no_entry
            mask = torch.cat([mask.expand(rows, self.capacity), hidden], 1)
            mask = ane.to_channels(mask) if self.channels else mask
        masks: dict[MaskKey, Tensor | list[Tensor]] = {}
        for key, build in self.builders.items():
            found = mask if build is None else build(mask, positions.ids, cached.length)
            masks[key] = found if isinstance(found, list) else self._per_head(found)
        if self.channels:
            x = ane.to_channels(x)
            turns = tuple((_channels(cos), _channels(sin)) for cos, sin in positions.turns)
            positions = Positions(positions.ids, turns)
        y, new = self.span(x, positions, None, masks, caches, per_layer, below)
        return (ane.to_rows(y) if self.channels else y), new

    def _per_head(self, mask: Tensor) -> Tensor:
        """The mask for the query heads of a key head."""
        if self.channels:
            return torch.cat([mask] * self.group, 3)
        return mask.unsqueeze(1).expand(-1, self.group, -1).reshape(mask.shape[0] * self.group, -1)


class WindowMask(nn.Module):
    """The mask of layers with a window, from the whole mask. It has a column for each position in their caches, which
    may be ring buffers, then for each row."""

    no_entry: Tensor  # [1]
    nowhere: Tensor  # int32 [1]: a position that no window contains

    def __init__(self, window: int, weights: MaskedWeights) -> None:
        super().__init__()
        self.window, self.capacity, self.channels = window, weights.shapes.capacity, weights.channels
        self.cache_size = weights.ring_size
        self.cached = CachedPositions(self.capacity, self.cache_size, torch.int32)
        self.register_buffer("no_entry", torch.full((1,), NO_ENTRY))
        self.register_buffer("nowhere", torch.full((1,), -window, dtype=torch.int32))

    def forward(self, mask: Tensor, position_ids: Tensor, cache_length: Tensor) -> Tensor:
        cached, valid = self.cached(cache_length, self.cache_size)
        seen = within(position_ids, torch.where(valid, cached, self.nowhere), self.window)
        far = self.no_entry - seen.to(mask.dtype) * self.no_entry
        far = ane.to_channels(far) if self.channels else far
        new = torch.minimum(far[:, self.cache_size :], mask[:, self.capacity :])
        return torch.cat([far[:, : self.cache_size], new], 1)


class EarlierRows(nn.Module):
    """One-hot matrices [R, C + R] (channels first [1, C + R, 1, R]), one for each distance d from 1 to taps - 1. They
    select for each row the row d positions before it, among the C positions of the convolution's cache and the new rows
    that the mask lets it see."""

    half_open: Tensor  # [1]: entries of the mask above it allow attention
    nowhere: Tensor  # int32 [1]: a position that no row asks for
    steps: Tensor  # int32 [L - 1]

    def __init__(self, taps: int, weights: MaskedWeights) -> None:
        super().__init__()
        self.capacity, self.channels = weights.shapes.capacity, weights.channels
        self.cache_size = weights.ring_size
        self.cached = CachedPositions(self.capacity, self.cache_size, torch.int32)
        self.register_buffer("half_open", torch.full((1,), NO_ENTRY / 2))
        self.register_buffer("nowhere", torch.full((1,), -taps, dtype=torch.int32))
        self.register_buffer("steps", torch.arange(1, taps, dtype=torch.int32))

    def forward(self, mask: Tensor, position_ids: Tensor, cache_length: Tensor) -> list[Tensor]:
        cached, valid = self.cached(cache_length, self.cache_size)
        places = torch.cat([torch.where(valid, cached, self.nowhere), position_ids]).unsqueeze(0)
        seen, found = (mask[:, self.capacity :] > self.half_open).to(mask.dtype), []
        for step in self.steps.split(1):
            here = (places == (position_ids - step).unsqueeze(1)).to(mask.dtype)
            here = ane.to_channels(here) if self.channels else here
            found.append(torch.cat([here[:, : self.cache_size], here[:, self.cache_size :] * seen], 1))
        return found


def _builder_of(key: MaskKey, weights: MaskedWeights) -> WindowMask | EarlierRows | None:
    if key is None:
        return None
    return EarlierRows(key.count, weights) if isinstance(key, plain.Taps) else WindowMask(key, weights)


def _channels(turn: Tensor) -> Tensor:
    """cos or sin [R, D] -> [1, 1, D, R]."""
    return ane.to_channels(turn).transpose(1, 2)


class ChannelsTurn(nn.Module):
    """weights.Turn of values [1, Hkv * D, 1, R]."""

    def __init__(self, turn: Turn, head_dim: int) -> None:
        super().__init__()
        self.turn, self.head_dim = turn, head_dim

    def forward(self, v: Tensor) -> Tensor:
        rows = v.shape[3]
        turned: Tensor = self.turn(ane.to_rows(v).reshape(rows, -1, self.head_dim))
        return ane.to_channels(turned.reshape(rows, -1))


class WideSurvivors(nn.Module):
    """The pruner in float32: float16 cannot distinguish its probabilities and the cost of depth."""

    def __init__(self, survivors: Survivors) -> None:
        super().__init__()
        self.survivors = survivors

    def forward(self, x: Tensor, drafted: Tensor, ancestors: Tensor) -> tuple[Tensor | None, ...]:
        chosen: tuple[Tensor | None, ...] = self.survivors(x.float(), drafted.float(), ancestors)
        return chosen


class Graph(nn.Module):
    """One method: `inputs` and `outputs` describe its tensors as in the manifest, in call order."""

    half_open: Tensor  # [1]: entries of the mask above it allow attention

    def __init__(self, method: Method, weights: MaskedWeights) -> None:
        super().__init__()
        self.register_buffer("half_open", torch.full((1,), NO_ENTRY / 2, dtype=weights.dtype))
        self.method, self.channels, self.capacity = method.to(weights.dtype), weights.channels, weights.shapes.capacity
        pruner = getattr(method, "survivors", None)
        if pruner is not None:
            pruner.float()
        self.streams = isinstance(method, Streams)
        # In the top layers, rows that a pruner drops or that streams add need another mask.
        self.changes_rows = isinstance(method, Verify) and (pruner is not None or method.carrying > 0)
        self.has_windows = any(window is not None for window in weights.config.layer_windows)
        self.gives_kept = pruner is not None  # even one that keeps all nodes can reorder them
        floats = "float16" if weights.dtype == torch.float16 else "float32"
        named = facts.method_facts(method, weights)
        self.rows, self.keep, self.stream_nodes = named["rows"], named["keep"], named["stream_nodes"]
        rows = weights.streams_config.num_streams if self.streams else self.rows
        taken = [item for item in named["inputs"] if item["name"] not in _HOST]
        if not self.has_windows:
            taken = [item for item in taken if item["name"] != "cache_length"]
        self.inputs = [self._described(item, floats) for item in taken]
        at = 2  # after the ids (or the state) and the positions
        shape = [1, self.capacity + rows, 1, rows] if self.channels else [rows, self.capacity + rows]
        self.inputs.insert(at, {"name": "mask", "dtype": floats, "shape": shape})
        self.outputs = [
            part
            for item in named["outputs"]
            if item["name"] != "kept" or self.gives_kept
            for part in self._split(self._described(item, floats))
        ]

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        first, positions, mask, *caches = inputs
        length = caches.pop(0) if self.has_windows else None
        if self.streams:
            first = ane.to_rows(first) if self.channels else first
            return tuple(self.method(first, positions, Cached(mask, length), *caches))
        visible = mask
        if self.changes_rows:
            by_row = mask[0, :, 0].t() if self.channels else mask
            mask, visible = by_row[:1, : self.capacity], (by_row[:, self.capacity :] > self.half_open).to(mask.dtype)
        outputs = list(self.method(first, positions, visible, Cached(mask, length), None, *caches))
        if isinstance(self.method, Verify) and not self.gives_kept:
            del outputs[sum(item["name"].startswith(("logits", "best")) for item in self.outputs)]
        if self.channels and self.outputs[-1]["name"] == "hidden":
            outputs[-1] = ane.to_channels(outputs[-1])
        return tuple(outputs)

    def examples(self) -> tuple[Tensor, ...]:
        """Zero inputs of the method's static shapes."""
        return tuple(torch.zeros(item["shape"], dtype=getattr(torch, item["dtype"])) for item in self.inputs)

    def _described(self, item: dict[str, Any], floats: str) -> dict[str, Any]:
        """A tensor of contracts.md with Core ML's dtypes and this layout."""
        shape = list(item["shape"])
        if self.channels and len(shape) == 3 and not item["name"].startswith("stream_"):  # caches and new rows
            shape = [1, shape[1] * shape[2], 1, shape[0]]
        elif self.channels and item["name"] == "hidden":
            shape = [1, shape[1], 1, shape[0]]
        return {"name": item["name"], "dtype": floats if item["dtype"] == "float32" else "int32", "shape": shape}

    def _split(self, item: dict[str, Any]) -> list[dict[str, Any]]:
        """Logits in chunks, if the layout splits them."""
        if item["name"] != "logits" or not self.channels:
            return [item]
        rows, vocab = item["shape"]
        sizes = [min(ane.WIDEST, vocab - start) for start in range(0, vocab, ane.WIDEST)]
        return [{**item, "name": f"logits_{i}", "shape": [1, size, 1, rows]} for i, size in enumerate(sizes)]


_HOST = ("ancestors", "want_logits")  # inputs that the mask replaces, or that Core ML does not have
