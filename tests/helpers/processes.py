"""Commands in processes to kill, starve and race, without the seconds that loading PyTorch takes each time.

One server loads the libraries and forks a process per command (multiprocessing's forkserver).
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["process_libraries"])


class Command:
    """A `streamfuse` command that runs by itself; its output goes to files in `folder`."""

    def __init__(self, folder: Path, *arguments: object, most_bytes: int | None = None, **environment: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._out, self._err = folder / "stdout", folder / "stderr"
        words = [str(argument) for argument in arguments]
        self.process = _SERVER.Process(
            target=_run, args=(words, str(self._out), str(self._err), environment, most_bytes), daemon=True
        )
        self.process.start()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def wait(self, seconds: float = 120) -> int:
        """The exit code."""
        self.process.join(seconds)
        assert self.process.exitcode is not None, f"nothing after {seconds} seconds: {self.stderr}"
        return self.process.exitcode

    @property
    def stderr(self) -> str:
        return self._err.read_text(encoding="utf-8") if self._err.exists() else ""

    @property
    def stdout(self) -> str:
        return self._out.read_text(encoding="utf-8")


def _run(words: Sequence[str], out: str, err: str, environment: Mapping[str, str], most_bytes: int | None) -> None:
    import process_libraries  # noqa: F401  loaded by the server, which says nothing where that fails

    for number, name in ((1, out), (2, err)):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.environ.update(environment)
    if most_bytes is not None:  # of any file; Python ignores the signal, and writing fails as on a full disk
        sys.dont_write_bytecode = True  # importlib would keep the part that fits
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    sys.argv = ["streamfuse", *words]
    sys.stdout = os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", buffering=1)
    from streamfuse.__main__ import main

    main()


def only_line(command: Command) -> str:
    """The one line of a command that must fail with code 1, after what it says about its work."""
    code: Any = command.wait()
    lines = command.stderr.splitlines()
    assert code == 1, command.stderr
    assert sum(line.startswith("error: ") for line in lines) == 1, command.stderr
    assert lines[-1].startswith("error: "), command.stderr
    assert "STREAMFUSE_DEBUG" not in lines[-1], lines[-1]
    return lines[-1]
