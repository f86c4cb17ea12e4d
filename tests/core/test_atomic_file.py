"""Files that the core replaces are on the disk before they get their names.

Run: pytest tests/core/test_atomic_file.py
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT

COMPILER = shutil.which(os.environ.get("CXX", "c++"))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems flush by other calls")
@pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler to build the test with")
def test_a_file_is_flushed_then_renamed_then_its_folder_is_flushed(tmp_path: Path) -> None:
    assert COMPILER is not None
    program, core = tmp_path / "test_atomic_file", ROOT / "core"
    sources = [str(core / name) for name in ("tests/test_atomic_file.cpp", "atomic_file.cpp", "file_paths.cpp")]
    subprocess.run([COMPILER, "-std=c++20", *sources, "-o", str(program)], check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
