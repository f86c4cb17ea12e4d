"""Compile core, operators, engine and native/ for 64-bit ARM macOS, and link them, by Zig's C++ compiler.

    python -m streamfuse.native.apple [--build-dir build/apple]

It proves that Apple's headers and libraries have all that the sources ask for; nothing runs here. Needs `pip install
ziglang`. The executorch wheel of macOS (20 MB) is downloaded once.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import struct
import sys
from pathlib import Path

from streamfuse.native.build import SOURCE, build, default_build_dir, fetch_executorch
from streamfuse.native.command import BuildError, build_parser, run_build

WHEEL_PLATFORM = "macosx_14_0_arm64"
ENGINE = "libstreamfuse_engine.dylib"
PRODUCTS = ("libstreamfuse_core.dylib", ENGINE, "generate")
DELEGATES = ("backend_xnnpack", "backend_coreml")  # they register themselves, so a linker might leave them out
_MACH_O, _ARM64 = 0xFEEDFACF, 0x0100000C


def zig_program() -> Path:
    """Zig, which its pip package brings."""
    spec = importlib.util.find_spec("ziglang")
    for place in (spec.submodule_search_locations if spec else None) or ():
        return Path(place) / "zig"
    raise BuildError("Zig, whose C++ compiler knows macOS, is not installed: pip install ziglang")


def build_apple(build_dir: Path | None = None, *, jobs: int | None = None) -> list[Path]:
    """Compile into `build_dir` (build/apple by default) and return the products, which are arm64 Mach-O."""
    build_dir = build_dir or default_build_dir().with_name("apple")
    os.environ["STREAMFUSE_ZIG"] = str(zig_program())  # for kernels/apple/c++
    version = importlib.metadata.version("executorch")
    executorch = fetch_executorch(f"executorch=={version}", build_dir / f"executorch-{version}", WHEEL_PLATFORM)
    # native/ is not linked: it needs text/, and so Rust's standard library for macOS.
    targets = ("streamfuse_core", "streamfuse_engine", "generate", "streamfuse_native_objects")
    build(build_dir, executorch=executorch, toolchain=SOURCE / "apple" / "toolchain.cmake", targets=targets, jobs=jobs)
    products = [build_dir / name for name in PRODUCTS]
    for product in products:
        with product.open("rb") as file:
            if struct.unpack("<II", file.read(8)) != (_MACH_O, _ARM64):
                raise BuildError(f"{product} is not a Mach-O file for arm64")
    engine = (build_dir / ENGINE).read_bytes()
    for delegate in DELEGATES:
        if f"@rpath/libexecutorch_{delegate}.dylib".encode() not in engine:
            raise BuildError(f"{ENGINE} does not load ExecuTorch's {delegate}")
    return products


def main() -> int:
    parser = build_parser("apple", __doc__, "apple")
    return run_build(parser, lambda given: ", ".join(map(str, build_apple(given.build_dir, jobs=given.jobs))))


if __name__ == "__main__":
    sys.exit(main())
