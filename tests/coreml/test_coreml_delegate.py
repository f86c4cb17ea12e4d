"""A bundle of `--backend coreml` through the native engine, with a delegate that runs each pass by the emulator.

On Apple's systems ExecuTorch's own delegate is in that place.

Run: pytest tests/coreml/test_coreml_delegate.py. Needs a C++ compiler, Linux and build/native.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import coreml_delegate
import pytest
import torch
from export_samples import config_for, tiny_model, write_checkpoint

from streamfuse.export.pipeline import run_export
from streamfuse.export.selftest import FLOORS

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="on a Mac the engine has the delegate itself")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the program with the delegate says of a bundle that prunes and computes streams in a pass of their own."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("delegate")
    checkpoint = write_checkpoint(folder / "checkpoint", tiny_model())
    changes: dict[str, Any] = {
        "backend": "coreml",
        "quantize": "int4",
        "schedule": "deferred",
        "dtype": "float32",
    }
    run_export(config_for(checkpoint, folder / "bundle", widths=(12,), default_width=12, prune_keep=4, **changes))
    command = [sys.executable, coreml_delegate.__file__, str(folder / "bundle"), str(folder)]
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_engine_gives_every_pass_to_the_delegate(report: dict[str, Any]) -> None:
    assert report["functions"] == ["decode", "prefill", "streams", "verify_12"]
    assert set(report["snr_db"]) == {"decode", "verify_12"}
    assert min(report["snr_db"].values()) >= FLOORS["float32"].snr_db


def test_speculation_through_the_delegate_changes_no_token(report: dict[str, Any]) -> None:
    plain, speculative = report["texts"]["plain"], report["texts"]["speculative"]
    assert len(plain["tokens"]) == coreml_delegate.TOKENS
    assert speculative["tokens"] == plain["tokens"]
    assert speculative["accepted"] > 0
    assert len(set(plain["tokens"])) > 5
