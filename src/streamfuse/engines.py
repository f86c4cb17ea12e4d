"""The engine of a bundle for each target, and what its latency depends on: the only module that knows all engines."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from streamfuse.bundle import Bundle
from streamfuse.extras import need
from streamfuse.runtime.config import demand, is_integer
from streamfuse.runtime.cores import cores

if TYPE_CHECKING:
    from streamfuse.runtime.backend import Backend


# Engines that choose their number of threads, by backend.
_OWN_THREADS = {"mlprogram": "Core ML", "coreml": "Core ML", "openvino": "OpenVINO", "qnn": "QNN", "vulkan": "Vulkan"}


class EngineMaker(Protocol):
    """Makes an engine for one sequence of a bundle or of one of its task adapters."""

    def __call__(self, bundle: Bundle = ...) -> Backend: ...


def need_engine(bundle: Bundle) -> None:
    """MissingExtra if the bundle's engine is not installed. Nothing is loaded."""
    if bundle.manifest.target == "onnx":
        need("run-onnx")
    if bundle.manifest.target == "coreml" and not emulated(bundle):
        need("run-coreml")


def emulated(bundle: Bundle) -> bool:
    """Whether streamfuse's own emulator replaces the bundle's engine on this machine."""
    return bundle.manifest.target == "coreml" and platform.system() != "Darwin"


def _check_backend(bundle: Bundle) -> None:
    """BackendError if no streamfuse library supports the delegate here; other problems are reported by the engine."""
    from streamfuse.native.library import LibraryError, list_backends
    from streamfuse.runtime.backend import BackendError

    backend = bundle.manifest.backend
    if backend in ("kernels", "xnnpack"):  # always available; checking the others loads vendors' libraries
        return
    try:
        found = list_backends()
    except LibraryError as error:
        raise BackendError(str(error)) from error
    apple = backend == "coreml"
    if backend in found or (apple and platform.system() == "Darwin"):
        return
    carriers = "only libraries for Apple's systems support" if apple else "no library of streamfuse supports"
    available = " and ".join(name for name, reason in found.items() if reason is None)
    raise BackendError(
        f"{bundle.folder} needs ExecuTorch's delegate {backend}, which {carriers}; this machine supports {available}, "
        "so export it with `--backend kernels` to run it here"
    )


def threads_of(threads: Any) -> int | None:
    """The number of threads as an int, also of numpy; None: the engine chooses. OptionError if it is out of range."""
    from streamfuse.native.library import MOST_THREADS

    if threads is None:
        return None
    valid = is_integer(threads) and 1 <= threads <= MOST_THREADS
    demand(valid, "threads", f"an integer from 1 to {MOST_THREADS}", threads)
    return int(threads)


def check_provider(bundle: Bundle, provider: str | None) -> None:
    """Check that the requested provider fits the bundle and is available, before anything is loaded.

    Raises:
        OptionError: the provider does not exist, or the bundle is not ONNX.
        BackendError: it does not exist on this system, or its package is not installed.
    """
    if provider is None:
        return
    from streamfuse.options import OptionError
    from streamfuse.runtime.backends.onnx_providers import Choice

    choice = Choice.parse(provider)
    if bundle.manifest.target != "onnx":
        raise OptionError(
            f"--provider is for ONNX Runtime, but {bundle.folder} was exported for {bundle.manifest.target}, "
            f"backend {bundle.manifest.backend}; omit it"
        )
    need_engine(bundle)
    choice.check()


def threads_for(bundle: Bundle, threads: int | None) -> int | None:
    """The argument of `engines_of` where bundles of several targets get the same number of threads: None for engines
    that choose their own."""
    return None if bundle.manifest.backend in _OWN_THREADS else threads


def engines_of(bundle: Bundle, threads: int | None, provider: str | None = None) -> EngineMaker:
    """Load the graphs of a bundle; the returned function makes engines on them, one per sequence.

    Its argument is the same bundle with another task adapter (`Bundle.adapter`) or with none; by default its engines
    are for `bundle`. Engines of the native library share their weights; ONNX Runtime and Core ML load the
    graphs again for each. `provider` is ONNX Runtime's execution provider, with options as in `--provider`; None: the
    CPU's.

    Raises:
        BackendError: the engine or the graphs cannot be loaded, or the engine does not have the delegate or provider.
        MissingExtra: a package is not installed.
        OptionError: `threads` or `provider` is invalid or has no effect on this bundle.
    """
    threads = threads_of(threads)
    need_engine(bundle)
    check_provider(bundle, provider)
    if threads is not None and (engine := _OWN_THREADS.get(bundle.manifest.backend)):
        from streamfuse.options import OptionError

        raise OptionError(f"--threads has no effect on a bundle for {engine}, which chooses its own; leave it out")
    if bundle.manifest.target == "onnx":
        from streamfuse.runtime.backends.onnx_providers import Choice
        from streamfuse.runtime.backends.onnxruntime import OnnxBackend

        choice = Choice() if provider is None else Choice.parse(provider)
        return lambda bundle=bundle: OnnxBackend(bundle.graph, bundle.spec(), num_threads=threads, provider=choice)
    if bundle.manifest.target == "coreml":
        from streamfuse.runtime.backends.coreml import open_package

        return lambda bundle=bundle: open_package(bundle.graph, bundle.spec())
    _check_backend(bundle)
    from streamfuse.runtime.backends.executorch import ExecuTorchBackend, ExecuTorchProgram

    program = ExecuTorchProgram(bundle.graph, num_threads=threads)
    adapters: dict[str, ExecuTorchProgram] = {}

    def make(bundle: Bundle = bundle) -> Backend:
        name = bundle.adapter_name
        if name is None:
            return ExecuTorchBackend(program, bundle.spec())
        if name not in adapters:
            adapters[name] = program.adapter(name)
        return ExecuTorchBackend(adapters[name], bundle.spec())

    return make


def processor() -> str:
    """The processor's name, as far as the system reports one, with family and model where Linux has them: virtual
    machines of several generations have the same name."""
    facts: dict[str, str] = {}
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            facts.setdefault(name.strip(), value.strip())
    name = facts.get("model name") or platform.processor() or platform.machine()
    numbers = [f"{word} {facts[key]}" for word, key in (("family", "cpu family"), ("model", "model")) if key in facts]
    return f"{name} ({', '.join(numbers)})" if numbers else name


def threads_in_use(backend: Backend, threads: int | None) -> int | None:
    """The number of threads that the engine reports (the native one does), else the requested `threads`."""
    found: int | None = getattr(backend, "description", {}).get("threads", threads)
    return found


def device_of(bundle: Bundle, threads: int | None, provider: str | None = None) -> str:
    """Everything that affects latency: processor, cores, `threads` in use, the engine's version or build, its
    provider."""
    forced = os.environ.get("STREAMFUSE_ISA", "")
    return (
        f"{platform.system()} {platform.machine()}, {processor()}, {cores()} cores, threads {threads or 'default'}, "
        f"{_engine_stamp(bundle, provider)}" + "".join(f", {word}" for word in (provider, forced) if word)
    )


def cost_folder() -> Path:
    """The folder of measured pass latencies, with one file per bundle and device. It may not exist."""
    from streamfuse.model.pull import cache_root

    return cache_root() / "costs"


def _engine_stamp(bundle: Bundle, provider: str | None) -> str:
    """Changes with the engine, so that latencies are measured again for a new build or version."""
    from streamfuse.native.library import LibraryError, find_library

    if bundle.manifest.target == "onnx":
        from streamfuse.runtime.backends.onnx_providers import stamp

        return stamp(provider)
    if bundle.manifest.target == "coreml" and emulated(bundle):
        return f"emulator of streamfuse {version('streamfuse')}, numpy {version('numpy')}"
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
