"""What a plan will give, and whether it fits its model. The configuration and the adapter are read, no base weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from streamfuse.model.checkpoint import load_stream_fused, read_adapter
from streamfuse.model.config import CheckpointError, ModelConfig
from streamfuse.model.streams import StreamFused
from streamfuse.model.transformer import Transformer

from .parts import PartSize, part_sizes
from .plan import GROUP_SIZES, ExportPlan, PlanError, Quantize


@dataclass(frozen=True, slots=True)
class Preview:
    """Sizes to expect. `delegates` counts the delegates of each method."""

    adapter: str
    parts: dict[str, PartSize]
    cache_bytes: int
    delegates: dict[str, int]

    @property
    def weight_bytes(self) -> int:
        return sum(part.bytes for part in self.parts.values())

    def to_dict(self) -> dict[str, Any]:
        """For `--dry-run --json`."""
        return {
            "adapter_facts": self.adapter,
            "parts": {name: {"parameters": p.parameters, "bytes": p.bytes} for name, p in self.parts.items()},
            "weight_bytes": self.weight_bytes,
            "cache_bytes": self.cache_bytes,
            "delegates": self.delegates,
        }


def preview(plan: ExportPlan) -> Preview:
    """Check `plan` against its model and adapter, and say what it will give.

    Raises:
        PlanError: a flag does not fit the model, or the output folder is taken.
        CheckpointError: the model or the adapter cannot be read, or they do not fit each other.
    """
    if plan.output_dir.exists() and not plan.overwrite:
        raise PlanError(f"--output-dir {plan.output_dir} exists already; choose another folder or add --overwrite")
    config = ModelConfig.load(plan.model)
    if not (plan.model / "tokenizer.json").is_file():
        raise CheckpointError(f"{plan.model / 'tokenizer.json'}: no such file; a bundle needs the model's tokenizer")
    with torch.device("meta"):
        base = Transformer(config)  # shapes without numbers
    model = load_stream_fused(base, plan.adapter, merge=False)  # there are no numbers to merge into
    check_fit(plan, model)
    streams = model.streams_config
    return Preview(
        adapter=_adapter_line(plan),
        parts=part_sizes(config, streams, len(model.stream_vocab), plan),
        cache_bytes=plan.max_context_len * 2 * config.num_layers * config.num_kv_heads * config.head_dim * 4,
        delegates=_delegates(plan, config.num_layers, streams.num_msa_layers),
    )


def check_fit(plan: ExportPlan, model: StreamFused) -> None:
    """Drop the streams that the plan leaves out, and refuse a flag that the model or its adapter cannot serve."""
    config, streams = model.base.config, model.streams_config
    if plan.num_streams is not None:
        if not 1 <= plan.num_streams <= streams.num_streams:
            raise PlanError(f"--num-streams must be from 1 to {streams.num_streams}, not {plan.num_streams}")
        model.keep_streams(plan.num_streams)
    if plan.max_context_len > config.max_position_embeddings:
        raise PlanError(
            f"--max-context-len must be from 32 to {config.max_position_embeddings} for this model, "
            f"not {plan.max_context_len}"
        )
    if plan.top_k > len(model.stream_vocab):
        raise PlanError(f"--top-k must be from 1 to {len(model.stream_vocab)} for this adapter, not {plan.top_k}")
    if plan.shapes.pruning and not streams.pruner_rank:
        raise PlanError(
            f"--prune-keep must be at least {max(plan.widths)} for this adapter, which has no pruner, "
            f"not {plan.prune_keep}"
        )
    if not streams.pruner_rank and any(0 < carrying < keep for _, keep, carrying in plan.shapes.verify):
        raise PlanError(
            "--stream-nodes must be as many as are kept for this adapter, which has no pruner to order them"
        )
    if plan.quantize is not Quantize.NONE:
        _check_group_size(plan.group_size, config)
    if plan.kernels and config.attention_bias:
        raise PlanError(
            "--backend kernels has no biases in its products, which this model needs; use --backend xnnpack"
        )
    if plan.kernels and config.head_dim % 16:
        raise PlanError(
            f"--backend kernels needs heads of a multiple of 16, not {config.head_dim}; use --backend xnnpack"
        )


def _check_group_size(group_size: int, config: ModelConfig) -> None:
    inputs = (config.hidden_size, config.num_heads * config.head_dim, config.intermediate_size)
    if any(size % group_size for size in inputs):
        fitting = [str(size) for size in GROUP_SIZES if not any(n % size for n in inputs)]
        allowed = f"one of {', '.join(fitting)}" if fitting else "none does: use --backend xnnpack --quantize none"
        sizes = ", ".join(map(str, sorted(set(inputs))))
        raise PlanError(f"--group-size must divide this model's sizes {sizes} ({allowed}), not {group_size}")


def _delegates(plan: ExportPlan, layers: int, top: int) -> dict[str, int]:
    """Two per layer with stock operators, and the heads (stock.Part); none with the kernels' own."""
    counts = {"prefill": 2 * layers - 1, "decode": 2 * layers + 1}
    for rows, _, carrying in plan.shapes.verify:
        counts[f"verify_{rows}"] = 2 * layers + 1 + bool(carrying)
    if plan.shapes.deferred:
        counts["streams"] = 2 * top + 1
    return counts if plan.backend == "xnnpack" else dict.fromkeys(counts, 0)


def _adapter_line(plan: ExportPlan) -> str:
    config, state, facts = read_adapter(plan.adapter)
    size = sum(tensor.numel() for name, tensor in state.items() if name != "stream_vocab")
    return (
        f"{plan.adapter.stem}: {config.num_streams} streams in the top {config.num_msa_layers} layers, "
        f"{size:,} parameters, trained {facts.get('steps', '?')} steps"
    )
