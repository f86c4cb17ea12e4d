"""The Rust that builds text/: one that is new enough is found, else the error names what to install.

Run: python -m pytest tests/native/test_native_cargo.py
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from streamfuse.native import cargo
from streamfuse.native.command import BuildError


def program(folder: Path, version: str) -> Path:
    folder.mkdir(parents=True)
    path = folder / "cargo"
    path.write_text(f"#!/bin/sh\necho 'cargo {version} (abc 2026-01-01)'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The folder of PATH, and the one of the checkout."""
    system, own = tmp_path / "bin", tmp_path / "rust"
    monkeypatch.setenv("PATH", str(system))
    monkeypatch.setattr(cargo, "RUST", own)
    return system, own / "cargo" / "bin"


def test_the_cargo_of_path_is_used_where_it_is_new_enough(places: tuple[Path, Path]) -> None:
    wanted = program(places[0], "1.88.0")
    program(places[1], "1.99.0")
    assert cargo.find_cargo() == (wanted, {})


def test_an_old_cargo_gives_way_to_that_of_the_checkout(places: tuple[Path, Path], tmp_path: Path) -> None:
    program(places[0], "1.66.1")
    wanted = program(places[1], "1.90.0")
    found = cargo.find_cargo()
    assert found is not None
    assert found[0] == wanted
    assert found[1]["CARGO_HOME"] == str(tmp_path / "rust" / "cargo")
    assert found[1]["RUSTUP_HOME"] == str(tmp_path / "rust" / "rustup")
    assert found[1]["PATH"].startswith(str(places[1]))


@pytest.mark.parametrize("version", [None, "1.87.9"])
def test_without_a_new_cargo_the_sentence_says_what_to_install(
    places: tuple[Path, Path], version: str | None, tmp_path: Path
) -> None:
    if version is not None:
        program(places[0], version)
    assert cargo.find_cargo() is None
    with pytest.raises(BuildError, match=r"cargo 1\.88 or newer, and there is none: https://rustup\.rs"):
        cargo.cargo_build(tmp_path / "target")


@pytest.mark.parametrize("module", ["build", "mobile"])
def test_a_build_that_fails_says_one_sentence(module: str, tmp_path: Path) -> None:
    cargo_that_fails = program(tmp_path / "bin", "1.99.0")
    cargo_that_fails.write_text(f"{cargo_that_fails.read_text()}[ $1 = --version ]\n")
    command = [sys.executable, "-m", f"streamfuse.native.{module}"]
    environment = os.environ | {"PATH": str(cargo_that_fails.parent)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "error: cargo build failed\n")


def test_the_oldest_rust_is_that_of_the_crate() -> None:
    declared = re.search(r'^rust-version = "(\d+)\.(\d+)"', (cargo.CRATE / "Cargo.toml").read_text(), re.MULTILINE)
    assert declared is not None
    assert tuple(map(int, declared.groups())) == cargo.MINIMUM_RUST


def test_a_build_prints_where_the_library_is(
    places: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    program(places[0], "1.88.0")
    monkeypatch.setenv("CARGO_TARGET_DIR", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["cargo", "--build"])
    assert cargo.main() == 0
    assert capfd.readouterr().out.splitlines()[-1] == str(tmp_path / "release" / "libstreamfuse_bundle.a")
