"""Build libstreamfuse_engine against the executorch wheel, and libstreamfuse_text of text/.

    python -m streamfuse.native.build [--build-dir build/native] [--sanitize address,undefined] [--jobs N]

Needs a C++20 compiler, cargo (1.88 or newer), and cmake (3.28 or newer) and ninja from PATH or from their pip packages.
Incremental: a second run builds only what changed. It also builds the C++ tests, `test_ops` and `test_engine`, and the
program `generate`.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from streamfuse.native.command import BuildError, build_parser, run_build, run_tool
from streamfuse.pip import pip_command

REPOSITORY = Path(__file__).resolve().parents[3]
SOURCE = REPOSITORY / "kernels"  # a wheel has none
CMAKE_CONFIG = Path("share", "cmake", "executorch-config.cmake")
MINIMUM_CMAKE = (3, 28)  # older ones skip the wheel's imported targets
WITHOUT_TEXT = ("generate", "test_core", "test_constraint", "test_ops", "test_engine")  # targets that text/ is not in


def default_build_dir() -> Path:
    """build/native of the checkout."""
    return REPOSITORY / "build" / "native"


def executorch_root() -> Path:
    """The folder of the installed executorch package, found without importing it."""
    spec = importlib.util.find_spec("executorch")
    for place in (spec.submodule_search_locations if spec else None) or ():
        if (Path(place) / CMAKE_CONFIG).is_file():
            return Path(place)
    raise BuildError("the executorch wheel with its C++ SDK (1.5.1 or newer) is not installed: pip install executorch")


@contextmanager
def one_builder(folder: Path) -> Iterator[None]:
    """Make `folder` and wait while another process builds there. A file system without locks has no waiting."""
    folder.mkdir(parents=True, exist_ok=True)
    number = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)


def fetch_executorch(requirement: str, folder: Path, platform: str | None = None) -> Path:
    """Download and unpack one executorch wheel, without what it depends on, and return its package folder.

    `platform` is another machine's wheel tag, for example manylinux_2_28_aarch64. What lies in `folder` is kept.
    """
    root = folder / "executorch"
    with one_builder(folder):
        if (root / CMAKE_CONFIG).is_file():
            return root
        command = [*pip_command(BuildError), "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary=:all:", "--dest", str(folder), requirement]
        command += ["--platform", platform] if platform else []
        if subprocess.run(command).returncode != 0:
            for_platform = f" for {platform}" if platform else ""
            raise BuildError(f"pip cannot download the wheel of {requirement}{for_platform}")
        (wheel,) = folder.glob("executorch-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        wheel.unlink()
    return root


def find_program(name: str, install: str | None = None) -> str:
    """A program of this Python environment, else of PATH.

    Raises:
        BuildError: there is none; `install` says how to get it (None: with pip).
    """
    beside = Path(sysconfig.get_path("scripts")) / name
    found = str(beside) if beside.is_file() else shutil.which(name)
    if not found:
        raise BuildError(f"{name} is not installed: {install or f'pip install {name}'}")
    return found


def cmake_program() -> str:
    """cmake of this Python environment, else of PATH; refused where it is too old."""
    cmake = find_program("cmake")
    output = subprocess.run([cmake, "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"(\d+)\.(\d+)", output)
    if version is None or (int(version[1]), int(version[2])) < MINIMUM_CMAKE:
        raise BuildError(f"{cmake} is older than {MINIMUM_CMAKE[0]}.{MINIMUM_CMAKE[1]}: pip install 'cmake>=3.28'")
    return cmake


def build(
    build_dir: Path | None = None,
    *,
    sanitize: str = "",
    executorch: Path | None = None,
    toolchain: Path | None = None,
    targets: Iterable[str] = (),
    options: Mapping[str, str] | None = None,
    jobs: int | None = None,
    quiet: bool = False,
) -> Path:
    """Configure where needed, compile `targets` (everything where none is named), and return the path of the library.

    `executorch` is the package folder to build against, the installed one by default; kernels/executorch for one that
    was built from source. `toolchain` is a CMake toolchain file, for another machine. `sanitize` is what `-fsanitize`
    takes. `options` are further variables of CMake.
    """
    from streamfuse.native.library import library_name

    if not SOURCE.is_dir():
        raise BuildError("an installed package has no C++ sources: build in a clone of the repository")
    build_dir = build_dir or default_build_dir()
    cmake, ninja = cmake_program(), find_program("ninja")
    if not toolchain and not any(
        shutil.which(compiler) for compiler in (os.environ.get("CXX", "c++"), "g++", "clang++")
    ):
        raise BuildError("there is no C++ compiler: install g++ or clang, or set CXX")
    configure = [cmake, "-S", str(SOURCE), "-B", str(build_dir), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    executorch = executorch or executorch_root()
    config = executorch / CMAKE_CONFIG if (executorch / CMAKE_CONFIG).is_file() else executorch / CMAKE_CONFIG.name
    configure += [f"-Dexecutorch_DIR={config.parent}"]
    configure += ["-DCMAKE_BUILD_TYPE=Release", f"-DSTREAMFUSE_SANITIZE={sanitize}"]
    configure += [f"-DCMAKE_TOOLCHAIN_FILE={toolchain}"] if toolchain else []
    configure += [f"-D{name}={value}" for name, value in (options or {}).items()]
    compile_ = [cmake, "--build", str(build_dir), *(["--parallel", str(jobs)] if jobs else [])]
    for target in targets:
        compile_ += ["--target", target]
    with one_builder(build_dir):
        for command in (configure, compile_):
            run_tool(command, show=not quiet)
    return build_dir / library_name()


def main() -> int:
    from streamfuse.native.cargo import cargo_build, default_target_dir, need_cargo

    def make(options: argparse.Namespace) -> Path:
        need_cargo()  # before minutes of compiling
        # Cargo uses one core for most of its time, so that the C++ that needs nothing of text/ is compiled beside it.
        with ThreadPoolExecutor(1) as beside:
            rest = beside.submit(
                build, options.build_dir, sanitize=options.sanitize, targets=WITHOUT_TEXT, jobs=options.jobs
            )
            facts = {"STREAMFUSE_BUNDLE_LIBRARY": str(cargo_build(default_target_dir(), jobs=options.jobs))}
            rest.result()
        return build(options.build_dir, sanitize=options.sanitize, options=facts, jobs=options.jobs)

    parser = build_parser("build", __doc__, "native")
    parser.add_argument("--sanitize", default="", help="sanitizers, for example address,undefined or thread")
    return run_build(parser, make)


if __name__ == "__main__":
    sys.exit(main())
