"""What to export: a frozen plan that the command line fills in and every stage reads."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

GROUP_SIZES = (32, 64, 128, 256)


class PlanError(ValueError):
    """A flag of the plan is out of range; the message names the flag and what is allowed."""


class Quantize(str, Enum):
    """Weights and activations of the products; see `quantize.py` for what each part uses."""

    NONE = "none"
    INT4 = "8da4w"


@dataclass(frozen=True, slots=True)
class GraphShapes:
    """Static sizes of the graphs.

    Attributes:
        capacity: cache positions.
        prefill_rows: rows of the prefill chunk.
        widths: nodes verified and nodes kept, (T, K) per verify method.
        top_k: candidates per stream and node.
    """

    capacity: int = 512
    prefill_rows: int = 64
    widths: tuple[tuple[int, int], ...] = ((4, 4), (8, 8), (16, 8))
    top_k: int = 16

    @property
    def pruning(self) -> bool:
        """Whether a width keeps fewer nodes than it verifies."""
        return any(keep < rows for rows, keep in self.widths)


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """One bundle. Lengths are in tokens.

    Attributes:
        num_streams: streams to keep of the adapter's; None keeps all.
        widths: nodes T of each verify method, ascending.
        prune_keep: nodes K that survive the pruner where T is larger.
        top_k: candidates per stream and node.
    """

    model: Path
    adapter: Path
    output_dir: Path
    quantize: Quantize = Quantize.INT4
    group_size: int = 32
    max_context_len: int = 1024
    prefill_len: int = 64
    num_streams: int | None = None
    widths: tuple[int, ...] = (4, 8, 16)
    prune_keep: int = 4
    top_k: int = 16
    default_width: int = 8
    overwrite: bool = False

    def __post_init__(self) -> None:
        _check("--max-context-len", self.max_context_len, 32, 131072)
        _check("--prefill-len", self.prefill_len, 1, min(128, self.max_context_len))
        _check("--prune-keep", self.prune_keep, 1, 64)
        _check("--top-k", self.top_k, 1, 64)
        if self.group_size not in GROUP_SIZES:
            raise PlanError(f"--group-size must be 32, 64, 128 or 256, not {self.group_size}")
        if not self.widths or list(self.widths) != sorted(set(self.widths)):
            raise PlanError(f"--widths must be ascending and distinct, not {_listed(self.widths)}")
        for width in self.widths:
            _check("--widths", width, 2, min(64, self.max_context_len // 2))
        if self.default_width not in self.widths:
            raise PlanError(f"--default-width must be one of --widths {_listed(self.widths)}, not {self.default_width}")

    @property
    def shapes(self) -> GraphShapes:
        keep = tuple((width, min(width, self.prune_keep)) for width in self.widths)
        return GraphShapes(self.max_context_len, self.prefill_len, keep, self.top_k)


def _check(flag: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise PlanError(f"{flag} must be from {low} to {high}, not {value}")


def _listed(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))
