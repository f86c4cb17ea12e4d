"""How much a pass must read and multiply, by part: arithmetic on a bundle's manifest, nothing is measured here.

Bytes are those that a pass has to fetch from memory at least once: the weights of the part, and for attention the
cached keys and values. Multiply-accumulates are those of the real products; padding and unpacking are not work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from streamfuse.bundle.manifest import DECODE, PREFILL, STREAMS, Manifest
from streamfuse.export.operators.layout import GROUP, REWINDABLE, cache_bytes

EMBEDDING, ATTENTION, MLP, HEAD, TOP_K = "embedding", "attention", "mlp", "head", "top_k"
PARTS = (EMBEDDING, ATTENTION, MLP, HEAD, TOP_K)
_DTYPE_BYTES = {"float32": 4, "float16": 2}
_POSITIONS_AXIS = {"position_head_dim": 0, "head_position_dim": 2, "channels_position": 3, "packed": 1}
_GRID_BYTES = {"q4_1": 20 / 32, "q8_0": 34 / 32}  # per weight


class WorkError(ValueError):
    """A manifest that does not say how large its parts are."""


@dataclass(frozen=True, slots=True)
class Work:
    """Bytes to read and multiply-accumulates to do."""

    bytes: float
    macs: float


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of one method, by where they go: looked up, through layers (rows times layers), to the head, to top-k."""

    tokens: int
    layers: int
    head: int
    streams: int
    depth: int  # layers whose cache is read
    base: int  # layers whose matrices are the base's; those of the others count among the streams' bytes


def weight_bytes(manifest: Manifest) -> int:
    """What plain decoding reads per token: all layers and the head. The embedding is one row, the streams rest.

    Raises:
        WorkError: the manifest does not give the parts' sizes.
    """
    return sum(_bytes(manifest, part) for part in (ATTENTION, MLP, HEAD))


def work_of(manifest: Manifest, method: str, context: int) -> dict[str, Work]:
    """Work per part of one full pass of `method` (all its rows) with `context` tokens in the cache."""
    model, rows = manifest.model, _rows(manifest, method)
    adapters, stream_head = _stream_bytes(manifest) if rows.streams else (0.0, 0.0)
    attention, mlp = _parameters(manifest, ATTENTION), _parameters(manifest, MLP)
    share = rows.base / model.num_layers
    read = slice(rows.depth) if method == PREFILL else slice(model.num_layers - rows.depth, None)
    caches, numbers = _caches(manifest, context)[read], _states(manifest)[read]
    # Of linear attention: states in float32.
    cache = sum(one.positions * one.position_bytes for one in caches) + 4 * sum(numbers)
    # One row's scores and weighted values in one layer. A convolution counts as attention to its cached positions: the
    # manifest does not tell them apart. Linear attention reads a state twice and changes it once.
    products = 2 * model.num_heads * sum(one.positions * one.head_dim for one in caches)
    seen = (products + 3 / 2 * sum(numbers)) / max(len(caches), 1)
    return {
        EMBEDDING: Work(rows.tokens * _bytes(manifest, EMBEDDING) / model.vocab_size, 0.0),
        # Low-rank products, or the matrices that they are merged into, count by the sizes of the base's matrices.
        ATTENTION: Work(
            share * _bytes(manifest, ATTENTION) + cache + adapters * attention / (attention + mlp),
            rows.layers * (attention / model.num_layers + seen),
        ),
        MLP: Work(
            share * _bytes(manifest, MLP) + adapters * mlp / (attention + mlp), rows.layers * mlp / model.num_layers
        ),
        HEAD: Work(_bytes(manifest, HEAD) if rows.head else 0.0, rows.head * model.vocab_size * model.hidden_size),
        TOP_K: Work(stream_head, rows.streams * manifest.speculation.stream_vocab_size * model.hidden_size),
    }


def rows_per_layer(manifest: Manifest, method: str) -> float:
    """Rows that one full pass of `method` computes in a layer, averaged over the layers that it reads."""
    rows = _rows(manifest, method)
    return rows.layers / rows.depth if rows.depth else float(rows.streams)


def _rows(manifest: Manifest, method: str) -> _Rows:
    facts, layers, top = manifest.methods[method], manifest.model.num_layers, manifest.speculation.num_msa_layers
    if method == PREFILL:  # it ends at the last layer with caches
        cached = sum(tensor.name.startswith("key_cache_") for tensor in manifest.methods[DECODE].inputs) or layers
        return _Rows(facts.rows, facts.rows * cached, 0, 0, layers, cached)
    if method == DECODE:
        return _Rows(facts.rows, facts.rows * layers, 1, 0, layers, layers)
    if method == STREAMS:
        streams = manifest.speculation.num_streams
        return _Rows(0, streams * top, 0, streams, top, 0 if manifest.speculation.merged_streams else top)
    kept, streams = facts.keep or facts.rows, (facts.stream_nodes or 0) * manifest.speculation.num_streams
    return _Rows(facts.rows, facts.rows * (layers - top) + (kept + streams) * top, kept, streams, layers, layers)


def _stream_bytes(manifest: Manifest) -> tuple[float, float]:
    """Low-rank products or merged matrices, and the rows of the head that streams may propose."""
    weights = manifest.speculation.stream_vocab_size * manifest.model.hidden_size
    per_weight = _bytes(manifest, HEAD) / (manifest.model.vocab_size * manifest.model.hidden_size)
    head = weights * _GRID_BYTES.get(manifest.quantization.streams.scheme, per_weight)
    return max(0.0, _bytes(manifest, "streams") - head), head


@dataclass(frozen=True, slots=True)
class _Cache:
    """What a row reads of a layer's caches: positions (of a ring: those of the window, rounded up to blocks), the bytes
    of one, and the size of a head."""

    positions: int
    position_bytes: float
    head_dim: int


def _caches(manifest: Manifest, context: int) -> list[_Cache]:
    """Those of each layer. A layer that shares the caches of a lower one counts as 0, because a manifest does not say
    which layer that is; so the reads of caches are underestimated for Gemma 4."""
    model, axis = manifest.model, _POSITIONS_AXIS[manifest.cache.layout]
    inputs = {tensor.name: tensor.shape for tensor in manifest.methods[DECODE].inputs}
    has_names = "key_cache_0" in inputs
    found = []
    for layer in range(model.num_layers):
        shape = inputs.get(f"key_cache_{layer}") or inputs.get(f"past_key_values.{layer}.key") or ()
        values, head_dim = inputs.get(f"value_cache_{layer}", ()), model.head_dim
        if manifest.cache.layout == "packed" and values:
            head_dim = (values[2] - 4) // 17 * 16  # docs/contracts.md, section 6
        is_ring = len(shape) > axis and shape[axis] < manifest.cache.capacity
        reads = min(context, shape[axis] - REWINDABLE) if is_ring else context
        reads = 0 if f"state_{layer}" in inputs or (has_names and not shape) else reads
        heads = _heads(manifest, shape) if len(shape) > axis else model.num_kv_heads
        found.append(_Cache(reads, _position_bytes(manifest, heads, head_dim), head_dim))
    return found


def _states(manifest: Manifest) -> list[int]:
    """Per layer: the numbers of its two states, 0 for layers that have none."""
    sizes = {tensor.name: math.prod(tensor.shape) for tensor in manifest.methods[DECODE].inputs}
    return [sizes.get(f"state_{layer}", 0) for layer in range(manifest.model.num_layers)]


def _heads(manifest: Manifest, shape: Sequence[int]) -> int:
    """Heads in a key cache of this shape."""
    layout = manifest.cache.layout
    if layout == "channels_position":
        return shape[1] // manifest.model.head_dim
    return shape[0 if layout == "packed" else 1]


def _position_bytes(manifest: Manifest, kv_heads: int, head_dim: int) -> float:
    """Of keys and values of one position in one layer."""
    if manifest.cache.dtype == "int8":
        return cache_bytes(GROUP, kv_heads, head_dim) / GROUP
    return 2 * _DTYPE_BYTES[manifest.cache.dtype] * kv_heads * head_dim


def _bytes(manifest: Manifest, part: str) -> int:
    scheme, own, share = getattr(manifest.quantization, part), 0, 1.0
    # With less than a bit per weight, one blob serves the look-up and the product: the head's own bytes are its norm's.
    if part == HEAD and (not scheme.bytes or 8 * scheme.bytes < (scheme.parameters or 0)):
        scheme, own = manifest.quantization.embedding, scheme.bytes or 0
        weights = manifest.model.vocab_size * manifest.model.hidden_size
        if (scheme.parameters or 0) > weights and scheme.bytes and scheme.scheme in _GRID_BYTES:
            share = weights * _GRID_BYTES[scheme.scheme] / scheme.bytes  # the rest are per-layer embeddings
    if scheme.bytes is None:
        raise WorkError(f"the manifest's quantization.{part} does not say its bytes; export the bundle again")
    read: int = round(share * scheme.bytes)
    return own + read


def _parameters(manifest: Manifest, part: str) -> int:
    count = getattr(manifest.quantization, part).parameters
    if not count:
        raise WorkError(f"the manifest's quantization.{part} does not say its parameters; export the bundle again")
    return int(count)
