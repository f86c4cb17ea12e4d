"""Predicts the result of an export and checks that it fits its model, without reading base weights."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from streamfuse.bundle.reader import DRAFT_FILE, adapter_file
from streamfuse.export.operators.layout import cache_bytes, cache_positions
from streamfuse.export.operators.states import HEADER
from streamfuse.model.checkpoint import load_config, load_stream_fused, read_adapter
from streamfuse.model.config import SOFTMAX, CheckpointError, ModelConfig, StreamConfig
from streamfuse.model.fields import CheckpointWarning, read_object
from streamfuse.model.ngrams import bytes_of, pruned
from streamfuse.model.streams import StreamFused
from streamfuse.model.tokenizer_file import added_beyond
from streamfuse.model.transformer import Transformer
from streamfuse.options import OptionError
from streamfuse.runtime.text import TextError, Tokenizer

from .config import NO_ADAPTER, ExportConfig
from .cost import Cost, export_cost
from .facts import chat_template, end_tokens, source_facts
from .sampling import SamplingDefaults, sampling_defaults
from .schemes import DTYPE_BITS, GROUP, GROUP_SIZES, PARTS
from .sizes import LayerWidths, PartSize, gates_of, part_sizes, sizes_of

TUNING_ROUNDED = (
    "this adapter fine-tunes the base model; merging that into weights that are then rounded to 4 bits can lower the "
    "quality of answers and the number of accepted drafts. 8 bits avoid it with the kernels (--quantize q8_0); "
    "docs/export.md, A tuned base with 4-bit weights"
)


@dataclass(frozen=True, slots=True)
class Preview:
    """The expected result of an export; sizes in bytes.

    Attributes:
        adapter: a description of the adapter.
        sampling: the bundle's sampling defaults.
        parts: weights by part, one copy for all methods.
        graph_bytes: weights in the graphs' file; with OpenVINO, each delegate has its own copy.
        files: expected size of each file; for graphs, with what they add to the weights.
        cache_bytes: keys and values of a whole context.
        delegates: delegates of each method, XNNPACK only.
        calls: calls of operators (kernels) or delegates (XNNPACK) of each method, without the pruner's.
        cost: of the export itself; None if it was never measured.
        warning: to be printed before the export, or None.
        tasks: a description of each task adapter, by name; `graph_bytes`, `files`, `delegates` and `calls` include
            them.
    """

    adapter: str
    sampling: SamplingDefaults
    parts: dict[str, PartSize]
    graph_bytes: int
    files: dict[str, int]
    cache_bytes: int
    delegates: dict[str, int]
    calls: dict[str, int]
    cost: Cost | None = None
    warning: str | None = None
    tasks: dict[str, str] = field(default_factory=dict)

    @property
    def weight_bytes(self) -> int:
        return sum(part.bytes for part in self.parts.values())

    @property
    def run_bytes(self) -> int:
        """Memory of a process that runs the bundle, without its code: weights, caches, drafting tables."""
        return self.graph_bytes + self.cache_bytes + self.files.get(DRAFT_FILE, 0)

    def to_dict(self) -> dict[str, Any]:
        """For `--dry-run --json`."""
        return {
            "adapter_facts": self.adapter,
            "sampling_defaults": self.sampling.values,
            "warning": self.warning,
            "parts": {name: asdict(part) for name, part in self.parts.items()},
            "weight_bytes": self.weight_bytes,
            "files": self.files,
            "cache_bytes": self.cache_bytes,
            "run_bytes": self.run_bytes,
            "delegates": self.delegates,
            "calls": self.calls,
            "export_cost": None if self.cost is None else asdict(self.cost),
            "task_facts": self.tasks,
        }


def preview(config: ExportConfig) -> Preview:
    """Check a resolved configuration against its model and adapter, and say what it will give.

    Raises:
        OptionError: a flag does not fit the model, or the output folder is taken.
        CheckpointError: the model or the adapter cannot be read, or they do not fit each other.
    """
    if config.output_dir.exists() and not config.overwrite:
        raise OptionError(f"--output-dir {config.output_dir} exists already; choose another folder or add --overwrite")
    model_config = load_config(config.model)
    if not (config.model / "tokenizer.json").is_file():
        raise CheckpointError(f"{config.model / 'tokenizer.json'}: no such file; a bundle needs the model's tokenizer")
    if config.calibration_text is not None and not config.calibration_text.is_file():
        raise OptionError(f"--calibration-text {config.calibration_text}: no such file")
    check_text(config, model_config)
    _warn_of_tokens_without_rows(config.model / "tokenizer.json", model_config.vocab_size)
    with torch.device("meta"):
        base = Transformer(model_config)  # shapes without numbers
    found = _expected(config, model_config, base)
    for name, task in config.tasks.items():
        check_text(task, model_config)
        found = _with_task(found, name, _expected(task, model_config, base), _added_bytes(task, base))
    on_grid = source_facts(config.model).get("kind") == "gguf"
    runs = sum(_layer_runs(one, base) for one in (config, *config.tasks.values()))
    return replace(found, cost=export_cost(config, runs, sum(p.numel() for p in base.parameters()), on_grid))


def _warn_of_tokens_without_rows(path: Path, rows: int) -> None:
    """Fine-tunes often add tokens that they never train, such as one for padding, without resizing the embedding."""
    beyond = added_beyond(read_object(path), rows)
    if beyond:
        i, word = min(beyond.items())
        others = f" and {len(beyond) - 1} more" if len(beyond) > 1 else ""
        warnings.warn(
            f"{path}: added token {i}, {word!r:.40}{others}: the embedding has {rows} rows, so prompts with it are "
            "refused; if the model was trained with it, export the checkpoint whose embedding was resized",
            CheckpointWarning,
            stacklevel=3,
        )


def _layer_runs(config: ExportConfig, base: Transformer) -> int:
    """Layers summed over the methods."""
    top = with_streams(config, base).streams_config.num_msa_layers
    return sum(_layers_run(config, base.config, top).values())


def _with_task(whole: Preview, name: str, task: Preview, added_bytes: int) -> Preview:
    """The preview of a bundle with one more task adapter."""
    (graph, weights), *_ = whole.files.items()
    draft = {adapter_file(name, DRAFT_FILE): task.files[DRAFT_FILE]} if DRAFT_FILE in task.files else {}
    return replace(
        whole,
        graph_bytes=whole.graph_bytes + added_bytes,
        files={**whole.files, graph: weights + added_bytes, **draft},
        delegates=whole.delegates | {f"{name}.{method}": count for method, count in task.delegates.items()},
        calls=whole.calls | {f"{name}.{method}": count for method, count in task.calls.items()},
        tasks={**whole.tasks, name: task.adapter},
    )


def _added_bytes(config: ExportConfig, base: Transformer) -> int:
    """Weights that a task adapter adds to those of the base model."""
    model = with_streams(config, base)
    own, plain = sizes_of(model, config), part_sizes(base.config, StreamConfig.without(), 0, config)
    return sum(size.bytes - plain[part].bytes for part, size in own.items())


def _expected(config: ExportConfig, model_config: ModelConfig, base: Transformer) -> Preview:
    """The preview of a base model with its streams, or of a task adapter alone, without its cost."""
    model = with_streams(config, base)
    check_fit(config, model)
    streams, stream_vocab = model.streams_config, len(model.stream_vocab)
    warning = TUNING_ROUNDED if streams.base_rank and config.four_bits and config.merges(streams) else None
    if config.merges(streams):
        streams = replace(streams, base_rank=0, base_layers=0)
    parts = part_sizes(model_config, streams, stream_vocab, config)
    layers = _layers_run(config, model_config, streams.num_msa_layers)
    delegates = {name: _delegates(config, name, count) for name, count in layers.items()}
    graph_bytes = _graph_bytes(config, parts, layers, model_config.num_layers)
    return Preview(
        adapter=_adapter_line(config),
        sampling=sampling_defaults(config.model, config.sampling),
        parts=parts,
        graph_bytes=graph_bytes,
        files=_files(config, model, streams, graph_bytes),
        cache_bytes=_cache_bytes(config, model_config),
        delegates=delegates,
        calls=delegates if config.backend == "xnnpack" else _operator_calls(config, model_config, layers),
        warning=warning,
    )


def _cache_bytes(config: ExportConfig, model_config: ModelConfig) -> int:
    """Bytes of the caches and states of all layers."""
    capacity, cached = config.max_context_len, model_config.num_cached_layers
    ring = cache_positions(capacity, model_config.longest_window)
    counts = [capacity if window is None else ring for window in model_config.layer_windows[:cached]]
    sizes = [(count, model_config.kv_heads_of(i), model_config.layer_head_dims[i]) for i, count in enumerate(counts)]
    if config.kernels:
        state = 0 if model_config.delta is None else 2 * (HEADER + model_config.delta.state_size) * 4
        states = state * sum(model_config.layer_recurrences)
        return states + sum(cache_bytes(*size) for size in sizes)
    floats = config.dtype if config.target != "executorch" or config.backend == "qnn" else "float32"
    return sum(count * heads * dim for count, heads, dim in sizes) * 2 * DTYPE_BITS[floats] // 8


def check_text(config: ExportConfig, model_config: ModelConfig) -> Tokenizer:
    """The model's tokenizer, once a chat went through it and the template.

    Raises:
        TextError: the tokenizer cannot be used.
        CheckpointError: the chat template cannot be used.
    """
    file = config.model / "tokenizer.json"
    try:
        ends = end_tokens(config, model_config)
        tokenizer = Tokenizer(file, chat_template(config), model_config.bos_token_id, ends)
        tokenizer.check_chat()
    except TextError as error:
        Tokenizer(file)  # raises its own TextError if the tokenizer is the problem
        raise CheckpointError(
            f"{config.model}: {error}; mend its chat template, or take it out for a bundle that takes raw prompts alone"
        ) from None
    return tokenizer


def with_streams(config: ExportConfig, base: Transformer) -> StreamFused:
    """The base model with the streams and the n-gram table of the adapter, if any; adapters that tune the base are not
    merged."""
    if config.adapter_file is None:
        return StreamFused.without_streams(base)
    model = load_stream_fused(base, config.adapter_file, merge=False)
    model.ngrams = pruned(model.ngrams, base.config.vocab_size, round(config.ngram_table_mb * 1e6))
    return model


def check_fit(config: ExportConfig, model: StreamFused) -> None:
    """Drop the streams that are left out, and refuse a flag that the model or its adapter cannot serve."""
    model_config, streams = model.base.config, model.streams_config
    if config.num_streams is not None:
        if not 1 <= config.num_streams <= streams.num_streams:
            raise OptionError(f"--num-streams must be from 1 to {streams.num_streams}, not {config.num_streams}")
        model.keep_streams(config.num_streams)
    if config.max_context_len > model_config.max_position_embeddings:
        raise OptionError(
            f"--max-context-len must be from 32 to {model_config.max_position_embeddings} for this model, "
            f"not {config.max_context_len}"
        )
    if streams.base_rank and streams.adapter_rank and not (config.merges(streams) or config.keeps_two_kinds):
        raise OptionError(
            "--merge-adapter must be on for this adapter, whose streams have low-rank products of their own; only "
            "--backend kernels with --schedule deferred keeps both"
        )
    if config.widths[0] == 1 and not config.carries_alone(streams):
        raise OptionError(
            "--widths must not name 1 for this adapter: its streams cannot share a pass with the base's rows"
        )
    if config.shapes.top_k > len(model.stream_vocab):
        raise OptionError(f"--top-k must be from 1 to {len(model.stream_vocab)} for this adapter, not {config.top_k}")
    if streams.heads and not config.kernels:
        raise OptionError(
            f"--adapter {config.adapter}: {streams.heads} heads go with --backend kernels alone, "
            f"not --backend {config.backend}"
        )
    if config.shapes.pruning and not streams.pruner_rank:
        raise OptionError(
            f"--prune-keep must be at least {max(config.widths)} for this adapter, which has no pruner, "
            f"not {config.prune_keep}"
        )
    if not streams.pruner_rank and config.shapes.ordering:
        raise OptionError(
            "--stream-nodes must be as many as are kept for this adapter, which has no pruner to order them"
        )
    if streams.pruner_score == SOFTMAX and not config.kernels and config.shapes.needs_pruner:
        without = f"--prune-keep {max(config.widths)}"
        without += "" if config.schedule == "deferred" else " --stream-nodes all"
        raise OptionError(
            f"--adapter {config.adapter}: its pruner scores by a softmax over the vocabulary, which goes with "
            f"--backend kernels alone, not with --backend {config.backend}; {without} leaves the pruner out"
        )
    _check_group_sizes(config, model_config)
    _check_kernels(config, model_config)
    unaligned = [size for size in (model_config.head_dim, *model_config.layer_head_dims) if size % 16]
    if config.kernels and unaligned:
        other = "" if _needs_kernels(model_config) else "; use --backend xnnpack"
        raise OptionError(f"--backend kernels needs heads of a multiple of 16, not {unaligned[0]}{other}")
    if config.kernels and (size := model_config.per_layer_size) % GROUP:
        raise OptionError(
            f"--backend kernels needs a hidden_size_per_layer_input that is a multiple of {GROUP}, not {size}"
        )


def _needs_kernels(model_config: ModelConfig) -> bool:
    """Whether a model has layers that are only implemented for the kernels: Qwen3.5's, Gemma 4's."""
    return (
        any(model_config.layer_recurrences)
        or model_config.attention_gate == "element"
        or model_config.num_cached_layers < model_config.num_layers
        or model_config.value_norm
        or model_config.layer_scalars
        or model_config.per_layer_size > 0
        or model_config.logit_cap > 0
    )


def _check_kernels(config: ExportConfig, model_config: ModelConfig) -> None:
    if not _needs_kernels(model_config):
        return
    if not config.kernels:
        flag = f"--backend {config.backend}" if config.target == "executorch" else f"--target {config.target}"
        raise OptionError(
            f"{flag} does not support {model_config.architecture}; use --target executorch --backend kernels"
        )
    if model_config.layer_recurrences[-1]:
        raise OptionError("--backend kernels needs attention in the last layer, which has linear attention here")


def _check_group_sizes(config: ExportConfig, model_config: ModelConfig) -> None:
    hidden = model_config.hidden_size
    inputs = {
        "attention": [layer.mixed for layer in LayerWidths.of(model_config)],
        "mlp": (hidden, *model_config.layer_mlp_sizes),
    }
    for part in PARTS:
        if config.kernels or config.backend == "xnnpack":
            group_size = config.group_size if config.quantized else None
            is_asked = True
        else:
            scheme = config.part_scheme(part)
            # ONNX Runtime's quantized matmuls are block-wise only; there is no per-channel form.
            group_size = scheme.group_size or (GROUP if config.target == "onnx" and scheme.bits < 16 else None)
            is_asked = scheme.group_size == config.group_size
        sizes = sorted({*inputs.get(part, ()), hidden})
        if group_size is not None and any(size % group_size for size in sizes):
            fitting = [str(size) for size in GROUP_SIZES if not any(n % size for n in sizes)]
            allowed = f"one of {', '.join(fitting)}" if fitting else f"none does: use {_without_groups(config)}"
            own = "--group-size" if is_asked else f"the group size of {part}"
            flag = f"--scheme {part}={config.scheme[part]}:" if part in config.scheme else own
            listed = ", ".join(map(str, sizes))
            raise OptionError(f"{flag} must divide this model's sizes {listed} ({allowed}), not {group_size}")


def _without_groups(config: ExportConfig) -> str:
    """What the error suggests if no group size fits."""
    if config.kernels or config.backend == "xnnpack":
        return "--backend xnnpack --quantize none"
    return "--quantize none" if config.target == "onnx" else "--quantize int8, which has a scale per channel"


def _layers_run(config: ExportConfig, model_config: ModelConfig, top: int) -> dict[str, int]:
    """Layers of each method."""
    methods = ["decode", *(f"verify_{rows}" for rows in config.widths)]
    found = {"prefill": model_config.num_cached_layers, **dict.fromkeys(methods, model_config.num_layers)}
    return {**found, **({"streams": top} if config.shapes.deferred else {})}


def _graph_bytes(config: ExportConfig, parts: dict[str, PartSize], layers: dict[str, int], all_layers: int) -> int:
    """Bytes of the weights in the graphs' file: one copy, unless each delegate has its own."""
    if not config.copies_weights:
        return sum(part.bytes for part in parts.values())
    carrying = {f"verify_{rows}": bool(nodes) for rows, _, nodes in config.shapes.verify}
    # QNN's graphs contain the look-up of token ids, but the `streams` pass begins with hidden states.
    tables = len(layers.keys() - {"streams"}) if config.backend == "qnn" else 1
    total = tables * parts["embedding"].bytes
    for method, count in layers.items():
        total += (parts["attention"].bytes + parts["mlp"].bytes) * count // all_layers
        total += 0 if method in ("prefill", "streams") else parts["head"].bytes
        total += parts["streams"].bytes if carrying.get(method, method == "streams") else 0
    return total


def _delegates(config: ExportConfig, method: str, layers: int) -> int:
    """Two per layer and one per head (layers.Layer); prefill has no head, and only the first half of its last layer."""
    if config.backend != "xnnpack":
        return 0
    carrying = {f"verify_{rows}": bool(nodes) for rows, _, nodes in config.shapes.verify}
    return 2 * layers + (-1 if method == "prefill" else 1 + carrying.get(method, False))


def _operator_calls(config: ExportConfig, model_config: ModelConfig, layers: dict[str, int]) -> dict[str, int]:
    """Calls of the kernels' operators by method; empty for other backends.

    Each layer: 4, or 6 with norms after attention and MLP; 3 more with a convolution (a multiplication and two slices),
    1 with linear attention, 2 with gates, 2 with norms after the rotary embedding, 3 and 2 per kv head with a norm of
    values, 1 with a scalar, 5 with per-layer embeddings. Each method: 2 look-ups per rotary embedding, the embedding
    and its factor, 4 for per-layer embeddings, and the head.
    """
    if not config.kernels:
        return {}
    carrying = {f"verify_{rows}": bool(nodes) for rows, _, nodes in config.shapes.verify}
    found = {}
    for name, count in layers.items():
        each = 4 if model_config.norms == "before" else 6
        first = model_config.num_layers - count if name == "streams" else 0  # it runs the top layers
        last, has_tokens = first + count, name != "streams"
        recurs = model_config.layer_recurrences[first:last]
        turns = {turn for turn, has in zip(model_config.layer_rotaries[first:last], recurs, strict=True) if not has}
        of_tokens = has_tokens and model_config.per_layer_size > 0
        start = has_tokens * (1 + (model_config.embedding_scale != 1)) + 4 * of_tokens
        # A prefill pass has no head, and only the first operator of its last layer.
        end = 1 - each if name == "prefill" else 1 + carrying.get(name, False)
        convolutions = sum(model_config.layer_convolutions[first:last])
        partial = name == "prefill"  # of the last layer, only keys and values
        closed = range(first, last - partial)
        gates = 2 * sum(gates_of(model_config, layer) > 0 for layer in closed)
        weights = 2 * count - partial if model_config.query_key_norm == "head after rope" else 0
        normed = range(first, min(last, model_config.num_cached_layers) if model_config.value_norm else first)
        values = len(normed) * (3 + 2 * model_config.num_kv_heads)
        endings = len(closed) * (model_config.layer_scalars + 5 * of_tokens)
        added = 3 * convolutions + sum(recurs) + gates + weights + values + endings
        found[name] = each * count + added + 2 * len(turns) + start + end
    return found


def _files(config: ExportConfig, model: StreamFused, streams: StreamConfig, weight_bytes: int) -> dict[str, int]:
    """The bundle's files, without the manifest and what the graphs add to their weights, which are small."""
    graph = {"executorch": "model.pte", "coreml": "model.mlpackage", "onnx": "*.onnx and weights"}[config.target]
    rank, vocab_size, stream_vocab = streams.parent_rank, model.base.config.vocab_size, len(model.stream_vocab)
    rows = 1 + sum(keep for _, keep in config.shapes.widths)
    tables = 2 * rank * (vocab_size + stream_vocab) + 4 * (stream_vocab + rank * streams.num_streams)
    tables += bytes_of(model.ngrams)
    return {
        graph: weight_bytes,
        "tokenizer.json": (config.model / "tokenizer.json").stat().st_size,
        **({DRAFT_FILE: tables} if tables else {}),
        "selftest.npz": 4 * rows * vocab_size,
    }


def _adapter_line(config: ExportConfig) -> str:
    if config.ngrams is not None:
        streams, state, _ = read_adapter(config.ngrams)
        tunes = f"tunes the base's top {streams.base_layers} layers, " if streams.base_layers else ""
        table = f" and {state['ngrams.ids'].numel():,} n-grams" if "ngrams.ids" in state else ""
        return f"{config.ngrams.stem}: {tunes}no streams, drafts are look-ups in the text{table}"
    if config.adapter is None:
        return f"{NO_ADAPTER}: no streams, drafts are look-ups in the text"
    model_config, state, facts = read_adapter(config.adapter)
    own = {n: t.numel() for n, t in state.items() if n != "stream_vocab" and not n.startswith("ngrams.")}
    entries = state["ngrams.ids"].numel() if "ngrams.ids" in state else 0
    tuned = sum(count for name, count in own.items() if name.startswith("base_adapters."))
    how = "merged into them" if config.merges(model_config) else "beside them"
    matrices = " with matrices of their own" if config.merges_streams else ""
    merged = f", tunes the base's top {model_config.base_layers} layers ({how})" if tuned else ""
    return (
        f"{config.adapter.stem}: {model_config.num_streams} streams in the top {model_config.num_msa_layers} layers"
        f"{matrices}, {sum(own.values()) - tuned:,} parameters, trained {facts.get('steps', '?')} steps{merged}"
        + (f"; {entries:,} n-grams" if entries else "")
    )
