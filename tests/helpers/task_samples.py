"""A bundle with two task adapters, of a tiny model with random weights, for tests in other languages.

Run: PYTHONPATH=src:tests/helpers python tests/helpers/task_samples.py FOLDER
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from bundle_samples import CHAT_TEMPLATE, edit_manifest
from export_samples import STREAM_VOCAB, STREAMS, config_for, tiny_model, write_checkpoint
from tiny import fused

from streamfuse.export.pipeline import run_export
from streamfuse.model.checkpoint import save_adapter
from streamfuse.model.config import StreamConfig

# A tuned model with streams of its own, and one without streams.
TASKS: dict[str, dict[str, Any]] = {
    "tuned": {**STREAMS, "base_rank": 2, "base_layers": 2, "next_token_rank": 2},
    "lora": asdict(StreamConfig.without(base_rank=2, base_layers=1)),
}


def write_task_bundle(path: Path, names: Iterable[str] = TASKS, **changes: Any) -> None:
    """Exports a bundle to the new folder `path`; each task has a chat template of its own too. `changes` are of the
    plan."""
    torch.manual_seed(7)
    model = tiny_model()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        checkpoint = write_checkpoint(folder / "checkpoint", model)
        tasks = {task: folder / f"{task}.safetensors" for task in names}
        for task, file in tasks.items():
            settings = TASKS[task]
            adapter = fused(model.base, STREAM_VOCAB if settings["num_streams"] else STREAM_VOCAB[:0], **settings)
            template = CHAT_TEMPLATE.replace("assistant", task)
            save_adapter(adapter, file, {"chat_template": template})
        plan = {"schedule": "deferred", "widths": (4,), "default_width": 4, **changes}
        run_export(config_for(checkpoint, path, task=tasks, **plan), lambda word: None)
    edit_manifest(path, lambda manifest: manifest["model"].update(chat_template=CHAT_TEMPLATE))


if __name__ == "__main__":
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    write_task_bundle(Path(sys.argv[1]))
