"""What an export loads: a target's own packages and no other target's.

Run: python -m pytest tests/export/test_export_targets.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
from export_samples import tiny_model, write_checkpoint
from tiers import cases

_EXPORT = """
import sys
from pathlib import Path
from export_samples import config_for
from streamfuse.export.config import ExportConfig
from streamfuse.export.pipeline import run_export
from streamfuse.export.resolve import resolve

model, adapter, folder, *backends = sys.argv[1:]
for backend in backends:
    out, one_width = Path(folder) / backend, {"widths": (4,), "default_width": 4}
    if backend == "kernels":
        streams = {"prune_keep": 4, "schedule": "deferred"}
        plan = config_for((Path(model), Path(adapter)), out, backend=backend, **one_width, **streams)
    else:  # XNNPACK takes seconds for each method, so there are no streams
        sizes = {"max_context_len": 32, "prefill_len": 4}
        plan = resolve(ExportConfig(Path(model), None, out, backend=backend, **one_width, **sizes))
    run_export(plan)
    print(*sys.modules)
"""
XNNPACK = {"executorch.backends.xnnpack", "streamfuse.export.executorch.xnnpack"}
OTHERS = {"coremltools", "onnx", "onnxruntime", "openvino", "executorch.backends.vulkan", "executorch.backends.apple"}
# After each export, by one process. That of XNNPACK, which takes seconds for each method, repeats what the other tests.
LOADED: dict[str, set[str]] = {"kernels": set(), **({"xnnpack": XNNPACK} if cases(0, 1) else {})}


def test_an_export_loads_the_packages_of_its_own_target_alone(tmp_path: Path) -> None:
    torch.manual_seed(0)
    one_layer = {"num_hidden_layers": 1}
    checkpoint = write_checkpoint(tmp_path / "checkpoint", tiny_model({"num_msa_layers": 1}, **one_layer), **one_layer)
    command = [sys.executable, "-c", _EXPORT, *map(str, checkpoint), str(tmp_path / "bundles"), *LOADED]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ":".join(sys.path)})
    assert done.returncode == 0, done.stderr
    for (backend, loaded), modules in zip(LOADED.items(), done.stdout.splitlines(), strict=True):
        assert (tmp_path / "bundles" / backend / "model.pte").is_file()
        assert set(modules.split()) & (XNNPACK | OTHERS) == loaded
