"""What a target brings to the exporter's pipeline: weights as it stores them, graph files, a backend that runs them.

The pipeline (pipeline.py) loads the model, runs the float32 reference, proves what the target made of it and writes the
rest of the bundle; it knows no target by itself. A target's module is imported when an export asks for it.
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
    """What only the target knows of the manifest and the report.

    Attributes:
        backend: what runs the graphs, as the manifest names it.
        kernels: whether the operators of kernels/ are used; then `required_operators` names them.
        methods: per method its facts for the manifest: rows, keep, stream_nodes, inputs, outputs.
        cache_dtype: float32, float16 or int8.
        cache_layout: as bundle.manifest.CacheFacts names it.
        quantization: per part scheme, bits, group_size, symmetric, parameters, bytes.
        report: what else the target has to say, under `target` in export_report.json.
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
    """One export to one format. Its methods are called in the order in which they stand here, each once.

    Attributes:
        floor: what the emitted graphs must reach, against the modules of `quantize`.
    """

    floor: Floor

    def __init__(
        self, config: ExportConfig, model: StreamFused, spec: ModelSpec, folder: Path, progress: Progress
    ) -> None:
        self.config, self.model, self.spec, self.folder, self.progress = config, model, spec, folder, progress
        self.prepare()

    @abstractmethod
    def prepare(self) -> None:
        """Set `floor`. OptionError: the target cannot do what the configuration asks for."""

    @abstractmethod
    def quantize(self) -> dict[str, Method] | None:
        """PyTorch modules with weights quantized as they will be emitted; None: the float32 methods are the measure."""

    @abstractmethod
    def lower(self) -> None:
        """Write the graph files into the folder. `progress` is called once per method, and may be called more often."""

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
