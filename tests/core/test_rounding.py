"""No build fuses a * b + c: core/rounding.h says so in the sources, for GCC and Clang, whatever their flags are.

Run: pytest tests/core/test_rounding.py. The kernels are compiled for processors with FMA by a build that has no flag
against fusing, so every test of their bits is one of this too. Here the core is compiled for such a processor, by each
compiler that is installed.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tiers import cases

from streamfuse.native.library import core_name, find_library, library_name

ROOT = Path(__file__).parents[2]
COMPILERS = [name for name in ("g++", "clang++") if shutil.which(name)]
X86 = platform.machine().lower() in ("x86_64", "amd64")
# -O2, sooner compiled, fuses too; the build's -O3, which vectorizes more, with --full.
FLAGS = [
    "-std=c++20",
    f"-O{cases(2, 3)}",
    "-fPIC",
    "-shared",
    *(["-march=haswell"] if X86 else []),
]  # 64-bit ARM always has FMA
# Numbers, trees and sampled tokens, held to numpy and the reference loop to the bit.
TESTS = ["-k", "numpys_to_the_bit or equal_to_the_bit or sampled_tokens", str(ROOT / "tests" / "core" / "test_core.py")]
OPEN = """
from streamfuse.runtime.core import CoreModel
from streamfuse.runtime.backend import ModelSpec
CoreModel(ModelSpec(64, 60, 0, 0, 8, {}))
"""


def has_fma() -> bool:
    facts = Path("/proc/cpuinfo")
    return not X86 or (facts.is_file() and " fma " in facts.read_text())


def environment_of(compiler: str, folder: Path, *flags: str) -> dict[str, str]:
    """In which Python loads the core as this compiler makes it with these flags."""
    whole = folder / "core.cpp"  # as one file, like the build: most of a file's time is reading headers
    whole.write_text("".join(f'#include "{source}"\n' for source in sorted((ROOT / "core").glob("*.cpp"))))
    subprocess.run([compiler, *FLAGS, *flags, str(whole), "-o", str(folder / core_name())], check=True)
    (folder / library_name()).symlink_to(find_library())
    return os.environ | {"STREAMFUSE_ENGINE": str(folder / library_name())}


@pytest.mark.skipif(not has_fma(), reason="this processor has no fused multiply-add")
@pytest.mark.parametrize(
    "compiler", [*COMPILERS[:1], *(pytest.param(name, marks=pytest.mark.full) for name in COMPILERS[1:])]
)
def test_a_core_for_a_processor_with_fma_gives_the_same_bits(compiler: str, tmp_path: Path) -> None:
    """GCC obeys the source even where it is told to fuse."""
    environment = environment_of(compiler, tmp_path, *(["-ffp-contract=fast"] if compiler == "g++" else []))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *TESTS]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.full
@pytest.mark.skipif(not has_fma() or "clang++" not in COMPILERS, reason="no fused multiply-add, or no clang++")
def test_a_core_that_clang_was_told_to_fuse_opens_no_model(tmp_path: Path) -> None:
    environment = environment_of("clang++", tmp_path, "-ffp-contract=fast")
    done = subprocess.run([sys.executable, "-c", OPEN], capture_output=True, text=True, env=environment)
    assert done.returncode == 0 or "fuses products with sums" in done.stderr, done.stderr


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("flag", ["-ffast-math", "-Ofast"])
def test_a_build_without_exact_rounding_does_not_compile(compiler: str, flag: str) -> None:
    command = [compiler, "-std=c++20", "-fsyntax-only", flag, str(ROOT / "core" / "lookup.cpp")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert "computes with exact rounding" in done.stderr


@pytest.mark.parametrize("folder", ["core", "kernels/ops"])
def test_every_source_begins_with_the_header(folder: str) -> None:
    for source in (ROOT / folder).glob("*.cpp"):
        first = re.search(r'^#include ["<](.*)[">]', source.read_text(encoding="utf-8"), re.MULTILINE)
        assert first, source
        assert first[1] == "rounding.h", source
