"""Find and load libstreamfuse_engine with ctypes. Imports neither torch nor executorch."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RUNTIME_LIBRARIES = (  # what the engine links; each needs only those before it
    "executorch",
    "executorch_threadpool",
    "executorch_kernels_optimized",
    "executorch_backend_xnnpack",
    *(("executorch_backend_coreml",) if sys.platform == "darwin" else ()),
    "executorch_etdump",
)
QUANTIZED_KERNELS = (
    "executorch_kernels_quantized"  # the engine loads it from the folder of libexecutorch when a graph asks
)
MOST_THREADS = 64  # of an engine, as kernels/ops/team.h has it; a test compares them
VERSION_FILE = "executorch-version.txt"  # beside packaged copies: the executorch that engine and copies are from


_program = _engine = _rows = ctypes.c_void_p
_text, _place, _code = ctypes.c_char_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {  # of kernels/engine/streamfuse_engine.h; a test compares them
    "sf_program_open": (_code, [_text, ctypes.c_int, ctypes.c_void_p, _place]),
    "sf_program_adapter": (_code, [_program, _text, _place]),
    "sf_program_close": (None, [_program]),
    "sf_program_error": (_text, [_program]),
    "sf_program_describe": (_code, [_program, ctypes.POINTER(_text)]),
    "sf_program_check": (_code, [_program, ctypes.c_void_p]),
    "sf_engine_new": (_code, [_program, _place]),
    "sf_engine_free": (None, [_engine]),
    "sf_engine_error": (_text, [_engine]),
    "sf_engine_backend": (_code, [_engine, ctypes.c_void_p]),
    "sf_engine_run": (_code, [_engine, _text, ctypes.c_int, _rows, _rows, _rows, ctypes.c_int]),
    "sf_engine_streams": (_code, [_engine, ctypes.c_int, ctypes.c_int64]),
    "sf_engine_read": (_code, [_engine, ctypes.c_void_p]),
    "sf_engine_commit": (_code, [_engine, _rows, ctypes.c_int]),
    "sf_engine_truncate": (_code, [_engine, ctypes.c_int64]),
    "sf_engine_truncatable": (_code, [_engine, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64)]),
    "sf_engine_length": (_code, [_engine, ctypes.POINTER(ctypes.c_int64)]),
    "sf_engine_profile": (_code, [_engine, ctypes.c_int]),
    "sf_engine_profile_data": (_code, [_engine, _place, ctypes.POINTER(ctypes.c_size_t)]),
    "sf_engine_backends": (_text, []),
    "sf_waited_ms": (ctypes.c_double, []),
    "sf_read_bandwidth": (ctypes.c_double, [ctypes.c_int, ctypes.c_int64]),
    "sf_core_distance_ns": (ctypes.c_double, []),
}


class LibraryError(OSError):
    """The native library is missing or cannot be loaded; the message is one sentence."""


def file_name(stem: str) -> str:
    """A library's name on this system."""
    return f"lib{stem}.dylib" if sys.platform == "darwin" else f"lib{stem}.so"


def library_name() -> str:
    return file_name("streamfuse_engine")


def core_name() -> str:
    return file_name("streamfuse_core")


def find_core() -> Path:
    """The core's library (core/streamfuse_core.h), which lies beside the engine's. LibraryError where there is none."""
    core = find_library().with_name(core_name())
    if not core.is_file():
        raise LibraryError(f"{core} is missing; build it with: python -m streamfuse.native.build")
    return core


def find_text() -> Path:
    """The library of text/, which lies beside the engine's. LibraryError where there is none."""
    text = find_library().with_name(file_name("streamfuse_text"))
    if not text.is_file():
        raise LibraryError(f"{text} is missing; build it with: python -m streamfuse.native.build")
    return text


def find_library() -> Path:
    """STREAMFUSE_ENGINE, else build/native of the source tree, else the copy packaged beside this module."""
    named = os.environ.get("STREAMFUSE_ENGINE")
    if named:
        if not Path(named).is_file():
            raise LibraryError(f"STREAMFUSE_ENGINE names {named}, which is not a file")
        return Path(named)
    for place in (HERE.parents[2] / "build" / "native", HERE / "lib"):
        if (place / library_name()).is_file():
            return place / library_name()
    raise LibraryError("the native engine is not built; build it with: python -m streamfuse.native.build")


def load_executorch(engine: Path) -> None:
    """Load the installed executorch package's libraries before the engine, where those are the ones to use.

    One process must not hold two copies: the second one's operators would be registered once more with the first, which
    ends the process. The package's Python bindings load the package's files. So those are taken where they are of the
    version that the engine was built against, or loaded already, or the engine has no copies of its own (a build in the
    source tree). Otherwise the engine's search path leads to the copies beside it, and bindings that are imported later
    share these, since Linux knows them by soname.
    """
    place = installed_executorch()
    if place is None:
        return
    files = [place / file_name(stem) for stem in RUNTIME_LIBRARIES]
    if not all(file.is_file() for file in files):
        return
    record = engine.parent / VERSION_FILE
    if record.is_file() and not _is_installed(record.read_text(encoding="utf-8").strip()) and not _is_loaded(files[0]):
        return
    for file in files:
        ctypes.CDLL(str(file))


def installed_executorch() -> Path | None:
    """The package's folder of libraries, found without importing it."""
    spec = importlib.util.find_spec("executorch")
    for place in (spec.submodule_search_locations if spec else None) or ():
        if (Path(place) / "lib").is_dir():
            return Path(place) / "lib"
    return None


def _is_installed(version: str) -> bool:
    """Whether the executorch package is of this version; `1.5.1+cpu` names another build of the same sources."""
    try:
        return importlib.metadata.version("executorch").partition("+")[0] == version.partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return False


def _is_loaded(library: Path) -> bool:
    try:
        ctypes.CDLL(str(library), mode=os.RTLD_NOLOAD)
    except OSError:
        return False
    return True


def load_typed(path: Path, signatures: Mapping[str, tuple[Any, list[Any]]]) -> ctypes.CDLL:
    """A library whose functions have the types of `signatures`: by name, the result's and the arguments'.

    Raises:
        LibraryError: it cannot be loaded.
    """
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise _unloadable(path, error) from error
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


@lru_cache(maxsize=1)
def load_library() -> ctypes.CDLL:
    """The engine with the signatures of kernels/engine/streamfuse_engine.h."""
    path = find_library()
    try:
        load_executorch(path)
    except OSError as error:
        raise _unloadable(path, error) from error
    return load_typed(path, SIGNATURES)


def _unloadable(path: Path, error: OSError) -> LibraryError:
    return LibraryError(f"{path} cannot be loaded ({error}); rebuild it with: python -m streamfuse.native.build")


def path_argument(path: str | os.PathLike[str]) -> bytes:
    """A path as an argument. ValueError where it holds a zero byte, as Python's own functions say."""
    data = os.fsencode(path)
    if b"\0" in data:
        raise ValueError("embedded null byte")
    return data


def list_backends() -> dict[str, str | None]:
    """ExecuTorch's backends that the engine has: why each cannot run on this machine, or None.

    Opens the vendors' libraries, which takes some 30 ms.
    """
    text = load_library().sf_engine_backends()
    if text is None:
        raise LibraryError("the native engine has no memory left to list its backends; end other programs")
    found: dict[str, str | None] = json.loads(text)
    return found
