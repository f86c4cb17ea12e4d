"""The command line that all builds share, and their error.

The error has a module of its own, because the one that `python -m` runs is loaded again, with classes of its own, where
another imports it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
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


def run_build(parser: argparse.ArgumentParser, make: Callable[[argparse.Namespace], object]) -> int:
    """Give the options to `make` and print what it built, or why it did not; the exit status."""
    options = parser.parse_args()
    try:
        print(f"built {make(options)}")
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
