"""Build ExecuTorch's runtime from source as archives, with what the options of the library ask for and nothing else."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from streamfuse.native.build import cmake_program, find_program, one_builder
from streamfuse.native.command import BuildError, run_tool

URL = "https://github.com/pytorch/executorch"
TAG = "v1.5.1"  # of the wheel that exports the bundles
_SUBMODULES = [f"third-party/{name}" for name in ("flatbuffers", "flatcc", "gflags", "json")]
_SUBMODULES += ["backends/xnnpack/third-party/FXdiv"]
_XNNPACK_SUBMODULES = [f"backends/xnnpack/third-party/{name}" for name in ("XNNPACK", "cpuinfo", "FP16", "pthreadpool")]
_XNNPACK_SUBMODULES += ["third-party/pocketfft"]
_VULKAN_SUBMODULES = [
    f"backends/vulkan/third-party/{name}" for name in ("Vulkan-Headers", "VulkanMemoryAllocator", "volk")
]
_COREML = "backends/apple/coreml"
_GENERATOR = {"torch": "torchgen", "pyyaml": "yaml"}
# Headers that the engine includes and that ExecuTorch's own installation leaves out.
_MORE_HEADERS = ("extension/memory_allocator", "devtools/etdump")


@dataclass(frozen=True, slots=True)
class Parts:
    """What the library runs beside bundles of `--backend kernels`: `qnn` is the folder of Qualcomm's SDK."""

    xnnpack: bool = False
    etdump: bool = False
    qnn: Path | None = None
    vulkan: bool = False
    coreml: bool = False

    def kernels_options(self) -> dict[str, str]:
        """The variables of kernels/CMakeLists.txt."""
        switches = {
            "XNNPACK": self.xnnpack,
            "ETDUMP": self.etdump,
            "QNN": self.qnn is not None,
            "VULKAN": self.vulkan,
            "COREML": self.coreml,
        }
        return {f"STREAMFUSE_{name}": "ON" if on else "OFF" for name, on in switches.items()}

    def executorch_options(self) -> dict[str, str]:
        """The variables of ExecuTorch's CMake.

        Its defaults for Release switch off the check of a program's tables and the messages that name a missing
        operator; the engine relies on both. Optimized for size, it is compiled without exceptions, and an exception of
        an operator could not pass through it.
        """
        switches = {
            "ENABLE_PROGRAM_VERIFICATION": True,
            "ENABLE_LOGGING": True,
            "OPTIMIZE_SIZE": False,
            "BUILD_EXECUTOR_RUNNER": False,
            "BUILD_EXTENSION_EVALUE_UTIL": False,
            "BUILD_EXTENSION_FLAT_TENSOR": False,
            "BUILD_EXTENSION_RUNNER_UTIL": False,
            "BUILD_PORTABLE_OPS": True,
            "BUILD_CPUINFO": self.xnnpack,
            "BUILD_PTHREADPOOL": self.xnnpack,
            "BUILD_KERNELS_OPTIMIZED": self.xnnpack,
            "BUILD_KERNELS_QUANTIZED": self.xnnpack or self.vulkan,
            "BUILD_XNNPACK": self.xnnpack,
            "BUILD_DEVTOOLS": self.etdump,
            "ENABLE_EVENT_TRACER": self.etdump,
            "BUILD_QNN": self.qnn is not None,
            "BUILD_EXTENSION_TENSOR": self.qnn is not None,
            "BUILD_VULKAN": self.vulkan,
            "BUILD_COREML": self.coreml,
        }
        options = {f"EXECUTORCH_{name}": "ON" if on else "OFF" for name, on in switches.items()}
        return options | ({"QNN_SDK_ROOT": str(self.qnn)} if self.qnn else {})


def need_glslc() -> None:
    """BuildError where there is no compiler for the shaders of ExecuTorch's Vulkan backend."""
    sdk = os.environ.get("VULKAN_SDK")
    if sdk and shutil.which("glslc", path=str(Path(sdk) / "bin")):
        return
    find_program(
        "glslc",
        "install the Vulkan SDK 1.4.341.1 or newer (https://vulkan.lunarg.com/sdk/home) and set VULKAN_SDK to the "
        "folder that contains its bin. ExecuTorch compiles its shaders with glslc; that of the NDK is too old",
    )


def clone(folder: Path, parts: Parts, more: Iterable[str] = ()) -> Path:
    """The sources of TAG below `folder`, with the submodules of `parts` and `more`; what lies there is kept."""
    checkout = folder / TAG / "executorch"  # its CMake insists on this name
    with one_builder(checkout.parent):
        if not (checkout / "CMakeLists.txt").is_file():
            shutil.rmtree(checkout, ignore_errors=True)
            _run(["git", "clone", "--depth", "1", "--branch", TAG, URL, str(checkout)])
        wanted = [*_submodules(parts), *more]
        _run(["git", "-C", str(checkout), "submodule", "update", "--init", "--depth", "1", *wanted])
    return checkout


def _submodules(parts: Parts) -> list[str]:
    xnnpack = _XNNPACK_SUBMODULES if parts.xnnpack else []
    return [*_SUBMODULES, *xnnpack, *(_VULKAN_SUBMODULES if parts.vulkan else [])]


def install(
    checkout: Path, build_dir: Path, parts: Parts, platform: Mapping[str, str], *, jobs: int | None = None
) -> Path:
    """Compile `checkout` for the machine that `platform`, variables of CMake, describes; return the install folder."""
    if not (checkout / "CMakeLists.txt").is_file() or checkout.name != "executorch":
        raise BuildError(f"{checkout} is not a checkout of {URL}; the folder must be named executorch")
    if absent := [name for name in _submodules(parts) if not any((checkout / name).glob("*"))]:
        raise BuildError(
            f"{checkout} is without sources that the library needs: "
            f"git -C {checkout} submodule update --init --depth 1 {' '.join(absent)}"
        )
    if parts.coreml and not (checkout / _COREML / "CMakeLists.txt").is_file():
        raise BuildError(f"{checkout} is without ExecuTorch's Core ML delegate, {_COREML}: take the sources of {TAG}")
    if missing := [name for name, module in _GENERATOR.items() if importlib.util.find_spec(module) is None]:
        raise BuildError(
            f"ExecuTorch generates its operators' table with Python packages that {sys.executable} does not have: "
            f"pip install {' '.join(missing)}"
        )
    prefix = build_dir / "install"
    options = {"CMAKE_BUILD_TYPE": "Release", "CMAKE_INSTALL_PREFIX": str(prefix), "PYTHON_EXECUTABLE": sys.executable}
    configure = [cmake_program(), "-S", str(checkout), "-B", str(build_dir), "-G", "Ninja"]
    configure += [f"-DCMAKE_MAKE_PROGRAM={find_program('ninja')}"]
    configure += [
        f"-D{name}={value}" for name, value in (options | parts.executorch_options() | dict(platform)).items()
    ]
    with one_builder(build_dir):
        _run(configure)
        _run([cmake_program(), "--build", str(build_dir), "--target", "install", *(["-j", str(jobs)] if jobs else [])])
        generated = build_dir / "devtools" / "include" / "executorch" / "devtools" / "etdump"
        for source, name in [*((checkout / name, name) for name in _MORE_HEADERS), (generated, "devtools/etdump")]:
            for header in source.rglob("*.h"):
                target = prefix / "include" / "executorch" / name / header.relative_to(source)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(header, target)
        if parts.etdump:
            flatcc = checkout / "third-party" / "flatcc" / "include"
            shutil.copytree(flatcc, prefix / "include", dirs_exist_ok=True)
    return prefix


def _run(command: list[str]) -> None:
    # Its generators are modules of the folder that they run in, which this variable of the Makefile would hide.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    run_tool(command, show=True, environment=environment)
