"""The five parts of a model in the manifest: how each is stored and multiplied, and its size.

Sizes are computed from the configuration, so that an export can be checked before anything is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from streamfuse.model.config import HEADS, SIGMOID, ModelConfig, StreamConfig
from streamfuse.model.streams import StreamFused

from .config import ExportConfig
from .schemes import DTYPE_BITS, GRIDS, GROUP, PARTS, Part, PartScheme

Facts = dict[str, object]


@dataclass(frozen=True, slots=True)
class PartSize:
    """Weights of one part, and their bytes in model.pte including scales."""

    parameters: int
    bytes: int


Sizes = dict[str, PartSize]


class LayerWidths(NamedTuple):
    """Rows and columns of a layer's matrices: the hidden state, queries, keys, values, what the output projection
    reads, and inside of the MLP."""

    hidden: int
    query: int
    key: int
    value: int
    mixed: int
    inner: int
    joined: int = 0  # outputs of linear attention's first product, whose adapters are one; 0: each has its own

    @classmethod
    def of(cls, config: ModelConfig) -> list[LayerWidths]:
        """Those of each layer of a model. A convolution's three products have the width of the hidden state; a layer
        that reads the keys and values of another one has none."""
        hidden, sizes = config.hidden_size, config.delta
        found = []
        for i, (convolves, recurs) in enumerate(zip(config.layer_convolutions, config.layer_recurrences, strict=True)):
            inner, head_dim = config.layer_mlp_sizes[i], config.layer_head_dims[i]
            query = config.num_heads * head_dim
            kv = config.num_kv_heads * head_dim if i < config.num_cached_layers else 0
            if recurs and sizes is not None:
                joined = 2 * sizes.value_heads + sizes.channels
                found.append(cls(hidden, sizes.keys, sizes.keys, sizes.values, sizes.values, inner, joined))
            elif convolves:
                found.append(cls(hidden, hidden, hidden, hidden, hidden, inner))
            else:
                found.append(cls(hidden, query, kv, kv, query, inner))
        return found

    @classmethod
    def of_adapter(cls, state: Mapping[str, Tensor]) -> list[LayerWidths]:
        """Those of the layers that an adapter's streams have low-rank products in."""
        layers: list[LayerWidths] = []
        while True:
            names = ("q_proj.down", "q_proj.up", "k_proj.up", "v_proj.up", "o_proj.down", "gate_proj.up")
            factors = {name: state.get(f"adapters.{len(layers)}.{name}") for name in names}
            found = {name: factor.shape for name, factor in factors.items() if factor is not None and factor.ndim == 2}
            if not found.keys() >= set(names) - {"k_proj.up", "v_proj.up"}:
                return layers
            layers.append(cls(*(found[name][name.endswith("down")] if name in found else 0 for name in names)))

    def products(self, part: str) -> list[tuple[int, tuple[int, ...]]]:
        """The inputs of each product of a part, and the outputs of its matrices."""
        return {
            "attention": [
                (self.hidden, tuple(filter(None, (self.query, self.key, self.value)))),
                (self.mixed, (self.hidden,)),
            ],
            "mlp": [(self.hidden, (self.inner, self.inner)), (self.inner, (self.hidden,))],
        }[part]

    def weights(self, part: str) -> int:
        """Weights of a part's matrices in one layer."""
        return sum(n_in * sum(outputs) for n_in, outputs in self.products(part))


_PRODUCTS = ("attention", "mlp")  # parts whose matrices have low-rank adapters
_OWN_HEAD = ("xnnpack", "vulkan", "qnn", "openvino")  # the delegate has its own copy of a tied head


def schemes(config: ExportConfig) -> dict[str, Facts]:
    """The scheme of each part, as in the manifest (bundle.manifest.Scheme)."""
    if config.grids is not None:
        return {part: {**part_facts(GRIDS[grid]), "scheme": grid} for part in PARTS if (grid := config.grids.of(part))}
    if config.backend != "xnnpack" or not config.quantized:
        return {part: part_facts(config.part_scheme(part)) for part in PARTS}
    return {
        "embedding": _scheme("8w", 8, config.group_size, symmetric=True),
        "attention": _scheme("8da4w", 4, config.group_size, symmetric=False),
        "mlp": _scheme("8da4w", 4, config.group_size, symmetric=False),
        "head": _scheme("8da8w", 8, symmetric=True),
        "streams": _scheme("8da8w head, float32 adapters", 8, symmetric=True),
    }


def part_facts(scheme: PartScheme) -> Facts:
    """A scheme as in the manifest."""
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


def _rates(config: ExportConfig, hidden_size: int) -> _Rates:
    grids = config.grids
    if grids is not None:
        # Including a weight's share of d and m in float16.
        rate = {name: grid.bits / 8 + (2 if grid.symmetric else 4) / GROUP for name, grid in GRIDS.items()}
        return _Rates(*(rate[grids.of(part)] for part in PARTS))
    if config.backend != "xnnpack" or not config.quantized:
        return _Rates(*(_bytes_per_weight(part, config, hidden_size) for part in PARTS))
    # int4 with a bfloat16 scale and a float32 offset per group; int8 with float32 scales.
    product, head = 0.5 + (2 + 4) / config.group_size, 1 + 4 / hidden_size
    return _Rates(1 + 4 / config.group_size, product, product, head, head)


def _bytes_per_weight(part: Part, config: ExportConfig, hidden_size: int) -> float:
    """Bytes per weight, including its share of the scale and of a zero point or offset."""
    scheme, wide = config.part_scheme(part), DTYPE_BITS[config.dtype] / 8
    if scheme.bits >= 16:
        return scheme.bits / 8
    group_size, offset = scheme.group_size or hidden_size, 0.0
    if config.target == "onnx":
        group_size = scheme.group_size or GROUP  # its integer products do not support whole channels
    if not scheme.symmetric:
        carried = scheme.bits == 4 and group_size == GROUP  # a GGUF's own offsets, which are floats
        offset = (4 if config.target == "onnx" else wide) if carried else scheme.bits / 8
    return scheme.bits / 8 + (wide + offset) / group_size


def part_sizes(model_config: ModelConfig, streams: StreamConfig, stream_vocab_size: int, config: ExportConfig) -> Sizes:
    """Sizes per part.

    A tied head has no bytes of its own if it is stored as the embedding; with XNNPACK and Vulkan it is a copy in
    another format. Unmerged adapters that tune the base are read in every pass, so they count with the matrices that
    they adapt. `streams` counts the stream head and the rest of the adapter, except the parent term, which is in
    draft.safetensors.
    """
    h, layers, vocab = model_config.hidden_size, model_config.num_layers, model_config.vocab_size
    widths, rate = LayerWidths.of(model_config), _rates(config, h)
    attention, mlp = (sum(layer.weights(part) for layer in widths) for part in _PRODUCTS)
    attention += sum(gates_of(model_config, layer) for layer in range(layers)) * h
    per_layer = layers * model_config.per_layer_size
    mlp += 3 * h * per_layer  # one projection for all layers, and two products in each
    tuned_layers = widths[layers - streams.base_layers :]
    tuned = {part: _low_rank(tuned_layers, config, streams.base_rank, part) for part in _PRODUCTS}
    norms = 2 if model_config.norms == "both" else 1  # of each half of a layer
    attention_floats = sum(norms * h + _mixer_floats(model_config, layer) for layer in range(layers))
    mlp_floats = layers * (norms * h + model_config.layer_scalars)
    if model_config.per_layer_size:
        mlp_floats += layers * h + model_config.per_layer_size
    adapter = _adapter(model_config, config, streams)
    if streams.heads:
        own, stored = HEADS[streams.heads].count(h, streams.num_streams, stream_vocab_size, streams.head_size)
        adapter = PartSize(own, round(stored * rate.streams))
    # The pruner needs head rows of drafted tokens; with a tied head these are the embedding's, which are available.
    by_rows = config.shapes.needs_pruner and streams.pruner_rank and streams.pruner_score == SIGMOID
    untied = bool(by_rows) and not model_config.tie_word_embeddings
    one_grid = _one_table(config)
    candidates = vocab * h if untied and not (config.grids and one_grid) else 0
    shared = one_grid and model_config.tie_word_embeddings
    stream_head, wide = stream_vocab_size * h, DTYPE_BITS[config.dtype] // 8  # bytes per unquantized number
    return {
        # Per-layer embeddings have the format of the MLP.
        "embedding": PartSize(vocab * (h + per_layer), round(vocab * (h * rate.table + per_layer * rate.mlp))),
        "attention": PartSize(
            attention + attention_floats + tuned["attention"].parameters,
            round(attention * rate.attention) + wide * attention_floats + tuned["attention"].bytes,
        ),
        "mlp": PartSize(
            mlp + mlp_floats + tuned["mlp"].parameters,
            round(mlp * rate.mlp) + wide * mlp_floats + tuned["mlp"].bytes,
        ),
        "head": PartSize(vocab * h + h, 0 if shared else round(vocab * h * rate.head) + wide * h),
        "streams": PartSize(
            stream_head + candidates + adapter.parameters,
            round(stream_head * rate.streams + candidates * rate.table) + adapter.bytes,
        ),
    }


def sizes_of(model: StreamFused, config: ExportConfig) -> Sizes:
    """Sizes per part of a loaded model."""
    return part_sizes(model.base.config, model.streams_config, len(model.stream_vocab), config)


def merging_pays(config: ExportConfig, streams: StreamConfig, widths: Sequence[LayerWidths]) -> bool:
    """Whether the streams' low-rank products are larger than their layers' matrices with these products added.
    `widths` are those of the layers with streams."""
    if config.merges(streams):
        streams = replace(streams, base_rank=0, base_layers=0)
    return _products_of_streams(widths, config, streams).bytes > _matrices_of_streams(widths, config, streams).bytes


def _one_table(config: ExportConfig) -> bool:
    """Whether a tied head is stored as the embedding, so that one table serves both."""
    if config.grids is not None:
        return config.grids.head == "q8_0"
    return config.backend not in _OWN_HEAD and config.part_scheme("head") == config.part_scheme("embedding")


def gates_of(model_config: ModelConfig, layer: int) -> int:
    """Outputs of a layer's gate projections."""
    if model_config.layer_convolutions[layer]:
        return 0
    if model_config.layer_recurrences[layer] and (sizes := model_config.delta) is not None:
        return sizes.values + 2 * sizes.value_heads
    of_elements = model_config.num_heads * model_config.layer_head_dims[layer]
    return {"none": 0, "head": model_config.num_heads, "element": of_elements}[model_config.attention_gate]


def _mixer_floats(model_config: ModelConfig, layer: int) -> int:
    """Weights of a layer's norms of q and k, biases, taps of its convolution, or settings of its decays."""
    if model_config.layer_recurrences[layer] and (sizes := model_config.delta) is not None:
        return sizes.channels * sizes.taps + 2 * sizes.value_heads + sizes.value_dim
    if model_config.layer_convolutions[layer]:
        return model_config.hidden_size * (model_config.layer_windows[layer] or 0)
    own = layer < model_config.num_cached_layers  # keys and values
    q, kv, head_dim = model_config.num_heads, model_config.num_kv_heads * own, model_config.layer_head_dims[layer]
    heads = {"none": 0, "head": 1 + own, "head after rope": 1 + own, "width": q + kv}
    biases = (q + 2 * kv) * head_dim if model_config.attention_bias else 0
    norms = heads[model_config.query_key_norm] * head_dim
    return norms + biases + model_config.hidden_size * model_config.output_bias


def _adapter(model_config: ModelConfig, config: ExportConfig, streams: StreamConfig) -> PartSize:
    """The streams' own parameters, without the parent term."""
    h = model_config.hidden_size
    in_layers = _matrices_of_streams if config.merges_streams else _products_of_streams
    own = in_layers(LayerWidths.of(model_config)[model_config.num_layers - streams.num_msa_layers :], config, streams)
    ranks = streams.eta_rank + streams.next_token_rank + streams.pruner_rank
    rest = 2 * h * ranks + (2 if streams.pruner_rank and streams.pruner_score == SIGMOID else 0)
    if not streams.value_rotation:
        rest += streams.num_streams * h  # identifiers
    # Products that the kernels pack (executorch/native.py, Form.low_rank).
    pairs = (streams.eta_rank, streams.next_token_rank) if config.grids is not None else ()
    packed = 2 * h * sum(rank for rank in pairs if rank % GROUP == 0)
    stored = _rates(config, h).streams * packed + DTYPE_BITS[config.dtype] // 8 * (rest - packed)
    return PartSize(own.parameters + rest, own.bytes + round(stored))


def _products_of_streams(widths: Sequence[LayerWidths], config: ExportConfig, streams: StreamConfig) -> PartSize:
    """The low-rank products of stream rows in these layers.

    With an unmerged tuned base, the `streams` pass has a copy of the base's adapters, joined to the streams' own.
    """
    again = min(streams.num_msa_layers, streams.base_layers) if streams.adapter_rank else 0
    own, joined = (
        [_low_rank(layers, config, rank, part) for part in _PRODUCTS]
        for rank, layers in ((streams.adapter_rank, widths), (streams.base_rank, widths[len(widths) - again :]))
    )
    return PartSize(sum(size.parameters for size in own), sum(size.bytes for size in own + joined))


def _matrices_of_streams(widths: Sequence[LayerWidths], config: ExportConfig, streams: StreamConfig) -> PartSize:
    """The matrices of a `streams` pass of these layers with merged products, in the layers' formats."""
    counts = [sum(layer.weights(part) for layer in widths) for part in _PRODUCTS]
    rate = _rates(config, widths[0].hidden if widths else 0)
    return PartSize(sum(counts), round(counts[0] * rate.attention) + round(counts[1] * rate.mlp))


def _low_rank(widths: Sequence[LayerWidths], config: ExportConfig, rank: int, part: str) -> PartSize:
    """Low-rank adapters of a part's matrices in these layers, and their bytes in the graphs.

    The kernels use them in float16 unchanged or in int8 (executorch/native.py); elsewhere adapters with the same input
    are one pair of matrices, the second one block-diagonal (layers.FusedAdapter).
    """
    shared = [product for layer in widths for product in layer.products(part)]
    own = rank * sum(n_in + n_out for n_in, outputs in shared for n_out in outputs)
    if config.grids is not None:
        factors = rank * sum(len(outputs) for _, outputs in shared)
        wide = [layer for layer in widths if layer.joined and part == "attention"]
        zeros = rank * sum(3 * layer.joined - (layer.query + layer.key + layer.value) for layer in wide)
        numbers = own + zeros
        return PartSize(own, numbers + 4 * factors if config.adapter_dtype == "int8" else 2 * numbers)
    stored = rank * sum(len(outputs) * (n_in + sum(outputs)) for n_in, outputs in shared)
    return PartSize(own, DTYPE_BITS[config.dtype] // 8 * stored)


def manifest_parts(sizes: Sizes, config: ExportConfig) -> dict[str, Facts]:
    """Scheme and size of every part, for the manifest."""
    return {
        part: {**scheme, "parameters": sizes[part].parameters, "bytes": sizes[part].bytes}
        for part, scheme in schemes(config).items()
    }
