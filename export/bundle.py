"""The stages of an export to ExecuTorch: load -> graphs -> quantize -> lower -> prove -> write. Each works on what the last one left."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from streamfuse import __version__
from streamfuse.bundle import BundleWriter
from streamfuse.kernels.aot import OPERATORS
from streamfuse.model.checkpoint import load_base, load_stream_fused, read_adapter
from streamfuse.model.config import ModelConfig
from streamfuse.model.streams import StreamFused
from streamfuse.runtime.backend import ModelSpec
from streamfuse.runtime.backends.executorch import ExecuTorchBackend
from streamfuse.runtime.backends.reference import ReferenceBackend

from . import selftest
from .graphs import Method, Weights, build_methods, example_inputs
from .lower import lower_methods
from .plan import ExportPlan, Quantize
from .quantize import quantize_weights

FORMAT_VERSION = 1
_SELFTEST_TEXT = (
    "The lighthouse stood at the edge of the cliff, and every evening the keeper climbed the one hundred and twelve steps to light the lamp. "
    "Ships far out at sea counted the seconds between its flashes: 3, 2, 1, and then the light again. One winter the lamp went dark, "
    "and the whole village walked up the hill with lanterns in their hands until the keeper found the broken gear and mended it."
)

Progress = Callable[[str], None]


@dataclass
class Report:
    """What an export did: seconds per stage, parity per method, bytes per file. Written beside the bundle's manifest as JSON."""

    seconds: dict[str, float] = field(default_factory=dict)
    parity: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)


def export_executorch(plan: ExportPlan, progress: Progress = lambda _: None) -> Report:
    """Write the bundle of `plan`, atomically.

    Raises:
        CheckpointError, BundleError, LoweringError, ParityError: one sentence each; nothing is left behind.
    """
    report = Report()
    clock = _Clock(report.seconds)
    with torch.inference_mode(), BundleWriter(plan.output_dir, overwrite=plan.overwrite) as writer:
        progress("loading the model")
        model = load_stream_fused(load_base(plan.model), plan.adapter)
        if plan.num_streams is not None:
            model.keep_streams(plan.num_streams)
        weights = Weights(model, plan.shapes).eval()
        methods = build_methods(weights)
        spec = model_spec(model.base.config, model, plan)
        text = (
            Tokenizer.from_file(str(plan.model / "tokenizer.json")).encode(_SELFTEST_TEXT).ids[: plan.max_context_len]
        )
        trees = selftest.script_trees(spec, text)
        clock("load")
        progress("running the float32 reference")
        exact = selftest.run_script(_reference(methods, spec, weights), text, trees)
        clock("reference")
        quantization = _float_parts()
        expected, floor = exact, selftest.FLOORS[plan.quantize.value]
        if plan.quantize is Quantize.INT4:
            progress("quantizing")
            quantization = quantize_weights(weights, plan.group_size)
            methods = build_methods(weights)
            expected = selftest.run_script(_reference(methods, spec, weights), text, trees)
            report.parity["quantized_in_pytorch"] = selftest.compare(expected, exact)
            selftest.check(report.parity["quantized_in_pytorch"], floor)
            clock("quantize")
        constants = constant_methods(model.base.config, plan, model.streams_config.num_streams)
        program = lower_methods(weights, methods, constants, progress)
        with (writer.folder / "model.pte").open("wb") as file:
            program.write_to_file(file)
        del program
        clock("lower")
        progress("checking parity")
        with ExecuTorchBackend(writer.folder / "model.pte", spec) as backend:
            emitted = selftest.run_script(backend, text, trees)
        report.parity["emitted"] = selftest.compare(emitted, exact)
        selftest.check(report.parity["emitted"], floor)
        clock("parity")
        progress("writing the bundle")
        np.savez(writer.folder / "selftest.npz", **selftest.to_arrays(text, trees, expected))
        _write_draft(model, writer.folder / "draft.npz")
        _write_text_files(plan, writer.folder)
        report.bytes = {path.name: path.stat().st_size for path in sorted(writer.folder.iterdir())}
        clock("write")
        (writer.folder / "export_report.json").write_text(json.dumps(vars(report), indent=2) + "\n")
        writer.write_manifest(
            exporter_version=__version__,
            target="executorch",
            backend="xnnpack",
            operators=list(OPERATORS),
            model=_model_facts(plan, model),
            methods={name: _method_facts(method, weights) for name, method in methods.items()},
            speculation=_speculation_facts(plan, model),
            cache={"layout": "position_head_dim", "capacity": plan.max_context_len, "dtype": "float32"},
            quantization=quantization,
            sampling_defaults={"temperature": 0.0, "max_new_tokens": 128},
            parity={
                name: {"floor": floor.name, "metrics": row}
                for name, row in report.parity["emitted"].items()
                if name in methods
            },
        )
    return report


class _Clock:
    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds, self.last = seconds, time.perf_counter()

    def __call__(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage], self.last = round(now - self.last, 2), now


def model_spec(config: ModelConfig, model: StreamFused, plan: ExportPlan) -> ModelSpec:
    """The facts that the loop needs, as the bundle will say them."""
    return ModelSpec(
        capacity=plan.max_context_len,
        vocab_size=config.vocab_size,
        num_streams=model.streams_config.num_streams,
        top_k=plan.top_k,
        prefill_rows=plan.prefill_len,
        widths={f"verify_{rows}": (rows, keep) for rows, keep in plan.shapes.widths},
        eos_token_ids=config.eos_token_ids,
        default_width=plan.default_width,
    )


def constant_methods(config: ModelConfig, plan: ExportPlan, num_streams: int) -> dict[str, Any]:
    """Constant methods by the names that ExecuTorch's runners and their peers use."""
    return {
        "get_max_seq_len": plan.prefill_len,
        "get_max_context_len": plan.max_context_len,
        "get_vocab_size": config.vocab_size,
        "get_bos_id": -1 if config.bos_token_id is None else config.bos_token_id,
        "get_eos_ids": list(config.eos_token_ids),
        "get_n_layers": config.num_layers,
        "get_n_kv_heads": config.num_kv_heads,
        "get_head_dim": config.head_dim,
        "use_kv_cache": True,
        "use_sdpa_with_kv_cache": False,
        "enable_dynamic_shape": False,
        "get_ar_len": 1,
        "get_prefill_chunk_size": plan.prefill_len,
        "get_num_streams": num_streams,
        "get_max_tree_nodes": max(plan.widths),
        "get_format_version": FORMAT_VERSION,
    }


def _reference(methods: dict[str, Method], spec: ModelSpec, weights: Weights) -> ReferenceBackend:
    c, layers = weights.config, weights.config.num_layers
    return ReferenceBackend(methods, spec, layers, weights.streams_config.num_msa_layers, c.num_kv_heads, c.head_dim)


def _float_parts() -> dict[str, dict[str, object]]:
    plain: dict[str, object] = {"scheme": "float32", "bits": 32, "group_size": None, "symmetric": None}
    return {part: dict(plain) for part in ("embedding", "attention", "mlp", "head", "streams")}


def _write_draft(model: StreamFused, path: Path) -> None:
    vocab, rank = model.stream_vocab, model.streams_config.parent_rank
    left = torch.zeros(model.base.config.vocab_size, 0)
    right, gate = torch.zeros(len(vocab), 0), torch.zeros(model.streams_config.num_streams, 0)
    if rank:
        left = model.parent.left_rows(model.base.embed_tokens.weight)
        right, gate = model.parent.right_rows(model.head_rows()), model.parent.gate
    np.savez(
        path,
        parent_left=left.to(torch.float16).numpy(),
        parent_right=right.to(torch.float16).numpy(),
        gate=gate.to(torch.float32).numpy(),
        stream_vocab=vocab.to(torch.int32).numpy(),
    )


def _write_text_files(plan: ExportPlan, folder: Path) -> None:
    (folder / "tokenizer.json").write_bytes((plan.model / "tokenizer.json").read_bytes())


def _model_facts(plan: ExportPlan, model: StreamFused) -> dict[str, Any]:
    config = model.base.config
    source = _json(plan.model / "source.json")
    tokenizer = _json(plan.model / "tokenizer_config.json")
    where = source.get("kind", "local folder")
    if "sha256" in source:
        where = f"{where}: {source.get('file', '')} sha256 {source['sha256']}"
    elif "revision" in source:
        where = f"{where}: revision {source['revision']}"
    return {
        "name": str(source.get("model") or source.get("name") or plan.model.name),
        "architecture": config.architecture,
        "source": where,
        "license": source.get("license"),
        "num_layers": config.num_layers,
        "num_heads": config.num_heads,
        "num_kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "parameters": sum(p.numel() for p in model.base.parameters()),
        "bos_token_id": config.bos_token_id,
        "eos_token_ids": list(config.eos_token_ids),
        "chat_template": tokenizer.get("chat_template"),
    }


def _json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text())) if path.is_file() else {}


def _speculation_facts(plan: ExportPlan, model: StreamFused) -> dict[str, Any]:
    config = model.streams_config
    return {
        "num_streams": config.num_streams,
        "top_k": plan.top_k,
        "num_msa_layers": config.num_msa_layers,
        "prune_layer": model.num_lower_layers if any(keep < rows for rows, keep in plan.shapes.widths) else None,
        "stream_vocab_size": len(model.stream_vocab),
        "parent_rank": config.parent_rank,
        "adapter": plan.adapter.stem,
        "extra_parameters": sum(p.numel() for p in model.extra_parameters()),
        "default_width": plan.default_width,
    }


def _method_facts(method: Method, weights: Weights) -> dict[str, Any]:
    """Input and output tensors of a method, in call order, as docs/contracts.md names them."""
    c, streams, k = weights.config, weights.streams_config.num_streams, weights.shapes.top_k
    names = ["input_ids", "position_ids", "ancestors", "cache_length"]
    names += [f"{kind}_cache_{i}" for i in range(c.num_layers) for kind in ("key", "value")]
    inputs = [
        {"name": name, "dtype": str(t.dtype).removeprefix("torch."), "shape": list(t.shape)}
        for name, t in zip(names, example_inputs(weights, method.rows), strict=True)
    ]
    keep = method.keep
    outputs: list[dict[str, Any]] = []
    if method.has_logits:
        outputs.append({"name": "logits", "dtype": "float32", "shape": [keep or method.rows, c.vocab_size]})
    if keep is not None:
        outputs.append({"name": "kept", "dtype": "int64", "shape": [keep]})
        outputs.append({"name": "stream_ids", "dtype": "int64", "shape": [keep, streams, k]})
        outputs.append({"name": "stream_log_probs", "dtype": "float32", "shape": [keep, streams, k]})
    for i in range(c.num_layers):
        rows = keep if keep is not None and i >= weights.num_lower_layers else method.rows
        shape = [rows, c.num_kv_heads, c.head_dim]
        outputs += [{"name": f"new_{kind}_{i}", "dtype": "float32", "shape": shape} for kind in ("key", "value")]
    return {"rows": method.rows, "keep": keep, "inputs": inputs, "outputs": outputs}


def adapter_summary(path: Path) -> str:
    """One line about an adapter file, for `--dry-run`."""
    config, state, facts = read_adapter(path)
    size = sum(t.numel() for name, t in state.items() if name != "stream_vocab")
    return f"{path.stem}: {config.num_streams} streams in the top {config.num_msa_layers} layers, {size:,} parameters, trained {facts.get('steps', '?')} steps"
