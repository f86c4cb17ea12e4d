"""Cross-compile libstreamfuse_jni, the native half of the Kotlin library, for 64-bit ARM Linux, and find a Java virtual
machine that runs it under the emulator.

    python -m streamfuse.native.arm.mobile [--build-dir build/arm]

Needs what native/arm/build.py needs, cargo with the standard library for ARM (rustup adds it; where Rust is
Debian's, its package is unpacked), and a JDK for the header jni.h.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from streamfuse.native.arm.build import build_arm, missing_tools
from streamfuse.native.arm.debian import unpack
from streamfuse.native.build import default_build_dir
from streamfuse.native.cargo import add_rust_target, cargo_build, find_cargo, find_rustup, has_rust_target
from streamfuse.native.command import build_parser, run_build
from streamfuse.native.mobile import jni_options

RUST_TARGET = "aarch64-unknown-linux-gnu"
JAVA_PACKAGES = ("openjdk-17-jre-headless", "libc6", "libgcc-s1", "libstdc++6", "zlib1g")
JAVA = Path("usr", "lib", "jvm", "java-17-openjdk-arm64", "bin", "java")


def missing_for_java() -> list[str]:
    """The programs for all of this that are not installed."""
    missing = [tool for tool in ("javac", "mvn", "apt-get") if shutil.which(tool) is None]
    return [*missing_tools(), *(["cargo"] if find_cargo() is None else []), *missing]


def rust_library(build_dir: Path) -> Mapping[str, str]:
    """Environment in which cargo finds Rust's standard library for ARM, which is downloaded where it is not there, and
    a linker, because a crate below text/ is a shared library too."""
    prefix = f"CARGO_TARGET_{RUST_TARGET.upper().replace('-', '_')}"
    linker = {f"{prefix}_LINKER": "aarch64-linux-gnu-gcc"}
    if has_rust_target(RUST_TARGET) or find_rustup() is not None:
        add_rust_target(RUST_TARGET)
        return linker
    root = unpack(["libstd-rust-web-dev"], build_dir / "rust")  # of cargo-web, Debian's newer Rust
    return linker | {f"{prefix}_RUSTFLAGS": f"--sysroot={root / 'usr'}"}


def build_bundle_arm(
    build_dir: Path | None = None, *, profile: str = "release", jobs: int | None = None, quiet: bool = False
) -> Path:
    """Compile text/ alone, which needs no package of Python's, and return the static library.

    `profile` is that of streamfuse.native.cargo.cargo_build.
    """
    build_dir = (build_dir or default_build_dir().with_name("arm")).resolve()
    library = rust_library(build_dir)
    return cargo_build(build_dir / "cargo", RUST_TARGET, profile=profile, environment=library, jobs=jobs, quiet=quiet)


def build_mobile_arm(
    build_dir: Path | None = None, *, profile: str = "release", jobs: int | None = None, quiet: bool = False
) -> Path:
    """Compile into `build_dir` (build/arm by default) and return libstreamfuse_jni.so.

    `profile` is that of build_bundle_arm.
    """
    build_dir = (build_dir or default_build_dir().with_name("arm")).resolve()
    bundle = build_bundle_arm(build_dir, profile=profile, jobs=jobs, quiet=quiet)
    options = {"STREAMFUSE_BUNDLE_LIBRARY": str(bundle)} | jni_options()
    build_arm(build_dir, targets=["streamfuse_jni"], options=options, jobs=jobs, quiet=quiet)
    return build_dir / "libstreamfuse_jni.so"


def java_command(build_dir: Path, *arguments: object) -> list[str]:
    """The command that runs Debian's Java for ARM under the emulator, which is downloaded at first (46 MB)."""
    root = unpack(JAVA_PACKAGES, build_dir / "java")
    return ["qemu-aarch64-static", "-L", str(root), str(root / JAVA), *map(str, arguments)]


def main() -> int:
    parser = build_parser("arm.mobile", __doc__, "arm")
    return run_build(parser, lambda given: build_mobile_arm(given.build_dir, jobs=given.jobs))


if __name__ == "__main__":
    sys.exit(main())
