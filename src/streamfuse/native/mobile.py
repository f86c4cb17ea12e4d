"""Build libstreamfuse, the one library of an app: native/streamfuse.h over core, engine, and text/ (Rust).

    python -m streamfuse.native.mobile [--out build/mobile] [--profile release] [--jobs N]

Core, engine and text/ are compiled in build/native and build/mobile/cargo once, for all libraries.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from streamfuse.native.build import build, default_build_dir
from streamfuse.native.cargo import cargo_build, default_target_dir
from streamfuse.native.command import build_parser, run_build
from streamfuse.native.library import file_name


def build_mobile(out: Path | None = None, *, profile: str = "release", jobs: int | None = None) -> Path:
    """Compile and link the library for this machine, and return its path in `out` (build/mobile by default)."""
    out = (out or default_build_dir().with_name("mobile")).resolve()
    bundle = cargo_build(default_target_dir(), profile=profile, jobs=jobs)
    engine = build(jobs=jobs, targets=["streamfuse"], options={"STREAMFUSE_BUNDLE_LIBRARY": str(bundle)})
    library = out / file_name("streamfuse")
    partial = library.with_suffix(".partial")
    shutil.copy(engine.with_name(library.name), partial)
    os.replace(partial, library)  # a process may have the old one open
    return library


def main() -> int:
    parser = build_parser("mobile", __doc__, "mobile", "--out")
    parser.add_argument("--profile", default="release", help="of text/Cargo.toml; quick: no optimization")
    return run_build(parser, lambda given: build_mobile(given.out, profile=given.profile, jobs=given.jobs))


if __name__ == "__main__":
    sys.exit(main())
