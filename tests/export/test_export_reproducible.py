"""Graphs and tables of the same inputs have the same bytes, whatever the order of sets and the number of threads.

Run: python -m pytest --slow tests/export/test_export_reproducible.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from export_samples import tiny_model, write_checkpoint
from pages import ROOT

from streamfuse.bundle import open_bundle

for module, extra in (("onnxruntime", "onnx"), ("coremltools", "coreml")):
    pytest.importorskip(module, reason=f"{module} is not installed: pip install 'streamfuse[{extra}]'")
pytestmark = pytest.mark.slow

FORMS = {
    "kernels": {},
    "xnnpack": {"backend": "xnnpack", "quantize": "none"},
    "onnx": {"target": "onnx"},
    "coreml": {"target": "coreml"},
}
EXPORT = f"""
import sys
from pathlib import Path
from export_samples import config_for
from streamfuse.export import selftest
from streamfuse.export.pipeline import run_export
selftest.WALK_TOKENS = 32  # sooner compared with PyTorch, on which no byte of a graph or table depends
checkpoint, adapter, folder = map(Path, sys.argv[1:4])
for name in sys.argv[4:]:
    form = {FORMS!r}[name]
    run_export(config_for((checkpoint, adapter), folder / name, schedule="deferred", widths=(12,), **form))
"""


# Times and parity as they were measured; PyTorch's float32 results, whose last bit depends on the number of threads.
MEASURED = {"export_report.json", "selftest.npz"}


def hashes(folder: Path) -> dict[str, str]:
    """The files of a bundle by name, without those of `MEASURED`."""
    files = open_bundle(folder).manifest.files
    return {name: facts.sha256 for name, facts in files.items() if name not in MEASURED}


@pytest.mark.parametrize(
    "forms",
    [
        ("kernels", "onnx", "coreml"),
        # XNNPACK's programs are made by the same export and the same serialization as the kernels'.
        pytest.param(("xnnpack",), marks=pytest.mark.full),
    ],
    ids=" ".join,
)
def test_a_bundle_depends_on_its_inputs_alone(forms: tuple[str, ...], tmp_path: Path) -> None:
    torch.manual_seed(1)
    fewer = {"num_hidden_layers": 1}  # sooner exported
    checkpoint = write_checkpoint(tmp_path / "checkpoint", tiny_model({"num_msa_layers": 1}, **fewer), **fewer)
    helpers = os.pathsep.join([str(ROOT / "tests" / "helpers"), *filter(None, [os.environ.get("PYTHONPATH")])])
    for number in ("1", "2"):
        environment = {**os.environ, "PYTHONPATH": helpers, "PYTHONHASHSEED": number, "OMP_NUM_THREADS": number}
        command = [sys.executable, "-c", EXPORT, *map(str, checkpoint), str(tmp_path / number), *forms]
        subprocess.run(command, env=environment, check=True)
    for name in forms:
        first, second = (hashes(tmp_path / number / name) for number in ("1", "2"))
        assert {file for file in first.keys() | second.keys() if first.get(file) != second.get(file)} == set(), name
