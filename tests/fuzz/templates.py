"""Fuzz chat templates: python tests/fuzz/templates.py [--seconds 300 | --count N]

Templates come from the grammar of tests/helpers/template_grammar.py, by number. A template that mostly works must
give the text of transformers, or an error; one that grows what it works with must end, within a time and with little
memory. Prints each finding, and exits with 1 where there is one.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
_SECONDS = 30  # for one template: some of a second on a machine that does nothing else
_MEMORY = 2 << 30  # beyond what a process has when it begins
_BATCH = 200  # templates of one process


def work(first: int, count: int) -> None:
    """What a process does: a line for each finding, and the number at hand in front of all work."""
    import signal

    sys.path.append(str(ROOT / "tests" / "helpers"))
    from template_grammar import hostile, template
    from template_renders import CHAT, by_streamfuse, by_transformers

    by_streamfuse("{{ 1 }}", CHAT)
    by_transformers("{{ 1 }}", CHAT)
    used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, used + _MEMORY))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, whatever it does
    for number in range(first, first + count):
        rng = random.Random(number)
        is_hostile = number % 2 == 1
        source = hostile(rng) if is_hostile else template(rng)
        print(f"at {number}", flush=True)
        signal.alarm(_SECONDS)
        rendered, text = by_streamfuse(source, CHAT)
        signal.alarm(0)
        if not rendered and ("no memory" in text or "internal check" in text or "\n" in text):
            print(f"found {number}: {text}", flush=True)
        if rendered and not is_hostile and by_transformers(source, CHAT) != (True, text):
            print(f"found {number}: another text than transformers gives", flush=True)


def batch(first: int, count: int) -> list[str]:
    command = [sys.executable, __file__, "--work", str(first), "--count", str(count)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=os.environ)
    lines = done.stdout.splitlines()
    found = [line for line in lines if line.startswith("found")]
    if done.returncode != 0:
        last = next((line for line in reversed(lines) if line.startswith("at")), "before the first")
        found.append(f"found {last}: the process ended with {done.returncode} {done.stderr[-500:]}")
    return found


def fuzz(seconds: float, count: int | None, first: int) -> bool:
    """Whether nothing was found."""
    started, number, found = time.monotonic(), first, 0
    while (number < first + count) if count is not None else (time.monotonic() - started < seconds):
        size = _BATCH if count is None else min(_BATCH, first + count - number)
        for line in batch(number, size):
            print(line, flush=True)
            found += 1
        number += size
    print(f"{number - first} templates: {found} findings")
    return found == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300, help="how long (300)")
    parser.add_argument("--count", type=int, default=None, help="this many templates instead")
    parser.add_argument("--first", type=int, default=0, help="the number of the first template (0)")
    parser.add_argument("--work", type=int, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        work(options.work, options.count)
        return 0
    return 0 if fuzz(options.seconds, options.count, options.first) else 1


if __name__ == "__main__":
    sys.exit(main())
