"""What to export: a frozen plan that the command line fills in and every stage reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Literal, cast, get_args

GROUP_SIZES = (32, 64, 128, 256)
KERNEL_GROUP = 32

Part = Literal["embedding", "attention", "mlp", "head", "streams"]
PARTS = get_args(Part)
GRIDS = ("q4_1", "q8_0")  # of the kernels' operators: names of llama.cpp's formats


class PlanError(ValueError):
    """A flag of the plan is out of range; the message names the flag and what is allowed."""


class Quantize(str, Enum):
    """Weights and activations of the products; docs/quantization.md says what each part uses."""

    NONE = "none"
    INT4 = "8da4w"
    INT8 = "8da8w"


class Schedule(str, Enum):
    """When streams are computed: for several nodes in the verifying pass, or for the accepted one in a second pass."""

    FUSED = "fused"
    DEFERRED = "deferred"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class GraphShapes:
    """Static sizes of the graphs.

    Attributes:
        capacity: cache positions.
        prefill_rows: rows of the prefill chunk.
        widths: nodes verified and nodes kept, (T, K) per verify method.
        top_k: candidates per stream and node.
        stream_nodes: kept nodes that carry streams, M per verify method; empty: all that are kept.
        deferred: whether the methods give hidden states for a second pass, `streams`.
    """

    capacity: int = 512
    prefill_rows: int = 64
    widths: tuple[tuple[int, int], ...] = ((4, 4), (8, 8), (16, 8))
    top_k: int = 16
    stream_nodes: tuple[int, ...] = ()
    deferred: bool = False

    @property
    def verify(self) -> list[tuple[int, int, int]]:
        """(T, K, M) per verify method."""
        carrying = self.stream_nodes or tuple(keep for _, keep in self.widths)
        return [(rows, keep, nodes) for (rows, keep), nodes in zip(self.widths, carrying, strict=True)]

    @property
    def pruning(self) -> bool:
        """Whether a width keeps fewer nodes than it verifies."""
        return any(keep < rows for rows, keep in self.widths)


@dataclass(frozen=True, slots=True)
class Schemes:
    """The grid of every part's weights, for the kernels' operators; an embedding is q8_0 always."""

    attention: str = "q4_1"
    mlp: str = "q4_1"
    head: str = "q8_0"
    streams: str = "q8_0"

    def of(self, part: Part) -> str:
        return "q8_0" if part == "embedding" else cast("str", getattr(self, part))


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """One bundle. Lengths are in tokens.

    Attributes:
        kernels: use the operators of kernels/; off: ExecuTorch's own operators and XNNPACK.
        schemes: grids that differ from those of `quantize`, by part; with kernels only.
        num_streams: streams to keep of the adapter's; None keeps all.
        widths: nodes T of each verify method, ascending.
        prune_keep: nodes K that survive the pruner where T is larger, one number or one per width.
        stream_nodes: survivors M that carry streams, likewise; None: all of them.
        top_k: candidates per stream and node.
    """

    model: Path
    adapter: Path
    output_dir: Path
    kernels: bool = True
    quantize: Quantize = Quantize.INT4
    schemes: Mapping[str, str] = field(default_factory=dict)
    group_size: int = 32
    max_context_len: int = 1024
    prefill_len: int = 64
    num_streams: int | None = None
    widths: tuple[int, ...] = (4, 8, 16)
    prune_keep: int | Mapping[int, int] = 8
    stream_nodes: int | Mapping[int, int] | None = 4
    schedule: Schedule = Schedule.DEFERRED
    top_k: int = 16
    default_width: int = 8
    overwrite: bool = False

    def __post_init__(self) -> None:
        _check("--max-context-len", self.max_context_len, 32, 131072)
        _check("--prefill-len", self.prefill_len, 1, min(128, self.max_context_len))
        _check("--top-k", self.top_k, 1, 64)
        if self.group_size not in GROUP_SIZES:
            raise PlanError(f"--group-size must be 32, 64, 128 or 256, not {self.group_size}")
        if not self.widths or list(self.widths) != sorted(set(self.widths)):
            raise PlanError(f"--widths must be ascending and distinct, not {_listed(self.widths)}")
        for width in self.widths:
            _check("--widths", width, 2, min(64, self.max_context_len // 2))
        self._check_per_width("--prune-keep", self.prune_keep, 1)
        self._check_per_width("--stream-nodes", {} if self.stream_nodes is None else self.stream_nodes, 1)
        if self.default_width not in self.widths:
            raise PlanError(f"--default-width must be one of --widths {_listed(self.widths)}, not {self.default_width}")
        self._check_quantization()

    def _check_per_width(self, flag: str, value: int | Mapping[int, int], low: int) -> None:
        for width, number in ({} if isinstance(value, int) else value).items():
            if width not in self.widths:
                raise PlanError(f"{flag} names the width {width}, which is not one of --widths {_listed(self.widths)}")
            _check(flag, number, low, width)
        if isinstance(value, int):
            _check(flag, value, low, 64)

    def _check_quantization(self) -> None:
        for part, grid in self.schemes.items():
            if part not in PARTS[1:] or grid not in GRIDS:
                raise PlanError(
                    f"--scheme must be PART=GRID with a part of {', '.join(PARTS[1:])} and a grid of "
                    f"{', '.join(GRIDS)}, not {part}={grid}"
                )
        if self.kernels and self.quantize is Quantize.NONE:
            raise PlanError("--quantize none needs --kernels off: the kernels' operators take integer weights only")
        if self.kernels and self.group_size != KERNEL_GROUP:
            raise PlanError(f"--group-size must be {KERNEL_GROUP} with --kernels on, not {self.group_size}")
        if not self.kernels and self.quantize is Quantize.INT8:
            raise PlanError("--quantize 8da8w needs --kernels on")
        if not self.kernels and self.schemes:
            raise PlanError("--scheme needs --kernels on")

    @property
    def shapes(self) -> GraphShapes:
        keep = tuple((width, min(width, _at(self.prune_keep, width, width))) for width in self.widths)
        nodes = tuple(min(k, k if self.stream_nodes is None else _at(self.stream_nodes, w, k)) for w, k in keep)
        if self.schedule is Schedule.DEFERRED:
            nodes = (0,) * len(keep)
        deferred = self.schedule is not Schedule.FUSED
        return GraphShapes(self.max_context_len, self.prefill_len, keep, self.top_k, nodes, deferred)

    @property
    def grids(self) -> Schemes | None:
        """The grids of the kernels' operators; None with stock operators."""
        if not self.kernels:
            return None
        layers = "q4_1" if self.quantize is Quantize.INT4 else "q8_0"
        return Schemes(**{"attention": layers, "mlp": layers, **self.schemes})


def _at(value: int | Mapping[int, int], width: int, otherwise: int) -> int:
    return value if isinstance(value, int) else value.get(width, otherwise)


def _check(flag: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise PlanError(f"{flag} must be from {low} to {high}, not {value}")


def _listed(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))
