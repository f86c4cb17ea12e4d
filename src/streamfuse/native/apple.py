"""Compile core, operators, engine and native/ for 64-bit ARM macOS, and link them, by Zig's C++ compiler.

    python -m streamfuse.native.apple [--build-dir build/apple]

It proves that Apple's headers and libraries have all that the sources ask for; nothing runs here. Needs `pip install
ziglang`. The executorch wheel of macOS (20 MB) is downloaded once.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import struct
import sys
from pathlib import Path

from streamfuse.native.build import SOURCE, build, default_build_dir, fetch_executorch
from streamfuse.native.command import BuildError, build_parser, run_build

WHEEL_PLATFORM = "macosx_14_0_arm64"
ENGINE = "libstreamfuse_engine.dylib"
PRODUCTS = ("libstreamfuse_core.dylib", ENGINE, "generate")
DELEGATES = ("backend_xnnpack", "backend_coreml")  # they register themselves, so a linker might leave them out
# Symbols that macOS's libc++ and libc++abi define: namespace std, operators new and delete, exceptions, RTTI.
CXX_LIBRARY = re.compile(
    r"__Z(T[CISTV])?(N[KV]*)?(St|S[abios]|10__cxxabi)|__Z(n[wa]|d[la]|T[IS][a-z]$)|___(cxa|gxx|dynamic_cast)"
)
_MACH_O, _ARM64, _SYMBOL_TABLE = 0xFEEDFACF, 0x0100000C, 2


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
        missing = [name for name in unlinked_symbols(product) if not CXX_LIBRARY.match(name)]
        if missing:
            raise BuildError(f"{product.name}: no library defines {', '.join(missing[:3])}")
    engine = (build_dir / ENGINE).read_bytes()
    for delegate in DELEGATES:
        if f"@rpath/libexecutorch_{delegate}.dylib".encode() not in engine:
            raise BuildError(f"{ENGINE} does not load ExecuTorch's {delegate}")
    return products


def unlinked_symbols(product: Path) -> list[str]:
    """The undefined symbols of an arm64 Mach-O file that are bound to no library (dynamic lookup).

    Raises:
        BuildError: it is no such file.
    """
    data = product.read_bytes()
    if struct.unpack_from("<II", data) != (_MACH_O, _ARM64):
        raise BuildError(f"{product} is not a Mach-O file for arm64")
    found, at = [], 32
    for _ in range(struct.unpack_from("<I", data, 16)[0]):
        command, size, symbols, count, strings = struct.unpack_from("<5I", data, at)
        at += size
        if command != _SYMBOL_TABLE:
            continue
        for name, kind, _, description, _ in struct.iter_unpack("<IBBHQ", data[symbols : symbols + 16 * count]):
            # External and undefined; the library ordinal is 0 from Zig's linker, 0xFE from others.
            if kind & 0x0F == 1 and description >> 8 in (0, 0xFE):
                found.append(data[strings + name : data.index(0, strings + name)].decode())
    return found


def main() -> int:
    parser = build_parser("apple", __doc__, "apple")
    return run_build(parser, lambda given: ", ".join(map(str, build_apple(given.build_dir, jobs=given.jobs))))


if __name__ == "__main__":
    sys.exit(main())
