"""ONNX Runtime's execution providers by name: which are here, why one is not, and a session on one of them."""

from __future__ import annotations

import os
import platform
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from streamfuse.options import OptionError
from streamfuse.runtime.backend import BackendError

CPU = "cpu"
_NO_CPU = "session.disable_cpu_ep_fallback"
_PLACE = re.compile(r"^\S+\.(cc|h):\d+ .* was false\. ")
# What Qualcomm's simulator on a desktop stands for: Snapdragon 8 Gen 3. A device knows its own chip.
_SIMULATED = {"soc_model": "57", "htp_arch": "75", "enable_htp_fp16_precision": "1"}
_SILENT = threading.Lock()  # held while file descriptor 1 is redirected and plug-ins are registered
_ANYWHERE = ("Linux", "Darwin", "Windows")


@dataclass(frozen=True, slots=True)
class Provider:
    """One execution provider, as `--provider` and as ONNX Runtime name it, and the package that brings it."""

    name: str
    title: str
    identifier: str
    package: str
    systems: tuple[str, ...] = _ANYWHERE
    plug_in: str = ""  # the module of a library that is registered with any onnxruntime
    device: str = ""  # of IO binding, where it has memory of its own
    session: Mapping[str, str] = field(default_factory=dict)  # of its configuration, unless a user says otherwise

    def missing(self) -> str | None:
        """Why it cannot be used here and the next step, or None. Loads onnxruntime, but no plug-in."""
        if platform.system() not in self.systems:
            systems = " and ".join(self.systems).replace("Darwin", "macOS")
            return f"{self.title} is on {systems} only; take --provider cpu here"
        if self.plug_in:
            if find_spec(self.plug_in) is None:
                return f"{self.title} needs the package {self.package}: pip install {self.package}"
        elif self.identifier not in import_onnxruntime().get_available_providers():
            line = f"pip install {self.package}"
            if self.package != "onnxruntime":
                line += ", in an environment of its own, since it replaces onnxruntime"
            return f"{installed()} has no {self.title}: {line}"
        return None


PROVIDERS = {
    provider.name: provider
    for provider in (
        Provider(CPU, "the CPU provider", "CPUExecutionProvider", "onnxruntime"),
        Provider(
            "webgpu",
            "WebGPU",
            "WebGpuExecutionProvider",
            "onnxruntime-webgpu",
            device="webgpu",
            session={"ep.webgpuexecutionprovider.enableInt64": "1"},  # the casts of token ids, and the indices of TopK
        ),
        Provider(
            "qnn",
            "QNN",
            "QNNExecutionProvider",
            "onnxruntime-qnn",
            ("Windows", "Linux"),
            "onnxruntime_qnn",
            # It takes a product and an addition, but not every Gemm that these become.
            session={"optimization.disable_specified_optimizers": "MatMulAddFusion"},
        ),
        Provider("coreml", "Core ML", "CoreMLExecutionProvider", "onnxruntime", ("Darwin",)),
        Provider("directml", "DirectML", "DmlExecutionProvider", "onnxruntime-directml", ("Windows",)),
    )
}


@dataclass(frozen=True, slots=True)
class Choice:
    """A provider with its options and the session's, all by ONNX Runtime's names: `webgpu:deviceId=1`."""

    provider: Provider = PROVIDERS[CPU]
    options: Mapping[str, str] = field(default_factory=dict)
    session: Mapping[str, str] = field(default_factory=dict)  # those that begin with "session." or "ep."

    @classmethod
    def parse(cls, text: object) -> Choice:
        """NAME, or NAME:OPTION=VALUE,OPTION=VALUE. OptionError for anything else."""
        name, _, rest = text.partition(":") if isinstance(text, str) else ("", "", "")
        if name not in PROVIDERS:
            *most, last = PROVIDERS
            raise OptionError(f"--provider must be {', '.join(most)} or {last}, not {(name or text)!r:.40}")
        options: dict[str, str] = {}
        for item in filter(None, rest.split(",")):
            key, equal, value = item.partition("=")
            if not equal:
                raise OptionError(f"--provider {name} takes options as {name}:OPTION=VALUE,..., not {item!r:.40}")
            options[key.strip()] = value.strip()
        session = {key: value for key, value in options.items() if key.startswith(("session.", "ep."))}
        return cls(PROVIDERS[name], {k: v for k, v in options.items() if k not in session}, session)

    def check(self) -> None:
        """BackendError where the provider is not here."""
        if (reason := self.provider.missing()) is not None:
            raise BackendError(reason)

    def open(self, file: Path, options: Any) -> tuple[Any, Assignment]:
        """A session of that file, and how many of its nodes the provider runs.

        Raises:
            BackendError: the provider is not here, or has no device; the file is no graph; the provider runs nothing of
                it, or not all of it where `session.disable_cpu_ep_fallback=1` asks for that.
        """
        self.check()
        onnxruntime, provider = import_onnxruntime(), self.provider
        if provider.name != CPU:
            options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        for key, value in {**provider.session, **self.session}.items():
            if key != _NO_CPU:  # its error names no operator; ours does
                options.add_session_config_entry(key, value)
        arguments: dict[str, Any] = {}
        try:
            with _silent() if provider.plug_in else nullcontext():
                if provider.plug_in:
                    options.add_provider_for_devices(*_plugged_in(onnxruntime, provider, self.options))
                else:
                    arguments["providers"] = [(provider.identifier, dict(self.options))]
                # Without the last word the package takes the CPU where the provider fails, and prints so.
                session = onnxruntime.InferenceSession(str(file), options, **arguments, enable_fallback=0)
        except BackendError:
            raise
        except Exception as error:  # ONNX Runtime's own classes, which have no common base
            by = "ONNX Runtime" if provider.name == CPU else f"ONNX Runtime's provider {provider.title}"
            step = "" if provider.name == CPU else "; --provider cpu runs the bundle on the processor"
            raise BackendError(f"{by} cannot load {file}: {first_line(error)}{step}") from error
        assignment = Assignment.of(session, provider)
        assignment.check(file, strict=self.session.get(_NO_CPU) == "1")
        return session, assignment


@dataclass(frozen=True, slots=True)
class Assignment:
    """How many nodes a graph has, and which of them, once ONNX Runtime has rewritten it, the CPU runs instead."""

    provider: Provider
    nodes: int = 0
    on_cpu: Mapping[str, int] = field(default_factory=dict)  # operators and how many nodes

    @classmethod
    def of(cls, session: Any, provider: Provider) -> Assignment:
        if provider.name == CPU:
            return cls(provider)
        if not hasattr(session, "get_provider_graph_assignment_info"):
            raise BackendError(f"{installed()} does not say which nodes a provider runs; update the package")
        own, elsewhere = 0, Counter[str]()
        for subgraph in session.get_provider_graph_assignment_info():
            operators = [node.op_type for node in subgraph.get_nodes()]
            if subgraph.ep_name in (provider.identifier, provider.identifier.removesuffix("ExecutionProvider")):
                own += len(operators)
            else:
                elsewhere.update(operators)
        nodes = own + elsewhere.total()
        if not own:  # some providers' nodes are not listed, so what the graph was written with counts
            nodes = max(nodes, int(session.get_modelmeta().custom_metadata_map.get("streamfuse.nodes", 0)))
        return cls(provider, nodes, dict(elsewhere.most_common()))

    @property
    def own(self) -> int:
        """Nodes that the provider runs."""
        return self.nodes - sum(self.on_cpu.values())

    def check(self, file: Path, strict: bool) -> None:
        """BackendError where the provider runs nothing, or with `strict` not everything."""
        if not self.on_cpu or (self.own and not strict):
            return
        step = f"without {_NO_CPU} the CPU runs these" if self.own else "--provider cpu runs the bundle"
        raise BackendError(
            f"ONNX Runtime's provider {self.provider.title} runs {self.own} of the {self.nodes} nodes of {file}; "
            f"it does not take these operators as they are there: {', '.join(self.on_cpu)}; {step}"
        )


def assigned(graphs: Mapping[str, Assignment]) -> dict[str, Any]:
    """The facts of all graphs of a bundle together; none where the CPU alone runs them."""
    nodes, on_cpu = sum(graph.nodes for graph in graphs.values()), Counter[str]()
    for graph in graphs.values():
        on_cpu.update(graph.on_cpu)
    return {"nodes": nodes, "nodes_on_cpu": on_cpu.total(), "operators_on_cpu": dict(on_cpu)} if nodes else {}


def installed() -> str:
    """The package that brings onnxruntime here and its version, `onnxruntime-webgpu 1.27.0`."""
    spec = find_spec("onnxruntime")
    folder = Path(spec.origin).parent if spec is not None and spec.origin is not None else None
    for package in dict.fromkeys(provider.package for provider in PROVIDERS.values() if not provider.plug_in):
        with suppress(PackageNotFoundError):
            found = distribution(package)
            if Path(str(found.locate_file("onnxruntime"))) == folder:
                return f"{package} {found.version}"
    return "onnxruntime"


def stamp(provider: str | None) -> str:
    """`installed`, with the package and version of the provider's plug-in if it is one (None: the CPU provider).
    OptionError for an unknown provider."""
    chosen = Choice.parse(provider or CPU).provider
    with suppress(PackageNotFoundError):
        if chosen.plug_in:
            return f"{installed()}, {chosen.package} {distribution(chosen.package).version}"
    return installed()


def first_line(error: Exception) -> str:
    """Of ONNX Runtime's error, without the place in its sources that some begin with."""
    return _PLACE.sub("", str(error).partition("\n")[0])


@contextmanager
def _silent() -> Iterator[None]:
    """Compilers of vendors print their stages on the process's own output, which belongs to the answer.

    One thread at a time: a second one would save the redirected descriptor and restore that.
    """
    with _SILENT:
        sys.stdout.flush()
        before, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        try:
            yield
        finally:
            os.dup2(before, 1)
            os.close(before)
            os.close(nowhere)


def import_onnxruntime() -> ModuleType:
    """The package. BackendError where it is not installed."""
    try:
        import onnxruntime
    except ImportError as error:
        raise BackendError("this bundle needs the package onnxruntime (pip install 'streamfuse[onnx]')") from error
    module: ModuleType = onnxruntime
    return module


def _plugged_in(onnxruntime: Any, provider: Provider, options: Mapping[str, str]) -> tuple[list[Any], dict[str, str]]:
    """The devices of a provider that is a library of its own, which is registered once, and its options."""
    from importlib import import_module

    module = import_module(provider.plug_in)
    name = provider.identifier

    def devices() -> list[Any]:
        return [device for device in onnxruntime.get_ep_devices() if device.ep_name == name]

    if not devices():
        onnxruntime.register_execution_provider_library(name, module.get_library_path())
    found = devices()
    if not found:
        raise BackendError(f"{provider.title} finds no device on this machine; --provider cpu runs the bundle here")
    simulated = _SIMULATED if platform.machine() == "x86_64" else {}
    return found[:1], {"backend_path": module.get_qnn_htp_path(), **simulated, **options}
