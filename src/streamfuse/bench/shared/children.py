"""Work in a process of its own, so that its memory and its time can be told from everybody else's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from streamfuse.export.pipeline import peak_memory

from .processes import ending

_PATIENCE_S = 30.0  # for a child to clean up after itself


class ChildError(RuntimeError):
    """A child failed; the message is the last line of its error output."""


class ChildKilled(ChildError):
    """A child was ended by a signal, as the system does where memory runs out."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Of one process from its start to its end: seconds by the clock and of all its cores, largest resident bytes."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def run_module(*words: str, line: Callable[[str], None]) -> Usage:
    """Run `python -m WORDS` to its end; `line` gets each line of its standard output as it comes.

    A Ctrl-C here is passed on, and the child's end awaited: the module must listen to SIGINT also where its parent was
    started to ignore it.

    Raises:
        ChildKilled, ChildError: it did not end well.
    """
    started = time.perf_counter()
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as stderr,
        # A group of its own: a terminal's Ctrl-C must not reach it twice, and cut its cleaning short.
        subprocess.Popen(
            [sys.executable, "-m", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr,
            encoding="utf-8", start_new_session=True,
        ) as process,
    ):  # fmt: skip
        try:
            assert process.stdout is not None
            for text in process.stdout:
                line(text)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        except BaseException:
            _stop(process)
            raise
        if process.returncode:
            stderr.seek(0)
            _fail(words[0], process.returncode, stderr.read())
    seconds = time.perf_counter() - started
    return Usage(round(seconds, 2), round(usage.ru_utime + usage.ru_stime, 2), peak_memory(usage))


def _stop(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()


def _fail(name: str, code: int, stderr: str) -> None:
    if code < 0:
        raise ChildKilled(ending(code))
    lines = stderr.splitlines() or [f"{name} {ending(code)}"]
    raise ChildError(lines[-1].removeprefix("error: "))
