"""The wheel, built from the source distribution: it carries the engine, and that runs from where it is installed.

Run: pytest tests/end_to_end/test_wheel.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from export_samples import TEXT
from native_samples import said_by

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow

GENERATE = """
import json, sys
from pathlib import Path
import streamfuse
from streamfuse.kernels.library import find_library
assert Path(streamfuse.__file__).is_relative_to(sys.argv[1]), streamfuse.__file__
assert find_library().is_relative_to(sys.argv[1]), find_library()
import numpy as np
from streamfuse.runtime.backends.executorch import ExecuTorchBackend
with ExecuTorchBackend(Path(sys.argv[2])) as backend:
    tokens = json.loads(sys.argv[3])
    for at in range(12):
        out = backend.run("decode", np.array([tokens[at]]), np.array([at]), np.ones((1, 1), bool))
        backend.commit([0])
        if at + 1 == len(tokens):
            tokens.append(int(out.best[0]))
print(*tokens)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    backend = f"from setuptools.build_meta import build_sdist; build_sdist({str(folder)!r})"
    subprocess.run([sys.executable, "-c", backend], cwd=ROOT, check=True, capture_output=True)
    (source,) = folder.glob("*.tar.gz")
    said_by([*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source])
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_is_of_this_platform_and_holds_every_package(wheel: Path) -> None:
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert wheel.stem.endswith(f"-py3-none-{platform}")
    names = set(zipfile.ZipFile(wheel).namelist())
    packages = {str(path.parent.relative_to(ROOT / "src")) for path in source_packages()}
    assert {f"{package}/__init__.py" for package in packages} <= names
    assert any(name.startswith("streamfuse/kernels/lib/libstreamfuse_engine.") for name in names)
    assert "streamfuse/adapters/chat-lossless.safetensors" in names


def source_packages() -> list[Path]:
    found = []
    for folder, _, files in os.walk(ROOT / "src" / "streamfuse", followlinks=True):
        if "__init__.py" in files and Path(folder).name != "arm":
            found.append(Path(folder) / "__init__.py")
    return found


def test_an_installed_wheel_runs_its_own_engine(wheel: Path, tiny_graph: Path, tmp_path: Path) -> None:
    place = tmp_path / "site"
    said_by([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", place, wheel])
    environment = {"PYTHONPATH": str(place), "STREAMFUSE_ENGINE": ""}
    command = (
        [sys.executable, "-P", "-c", GENERATE] if sys.version_info >= (3, 11) else [sys.executable, "-c", GENERATE]
    )
    said = said_by([*command, str(place), str(tiny_graph), str(TEXT[:6])], **environment)
    assert len(said.split()) == 13
