"""Files that outlive a crash: flushed before they take a name, and folders that change places in one step."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

_HERE = -100  # AT_FDCWD of Linux: paths are relative to the current folder
_SWAP = 2  # RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # a disk, a share of it, the largest file


def reason(error: OSError) -> str:
    """What the system says, and what to do where that is known."""
    return (error.strerror or str(error)) + ("; make room and try again" if error.errno in FULL else "")


def os_error(error: BaseException) -> OSError | None:
    """The system's error in one of a library written in Rust, whose text ends in `(os error 28)`."""
    if isinstance(error, OSError):
        return error
    found = re.search(r"\(os error (\d+)\)", str(error))
    return OSError(int(found[1]), os.strerror(int(found[1]))) if found else None


def reserve(path: Path) -> None:
    """Take the disk that a file's length asks for. Else a full disk would end a process that maps it, by a signal."""
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(path)) from None


def flush(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk. OSError where the file cannot be written there."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    except OSError:
        if not path.is_dir():  # some file systems cannot flush a folder
            raise
    finally:
        os.close(number)


def uncache(path: Path) -> None:
    """Have a flushed file read from the disk when it is next used. What was written is cached in small pages; what is
    read for a map that asks for large ones may come in those (kernels/engine/loader.h)."""
    if hasattr(os, "posix_fadvise"):
        number = os.open(path, os.O_RDONLY)
        try:
            with suppress(OSError):  # advice, which some file systems do not take
                os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(number)


def flush_tree(folder: Path) -> None:
    """`flush` for all that lies below a folder, and the folder."""
    for path in sorted(folder.rglob("*"), reverse=True):
        flush(path)
    flush(folder)


def replace_file(temporary: Path, path: Path) -> None:
    """Atomically rename a written file to `path`: after a crash, `path` is either the old file or the new one."""
    flush(temporary)
    os.replace(temporary, path)
    flush(path.parent)


def write_text(path: Path, text: str) -> None:
    """A whole file of UTF-8 text, in one step: whoever reads it meanwhile, or after a stop, has the old one or this."""
    if path.exists() and not path.is_file():  # a pipe or a terminal
        path.write_text(text, encoding="utf-8")
        return
    path = path.resolve()  # a link keeps pointing where it did
    try:
        with one_writer(path.with_name(f".{path.name}.partial")) as temporary:
            temporary.write_text(text, encoding="utf-8")
            replace_file(temporary, path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


@contextmanager
def one_writer(temporary: Path) -> Iterator[Path]:
    """A file of a fixed name, so that what a killed process left is written over and never piles up; processes that
    write the same file take turns. After an error it is removed."""
    while True:
        number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        with suppress(OSError):  # a file system without locks has one writer at a time, or none
            fcntl.flock(number, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(number), temporary.stat()):
                break
        os.close(number)  # another process gave it its name in between
    try:
        yield temporary
    except BaseException:
        temporary.unlink(missing_ok=True)  # before the lock is given back: afterwards it may be another's
        raise
    finally:
        os.close(number)


def exchange(one: Path, other: Path) -> bool:
    """Let two names change places in one step. False where the system or its file system cannot."""
    swap = _swap()
    with suppress(ValueError):  # a zero byte in a path
        return swap is not None and swap(os.fsencode(one), os.fsencode(other)) == 0
    return False


def set_aside(folder: Path) -> Path:
    """The path of an old folder between the two renames of `replace_folder`, where two names cannot be exchanged."""
    return folder.with_name(f".{folder.name}.replaced") if folder.name else folder


def replace_folder(new: Path, folder: Path) -> None:
    """Give the finished folder `new` the name `folder`, and flush that. One that has the name is deleted, or gets the
    name `new` where two names can be exchanged. After a crash, `recover_folder` finds the old one or the new one."""
    if not os.path.lexists(folder):
        new.rename(folder)
    elif not exchange(new, folder):
        aside = set_aside(folder)
        folder.rename(aside)
        try:
            new.rename(folder)
        except BaseException:
            aside.rename(folder)
            raise
        flush(folder.parent)
        shutil.rmtree(aside, ignore_errors=True)
    flush(folder.parent)


def recover_folder(folder: Path) -> None:
    """Move back what a process that was killed in `replace_folder` has set aside."""
    aside = set_aside(folder)
    if not aside.is_dir():
        return
    if os.path.lexists(folder):
        shutil.rmtree(aside, ignore_errors=True)
    else:
        aside.rename(folder)


@lru_cache(maxsize=1)
def _swap() -> Callable[[bytes, bytes], int] | None:
    name = {"linux": "renameat2", "darwin": "renamex_np"}.get(sys.platform, "")
    function = getattr(ctypes.CDLL(None), name, None) if name else None
    if function is None:
        return None
    if sys.platform == "darwin":
        function.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint]
        return lambda one, other: int(function(one, other, _SWAP))
    function.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    return lambda one, other: int(function(_HERE, one, _HERE, other, _SWAP))
