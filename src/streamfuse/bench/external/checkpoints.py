"""A checkpoint folder with an adapter's changes of the base merged, for external systems that read such folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

_COPIED = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json",
    "chat_template.jinja", "chat_template.json",
)  # fmt: skip

_INTEGERS = "quantization_config"  # of a checkpoint with integers; the merged weights are floats


def write_merged(checkpoint: Path, adapter: Path, folder: Path) -> None:
    """Write the folder. CheckpointError where the checkpoint or the adapter cannot be used."""
    from safetensors.torch import save_file

    from streamfuse.model.checkpoint import load_base, load_stream_fused
    from streamfuse.model.families import to_checkpoint
    from streamfuse.model.fields import read_object
    from streamfuse.model.text_part import text_config

    base = load_base(checkpoint)
    state = to_checkpoint(load_stream_fused(base, adapter).base.state_dict(), base.config)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    source = checkpoint / "config.json"
    whole = text_config(read_object(source), str(source))
    config = {name: value for name, value in whole.items() if name != _INTEGERS}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for name in _COPIED:
        if (checkpoint / name).is_file():
            shutil.copyfile(checkpoint / name, folder / name)
