"""The five parts of a model that the manifest names: how each is stored and multiplied, and how large it is.

Sizes are arithmetic on the configuration, so that a plan can be judged before anything is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamfuse.model.config import ModelConfig, StreamConfig

from .plan import Quantize

Facts = dict[str, object]


@dataclass(frozen=True, slots=True)
class PartSize:
    """Weights of one part, and their bytes in model.pte with scales."""

    parameters: int
    bytes: int


def schemes(quantize: Quantize, group_size: int) -> dict[str, Facts]:
    """What each part uses, as the manifest says it (bundle.manifest.Scheme). `quantize.py` does it."""
    if quantize is Quantize.NONE:
        return {part: _scheme("float32", 32) for part in ("embedding", "attention", "mlp", "head", "streams")}
    return {
        "embedding": _scheme("8w", 8, group_size, symmetric=True),
        "attention": _scheme("8da4w", 4, group_size, symmetric=False),
        "mlp": _scheme("8da4w", 4, group_size, symmetric=False),
        "head": _scheme("8da8w", 8, symmetric=True),
        "streams": _scheme("8da8w head, float32 adapters", 8, symmetric=True),
    }


def _scheme(name: str, bits: int, group_size: int | None = None, symmetric: bool | None = None) -> Facts:
    return {"scheme": name, "bits": bits, "group_size": group_size, "symmetric": symmetric}


def part_sizes(
    config: ModelConfig, streams: StreamConfig, stream_vocab_size: int, quantize: Quantize, group_size: int
) -> dict[str, PartSize]:
    """Sizes per part. A tied head counts twice, because the graphs hold it as an embedding and as a product.

    `streams` counts the stream head and the adapter, without the parent term, which is the host's (draft.npz).
    """
    h, inner, layers, vocab = config.hidden_size, config.intermediate_size, config.num_layers, config.vocab_size
    query, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    int4 = quantize is Quantize.INT4
    # Bytes per weight: int4 with a bfloat16 scale and a float32 offset per group; int8 with float32 scales.
    product = 0.5 + (2 + 4) / group_size if int4 else 4.0
    table = 1 + 4 / group_size if int4 else 4.0
    head = 1 + 4 / h if int4 else 4.0
    attention = layers * (h * (query + 2 * kv) + query * h)
    attention_floats = layers * (h + 2 * config.head_dim * config.qk_norm + _biases(config))
    mlp = layers * 3 * h * inner
    adapter, adapter_stored = _adapter_parameters(config, streams)
    # The pruner needs head rows of drafted tokens; a tied head's are the embedding's, which are there already.
    candidates = vocab * h if streams.pruner_rank and not config.tie_word_embeddings else 0
    stream_head = stream_vocab_size * h
    return {
        "embedding": PartSize(vocab * h, round(vocab * h * table)),
        "attention": PartSize(attention + attention_floats, round(attention * product) + 4 * attention_floats),
        "mlp": PartSize(mlp + layers * h, round(mlp * product) + 4 * layers * h),
        "head": PartSize(vocab * h + h, round(vocab * h * head) + 4 * h),
        "streams": PartSize(
            stream_head + candidates + adapter,
            round(stream_head * head + candidates * table) + 4 * adapter_stored,
        ),
    }


def _biases(config: ModelConfig) -> int:
    """Biases of one layer; Qwen2 has none on the output projection."""
    if not config.attention_bias:
        return 0
    query, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return query + 2 * kv + (config.hidden_size if config.architecture != "Qwen2ForCausalLM" else 0)


def _adapter_parameters(config: ModelConfig, streams: StreamConfig) -> tuple[int, int]:
    """Parameters of the adapter without the parent term, and how many numbers the graphs store for them.

    Adapters that share an input are one pair of matrices, the second one block-diagonal (blocks.FusedAdapter).
    """
    h, inner = config.hidden_size, config.intermediate_size
    query, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shared = [(h, (query, kv, kv)), (query, (h,)), (h, (inner, inner)), (inner, (h,))]  # inputs, outputs
    rank, layers = streams.adapter_rank, streams.num_msa_layers
    own = layers * rank * sum(n_in + n_out for n_in, outputs in shared for n_out in outputs)
    stored = layers * rank * sum(len(outputs) * (n_in + sum(outputs)) for n_in, outputs in shared)
    rest = 2 * h * (streams.eta_rank + streams.pruner_rank) + (2 if streams.pruner_rank else 0)
    if not streams.value_rotation:
        rest += streams.num_streams * h  # identifiers
    return own + rest, stored + rest


def manifest_parts(sizes: dict[str, PartSize], quantize: Quantize, group_size: int) -> dict[str, Facts]:
    """Scheme and size of every part, for the manifest."""
    return {
        part: {**scheme, "parameters": sizes[part].parameters, "bytes": sizes[part].bytes}
        for part, scheme in schemes(quantize, group_size).items()
    }
