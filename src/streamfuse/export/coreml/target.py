"""The target Core ML: one multifunction package, model.mlpackage. See docs/targets.md."""

from __future__ import annotations

import json
from typing import Any

import coremltools as ct
import torch

from streamfuse import __version__
from streamfuse.bundle.manifest import FORMAT_VERSION
from streamfuse.runtime.backend import DECODE, Backend
from streamfuse.runtime.backends.coreml import open_package

from .. import facts, selftest
from ..graphs import Method, Weights, build_methods
from ..schemes import PARTS, Part
from ..sizes import part_facts, sizes_of
from ..target import Target, TargetFacts
from . import convert, plain, report
from .graphs import Graph, MaskedWeights
from .stored import Store, Stored

PACKAGE = "model.mlpackage"

DESCRIPTIONS = {
    "input_ids": "token per row; padding rows hold 0",
    "position_ids": "absolute position per row; padding rows hold 0",
    "mask": "0 where a row sees a position, else -10000; cached positions first, then rows; added to attention scores",
    "cache_length": "tokens of the sequence in the caches, where the model has sliding windows or convolutions",
    "key_cache": "keys of this layer, after rotary embedding, or the first half of the channels that its convolution "
    "reads; the host writes accepted rows into it",
    "value_cache": "values of this layer, or the other half of these channels; the host writes accepted rows into it",
    "hidden": "state below the top layers, of each surviving node (output) or of the last accepted one (input)",
    "next_token": "the token after the node of the hidden state, which its streams are told",
    "logits": "scores of the next token per surviving node, over the vocabulary or one chunk of it",
    "best": "most probable next token of each surviving node",
    "kept": "rows that survive the pruner, padding last",
    "stream_ids": "candidates of each stream, best first",
    "stream_log_probs": "their natural log-probabilities under the stream's own softmax",
    "new_key": "keys of the pass's rows in this layer, for the host to commit",
    "new_value": "values of the pass's rows in this layer, for the host to commit",
}


class CoreMLTarget(Target):
    def prepare(self) -> None:
        self.floor, self.store = selftest.FLOORS[self.config.dtype], Store(self.config)

    def quantize(self) -> dict[str, Method] | None:
        return build_methods(Weights(self.model, self.config.shapes, plain.Form(self.store)).eval())

    def lower(self) -> None:
        with torch.inference_mode(False), torch.no_grad():
            weights = MaskedWeights(self.model, self.config, self.store).eval()
            self.graphs, self.cache_positions, programs = weights.graphs(), weights.cache_positions, {}
            for name, graph in self.graphs.items():
                self.progress(f"converting {name}")
                programs[name] = convert.to_program(graph, self.config.minimum_deployment_target)
            merged = convert.merge(programs, DECODE)
            target = self.config.minimum_deployment_target
            convert.save(merged, self.folder / PACKAGE, target, DESCRIPTIONS, self._metadata())
            self.report = report.describe(self.folder / PACKAGE, self.config.layout == "ane")

    def open(self) -> Backend:
        return open_package(self.folder / PACKAGE, self.spec, self.config.compute_units)

    def facts(self) -> TargetFacts:
        channels = self.config.layout == "ane"
        weights_file = self.folder / PACKAGE / "Data/com.apple.CoreML/weights/weight.bin"
        return TargetFacts(
            backend=self.config.backend,
            kernels=False,
            required_operators=[],
            methods={name: _facts(graph) for name, graph in self.graphs.items()},
            cache_dtype=self.config.dtype,
            cache_layout="channels_position" if channels else "position_head_dim",
            quantization={part: self._part(part) for part in PARTS},
            report={
                "compute_units": self.config.compute_units,
                "minimum_deployment_target": self.config.minimum_deployment_target,
                "layout": self.config.layout,
                "coremltools": ct.__version__,
                "weights_bytes": weights_file.stat().st_size,
                "grid": {part: found.to_dict() for part, found in self.store.grid.items()},
                **self.report,
            },
        )

    def _part(self, part: Part) -> dict[str, Any]:
        """A tied head that is stored as the embedding has no bytes of its own."""
        size = sum(stored.size_bytes for stored in self._stored() if stored.part == part)
        parameters = sizes_of(self.model, self.config)[part].parameters
        return {**part_facts(self.config.part_scheme(part)), "parameters": parameters, "bytes": size}

    def _stored(self) -> list[Stored]:
        """The weights of all graphs, each once."""
        owners = (module for graph in self.graphs.values() for module in graph.modules() if hasattr(module, "weight"))
        found = {id(s): s for owner in owners if isinstance(s := getattr(owner, "stored", None), Stored)}
        return list(found.values())

    def _metadata(self) -> dict[str, str]:
        """The package's metadata; the keys `streamfuse.*` are sufficient to run it (docs/targets.md)."""
        config, spec, base = self.config, self.spec, self.model.base.config
        model, speculation = facts.model_facts(config, self.model), facts.speculation_facts(config, self.model)
        own = {
            "format_version": FORMAT_VERSION,
            "exporter_version": __version__,
            "methods": list(self.graphs),
            "widths": spec.widths,
            "schedule": speculation["schedule"],
            "layout": config.layout,
            "dtype": config.dtype,
            "compute_units": config.compute_units,
            "minimum_deployment_target": config.minimum_deployment_target,
            "schemes": {part: config.part_scheme(part).name for part in PARTS},
            "adapter": speculation["adapter"] or "none",
            "source": model["source"],
            "capacity": spec.capacity,
            "prefill_rows": spec.prefill_rows,
            "eos_token_ids": spec.eos_token_ids,
            **{key: model[key] for key in ("vocab_size", "num_layers", "head_dim")},
            "kv_heads": [base.kv_heads_of(layer) for layer in range(base.num_layers)],
            **{key: speculation[key] for key in ("num_streams", "top_k", "num_msa_layers")},
            "next_token": bool(self.model.streams_config.next_token_rank),
        }
        if base.longest_window is not None:
            own |= {"sliding_window": base.longest_window, "cache_positions": self.cache_positions}
        return {
            "author": "streamfuse",
            "license": model["license"] or "unknown: that of the base model",
            "version": __version__,
            "short_description": f"{model['name']} with {spec.num_streams or 'no'} speculative streams, "
            "for streamfuse's loop.",
            **{f"streamfuse.{key}": v if isinstance(v, str) else json.dumps(v) for key, v in own.items()},
        }


def _facts(graph: Graph) -> dict[str, Any]:
    return {name: getattr(graph, name) for name in ("rows", "keep", "stream_nodes", "inputs", "outputs")}
