"""Cross-compile the native engine and its tests for 64-bit ARM Linux, against the executorch wheel of that platform.

    python -m streamfuse.native.arm.build [--build-dir build/arm]
    kernels/arm/run.sh build/arm/test_ops

Needs Debian's g++-aarch64-linux-gnu, and qemu-user-static to run the programs. The wheel (18 MB) is downloaded once.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from streamfuse.native.build import SOURCE, build, default_build_dir, fetch_executorch
from streamfuse.native.command import BuildError, build_parser, run_build

TOOLS = SOURCE / "arm"
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
INSTALL = "apt-get install g++-aarch64-linux-gnu qemu-user-static"
WHEEL_PLATFORM = "manylinux_2_28_aarch64"


def missing_tools() -> list[str]:
    """The programs for cross-compiling and running that are not installed."""
    return [tool for tool in (COMPILER, EMULATOR) if shutil.which(tool) is None]


def build_arm(
    build_dir: Path | None = None,
    *,
    targets: Iterable[str] = (),
    options: Mapping[str, str] | None = None,
    jobs: int | None = None,
    quiet: bool = False,
) -> Path:
    """Compile into `build_dir` (build/arm by default) and return it: it holds test_ops, test_engine and generate.

    `targets` and `options` are those of streamfuse.native.build.build.
    """
    if shutil.which(COMPILER) is None:
        raise BuildError(f"{COMPILER} is not installed: {INSTALL}")
    build_dir = build_dir or default_build_dir().with_name("arm")
    version = importlib.metadata.version("executorch")
    executorch = fetch_executorch(f"executorch=={version}", build_dir / f"executorch-{version}", WHEEL_PLATFORM)
    toolchain = TOOLS / "toolchain.cmake"
    library = build(
        build_dir,
        executorch=executorch,
        toolchain=toolchain,
        targets=targets,
        options=options,
        jobs=jobs,
        quiet=quiet,
    )
    return library.parent


def run_command(program: Path, *arguments: object) -> list[str]:
    """The command that runs `program` under the emulator; the environment's QEMU_CPU names the processor."""
    return [str(TOOLS / "run.sh"), str(program), *map(str, arguments)]


def main() -> int:
    parser = build_parser("arm.build", __doc__, "arm")
    return run_build(parser, lambda given: build_arm(given.build_dir, jobs=given.jobs))


if __name__ == "__main__":
    sys.exit(main())
