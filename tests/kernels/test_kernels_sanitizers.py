"""The C++ tests under the address, undefined-behaviour and thread sanitizers.

Run: pytest --slow tests/kernels/test_kernels_sanitizers.py, or `make sanitize`. The builds are kept in build/sanitize.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from app_library import BUILT
from native_samples import WIDTHS
from pages import ROOT

from streamfuse.native.build import build, default_build_dir
from streamfuse.native.library import core_name, library_name

if not any(shutil.which(compiler) for compiler in (os.environ.get("CXX", "c++"), "g++", "clang++")):
    pytest.skip("there is no C++ compiler to build the native engine with", allow_module_level=True)

pytestmark = pytest.mark.slow
X86 = platform.machine().lower() in ("x86_64", "amd64")
INSTRUCTION_SETS = ["avx512", "avx_vnni", "avx2", "portable"] if X86 else ["neon_i8mm", "neon_dot", "neon"]
TOO_EARLY = "ThreadSanitizer: unexpected memory mapping"  # of older compilers on kernels that spread addresses widely


def built(sanitizers: str, *programs: str) -> Path:
    """The folder of these programs, built with these sanitizers."""
    folder = default_build_dir().parent / "sanitize" / sanitizers.split(",")[0]
    # A sanitized build takes minutes, so what does not run is not compiled. Threads share their work alike in each
    # instruction set, so one of them is enough for the thread sanitizer.
    options = {} if has_avx_vnni() and sanitizers != "thread" else {"STREAMFUSE_AVX_VNNI": "OFF"}
    return build(folder, sanitize=sanitizers, targets=programs, options=options, quiet=True, jobs=2).parent


def has_avx_vnni() -> bool:
    facts = Path("/proc/cpuinfo")  # Linux
    return not facts.exists() or "avx_vnni" in facts.read_text(encoding="utf-8").split()


def run(program: Path, *arguments: object, **environment: str) -> str:
    command = [str(program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    if TOO_EARLY in done.stderr:
        pytest.skip("the thread sanitizer cannot run on this kernel")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def address() -> Path:
    return built("address,undefined", "test_core", "test_constraint", "test_ops", "test_engine")


@pytest.fixture(scope="session")
def thread() -> Path:
    return built("thread", "test_ops", "test_engine")


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_operators_touch_only_their_memory(address: Path, instruction_set: str) -> None:
    output = run(address / "test_ops", 40, STREAMFUSE_ISA=instruction_set)
    if f"instruction set: {instruction_set}," not in output:
        pytest.skip(f"this CPU has no {instruction_set}")


@pytest.mark.parametrize("width", WIDTHS)
def test_the_engine_touches_only_its_memory(address: Path, tiny_graph: Path, width: int) -> None:
    run(address / "test_engine", tiny_graph, width)


def test_linear_attention_touches_only_its_memory(address: Path, linear_graph: Path) -> None:
    run(address / "test_engine", linear_graph, WIDTHS[-1])


def test_the_loop_the_decisions_and_the_acceptance_hold_by_themselves(address: Path) -> None:
    run(address / "test_core")


def test_constraints_hold_by_themselves(address: Path) -> None:
    run(address / "test_constraint")


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="the sanitizer's runtime is loaded as Linux does it")
def test_the_core_touches_only_its_memory(tmp_path: Path) -> None:
    """Its own tests again, hostile tables and lying engines among them, on a core with checks."""
    library = checked(tmp_path / core_name(), sorted((ROOT / "core").glob("*.cpp")))
    (tmp_path / library_name()).symlink_to(default_build_dir() / library_name())
    passes(
        ["core/test_core.py", "runtime/test_runtime_draft.py"], STREAMFUSE_ENGINE=str(library.with_name(library_name()))
    )


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="the sanitizer's runtime is loaded as Linux does it")
@pytest.mark.skipif(not BUILT.is_file(), reason=f"{BUILT.name} is missing; run: make native-mobile")
def test_the_library_of_apps_touches_only_its_memory(tmp_path: Path) -> None:
    """Its own tests again, failing engines among them, on native/ with checks over the rest as it was built."""
    folders = [f"-I{ROOT / folder}" for folder in ("core", "text", "kernels/engine")]
    below = [f"-L{BUILT.parent}", "-lstreamfuse", f"-Wl,-rpath,{BUILT.parent}"]
    library = checked(tmp_path / "libchecked.so", sorted((ROOT / "native").glob("*.cpp")), *folders, *below)
    passes(["native/test_native.py", "native/test_native_borders.py"], STREAMFUSE_TESTED_LIBRARY=str(library))


def checked(library: Path, sources: list[Path], *options: str) -> Path:
    """A library of these sources with the address and undefined-behaviour sanitizers."""
    flags = ["-std=c++20", "-O1", "-g1", "-fPIC", "-shared", "-fvisibility=hidden"]
    checks = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    compiler = os.environ.get("CXX", "g++")
    subprocess.run(
        [compiler, *flags, *checks, *map(str, sources), *options, "-o", str(library)], check=True, capture_output=True
    )
    return library


def passes(files: list[str], **environment: str) -> None:
    """These files of tests pass with the sanitizers' runtimes loaded."""
    compiler = os.environ.get("CXX", "g++")
    runtimes = [
        subprocess.run(
            [compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    checks = {"LD_PRELOAD": " ".join(runtimes), "ASAN_OPTIONS": "detect_leaks=0"}
    tests = [str(ROOT / "tests" / name) for name in files]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | checks | environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_operators_share_their_work_without_races(thread: Path) -> None:
    run(thread / "test_ops", 20, STREAMFUSE_THREADS="3")


def test_sessions_in_threads_have_no_races(thread: Path, tiny_graph: Path) -> None:
    run(thread / "test_engine", tiny_graph, WIDTHS[-1])


def test_sessions_with_linear_attention_have_no_races(thread: Path, linear_graph: Path) -> None:
    run(thread / "test_engine", linear_graph, WIDTHS[-1])
