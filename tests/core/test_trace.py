"""core/trace.h: a section per pass for Android's profilers, through the system's library and not by linking it.

Run: python -m pytest tests/core/test_trace.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CORE = Path(__file__).parents[2] / "core"
ANDROID = """
#include <cstdio>
#include <cstdlib>
extern "C" bool ATrace_isEnabled() { return std::getenv("RECORDS") != nullptr; }
extern "C" void ATrace_beginSection(const char* name) { std::printf("begin %s\\n", name); }
extern "C" void ATrace_endSection() { std::puts("end"); }
"""
PROGRAM = """
#include "trace.h"
int main() {
  const streamfuse::TraceSection whole("verify_8");
  const streamfuse::TraceSection part("streams");
}
"""

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the test library is loaded as on Android; run it on Linux"
)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As for Android, except for the library of the system, which the test has in a folder of its own."""
    folder = tmp_path_factory.mktemp("trace")
    (folder / "system").mkdir()
    (folder / "android.cpp").write_text(ANDROID, encoding="utf-8")
    (folder / "main.cpp").write_text(PROGRAM, encoding="utf-8")
    compiler, flags = os.environ.get("CXX", "c++"), ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-I", str(CORE)]
    shared = [compiler, "-shared", "-fPIC", "android.cpp", "-o", "system/libandroid.so"]
    subprocess.run(shared, cwd=folder, check=True)
    sources = ["-D__ANDROID__", str(CORE / "trace.cpp"), "main.cpp", "-ldl", "-o", "main"]
    subprocess.run([compiler, *flags, *sources], cwd=folder, check=True)
    return folder / "main"


@pytest.mark.parametrize(
    ("system", "records", "printed"),
    [
        ("system", "1", "begin verify_8\nbegin streams\nend\nend\n"),
        ("system", "", ""),
        ("nothing", "1", ""),
    ],
    ids=["while a profiler records", "while none does", "on a system without the library"],
)
def test_sections_begin_and_end_in_order(program: Path, system: str, records: str, printed: str) -> None:
    environment = {**os.environ, "LD_LIBRARY_PATH": str(program.parent / system)}
    environment |= {"RECORDS": records} if records else {}
    done = subprocess.run([program], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == printed
