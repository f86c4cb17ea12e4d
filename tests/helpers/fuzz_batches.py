"""What the fuzzers that number their inputs share: batches of inputs, each batch in a process of its own."""

from __future__ import annotations

import argparse
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path


def limit_memory(room: int) -> None:
    """Let this process allocate `room` bytes beyond what it has."""
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + room, used + room))


def try_each(first: int, count: int, seconds: int, try_one: Callable[[int], str | None]) -> None:
    """Print a line for each finding that `try_one` returns, and the number before each call; a call that takes longer
    than `seconds` ends the process."""
    for number in range(first, first + count):
        print(f"at {number}", flush=True)
        signal.alarm(seconds)
        finding = try_one(number)
        signal.alarm(0)
        if finding is not None:
            print(f"found {number}: {finding}", flush=True)


def _batch(script: str, first: int, count: int) -> list[str]:
    command = [sys.executable, script, "--work", str(first), "--count", str(count)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=os.environ)
    lines = done.stdout.splitlines()
    found = [line for line in lines if line.startswith("found")]
    if done.returncode != 0:
        last = next((line for line in reversed(lines) if line.startswith("at")), "before the first")
        found.append(f"found {last}: the process ended with {done.returncode} {done.stderr[-500:]}")
    return found


def _fuzz(script: str, what: str, size: int, options: argparse.Namespace) -> bool:
    """Whether nothing was found."""
    started, number, found = time.monotonic(), options.first, 0
    end = None if options.count is None else options.first + options.count
    while (number < end) if end is not None else (time.monotonic() - started < options.seconds):
        count = size if end is None else min(size, end - number)
        for line in _batch(script, number, count):
            print(line, flush=True)
            found += 1
        number += count
    print(f"{number - options.first} {what}: {found} findings")
    return found == 0


def run(script: str, about: str, what: str, size: int, work: Callable[[int, int], None]) -> int:
    """The command line of a fuzzer, and its exit code.

    Args:
        script: the fuzzer's file, which is started again for each batch.
        about: its docstring.
        what: its inputs, in the plural.
        size: the number of inputs of one process.
        work: tries `count` inputs from number `first` on, with `try_each`.
    """
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300, help="how long (300)")
    parser.add_argument("--count", type=int, default=None, help=f"this many {what} instead")
    parser.add_argument("--first", type=int, default=0, help=f"the number of the first of the {what} (0)")
    parser.add_argument("--work", type=int, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, whatever it does
        work(options.work, options.count)
        return 0
    return 0 if _fuzz(script, what, size, options) else 1
