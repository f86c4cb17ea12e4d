"""The wheel, built from the source distribution: it carries the engine and what that needs, and runs bundles by itself.

Run: pytest --slow tests/end_to_end/test_wheel.py
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from export_samples import TEXT, config_for, tiny_model, write_checkpoint
from native_samples import output_of
from typer.testing import CliRunner

from streamfuse.cli import app
from streamfuse.export.pipeline import run_export
from streamfuse.native.cargo import CRATE, cargo_build, default_target_dir
from streamfuse.native.library import QUANTIZED_KERNELS, RUNTIME_LIBRARIES, VERSION_FILE, file_name

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow

GENERATE = """
import json, sys
from collections import Counter
from pathlib import Path
import streamfuse
from streamfuse.native.library import find_core, find_library, find_text
assert Path(streamfuse.__file__).is_relative_to(sys.argv[1]), streamfuse.__file__
assert find_library().is_relative_to(sys.argv[1]), find_library()
assert find_core().parent == find_text().parent == find_library().parent, find_core()
import numpy as np
from streamfuse.runtime.backends.executorch import ExecuTorchBackend

def engine():
    with ExecuTorchBackend(Path(sys.argv[2])) as backend:
        tokens = json.loads(sys.argv[3])
        for at in range(12):
            out = backend.run("decode", np.array([tokens[at]]), np.array([at]), np.ones((1, 1), bool))
            backend.commit([0])
            if at + 1 == len(tokens):
                tokens.append(int(out.best[0]))
    print(*tokens)

def bindings():
    import executorch.extension.pybindings.portable_lib
    import executorch.kernels.quantized

for part in sys.argv[4:]:
    {"engine": engine, "bindings": bindings}[part]()
maps = Path("/proc/self/maps")  # Linux
lines = maps.read_text().splitlines() if maps.exists() else []
mapped = {Path(line.split()[-1]) for line in lines if "libexecutorch" in line}
assert set(Counter(path.name for path in mapped).values()) <= {1}, mapped
print(*{path.parent for path in mapped if path.stem == "libexecutorch"})
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    # From a copy without what is installed and built here, among which setuptools would look for files of the package.
    names = (".venv", "build", ".build", "target", "dist", ".git", "__pycache__", ".*_cache", "*.egg-info")
    clone = shutil.copytree(ROOT, folder / "clone", symlinks=True, ignore=shutil.ignore_patterns(*names))
    backend = f"from setuptools.build_meta import build_sdist; build_sdist({str(folder)!r})"
    subprocess.run([sys.executable, "-c", backend], cwd=clone, check=True, capture_output=True)
    return next(folder.glob("*.tar.gz"))


@pytest.fixture(
    scope="module",
    # cargo compiles a crate in another folder anew, for a minute.
    params=["text/ as it is built", pytest.param("text/ of the source", marks=pytest.mark.full)],
)
def wheel(request: pytest.FixtureRequest, source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    # Not optimized, in a third of the time: other tests run the same code as it ships, and the results are equal.
    compiler = folder / "c++"
    compiler.write_text(f'#!/bin/sh\nexec {os.environ.get("CXX", "c++")} "$@" -O0\n')
    compiler.chmod(0o755)
    crates = default_target_dir()  # where those of text/ are compiled already
    built = str(cargo_build(crates, quiet=True)) if request.param == "text/ as it is built" else ""
    command = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source]
    output_of(command, CARGO_TARGET_DIR=str(crates), CXX=str(compiler), STREAMFUSE_BUNDLE_LIBRARY=built)
    return next(folder.glob("*.whl"))


def test_the_source_has_every_file_of_text(source: Path) -> None:
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    crate = {path for pattern in ("*.toml", "*.lock", "src/**/*", "*.h") for path in CRATE.glob(pattern)}
    crate.add(ROOT / "docs" / "manifest.schema.json")  # schema.rs includes it
    assert {str(path.relative_to(ROOT)) for path in crate if path.is_file()} <= names


def test_the_wheel_is_of_this_platform_and_holds_every_package(wheel: Path) -> None:
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert wheel.stem.endswith(f"-py3-none-{platform}")
    names = set(zipfile.ZipFile(wheel).namelist())
    packages = {str(path.parent.relative_to(ROOT / "src")) for path in source_packages()}
    assert {f"{package}/__init__.py" for package in packages} <= names
    stems = ("streamfuse_engine", "streamfuse_core", "streamfuse_text", *RUNTIME_LIBRARIES, QUANTIZED_KERNELS)
    beside = {*map(file_name, stems), VERSION_FILE, "LICENSE-executorch"}
    assert {f"streamfuse/native/lib/{name}" for name in beside} <= names
    assert {"streamfuse/adapters/chat-lossless.safetensors", "streamfuse/bench/report/page.html"} <= names
    research = {name for name in names if name.startswith("streamfuse/research/")}
    assert {"streamfuse/research/recipes/chat-medusa.toml", "streamfuse/research/compare/page.html"} <= research
    assert [name for name in research if name.endswith(".safetensors")] == []


def source_packages() -> list[Path]:
    found = []
    for folder, _, files in os.walk(ROOT / "src" / "streamfuse", followlinks=True):
        if "__init__.py" in files and Path(folder).name not in ("android", "arm"):  # they need a checkout
            found.append(Path(folder) / "__init__.py")
    return found


@pytest.fixture(scope="module")
def place(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel alone, to be put before this environment, which has executorch."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)  # pip, which the test below runs, would compile all of it
    return folder


@pytest.fixture(scope="module")
def bundles(tiny_graph: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One for our kernels; one for XNNPACK, which needs ExecuTorch's quantized kernels too, of a model with biases."""
    folder = tmp_path_factory.mktemp("xnnpack")
    torch.manual_seed(1)
    changes = {"num_hidden_layers": 1, "attention_bias": True}  # one layer is sooner exported
    model = tiny_model({"num_msa_layers": 1}, **changes)
    for name, parameter in model.base.named_parameters():
        if name.endswith("bias"):
            parameter.data.normal_()  # as large as what it is added to, so that the export's floor is about it
    checkpoint = write_checkpoint(folder / "checkpoint", model, **changes)
    one_width = {"widths": (4,), "default_width": 4, "prune_keep": 4, "stream_nodes": "all"}
    run_export(config_for(checkpoint, folder / "bundle", backend="xnnpack", **one_width))
    return [tiny_graph.parent, folder / "bundle"]


@pytest.mark.parametrize(
    ("order", "built_against"),
    [
        ("engine", "the installed executorch"),
        ("bindings engine", "the installed executorch"),
        ("engine bindings", "another one"),
        *(
            pytest.param(*case, marks=pytest.mark.full)
            for case in [
                ("engine bindings", "the installed executorch"),
                ("engine", "another one"),
                ("bindings engine", "another one"),
            ]
        ),
    ],
)
def test_engine_and_python_bindings_share_one_copy_of_executorch(
    place: Path, bundles: list[Path], order: str, built_against: str
) -> None:
    equal = built_against == "the installed executorch"
    own = place / "streamfuse" / "native" / "lib"
    (own / VERSION_FILE).write_text(f"{version('executorch') if equal else '1.4.0'}\n", encoding="utf-8")
    environment = {"PYTHONPATH": str(place), "STREAMFUSE_ENGINE": ""}
    safe = ["-P"] if sys.version_info >= (3, 11) else []
    graph = bundles[1] / "model.pte"
    command = [sys.executable, *safe, "-c", GENERATE, place, graph, str(TEXT[:6]), *order.split()]
    tokens, used = output_of(command, **environment).splitlines()
    assert len(tokens.split()) == 13
    if sys.platform == "linux":
        assert (used == str(own)) == (not equal and order.startswith("engine"))


@pytest.mark.network
def test_a_fresh_environment_runs_bundles_and_says_what_it_lacks(
    wheel: Path, bundles: list[Path], tmp_path: Path
) -> None:
    output_of([sys.executable, "-m", "venv", "--without-pip", tmp_path / "fresh"])  # this environment's pip serves both
    fresh = tmp_path / "fresh" / "bin"
    environment = {"PYTHONPATH": "", "STREAMFUSE_ENGINE": "", "STREAMFUSE_HOME": str(tmp_path / "home")}
    pip = [sys.executable, "-m", "pip", "--python", fresh / "python", "--disable-pip-version-check"]
    output_of([*pip, "install", "--quiet", wheel], **environment)
    heavy = ["torch", "executorch", "coremltools", "gguf", "jinja2", "safetensors", "tokenizers"]
    find = f"from importlib.util import find_spec; print([name for name in {heavy} if find_spec(name)])"
    assert output_of([fresh / "python", "-c", find], **environment) == "[]\n"

    for bundle in bundles:
        words = ["run", str(bundle), "the keeper", "--raw", "--max-new-tokens", "24", "--json"]
        found = json.loads(output_of([fresh / "streamfuse", *words], **environment))
        here = CliRunner().invoke(app, words)
        assert here.exit_code == 0, here.stderr
        assert found["text"] == json.loads(here.stdout)["text"]

    command = [str(fresh / "streamfuse"), "export", "-o", str(tmp_path / "bundle")]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("error: exporting needs torch, executorch, ")
    assert done.stderr.endswith(": pip install 'streamfuse[export]'\n")
