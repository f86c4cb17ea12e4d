"""What the tests of the native programs share: a tiny bundle, and running a built program."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from bundle_samples import CHAT_TEMPLATE, edit_manifest
from export_samples import config_for, tiny_model, write_checkpoint

from streamfuse.export.pipeline import run_export

WIDTHS = (4, 12)  # verify methods of the tiny bundle; the second prunes


LINEAR_ATTENTION: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "head_dim": 32,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}


def tiny_bundle(folder: Path, model: dict[str, Any] | None = None, **changes: Any) -> Path:
    """Export a small model with random weights, all methods; returns the bundle. `model` are settings of its
    config.json, `changes` of the plan."""
    torch.manual_seed(1)
    room = {**(model or {}), "max_position_embeddings": max(128, changes.get("max_context_len", 0))}
    checkpoint = write_checkpoint(folder / "checkpoint", tiny_model(**room), **room)
    config = config_for(checkpoint, folder / "bundle", **changes)
    run_export(config, lambda word: None)
    return config.output_dir


def tiny_chat_bundle(folder: Path, tiny: Path) -> Path:
    """A copy of the tiny bundle, with a chat template."""

    def add_template(manifest: dict[str, Any]) -> None:
        manifest["model"]["chat_template"] = CHAT_TEMPLATE

    bundle = shutil.copytree(tiny, folder / "bundle")
    edit_manifest(bundle, add_template)
    return bundle


def output_of(command: Sequence[str | Path], **environment: str) -> str:
    """What a program prints; it must end well."""
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
