"""The interface of a target for the export pipeline: weights in its format, graph files, and a backend that runs them.

The pipeline (pipeline.py) loads the model, runs the float32 reference, compares the target's output with it and writes
the rest of the bundle; it does not depend on any target. A target's module is imported when an export uses it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from streamfuse.options import OptionError

from .capabilities import BACKENDS
from .schemes import PartScheme

if TYPE_CHECKING:
    from streamfuse.model.streams import StreamFused
    from streamfuse.runtime.backend import Backend, ModelSpec

    from .config import ExportConfig
    from .graphs import Method
    from .selftest import Floor

__all__ = ["PartScheme", "Progress", "Target", "TargetFacts", "make_target"]

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """The target's own fields of the manifest and the report.

    Attributes:
        backend: the engine of the graphs, by its name in the manifest.
        kernels: whether the operators of kernels/ are used; then `required_operators` names them.
        methods: per method its fields of the manifest: rows, keep, stream_nodes, inputs, outputs.
        cache_dtype: float32, float16 or int8.
        cache_layout: by its name in bundle.manifest.CacheFacts.
        quantization: per part scheme, bits, group_size, symmetric, parameters, bytes.
        report: further results of the target, under `target` in export_report.json.
    """

    backend: str
    kernels: bool
    required_operators: list[str]
    methods: dict[str, dict[str, Any]]
    cache_dtype: str
    quantization: dict[str, dict[str, Any]]
    report: dict[str, Any] = field(default_factory=dict)
    cache_layout: str = "position_head_dim"


class Target(ABC):
    """One export to one format. Its methods are called once each, in the order below.

    Attributes:
        floor: the floor of the emitted graphs, compared with the modules of `quantize`.
    """

    floor: Floor

    def __init__(
        self, config: ExportConfig, model: StreamFused, spec: ModelSpec, folder: Path, progress: Progress
    ) -> None:
        self.config, self.model, self.spec, self.folder, self.progress = config, model, spec, folder, progress
        self.prepare()

    @abstractmethod
    def prepare(self) -> None:
        """Set `floor`. OptionError: the target does not support the configuration."""

    @abstractmethod
    def quantize(self) -> dict[str, Method] | None:
        """PyTorch modules with weights quantized as they will be emitted; None: the float32 methods are the
        reference."""

    def task(self, name: str, config: ExportConfig, model: StreamFused, spec: ModelSpec) -> Target:
        """A target for a task adapter of the same base model, to be quantized after this one; `lower` writes its
        graphs too."""
        raise OptionError(f"--task goes with --backend kernels, not with --backend {self.config.backend}")

    @abstractmethod
    def lower(self) -> None:
        """Write the graph files into the folder. Calls `progress` at least once per method."""

    @abstractmethod
    def open(self) -> Backend:
        """A backend over the files that `lower` wrote; the caller closes it."""

    @abstractmethod
    def facts(self) -> TargetFacts: ...


def make_target(config: ExportConfig, model: StreamFused, spec: ModelSpec, folder: Path, progress: Progress) -> Target:
    """The target of a configuration, which will write into `folder`.

    Raises:
        OptionError: a package that this target needs is not installed.
    """
    place, _, name = BACKENDS[config.target][config.backend].place.partition(":")
    try:
        module = import_module(f"{__package__}.{place}")
    except ModuleNotFoundError as error:
        flag = f"--backend {config.backend}" if config.target == "executorch" else f"--target {config.target}"
        raise OptionError(f"{flag} needs the package {error.name}, which is missing") from error
    return cast("Target", getattr(module, name)(config, model, spec, folder, progress))
