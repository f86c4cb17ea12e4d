"""What test processes that run beside each other (pytest-xdist) share: turns, and what one of them makes for all."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


class Turns:
    """Tests run beside each other; one that must be alone waits for the others and keeps them waiting.

    Two locks on files of `folder`, which is there: who wants to be alone takes the gate too, so that nobody enters
    before it. The system frees them where a process ends without a word.
    """

    def __init__(self, folder: Path) -> None:
        self._gate, self._room = (os.open(folder / name, os.O_RDWR | os.O_CREAT) for name in ("gate", "room"))

    @contextmanager
    def taken(self, *, alone: bool) -> Iterator[None]:
        try:
            fcntl.flock(self._gate, fcntl.LOCK_EX)
            fcntl.flock(self._room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            fcntl.flock(self._gate, fcntl.LOCK_UN)
            yield
        finally:
            for lock in (self._gate, self._room):
                fcntl.flock(lock, fcntl.LOCK_UN)


def made_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """`folder`, filled by `make` in the first process that asks for it; the others wait."""
    done = folder / ".done"
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of one that failed
            folder.mkdir()
            make(folder)
            done.touch()
    return folder
