"""Find and load libstreamfuse_engine with ctypes. Imports neither torch nor executorch."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from functools import lru_cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
_RUNTIME_LIBRARIES = (
    "executorch",
    "executorch_threadpool",
    "executorch_kernels_optimized",
    "executorch_backend_xnnpack",
    "executorch_etdump",
)


class LibraryError(OSError):
    """The native library is missing or cannot be loaded, said in one sentence."""


def _file_name(stem: str) -> str:
    return f"lib{stem}.dylib" if sys.platform == "darwin" else f"lib{stem}.so"


def library_name() -> str:
    return _file_name("streamfuse_engine")


def find_core() -> Path:
    """The core's library (core/streamfuse.h), which lies beside the engine's. LibraryError where there is none."""
    core = find_library().with_name(_file_name("streamfuse_core"))
    if not core.is_file():
        raise LibraryError(f"{core} is missing; build it with: python -m streamfuse.kernels.build")
    return core


def find_library() -> Path:
    """STREAMFUSE_ENGINE, else build/native of the source tree, else the copy packaged beside this module."""
    named = os.environ.get("STREAMFUSE_ENGINE")
    if named:
        if not Path(named).is_file():
            raise LibraryError(f"STREAMFUSE_ENGINE names {named}, which is not a file")
        return Path(named)
    for place in (HERE.parent / "build" / "native", HERE / "lib"):
        if (place / library_name()).is_file():
            return place / library_name()
    raise LibraryError("the native engine is not built; build it with: python -m streamfuse.kernels.build")


def _load_executorch() -> None:
    """Load the installed wheel's libraries first, so that a packaged engine needs no search path of its own."""
    spec = importlib.util.find_spec("executorch")
    for place in (spec.submodule_search_locations if spec else None) or ():
        for stem in _RUNTIME_LIBRARIES:
            path = Path(place) / "lib" / _file_name(stem)
            if path.is_file():
                ctypes.CDLL(str(path))


@lru_cache(maxsize=1)
def load_library() -> ctypes.CDLL:
    """The engine with the signatures of kernels/engine/streamfuse_engine.h."""
    path = find_library()
    try:
        _load_executorch()
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise LibraryError(
            f"{path} cannot be loaded ({error}); rebuild it with: python -m streamfuse.kernels.build"
        ) from error
    program = session = ctypes.c_void_p
    text, pointer = ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p)
    int64_p = ctypes.POINTER(ctypes.c_int64)
    rows = ctypes.c_void_p
    signatures: dict[str, list[object]] = {
        "sf_open": [text, ctypes.c_int, pointer],
        "sf_describe": [program, ctypes.POINTER(text)],
        "sf_new_session": [program, pointer],
        "sf_run": [session, text, ctypes.c_int, rows, rows, rows, ctypes.c_int],
        "sf_streams": [session, ctypes.c_int],
        "sf_read": [session, rows],
        "sf_commit": [session, rows, ctypes.c_int],
        "sf_truncate": [session, ctypes.c_int64],
        "sf_length": [session, int64_p],
        "sf_profile": [session, ctypes.c_int],
        "sf_profile_data": [session, pointer, ctypes.POINTER(ctypes.c_size_t)],
        "sf_waited": [ctypes.POINTER(ctypes.c_double)],
        "sf_read_bandwidth": [ctypes.c_int, ctypes.POINTER(ctypes.c_double)],
        "sf_core_distance": [ctypes.POINTER(ctypes.c_double)],
        "sf_last_error": [],
        "sf_close": [program],
        "sf_free_session": [session],
    }
    for name, arguments in signatures.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = ctypes.c_int
    library.sf_last_error.restype = text
    library.sf_close.restype = library.sf_free_session.restype = None
    return library

