"""Finds and loads Qualcomm's libraries, which contain the compiler and the simulator, and captures their output."""

from __future__ import annotations

import ctypes
import importlib.metadata
import logging
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

from streamfuse.options import OptionError

_ERROR = re.compile(r"<E> (.+)")  # an error in their log
# Qualcomm's libraries bring libc++abi and libunwind. Loaded globally, these would be used by libraries loaded later,
# which then abort on the first exception (OpenVINO throws one internally). So GNU's runtime is loaded globally first,
# and Qualcomm's libraries locally, with RTLD_DEEPBIND.
_CXX_RUNTIME = ("libgcc_s.so.1", "libstdc++.so.6")
_OWN_FIRST = os.RTLD_LOCAL | getattr(os, "RTLD_DEEPBIND", 0)


class SdkError(OptionError):
    """The libraries cannot be loaded."""


def load_compiler() -> None:
    """Load the libraries of QNN_SDK_ROOT or, if that is not set, of the package onnxruntime-qnn.

    Raises:
        SdkError: they are not installed.
    """
    root = os.environ.get("QNN_SDK_ROOT")
    if root:
        folder = Path(root) / "lib" / "x86_64-linux-clang"
    else:
        try:
            folder = Path(str(importlib.metadata.distribution("onnxruntime-qnn").locate_file("onnxruntime_qnn")))
        except importlib.metadata.PackageNotFoundError:
            raise SdkError(
                "--backend qnn needs Qualcomm's libraries: pip install 'streamfuse[qnn]' on x86-64 Linux, or set "
                "QNN_SDK_ROOT to the folder of their SDK"
            ) from None
        os.environ["QNN_SDK_ROOT"] = ""  # they are loaded, so ExecuTorch must not download an SDK
    shared = [(name, ctypes.RTLD_GLOBAL) for name in _CXX_RUNTIME]
    own = [(str(folder / name), _OWN_FIRST) for name in ("libQnnSystem.so", "libQnnHtp.so")]
    for path, mode in shared + own:
        try:
            with quiet():
                ctypes.CDLL(path, mode=mode)
        except OSError as error:
            raise SdkError(f"--backend qnn cannot load {path}: {error}") from error


@contextmanager
def quiet() -> Iterator[Callable[[], str]]:
    """Captures what the libraries print to the process's output streams, and silences ExecuTorch's log of operators.

    Python's own output is not affected. Yields a function that returns the captured errors.
    """
    with ExitStack() as stack:
        collected = stack.enter_context(tempfile.TemporaryFile())
        for number, stream in ((1, sys.stdout), (2, sys.stderr)):
            stream.flush()
            before = os.dup(number)
            stack.callback(os.close, before)
            stack.callback(os.dup2, before, number)
            own = stack.enter_context(os.fdopen(os.dup(before), "w"))
            stack.enter_context(redirect_stdout(own) if number == 1 else redirect_stderr(own))
            os.dup2(collected.fileno(), number)
        disabled = logging.root.manager.disable
        logging.disable(logging.WARNING)
        stack.callback(logging.disable, disabled)

        def errors() -> str:
            collected.seek(0)
            return "; ".join(_ERROR.findall(collected.read().decode(errors="replace")))

        yield errors
