"""The `streamfuse` command as a program. It exits quietly on Ctrl-C, also during start-up and shutdown.

If SIGINT was already ignored at start, as for background jobs of a shell script, it stays ignored.
"""

from __future__ import annotations

import os
import signal
import sys

_EXIT_INTERRUPTED = 130  # as cli/errors.py has it, which is not loaded yet


def main() -> None:
    """Entry point of the console script."""
    ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if not ignored:
        signal.signal(signal.SIGINT, _leave)
    try:
        from streamfuse.cli import main as command

        if not ignored:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        command()
    except KeyboardInterrupt:
        sys.exit(_EXIT_INTERRUPTED)
    finally:
        if not ignored:
            signal.signal(signal.SIGINT, _leave)


def _leave(*_: object) -> None:
    os._exit(_EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
