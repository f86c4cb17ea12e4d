"""What an export loads: a target's own packages and no other target's.

Run: python -m pytest tests/export/test_export_targets.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from export_samples import tiny_model, write_checkpoint

_EXPORT = """
import sys
from pathlib import Path
from export_samples import config_for
from streamfuse.export.pipeline import run_export

model, adapter, folder, backend = sys.argv[1:]
one_width = {"widths": (4,), "default_width": 4, "prune_keep": 4, "schedule": "deferred"}
run_export(config_for((Path(model), Path(adapter)), Path(folder), backend=backend, **one_width))
print(*sys.modules)
"""
XNNPACK = {"executorch.backends.xnnpack", "streamfuse.export.executorch.xnnpack"}
OTHERS = {"coremltools", "onnx", "onnxruntime", "openvino", "executorch.backends.vulkan", "executorch.backends.apple"}


@pytest.mark.parametrize(("backend", "loaded"), [("kernels", set()), ("xnnpack", XNNPACK)])
def test_an_export_loads_the_packages_of_its_own_target_alone(backend: str, loaded: set[str], tmp_path: Path) -> None:
    torch.manual_seed(0)
    one_layer = {"num_hidden_layers": 1}
    checkpoint = write_checkpoint(tmp_path / "checkpoint", tiny_model({"num_msa_layers": 1}, **one_layer), **one_layer)
    command = [sys.executable, "-c", _EXPORT, *map(str, checkpoint), str(tmp_path / "bundle"), backend]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ":".join(sys.path)})
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "bundle" / "model.pte").is_file()
    assert set(done.stdout.split()) & (XNNPACK | OTHERS) == loaded
