"""The `streamfuse` command as a program. It exits quietly on Ctrl-C, also during start-up and shutdown."""

from __future__ import annotations

import os
import signal
import sys

_EXIT_INTERRUPTED = 130  # as cli/errors.py has it, which is not loaded yet


def main() -> None:
    """Entry point of the console script."""
    signal.signal(signal.SIGINT, _leave)
    try:
        from streamfuse.cli import main as command

        signal.signal(signal.SIGINT, signal.default_int_handler)
        command()
    except KeyboardInterrupt:
        sys.exit(_EXIT_INTERRUPTED)
    finally:
        signal.signal(signal.SIGINT, _leave)


def _leave(*_: object) -> None:
    os._exit(_EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
