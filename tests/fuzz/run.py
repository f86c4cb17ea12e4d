"""Coverage-guided fuzzing of the engine's and the core's files, under the address and undefined-behaviour sanitizers.

    python tests/fuzz/run.py [--seconds 300] [--targets program,tables] [--jobs 1]

Needs clang++ with libFuzzer (Debian: clang and libclang-rt-14-dev). What a target is given to begin with are tiny
programs, or nothing. Inputs that reached new code stay in build/fuzz/corpus, so the next run goes on; one
that crashes, hangs or takes too much memory is written to build/fuzz/found, and the exit code is 1. To run one again:
build/fuzz/bin/fuzz_program FILE.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "fuzz"
MEMORY = Path("/dev/shm")
TARGETS = ("program", "tables")
SANITIZERS = "fuzzer-no-link,address,undefined"
# What is small enough for a pass to be tried thousands of times a second; a program begins with some 100 KB. An input
# is slow if it times out, since another process can make any input slow.
LIMITS = ["-timeout=30", "-report_slow_units=30", "-rss_limit_mb=4096", "-detect_leaks=0", "-print_final_stats=1"]


def built() -> Path:
    """The folder of the targets. Raises BuildError where there is no compiler for them."""
    from streamfuse.native.build import BuildError, build

    compiler = os.environ.get("CXX", "clang++")
    if shutil.which(compiler) is None or not has_fuzzer(compiler):
        raise BuildError(f"{compiler} has no libFuzzer: install clang and its runtime (Debian: libclang-rt-14-dev)")
    os.environ["CXX"] = compiler
    return build(FOLDER / "bin", sanitize=SANITIZERS, targets=[f"fuzz_{name}" for name in TARGETS], quiet=True).parent


def has_fuzzer(compiler: str) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "empty.cpp"
        source.write_text('extern "C" int LLVMFuzzerTestOneInput(const char*, long) { return 0; }\n', encoding="utf-8")
        command = [compiler, "-fsanitize=fuzzer,address,undefined", str(source), "-o", str(source.with_suffix(""))]
        return subprocess.run(command, capture_output=True).returncode == 0


def seed(target: str, folder: Path) -> None:
    """Fills an empty corpus."""
    folder.mkdir(parents=True, exist_ok=True)
    if target == "program" and not any(folder.iterdir()):
        sys.path.append(str(ROOT / "tests" / "helpers"))
        from native_samples import LINEAR_ATTENTION, tiny_bundle

        for name, model in (("tiny", {}), ("linear", LINEAR_ATTENTION)):
            with tempfile.TemporaryDirectory() as place:
                shutil.copy(tiny_bundle(Path(place) / name, model) / "model.pte", folder / name)


def fuzz(target: str, seconds: int, jobs: int) -> bool:
    """Whether nothing was found."""
    corpus, found = FOLDER / "corpus" / target, FOLDER / "found"
    seed(target, corpus)
    found.mkdir(exist_ok=True)
    before = set(found.iterdir())
    command = [FOLDER / "bin" / f"fuzz_{target}", corpus, f"-max_total_time={seconds}", *LIMITS]
    command += (
        [f"-artifact_prefix={found}/{target}-", f"-fork={jobs}"]
        if jobs > 1
        else [f"-artifact_prefix={found}/{target}-"]
    )
    environment = os.environ | {"ASAN_OPTIONS": "allocator_may_return_null=1:detect_odr_violation=0"}
    if MEMORY.is_dir():
        environment["TMPDIR"] = str(MEMORY)  # a saved session is flushed to the disk, which takes most of the time
    done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace")
    lines = done.stderr.splitlines()
    print("\n".join(line for line in lines if line.startswith(("stat::", "Done", "SUMMARY", "=="))), flush=True)
    new = sorted(set(found.iterdir()) - before)
    for path in new:
        print(f"found: {path.relative_to(ROOT)}")
    if done.returncode != 0 and not new:
        print("\n".join(lines[-30:]))
    return done.returncode == 0 and not new


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=300, help="for each target (300)")
    parser.add_argument("--targets", default=",".join(TARGETS), help="of program, tables (both)")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side (1)")
    options = parser.parse_args()
    from streamfuse.native.build import BuildError

    try:
        built()
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    fine = [fuzz(target, options.seconds, options.jobs) for target in options.targets.split(",")]
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
