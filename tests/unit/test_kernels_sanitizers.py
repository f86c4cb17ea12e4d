"""The C++ tests under the address and undefined-behaviour sanitizers, on every instruction set of this CPU.

Run: pytest tests/unit/test_kernels_sanitizers.py, or `make sanitize`. The builds are kept in build/sanitize.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

if not any(shutil.which(compiler) for compiler in (os.environ.get("CXX", "c++"), "g++", "clang++")):
    pytest.skip("there is no C++ compiler to build the native engine with", allow_module_level=True)

X86 = platform.machine().lower() in ("x86_64", "amd64")
INSTRUCTION_SETS = ["avx512", "avx2", "portable"] if X86 else ["neon"]
ENVIRONMENT = {"UBSAN_OPTIONS": "print_stacktrace=1"}


@pytest.fixture(scope="session")
def checked() -> Path:
    """The folder of the programs built with sanitizers."""
    from streamfuse.kernels.build import build, default_build_dir

    return build(
        default_build_dir().parent / "sanitize" / "address", sanitize="address,undefined", quiet=True, jobs=2
    ).parent


def run(program: Path, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [program, *arguments], capture_output=True, text=True, env=os.environ | ENVIRONMENT | environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_operators_touch_only_their_memory_on_every_instruction_set(checked: Path, instruction_set: str) -> None:
    said = run(checked / "test_ops", "40", STREAMFUSE_ISA=instruction_set)
    if f"instruction set: {instruction_set}" not in said:
        pytest.skip(f"this CPU has no {instruction_set}")
