"""How much a pass must read and multiply, by part: arithmetic on a bundle's manifest, nothing is measured here.

Bytes are those that a pass has to fetch from memory at least once: the weights of the part, and for attention the
cached keys and values. Multiply-accumulates are those of the real products; padding and unpacking are not work.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamfuse.bundle.manifest import DECODE, PREFILL, Manifest

EMBEDDING, ATTENTION, MLP, HEAD, TOP_K = "embedding", "attention", "mlp", "head", "top_k"
PARTS = (EMBEDDING, ATTENTION, MLP, HEAD, TOP_K)
_FLOAT_BYTES = 4


class WorkError(ValueError):
    """A manifest that does not say how large its parts are."""


@dataclass(frozen=True, slots=True)
class Work:
    """Bytes to read and multiply-accumulates to do."""

    bytes: float
    macs: float


@dataclass(frozen=True, slots=True)
class _Rows:
    """Token rows of one method, by where they go: layer rows (rows times layers), head rows, stream rows."""

    tokens: int
    layers: int
    head: int
    streams: int


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
    cache = 2 * _FLOAT_BYTES * model.num_layers * model.num_kv_heads * model.head_dim * context
    seen = 2 * model.num_heads * model.head_dim * context  # one row's scores and weighted values in one layer
    head_rows = 1 if rows.head else 0
    return {
        EMBEDDING: Work(rows.tokens * _bytes(manifest, EMBEDDING) / model.vocab_size, 0.0),
        # Adapters go with the products that they sit beside, in proportion to those products' sizes.
        ATTENTION: Work(
            _bytes(manifest, ATTENTION) + cache + adapters * attention / (attention + mlp),
            rows.layers * (attention / model.num_layers + seen),
        ),
        MLP: Work(
            _bytes(manifest, MLP) + adapters * mlp / (attention + mlp),
            rows.layers * mlp / model.num_layers,
        ),
        HEAD: Work(head_rows * _bytes(manifest, HEAD), rows.head * model.vocab_size * model.hidden_size),
        TOP_K: Work(stream_head, rows.streams * manifest.speculation.stream_vocab_size * model.hidden_size),
    }


def carriers(manifest: Manifest, method: str) -> int:
    """M: the surviving nodes of a verify method that carry streams."""
    shapes = {tensor.name: tensor.shape for tensor in manifest.methods[method].outputs}
    return shapes.get("stream_ids", (0,))[0]


def _rows(manifest: Manifest, method: str) -> _Rows:
    facts, layers, top = manifest.methods[method], manifest.model.num_layers, manifest.speculation.num_msa_layers
    if method in (PREFILL, DECODE):
        return _Rows(facts.rows, facts.rows * layers, int(method == DECODE), 0)
    kept, streams = facts.keep or facts.rows, carriers(manifest, method) * manifest.speculation.num_streams
    return _Rows(facts.rows, facts.rows * (layers - top) + (kept + streams) * top, kept, streams)


def _stream_bytes(manifest: Manifest) -> tuple[float, float]:
    """Adapters, and the rows of the head that streams may propose."""
    facts = manifest.model
    head = _bytes(manifest, HEAD) * manifest.speculation.stream_vocab_size / facts.vocab_size
    return max(0.0, _bytes(manifest, "streams") - head), head


def _bytes(manifest: Manifest, part: str) -> int:
    scheme = getattr(manifest.quantization, part)
    if part == HEAD and not scheme.bytes:  # one blob serves the look-up and the product
        scheme = manifest.quantization.embedding
    if scheme.bytes is None:
        raise WorkError(f"the manifest's quantization.{part} does not say its bytes; export the bundle again")
    return int(scheme.bytes)


def _parameters(manifest: Manifest, part: str) -> int:
    count = getattr(manifest.quantization, part).parameters
    if not count:
        raise WorkError(f"the manifest's quantization.{part} does not say its parameters; export the bundle again")
    return int(count)
