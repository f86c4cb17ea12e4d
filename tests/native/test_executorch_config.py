"""An ExecuTorch built from source is linked as its wheel is: what registers operators or a backend, whole and once.

Run: python -m pytest tests/native/test_executorch_config.py
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from streamfuse.native.android.elf import read_library
from streamfuse.native.android.toolchains import SOURCE
from streamfuse.native.build import cmake_program, find_program

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("c++") is None, reason="makes libraries with Linux's compiler"
)
REGISTERING = (
    "coremldelegate", "executorch", "optimized_native_cpu_ops_lib", "portable_ops_lib", "quantized_ops_lib",
    "vulkan_backend",
)  # fmt: skip
CALLED = (
    "coreml_inmemoryfs", "coreml_util", "executorch_core", "extension_data_loader", "portable_kernels",
    "quantized_kernels",
)  # fmt: skip
TARGETS = """foreach(name {names})
  add_library(${{name}} STATIC IMPORTED GLOBAL)
  set_target_properties(${{name}} PROPERTIES IMPORTED_LOCATION ${{CMAKE_CURRENT_LIST_DIR}}/../../lib${{name}}.a)
endforeach()
"""
PROJECT = """cmake_minimum_required(VERSION 3.28)
project(host CXX)
file(WRITE ${{CMAKE_BINARY_DIR}}/host.cpp "int host() {{ return 1; }}")
find_package(executorch REQUIRED COMPONENTS {components} PATHS {config} NO_DEFAULT_PATH)
add_library(host SHARED ${{CMAKE_BINARY_DIR}}/host.cpp)
foreach(component {components})
  target_link_libraries(host PRIVATE executorch::${{component}})
endforeach()
"""


@pytest.fixture(scope="module")
def install(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An install folder whose archives have a variable of their name each."""
    folder = tmp_path_factory.mktemp("install")
    (folder / "lib" / "cmake" / "ExecuTorch").mkdir(parents=True)
    (folder / "include" / "executorch" / "runtime" / "core" / "portable_type" / "c10").mkdir(parents=True)
    for name in (*REGISTERING, *CALLED):
        (folder / f"{name}.cpp").write_text(f'extern "C" int {name}_is_here = 1;\n')
        subprocess.run(["c++", "-fPIC", "-c", f"{name}.cpp"], cwd=folder, check=True)
        subprocess.run(["ar", "rcs", f"lib/lib{name}.a", f"{name}.o"], cwd=folder, check=True)
    targets = folder / "lib" / "cmake" / "ExecuTorch" / "ExecuTorchTargets.cmake"
    targets.write_text(TARGETS.format(names=" ".join((*REGISTERING, *CALLED))))
    return folder


@pytest.mark.parametrize(
    ("components", "registered"),
    [
        ("runtime kernels_portable", {"executorch", "portable_ops_lib"}),
        ("runtime kernels_portable backend_coreml", {"coremldelegate", "executorch", "portable_ops_lib"}),
        (
            "runtime kernels_portable backend_vulkan",
            {"executorch", "portable_ops_lib", "quantized_ops_lib", "vulkan_backend"},
        ),
        (
            "runtime kernels_optimized backend_vulkan",
            {"executorch", "optimized_native_cpu_ops_lib", "quantized_ops_lib", "vulkan_backend"},
        ),
    ],
)
def test_what_registers_is_linked_whole_and_once(
    install: Path, tmp_path: Path, components: str, registered: set[str]
) -> None:
    (tmp_path / "CMakeLists.txt").write_text(PROJECT.format(components=components, config=SOURCE / "executorch"))
    build = tmp_path / "build"
    configure = [cmake_program(), "-S", str(tmp_path), "-B", str(build), "-G", "Ninja"]
    configure += [f"-DCMAKE_MAKE_PROGRAM={find_program('ninja')}", f"-DEXECUTORCH_INSTALL={install}"]
    subprocess.run(configure, check=True, capture_output=True)
    done = subprocess.run([cmake_program(), "--build", str(build)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout  # an archive that is linked whole twice defines its symbols twice
    names = {name.removesuffix("_is_here") for name in read_library(build / "libhost.so").exported}
    assert names & {*REGISTERING, *CALLED} == registered
