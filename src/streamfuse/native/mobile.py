"""Build libstreamfuse, the one library of an app: native/streamfuse.h over core, engine, and text/ (Rust).

    python -m streamfuse.native.mobile [--out build/mobile] [--profile release] [--jobs N]

Needs what the engine needs (native/build.py) and cargo, which nothing else here does. Core and engine are compiled in
build/native once, for their own libraries and for this one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from streamfuse.native.build import REPOSITORY, BuildError, build, default_build_dir
from streamfuse.native.library import file_name

CRATE = REPOSITORY / "text"
INSTALL = "https://rustup.rs, or your system's package of Rust 1.88 or newer (Debian 12: cargo-web)"


def cargo_build(
    target_dir: Path,
    rust_target: str | None = None,
    *,
    profile: str = "release",
    environment: Mapping[str, str] | None = None,
    jobs: int | None = None,
    quiet: bool = False,
) -> Path:
    """Compile text/ into a static library, for this machine or for another one, and return its path.

    `profile` is one of text/Cargo.toml: `release` is what ships; `quick`, for work on the crate, optimizes
    nothing. `environment` is cargo's beside this process's own.
    """
    if shutil.which("cargo") is None:
        raise BuildError(f"cargo, which text/ is built with, is not installed: {INSTALL}")
    command = ["cargo", "build", "--locked", "--lib", "--manifest-path", str(CRATE / "Cargo.toml")]
    command += ["--profile", profile, "--target-dir", str(target_dir)]
    command += ["--target", rust_target] if rust_target else []
    command += ["--jobs", str(jobs)] if jobs else []
    command += ["--quiet"] if quiet else []
    if subprocess.run(command, env=os.environ | dict(environment or {})).returncode != 0:
        raise BuildError(
            "cargo build failed" + (f"; is `rustup target add {rust_target}` done?" if rust_target else "")
        )
    return target_dir.joinpath(*([rust_target] if rust_target else []), profile, "libstreamfuse_bundle.a")


def build_mobile(out: Path | None = None, *, profile: str = "release", jobs: int | None = None) -> Path:
    """Compile and link the library for this machine, and return its path in `out` (build/mobile by default)."""
    out = (out or default_build_dir().with_name("mobile")).resolve()
    bundle = cargo_build(out / "cargo", profile=profile, jobs=jobs)
    engine = build(jobs=jobs, targets=["streamfuse"], options={"STREAMFUSE_BUNDLE_LIBRARY": str(bundle)})
    library = out / file_name("streamfuse")
    partial = library.with_suffix(".partial")
    shutil.copy(engine.with_name(library.name), partial)
    os.replace(partial, library)  # a process may have the old one open
    return library


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m streamfuse.native.mobile", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=None, help="default: build/mobile beside the sources")
    parser.add_argument("--profile", default="release", help="of text/Cargo.toml; quick: no optimization")
    parser.add_argument("--jobs", type=int, default=None, help="parallel compilations; default: all cores")
    options = parser.parse_args()
    try:
        print(f"built {build_mobile(options.out, profile=options.profile, jobs=options.jobs)}")
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
