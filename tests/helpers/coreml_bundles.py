"""Tiny models as Core ML bundles, each of another kind, made once per test session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from export_samples import config_for, tiny_model, write_checkpoint

from streamfuse.bundle import Bundle, open_bundle
from streamfuse.emulator import CoreMLEmulator
from streamfuse.export.coreml import ane
from streamfuse.export.pipeline import run_export
from streamfuse.runtime.backends.coreml import open_package
from streamfuse.runtime.backends.coreml_common import CoreMLBackend

# Between them: both layouts, both float types, all widths of weights, both schedules, heads in one piece and in three.
KINDS: dict[str, dict[str, Any]] = {
    "plain-float16-int4": {"widths": (4, 12), "default_width": 4},
    "plain-float32": {"dtype": "float32", "quantize": "none", "schedule": "fused"},
    "ane-float16-int8": {"layout": "ane", "quantize": "int8"},
    "ane-float32": {"layout": "ane", "dtype": "float32", "quantize": "none", "prune_keep": 12},
}
PLAN: dict[str, Any] = {"target": "coreml", "widths": (12,), "schedule": "deferred"}
# Not of KINDS: a longer context, and layers whose caches are ring buffers of 288 positions.
RINGS = "ane-float16-rings"
RINGS_PLAN: dict[str, Any] = {"layout": "ane", "quantize": "int8", "max_context_len": 352, "prefill_len": 32}
RINGS_MODEL: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"],
    "head_dim": 16,
    "sliding_window": 7,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "max_position_embeddings": 352,
}
# Convolutions, whose caches are such rings with more heads, below and in the top layers.
CONVOLUTIONS = "plain-float16-convolutions"
CONVOLUTIONS_PLAN: dict[str, Any] = {"quantize": "int8", "max_context_len": 352, "prefill_len": 32}
CONVOLUTIONS_MODEL: dict[str, Any] = {
    "architectures": ["Lfm2ForCausalLM"],
    "num_key_value_heads": 1,
    "layer_types": ["conv", "full_attention", "conv"],
    "block_auto_adjust_ff_dim": False,
    "max_position_embeddings": 352,
}
# Not of KINDS either: gate and up of an MLP are each wider than CHUNK, which is no multiple of a scale's group.
WIDE = "ane-float16-wide"
WIDE_PLAN: dict[str, Any] = {"layout": "ane", "widths": (4,), "default_width": 4}
WIDE_MODEL: dict[str, Any] = {"intermediate_size": 224}
OTHERS = {
    RINGS: (RINGS_PLAN, RINGS_MODEL),
    CONVOLUTIONS: (CONVOLUTIONS_PLAN, CONVOLUTIONS_MODEL),
    WIDE: (WIDE_PLAN, WIDE_MODEL),
}
CHUNK = 100  # the widest dimension of the layout `ane` here: the vocabulary of 258 tokens is in three pieces


class Made:
    """A bundle, its model and its package."""

    def __init__(self, kind: str, folder: Path) -> None:
        torch.manual_seed(1)
        plan, sizes = OTHERS.get(kind) or (KINDS[kind], {})
        rotated = {"value_rotation": 0.3} if kind == "ane-float16-int8" else None
        self.kind, self.model = kind, tiny_model(rotated, **sizes)
        checkpoint = write_checkpoint(folder / "checkpoint", self.model, **sizes)
        self.config = config_for(checkpoint, folder / kind, **{**PLAN, **plan})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ane, "WIDEST", CHUNK)
            self.report = run_export(self.config)
        self.bundle: Bundle = open_bundle(folder / kind)
        self.package = CoreMLEmulator(self.bundle.graph)
        self.channels, self.half = kind.startswith("ane"), "float16" in kind

    def backend(self) -> CoreMLBackend:
        return open_package(self.bundle.graph, self.bundle.spec())

    @property
    def weights_file(self) -> Path:
        return self.bundle.graph / "Data/com.apple.CoreML/weights/weight.bin"
