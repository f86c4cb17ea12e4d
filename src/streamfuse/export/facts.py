"""The manifest's fields and constant methods of a model, and the specification that the loop needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from streamfuse.bundle.manifest import FORMAT_VERSION
from streamfuse.model.checkpoint import own_template, read_adapter
from streamfuse.model.config import ModelConfig, read_object
from streamfuse.model.streams import StreamFused
from streamfuse.paths import own_name
from streamfuse.runtime.backend import ModelSpec

from .config import ExportConfig
from .graphs import Method, Streams, Verify, example_inputs, input_names
from .weights import Weights


def model_spec(model: StreamFused, config: ExportConfig) -> ModelSpec:
    """The specification for the loop, as the bundle will contain it."""
    model_config = model.base.config
    return ModelSpec(
        capacity=config.max_context_len,
        vocab_size=model_config.vocab_size,
        num_streams=model.streams_config.num_streams,
        top_k=config.shapes.top_k,
        prefill_rows=config.prefill_len,
        widths={f"verify_{rows}": (rows, keep) for rows, keep in config.shapes.widths},
        stream_nodes={f"verify_{rows}": carrying for rows, _, carrying in config.shapes.verify},
        deferred=config.shapes.deferred,
        eos_token_ids=end_tokens(config, model_config),
        default_width=config.default_width,
        stream_vocab_size=len(model.stream_vocab),
    )


def num_top_caches(model_config: ModelConfig, num_msa_layers: int) -> int:
    """How many of the top layers have keys and values, whose new rows are in the order of `kept`."""
    return max(0, model_config.num_cached_layers - (model_config.num_layers - num_msa_layers))


def constant_methods(
    model_config: ModelConfig, config: ExportConfig, num_streams: int, num_msa_layers: int
) -> dict[str, Any]:
    """Constant methods, with the names that ExecuTorch's runners use."""
    return {
        "get_max_seq_len": config.prefill_len,
        "get_max_context_len": config.max_context_len,
        "get_vocab_size": model_config.vocab_size,
        "get_bos_id": -1 if model_config.bos_token_id is None else model_config.bos_token_id,
        "get_eos_ids": list(end_tokens(config, model_config)),
        "get_n_layers": model_config.num_layers,
        "get_n_kv_heads": model_config.num_kv_heads,
        "get_head_dim": model_config.head_dim,
        "use_kv_cache": True,
        "use_sdpa_with_kv_cache": False,
        "enable_dynamic_shape": False,
        "get_ar_len": 1,
        "get_prefill_chunk_size": config.prefill_len,
        "get_num_streams": num_streams,
        "get_n_msa_layers": num_top_caches(model_config, num_msa_layers),
        "get_max_tree_nodes": max(config.widths),
        "get_format_version": FORMAT_VERSION,
    }


def source_facts(folder: Path) -> dict[str, Any]:
    """Where a model came from, as recorded by `streamfuse pull`; empty for any other folder."""
    return read_object(folder / "source.json")


def model_facts(config: ExportConfig, model: StreamFused) -> dict[str, Any]:
    """`model` of the manifest; name and source come from the `source.json` that `streamfuse pull` writes."""
    model_config = model.base.config
    source = source_facts(config.model)
    where = source.get("kind", "local folder")
    if "sha256" in source:
        where = f"{where}: {source.get('file', '')} sha256 {source['sha256']}"
    elif "revision" in source:
        where = f"{where}: revision {source['revision']}"
    return {
        "name": _line(str(source.get("model") or source.get("name") or own_name(config.model))),
        "architecture": model_config.architecture,
        "source": _line(where),
        "license": _license(source.get("license")),
        "num_layers": model_config.num_layers,
        "num_heads": model_config.num_heads,
        "num_kv_heads": model_config.num_kv_heads,
        "head_dim": model_config.head_dim,
        "hidden_size": model_config.hidden_size,
        "vocab_size": model_config.vocab_size,
        "parameters": sum(p.numel() for p in model.base.parameters()),
        "bos_token_id": model_config.bos_token_id,
        "eos_token_ids": list(end_tokens(config, model_config)),
        "chat_template": chat_template(config),
    }


def _license(stated: Any) -> str | None:
    """The license of a model's card, which may list several; None: it states none."""
    names = stated if isinstance(stated, list) else [stated]
    return ", ".join(_line(name) for name in names if isinstance(name, str)) or None


def _line(text: str) -> str:
    """One line, as the manifest's strings must be; a GGUF may have a whole license in its metadata."""
    return " ".join(text.split())


def chat_template(config: ExportConfig) -> str | None:
    """The chat template of the adapter, which its streams were trained with, else the model's own."""
    return adapter_facts(config).get("chat_template") or own_template(config.model)


def end_tokens(config: ExportConfig, model_config: ModelConfig) -> tuple[int, ...]:
    """Every token that ends an answer. The adapter's own is the first, since it is the `eos_token` of its template.
    Those of task adapters are the last: a bundle has one list for all of them."""
    tasks = (task.eos_token_id for task in config.tasks.values())
    ends = (config.eos_token_id, *model_config.eos_token_ids, *tasks)
    return tuple(dict.fromkeys(token for token in ends if token is not None))


def adapter_facts(config: ExportConfig) -> dict[str, str]:
    """The metadata of the adapter's file; empty without an adapter."""
    return {} if config.adapter_file is None else read_adapter(config.adapter_file)[2]


def speculation_facts(config: ExportConfig, model: StreamFused) -> dict[str, Any]:
    """`speculation` of the manifest."""
    model_config = model.streams_config
    return {
        "num_streams": model_config.num_streams,
        "top_k": config.shapes.top_k,
        "num_msa_layers": model_config.num_msa_layers,
        "prune_layer": model.num_lower_layers if config.shapes.pruning else None,
        "stream_vocab_size": len(model.stream_vocab),
        "parent_rank": model_config.parent_rank,
        "adapter": None if config.adapter is None else config.adapter.stem,
        # Those that tune the base are the task's, merged or not.
        "extra_parameters": sum(
            p.numel() for name, p in model.named_parameters() if not name.startswith(("base.", "base_adapters."))
        ),
        "default_width": config.default_width,
        "schedule": config.schedule if config.shapes.deferred else "fused",
        "merged_streams": config.merges_streams,
    }


def method_facts(method: Method, weights: Weights) -> dict[str, Any]:
    """Input and output tensors of a method in call order, with the names of docs/contracts.md."""
    inputs = [
        _tensor(name, str(t.dtype).removeprefix("torch."), *t.shape)
        for name, t in zip(input_names(weights, method), example_inputs(weights, method), strict=True)
    ]
    return {**row_facts(method), "inputs": inputs, "outputs": _outputs(method, weights)}


def row_facts(method: Method) -> dict[str, Any]:
    """The rows of a method, how many it keeps, and how many of these have streams."""
    verifies = isinstance(method, Verify)
    return {
        "rows": 1 if isinstance(method, Streams) else method.rows,
        "keep": method.keep if verifies else None,
        "stream_nodes": method.carrying if verifies else None,
    }


def _outputs(method: Method, weights: Weights) -> list[dict[str, Any]]:
    c = weights.config
    if isinstance(method, Streams):
        return _stream_outputs(weights, 1)
    keep = method.keep if isinstance(method, Verify) else method.rows
    row_dtype = str(weights.form.ROW_DTYPE).removeprefix("torch.")
    outputs: list[dict[str, Any]] = []
    if method.head is not None:
        outputs += [_tensor("logits", "float32", keep, c.vocab_size), _tensor("best", "int64", keep)]
    if isinstance(method, Verify):
        outputs.append(_tensor("kept", "int64", keep))
        outputs += _stream_outputs(weights, method.carrying) if method.carrying else []
    for i in range(c.num_cached_layers):
        rows = keep if i >= weights.num_lower_layers else method.rows
        outputs += [
            _tensor(f"new_{kind}_{i}", row_dtype, rows, c.kv_heads_of(i), c.layer_head_dims[i])
            for kind in ("key", "value")
        ]
    if method.gives_hidden:
        outputs.append(_tensor("hidden", "float32", keep, c.hidden_size))
    return outputs


def _stream_outputs(weights: Weights, nodes: int) -> list[dict[str, Any]]:
    shape = (nodes, weights.streams_config.num_streams, weights.shapes.top_k)
    return [_tensor("stream_ids", "int64", *shape), _tensor("stream_log_probs", "float32", *shape)]


def _tensor(name: str, dtype: str, *shape: int) -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": list(shape)}
