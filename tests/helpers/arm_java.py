"""Java for ARM under the emulator, for tests that run Kotlin on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamfuse.native.arm.build import INSTALL
from streamfuse.native.arm.mobile import java_command, rust_library
from streamfuse.native.command import BuildError

KOTLIN_TOOLS = "javac, mvn: apt-get install openjdk-17-jdk-headless maven; cargo: https://rustup.rs"
ARM_TOOLS = f"{INSTALL}; {KOTLIN_TOOLS}; apt-get: Debian or Ubuntu"


def emulated_java(folder: Path, *arguments: object) -> list[str]:
    """The command that runs it. Skips the test where its packages or Rust's library for ARM cannot be downloaded, for
    example without a network; what does not compile fails later."""
    try:
        rust_library(folder)
        return java_command(folder, *arguments)
    except BuildError as error:
        pytest.skip(
            f"Debian's Java or Rust's library for ARM cannot be downloaded (a network and a Debian or Ubuntu with "
            f"packages for arm64 are needed): {error}"
        )
