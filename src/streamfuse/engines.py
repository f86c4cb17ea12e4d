"""The engine of a bundle, whatever its target, and what it costs there: the one place that knows all of them."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from streamfuse.bundle import Bundle
from streamfuse.extras import need

if TYPE_CHECKING:
    from collections.abc import Callable

    from streamfuse.runtime.backend import Backend


def need_engine(bundle: Bundle) -> None:
    """MissingExtra where the bundle's engine is not installed. Nothing is loaded to find out."""
    if bundle.manifest.target == "onnx":
        need("run-onnx")
    if bundle.manifest.target == "coreml" and not emulated(bundle):
        need("run-coreml")


def emulated(bundle: Bundle) -> bool:
    """Whether streamfuse's own emulator stands in for the bundle's engine on this machine."""
    return bundle.manifest.target == "coreml" and platform.system() != "Darwin"


def _check_backend(bundle: Bundle) -> None:
    """BackendError where no library of streamfuse has the delegate here; what one of ours lacks the engine says."""
    from streamfuse.native.library import LibraryError, list_backends
    from streamfuse.runtime.backend import BackendError

    backend = bundle.manifest.backend
    if backend in ("kernels", "xnnpack"):  # every engine has them; to ask about the others opens the vendors' libraries
        return
    try:
        found = list_backends()
    except LibraryError as error:
        raise BackendError(str(error)) from error
    apple = backend == "coreml"
    if backend in found or (apple and platform.system() == "Darwin"):
        return
    carriers = "only the libraries for macOS and iOS carry" if apple else "no library of streamfuse carries"
    here = " and ".join(name for name, reason in found.items() if reason is None)
    raise BackendError(
        f"{bundle.folder} needs ExecuTorch's delegate {backend}, which {carriers}; here run {here}, "
        "so export it with `--backend kernels` to run it here"
    )


def check_provider(bundle: Bundle, provider: str | None) -> None:
    """Before anything is loaded: the provider that was asked for goes with the bundle, and is here.

    Raises:
        OptionError: there is no such provider, or the bundle is not ONNX.
        BackendError: it is not on this system, or its package is not installed.
    """
    if provider is None:
        return
    from streamfuse.options import OptionError
    from streamfuse.runtime.backends.onnx_providers import Choice

    choice = Choice.parse(provider)
    if bundle.manifest.target != "onnx":
        raise OptionError(
            f"--provider is of ONNX Runtime, and {bundle.folder} was exported for {bundle.manifest.target}, "
            f"backend {bundle.manifest.backend}; leave it out"
        )
    need_engine(bundle)
    choice.check()


def engines_of(bundle: Bundle, threads: int | None, provider: str | None = None) -> Callable[[], Backend]:
    """Load the graphs of a bundle; what is returned makes engines on them, one per sequence.

    The native engine shares its weights among them; ONNX Runtime and Core ML load graphs anew for each. `provider` is
    ONNX Runtime's execution provider, with options as `--provider` has them; None: the CPU's.

    Raises:
        BackendError: the engine or the graphs cannot be loaded, or the engine has no such delegate or provider.
        MissingExtra: a package is not installed.
        OptionError: `provider` is none, or the bundle is not ONNX.
    """
    need_engine(bundle)
    check_provider(bundle, provider)
    if bundle.manifest.target == "onnx":
        from streamfuse.runtime.backends.onnx_providers import Choice
        from streamfuse.runtime.backends.onnxruntime import OnnxBackend

        choice = Choice() if provider is None else Choice.parse(provider)
        return lambda: OnnxBackend(bundle.graph, bundle.spec(), num_threads=threads, provider=choice)
    if bundle.manifest.target == "coreml":
        from streamfuse.runtime.backends.coreml import open_package

        return lambda: open_package(bundle.graph, bundle.spec())
    _check_backend(bundle)
    from streamfuse.runtime.backends.executorch import ExecuTorchBackend, ExecuTorchProgram

    program = ExecuTorchProgram(bundle.graph, num_threads=threads)
    return lambda: ExecuTorchBackend(program, bundle.spec())


def identity_of(bundle: Bundle) -> str:
    """What tells this bundle from others: a hash over the hashes of its files."""
    import hashlib

    files = bundle.manifest.files
    return hashlib.sha256("\n".join(f"{name} {files[name].sha256}" for name in sorted(files)).encode()).hexdigest()


def processor() -> str:
    """The processor's name, as far as the system says one."""
    model = platform.processor() or platform.machine()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    return model


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device_of(bundle: Bundle, threads: int | None, provider: str | None = None) -> str:
    """What makes a pass cost differently: processor, cores, threads, the engine's version or build, its provider."""
    forced = os.environ.get("STREAMFUSE_ISA", "")
    return (
        f"{platform.system()} {platform.machine()}, {processor()}, {cores()} cores, threads {threads or 'default'}, "
        f"{_engine_stamp(bundle)}" + "".join(f", {word}" for word in (provider, forced) if word)
    )


def cost_folder() -> Path:
    """Where what passes cost is kept, a file per bundle and device. It may not be there."""
    from streamfuse.model.pull import cache_root

    return cache_root() / "costs"


def cost_file(bundle: Bundle, device: str) -> Path:
    """Where the core keeps what passes cost, in the user's cache folder. The folder is made; it may be read-only."""
    import hashlib

    key = hashlib.sha256(f"{identity_of(bundle)}\n{device}".encode()).hexdigest()[:24]
    folder = cost_folder()
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{key}.costs"


def _engine_stamp(bundle: Bundle) -> str:
    """Changes with the engine, so that a new build or version is measured anew."""
    from streamfuse.native.library import LibraryError, find_library

    if bundle.manifest.target == "onnx":
        from streamfuse.runtime.backends.onnx_providers import installed

        return installed()
    if bundle.manifest.target == "coreml":
        try:
            return f"coremltools {version('coremltools')}"
        except PackageNotFoundError:
            return "coremltools"
    try:
        facts = find_library().stat()
    except LibraryError:
        return "no native engine"
    return f"engine {facts.st_size} {int(facts.st_mtime)}"
