"""The five parts of a model that the manifest names: how each is stored and multiplied, and how large it is.

Sizes are arithmetic on the configuration, so that a plan can be judged before anything is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from streamfuse.model.config import HEADS, SIGMOID, ModelConfig, StreamConfig
from streamfuse.model.streams import StreamFused

from .plan import PARTS, ExportPlan, Part, PartScheme, Quantize
from .schemes import DTYPE_BITS, GRIDS, GROUP

Facts = dict[str, object]


@dataclass(frozen=True, slots=True)
class PartSize:
    """Weights of one part, and their bytes in model.pte with scales."""

    parameters: int
    bytes: int


Sizes = dict[str, PartSize]


_PRODUCTS = ("attention", "mlp")  # parts whose matrices low-rank adapters sit beside
_OWN_HEAD = ("xnnpack", "vulkan", "qnn", "openvino")  # the delegate has the head, ExecuTorch's own look-up the table


def schemes(plan: ExportPlan) -> dict[str, Facts]:
    """What each part uses, as the manifest says it (bundle.manifest.Scheme)."""
    if plan.grids is not None:
        return {part: {**part_facts(GRIDS[grid]), "scheme": grid} for part in PARTS if (grid := plan.grids.of(part))}
    if plan.backend != "xnnpack" or plan.quantize is Quantize.NONE:
        return {part: part_facts(plan.part_scheme(part)) for part in PARTS}
    return {
        "embedding": _scheme("8w", 8, plan.group_size, symmetric=True),
        "attention": _scheme("8da4w", 4, plan.group_size, symmetric=False),
        "mlp": _scheme("8da4w", 4, plan.group_size, symmetric=False),
        "head": _scheme("8da8w", 8, symmetric=True),
        "streams": _scheme("8da8w head, float32 adapters", 8, symmetric=True),
    }


def part_facts(scheme: PartScheme) -> Facts:
    """A scheme as the manifest says it."""
    floats = scheme.bits >= 16
    return _scheme(scheme.name, scheme.bits, scheme.group_size, None if floats else scheme.symmetric)


def _scheme(name: str, bits: int, group_size: int | None = None, symmetric: bool | None = None) -> Facts:
    return {"scheme": name, "bits": bits, "group_size": group_size, "symmetric": symmetric}


@dataclass(frozen=True, slots=True)
class _Rates:
    """Bytes per weight of each part."""

    table: float
    attention: float
    mlp: float
    head: float
    streams: float


def _rates(plan: ExportPlan, hidden_size: int) -> _Rates:
    grids = plan.grids
    if grids is not None:
        # With a weight's share of d, and of m: float16.
        rate = {name: grid.bits / 8 + (2 if grid.symmetric else 4) / GROUP for name, grid in GRIDS.items()}
        return _Rates(*(rate[grids.of(part)] for part in PARTS))
    if plan.backend != "xnnpack" or plan.quantize is Quantize.NONE:
        return _Rates(*(_bytes_per_weight(part, plan, hidden_size) for part in PARTS))
    # int4 with a bfloat16 scale and a float32 offset per group; int8 with float32 scales.
    product, head = 0.5 + (2 + 4) / plan.group_size, 1 + 4 / hidden_size
    return _Rates(1 + 4 / plan.group_size, product, product, head, head)


def _bytes_per_weight(part: Part, plan: ExportPlan, hidden_size: int) -> float:
    """With its share of the scale, and of the zero point or the offset where there is one."""
    scheme, wide = plan.part_scheme(part), DTYPE_BITS[plan.dtype] / 8
    if scheme.bits >= 16:
        return scheme.bits / 8
    group_size, offset = scheme.group_size or hidden_size, 0.0
    if plan.target == "onnx":
        group_size = scheme.group_size or GROUP  # its integer products know no whole channels
    if not scheme.symmetric:
        carried = scheme.bits == 4 and group_size == GROUP  # a GGUF's own offsets, which are floats
        offset = (4 if plan.target == "onnx" else wide) if carried else scheme.bits / 8
    return scheme.bits / 8 + (wide + offset) / group_size


def part_sizes(config: ModelConfig, streams: StreamConfig, stream_vocab_size: int, plan: ExportPlan) -> Sizes:
    """Sizes per part.

    A tied head has no bytes of its own where it is stored as the embedding is; with XNNPACK and Vulkan it is a copy in
    another form. What tunes the base and is not merged is read in every pass, so it counts with the matrices that it
    sits beside. `streams` counts the stream head and the rest of the adapter, without the parent term, which is the
    host's (draft.safetensors).
    """
    h, inner, layers, vocab = config.hidden_size, config.intermediate_size, config.num_layers, config.vocab_size
    query, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    rate = _rates(plan, h)
    attention = layers * (h * (query + 2 * kv) + query * h)
    tuned = {part: _low_rank(config, plan, streams.base_rank, streams.base_layers, part) for part in _PRODUCTS}
    attention_floats = layers * (h + 2 * config.head_dim * config.qk_norm + _biases(config))
    mlp = layers * 3 * h * inner
    adapter = _adapter(config, plan, streams)
    if streams.heads:
        own, stored = HEADS[streams.heads].count(h, streams.num_streams, stream_vocab_size, streams.head_size)
        adapter = PartSize(own, round(stored * rate.streams))
    # The pruner needs head rows of drafted tokens; a tied head's are the embedding's, which are there already.
    by_rows = streams.pruner_rank and streams.pruner_score == SIGMOID
    untied = bool(by_rows) and not config.tie_word_embeddings
    one_grid = _one_table(plan)
    candidates = vocab * h if untied and not (plan.grids and one_grid) else 0
    shared = one_grid and config.tie_word_embeddings
    stream_head, wide = stream_vocab_size * h, DTYPE_BITS[plan.dtype] // 8  # bytes of what is not quantized
    return {
        "embedding": PartSize(vocab * h, round(vocab * h * rate.table)),
        "attention": PartSize(
            attention + attention_floats + tuned["attention"].parameters,
            round(attention * rate.attention) + wide * attention_floats + tuned["attention"].bytes,
        ),
        "mlp": PartSize(
            mlp + layers * h + tuned["mlp"].parameters,
            round(mlp * rate.mlp) + wide * layers * h + tuned["mlp"].bytes,
        ),
        "head": PartSize(vocab * h + h, 0 if shared else round(vocab * h * rate.head) + wide * h),
        "streams": PartSize(
            stream_head + candidates + adapter.parameters,
            round(stream_head * rate.streams + candidates * rate.table) + adapter.bytes,
        ),
    }


def sizes_of(model: StreamFused, plan: ExportPlan) -> Sizes:
    """Sizes per part of a model that is here."""
    return part_sizes(model.base.config, model.streams_config, len(model.stream_vocab), plan)


def _one_table(plan: ExportPlan) -> bool:
    """Whether a tied head is stored as the embedding is, so that one table serves both."""
    if plan.grids is not None:
        return plan.grids.head == "q8_0"
    return plan.backend not in _OWN_HEAD and plan.part_scheme("head") == plan.part_scheme("embedding")


def _biases(config: ModelConfig) -> int:
    """Biases of one layer; Qwen2 has none on the output projection."""
    if not config.attention_bias:
        return 0
    query, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return query + 2 * kv + (config.hidden_size if config.architecture != "Qwen2ForCausalLM" else 0)


def _adapter(config: ModelConfig, plan: ExportPlan, streams: StreamConfig) -> PartSize:
    """The streams' own, without the parent term."""
    h = config.hidden_size
    beside = [_low_rank(config, plan, streams.adapter_rank, streams.num_msa_layers, part) for part in _PRODUCTS]
    # Beside a tuned base that is not merged, the pass of the streams has a copy of what tunes it, joined to their own.
    again = min(streams.num_msa_layers, streams.base_layers) if streams.adapter_rank else 0
    beside += [replace(_low_rank(config, plan, streams.base_rank, again, part), parameters=0) for part in _PRODUCTS]
    ranks = streams.eta_rank + streams.next_token_rank + streams.pruner_rank
    rest = 2 * h * ranks + (2 if streams.pruner_rank and streams.pruner_score == SIGMOID else 0)
    if not streams.value_rotation:
        rest += streams.num_streams * h  # identifiers
    return PartSize(
        sum(size.parameters for size in beside) + rest,
        sum(size.bytes for size in beside) + DTYPE_BITS[plan.dtype] // 8 * rest,
    )


def _low_rank(config: ModelConfig, plan: ExportPlan, rank: int, layers: int, part: str) -> PartSize:
    """Low-rank adapters of a part's matrices, and their bytes in the graphs.

    The kernels take them in float16 as they are (executorch/native.py); elsewhere adapters that share an input are one
    pair of matrices, the second one block-diagonal (layers.FusedAdapter).
    """
    h, inner = config.hidden_size, config.intermediate_size
    query, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shared = {  # inputs, outputs
        "attention": [(h, (query, kv, kv)), (query, (h,))],
        "mlp": [(h, (inner, inner)), (inner, (h,))],
    }[part]
    own = layers * rank * sum(n_in + n_out for n_in, outputs in shared for n_out in outputs)
    if plan.grids is not None:
        return PartSize(own, 2 * own)
    stored = layers * rank * sum(len(outputs) * (n_in + sum(outputs)) for n_in, outputs in shared)
    return PartSize(own, DTYPE_BITS[plan.dtype] // 8 * stored)


def manifest_parts(sizes: Sizes, plan: ExportPlan) -> dict[str, Facts]:
    """Scheme and size of every part, for the manifest."""
    return {
        part: {**scheme, "parameters": sizes[part].parameters, "bytes": sizes[part].bytes}
        for part, scheme in schemes(plan).items()
    }
