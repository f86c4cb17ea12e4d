"""Compile text/ with cargo: the static library behind libstreamfuse_text (Python) and libstreamfuse (apps).

    python -m streamfuse.native.cargo            # prints the cargo that is used; fails if there is none
    python -m streamfuse.native.cargo --build    # compiles text/ for this machine, so that later builds find it

Needs no packages. .ci/rust installs a Rust.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from streamfuse.native.build import REPOSITORY, default_build_dir
from streamfuse.native.command import BuildError

CRATE = REPOSITORY / "text"
RUST = REPOSITORY / "build" / "rust"  # where .ci/rust puts one
MINIMUM_RUST = (1, 88)  # rust-version of text/Cargo.toml
INSTALL = "https://rustup.rs, or your system's package of Rust 1.88 or newer (Debian 12: cargo-web)"


def default_target_dir() -> Path:
    """CARGO_TARGET_DIR, else build/mobile/cargo of the checkout; the builds of this machine share it."""
    named = os.environ.get("CARGO_TARGET_DIR")
    return Path(named) if named else default_build_dir().with_name("mobile") / "cargo"


def find_cargo() -> tuple[Path, dict[str, str]] | None:
    """cargo from PATH or build/rust, and the environment it needs; None if neither is new enough."""
    own = {"RUSTUP_HOME": str(RUST / "rustup"), "CARGO_HOME": str(RUST / "cargo")}
    own["PATH"] = os.pathsep.join([str(RUST / "cargo" / "bin"), os.environ.get("PATH", "")])
    of_path = shutil.which("cargo")
    for cargo, environment in ((of_path, {}), (shutil.which("cargo", path=own["PATH"]), own)):
        if cargo is not None and _version(cargo, environment) >= MINIMUM_RUST:
            return Path(cargo), environment
    return None


def need_cargo() -> tuple[Path, dict[str, str]]:
    """As find_cargo; with this environment, `rustc` and `rustup` belong to the same Rust.

    Raises:
        BuildError: none is new enough.
    """
    found = find_cargo()
    if found is None:
        raise BuildError(f"text/ is built with cargo 1.88 or newer, and there is none: {INSTALL}")
    return found


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
    nothing. `environment` is added to this process's own.
    """
    cargo, own = need_cargo()
    command = [str(cargo), "build", "--locked", "--lib", "--manifest-path", str(CRATE / "Cargo.toml")]
    command += ["--profile", profile, "--target-dir", str(target_dir)]
    command += ["--target", rust_target] if rust_target else []
    command += ["--jobs", str(jobs)] if jobs else []
    command += ["--quiet"] if quiet else []
    if subprocess.run(command, env=os.environ | own | dict(environment or {})).returncode != 0:
        raise BuildError(
            "cargo build failed" + (f"; is `rustup target add {rust_target}` done?" if rust_target else "")
        )
    return target_dir.joinpath(*([rust_target] if rust_target else []), profile, "libstreamfuse_bundle.a")


def has_rust_target(target: str) -> bool:
    """Whether Rust's standard library for `target` is installed. BuildError where there is no cargo."""
    command = ["rustc", "--print", "target-libdir", "--target", target]
    shown = subprocess.run(command, env=os.environ | need_cargo()[1], capture_output=True, text=True)
    return shown.returncode == 0 and any(Path(shown.stdout.strip()).glob("libstd-*"))


def find_rustup() -> str | None:
    """The rustup of that cargo; None if a distribution packages it. BuildError if there is no cargo."""
    return shutil.which("rustup", path=(os.environ | need_cargo()[1])["PATH"])


def add_rust_target(target: str) -> str:
    """`target`, whose standard library rustup adds where it is missing.

    Raises:
        BuildError: it is missing, and there is no rustup or it fails.
    """
    if has_rust_target(target):
        return target
    rustup = find_rustup()
    environment = os.environ | need_cargo()[1]
    if rustup is None or subprocess.run([rustup, "target", "add", target], env=environment).returncode != 0:
        raise BuildError(
            f"Rust has no standard library for {target}: install rustup (https://rustup.rs), and run "
            f"`rustup target add {target}`"
        )
    return target


def _version(cargo: str, environment: Mapping[str, str]) -> tuple[int, int]:
    shown = subprocess.run([cargo, "--version"], capture_output=True, text=True, env=os.environ | dict(environment))
    version = re.search(r"(\d+)\.(\d+)", shown.stdout)
    return (0, 0) if shown.returncode or version is None else (int(version[1]), int(version[2]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", action="store_true", help="compile text/ for this machine")
    try:
        if parser.parse_args().build:
            print(cargo_build(default_target_dir()))
        else:
            print(need_cargo()[0])
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
