"""The command line that all builds share, and their error.

The error has a module of its own, because the one that `python -m` runs is loaded again, with classes of its own, where
another imports it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path


class BuildError(RuntimeError):
    """The native library cannot be built; the message is one sentence for the user."""


def build_parser(module: str, about: str, folder: str, flag: str = "--build-dir") -> argparse.ArgumentParser:
    """The options of every build: where it goes, build/`folder` by default, and how many compilers run.

    `module` is the one that is run, `about` its docstring.
    """
    parser = argparse.ArgumentParser(prog=f"python -m streamfuse.native.{module}", description=about.splitlines()[0])
    parser.add_argument(flag, type=Path, default=None, help=f"default: build/{folder} beside the sources")
    parser.add_argument("--jobs", type=int, default=None, help="parallel compilations; default: all cores")
    return parser


def run_tool(command: list[str], *, show: bool = False, environment: Mapping[str, str] | None = None) -> str:
    """What a program prints; with `show` that goes to the terminal while it runs, and the result is empty.

    `environment` replaces this process's own.

    Raises:
        BuildError: it fails or is not installed; the message has its output, unless that was shown.
    """
    try:
        done = subprocess.run(command, capture_output=not show, text=True, env=environment)
    except FileNotFoundError:
        raise BuildError(f"{command[0]} is not installed") from None
    if done.returncode != 0:
        output = "" if show else f":\n{done.stdout}{done.stderr}"
        raise BuildError(f"{' '.join(command[:6])} failed{output}")
    return done.stdout or ""


def need_all(*checks: Callable[[], object]) -> None:
    """Make every check, so that one message names all that is missing.

    Raises:
        BuildError: a check raised one.
    """
    missing = []
    for check in checks:
        try:
            check()
        except BuildError as error:
            missing.append(str(error))
    if missing:
        raise BuildError("\n  ".join(["something is missing", *missing]))


def exit_status(body: Callable[[], object]) -> int:
    """Call `body`; 0, or 1 with the error on stderr after a BuildError."""
    try:
        body()
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def run_build(parser: argparse.ArgumentParser, make: Callable[[argparse.Namespace], object]) -> int:
    """Give the options to `make` and print what it built, or why it did not; the exit status."""
    options = parser.parse_args()
    return exit_status(lambda: print(f"built {make(options)}"))
