"""Build libstreamfuse, the one library of an app: native/streamfuse.h over core, engine, and text/ (Rust).

    python -m streamfuse.native.mobile [--jni] [--out build/mobile] [--profile release] [--jobs N]

With --jni it builds libstreamfuse_jni instead, the same with the functions that the Kotlin library calls. Core, engine
and text/ are compiled in build/native and build/mobile/cargo once, for all libraries.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from streamfuse.native.build import build, default_build_dir
from streamfuse.native.cargo import cargo_build, default_target_dir
from streamfuse.native.command import BuildError, build_parser, run_build
from streamfuse.native.library import file_name


def build_mobile(
    out: Path | None = None, *, jni: bool = False, profile: str = "release", jobs: int | None = None
) -> Path:
    """Compile and link the library for this machine, and return its path in `out` (build/mobile by default)."""
    out = (out or default_build_dir().with_name("mobile")).resolve()
    bundle = cargo_build(default_target_dir(), profile=profile, jobs=jobs)
    target = "streamfuse_jni" if jni else "streamfuse"
    options = {"STREAMFUSE_BUNDLE_LIBRARY": str(bundle)} | (jni_options() if jni else {})
    built = build(jobs=jobs, targets=[target], options=options)
    library = out / file_name(target)
    library.parent.mkdir(parents=True, exist_ok=True)
    partial = library.with_suffix(".partial")
    shutil.copy(built.with_name(library.name), partial)
    os.replace(partial, library)  # a process may have the old one open
    return library


def jni_options() -> dict[str, str]:
    """The variables of kernels/CMakeLists.txt for a library that a desktop's Java loads."""
    javac = shutil.which("javac")
    if javac is None:
        raise BuildError("jni.h is missing: install a JDK (Debian: openjdk-17-jdk-headless)")
    return {"STREAMFUSE_JNI_HEADERS": str(Path(javac).resolve().parents[1] / "include")}


def main() -> int:
    parser = build_parser("mobile", __doc__, "mobile", "--out")
    parser.add_argument("--jni", action="store_true", help="libstreamfuse_jni, for Kotlin and Java")
    parser.add_argument("--profile", default="release", help="of text/Cargo.toml; quick: no optimization")
    return run_build(
        parser, lambda given: build_mobile(given.out, jni=given.jni, profile=given.profile, jobs=given.jobs)
    )


if __name__ == "__main__":
    sys.exit(main())
