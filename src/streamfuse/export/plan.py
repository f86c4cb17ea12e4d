"""What to export: a frozen plan that the command line fills in and every stage reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from pathlib import Path
from typing import Any, TypeAlias

from streamfuse.model.config import StreamConfig
from streamfuse.model.ngrams import MOST_BYTES
from streamfuse.runtime.backends.onnx_providers import CPU, PROVIDERS

from .choices import (
    AUTO,
    BACKENDS,
    COMPUTE_UNITS,
    DEPLOYMENT_TARGETS,
    DEVICES,
    LAYOUTS,
    SOCS,
    Quantize,
    check_choice,
)
from .sampling import CHOICES as SAMPLING
from .sampling import MODEL
from .schemes import (
    DTYPE_BITS,
    GRIDS,
    GROUP,
    GROUP_SIZES,
    PARTS,
    Part,
    PartScheme,
    PlanError,
    Schemes,
    default_scheme,
    parse_scheme,
)
from .selftest import FLOORS, Floor

__all__ = [
    "BACKENDS",
    "GROUP_SIZES",
    "PARTS",
    "ExportPlan",
    "GraphShapes",
    "Part",
    "PartScheme",
    "PlanError",
    "Quantize",
    "Schedule",
    "Schemes",
    "options_of",
]

ALL = "all"  # stream_nodes: each survivor
_USUAL_WIDTHS, _USUAL_WIDTH, _USUAL_STREAM_NODES = (4, 8, 16), 8, 4
MethodMaker: TypeAlias = Callable[[Any], Any]  # graphs.Weights -> a module with the inputs and outputs of `decode`
STREAM_OPTIONS = (
    "merge_adapter",
    "num_streams",
    "prune_keep",
    "prune_threshold",
    "stream_nodes",
    "schedule",
    "top_k",
    "ngram_table_mb",
)


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
        prune_threshold: probability of an edge below which the pruner, where there is one, drops a child with all that
            follow it.
        extra_methods: as of ExportPlan.
    """

    capacity: int = 512
    prefill_rows: int = 64
    widths: tuple[tuple[int, int], ...] = ((4, 4), (8, 8), (16, 8))
    top_k: int = 32
    stream_nodes: tuple[int, ...] = ()
    deferred: bool = False
    prune_threshold: float = 0.0
    extra_methods: Mapping[str, MethodMaker] = field(default_factory=dict)

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
class ExportPlan:
    """One bundle. Lengths are in tokens. `auto` takes the target's default; a plan that was made says which it is.

    Attributes:
        adapter: the streams; None: the bundle has none, and what is about streams must be left as it is.
        streams: the settings in the adapter's file, as `load_plan` reads them (adapter.py); None: not read, and
            defaults are those that every adapter can serve.
        target: executorch, coreml or onnx.
        backend: what runs the graphs inside the target, a key of BACKENDS[target].
        quantize: weights and activations of the products.
        schemes: parts that differ from `quantize`: grids of GRIDS with the kernels, schemes.parse_scheme elsewhere.
        group_size: weights per scale where four bits are used.
        dtype: of the arithmetic and of weights that are not quantized: float16 or float32.
        layout: plain, or ane: channels first, with 1x1 convolutions; coreml.
        compute_units: what Core ML may use; for Core ML alone, as a target or a backend. auto: cpu_and_ne.
        soc: the Snapdragon that a context is compiled for; qnn alone. auto: SM8650.
        weight_sharing: whether the graphs of a context share their weights, which a desktop's simulator cannot load: on
            or off; qnn alone. auto: on.
        device: that OpenVINO compiles for: cpu, gpu or npu, which the exporting machine must have; openvino alone.
            auto: cpu.
        calibration_text: a UTF-8 file whose text shows the ranges of activations in integers; 16a8w and 16a4w. None: a
            few questions, or the adapter's held-out prompts.
        minimum_deployment_target: oldest system that must run it, likewise. auto: iOS18.
        provider: of ONNX Runtime, for which the graphs are written; onnx. auto: cpu.
        merge_adapter: whether what tunes the base is added to its weights: on, off (low-rank products beside them), or
            auto: off where the layers have four bits, which the sum would have to be rounded to anew.
        num_streams: streams to keep of the adapter's; None keeps all.
        widths: nodes T of each verify method, ascending; 1 is a plain pass that carries its streams, beside at least
            one tree. Empty: 4, 8 and 16, and 1 where the kernels run it (`carries_alone`).
        default_width: the one to use where nobody chooses; None: the widest of at most 8 nodes, else the narrowest.
        prune_keep: nodes K that survive the pruner where T is larger, one number or one per width.
        prune_threshold: probability of an edge, by the pruner, below which the child is dropped with all that follow
            it, from 0, which drops none, to below 1; of the widths that keep fewer nodes than they verify; kernels.
        stream_nodes: survivors M that carry streams, likewise, or all; auto: 4. Deferred streams have a pass of their
            own, so nothing else than auto goes with them.
        top_k: candidates per stream and node.
        ngram_table_mb: megabytes (10^6 bytes) of the adapter's n-gram table to take at most: its most useful contexts.
        extra_methods: more methods of the program, by name, each made of the `graphs.Weights` that all share; kernels.
            The manifest does not name them, so no reader of bundles knows of them.
        sampling: the bundle's sampling defaults. model: those of the model's generation_config.json, greedy where it
            has none; greedy: none of them.
        allow_parity_below: floors (names of selftest.FLOORS) that figures may miss; the manifest keeps those that do.
    """

    model: Path
    adapter: Path | None
    output_dir: Path
    streams: StreamConfig | None = None
    target: str = "executorch"
    backend: str = AUTO
    quantize: Quantize = Quantize.AUTO
    schemes: Mapping[str, str] = field(default_factory=dict)
    group_size: int = 32
    dtype: str = AUTO
    layout: str = "plain"
    compute_units: str = AUTO
    soc: str = AUTO
    weight_sharing: str = AUTO
    device: str = AUTO
    calibration_text: Path | None = None
    minimum_deployment_target: str = AUTO
    provider: str = AUTO
    merge_adapter: str = AUTO
    max_context_len: int = 1024
    prefill_len: int = 64
    num_streams: int | None = None
    widths: tuple[int, ...] = ()
    prune_keep: int | Mapping[int, int] = 8
    prune_threshold: float = 0.0
    stream_nodes: int | Mapping[int, int] | str = AUTO
    schedule: Schedule = Schedule.DEFERRED
    top_k: int = 32
    default_width: int | None = None
    ngram_table_mb: float = 8.0
    extra_methods: Mapping[str, MethodMaker] = field(default_factory=dict)
    sampling: str = MODEL
    allow_parity_below: tuple[str, ...] = ()
    overwrite: bool = False

    def __post_init__(self) -> None:
        self._choose()
        _check("--max-context-len", self.max_context_len, 32, 131072)
        if self.kernels and self.max_context_len % GROUP:
            raise PlanError(
                f"--max-context-len must be a multiple of {GROUP} with --backend kernels, whose cache has blocks of so "
                f"many positions, not {self.max_context_len}"
            )
        _check("--prefill-len", self.prefill_len, 1, min(128, self.max_context_len))
        _check("--top-k", self.top_k, 1, 64)
        if not 0 <= self.ngram_table_mb * 1e6 <= MOST_BYTES:
            raise PlanError(f"--ngram-table-mb must be from 0 to {MOST_BYTES / 1e6:g}, not {self.ngram_table_mb:g}")
        if self.group_size not in GROUP_SIZES:
            raise PlanError(f"--group-size must be 32, 64, 128 or 256, not {self.group_size}")
        self._check_widths()
        self._check_per_width("--prune-keep", self.prune_keep, 1)
        if not 0 <= self.prune_threshold < 1:
            raise PlanError(f"--prune-threshold must be from 0 to below 1, not {self.prune_threshold:g}")
        if self.prune_threshold and not self.kernels:
            raise PlanError(f"--prune-threshold goes with --backend kernels, not with --backend {self.backend}")
        if self.prune_threshold and not self.shapes.pruning:
            raise PlanError(
                "--prune-threshold needs a width that is pruned; give --prune-keep fewer nodes than --widths"
            )
        self._check_stream_nodes()
        trees = tuple(width for width in self.widths if width > 1)
        if self.default_width is None:
            fitting = [width for width in trees if width <= _USUAL_WIDTH]
            object.__setattr__(self, "default_width", max(fitting, default=trees[0]))
        if self.default_width not in trees:
            raise PlanError(f"--default-width must be one of --widths {_listed(trees)}, not {self.default_width}")
        self._check_schemes()
        check_choice("--sampling", self.sampling, SAMPLING)
        for name in self.allow_parity_below:
            check_choice("--allow-parity-below", name, tuple(FLOORS))
        if self.extra_methods and not self.kernels:
            raise PlanError(
                f"extra_methods ({', '.join(self.extra_methods)}) go with --backend kernels, not with --backend "
                f"{self.backend}"
            )
        if self.calibration_text is not None and not self.quantize.integer_activations:
            raise PlanError(
                f"--calibration-text goes with --quantize 16a8w or 16a4w, not with {self.quantize.value}, which has no "
                "activations to calibrate"
            )
        if self.calibration_text is not None and not self.calibration_text.is_file():
            raise PlanError(f"--calibration-text {self.calibration_text}: no such file")
        if self.adapter is None:
            self._refuse_stream_options()

    def _check_widths(self) -> None:
        if not self.widths:
            object.__setattr__(self, "widths", (1, *_USUAL_WIDTHS) if self._measured_to_carry() else _USUAL_WIDTHS)
        if list(self.widths) != sorted(set(self.widths)):
            raise PlanError(f"--widths must be ascending and distinct, not {_listed(self.widths)}")
        for width in self.widths:
            _check("--widths", width, 1, min(64, self.max_context_len // 2))
        if self.widths[-1] == 1:
            raise PlanError("--widths must name a width above 1 too; 1 is a plain pass that carries its streams")
        if self.widths[0] == 1 and self.adapter is None:
            raise PlanError("--widths 1 is about streams, and this export has none; leave it out, or name an --adapter")

    def _measured_to_carry(self) -> bool:
        """Whether a plain pass that carries streams was measured to pay: with the kernels, in the deferred schedule."""
        if not self.kernels or self.schedule is not Schedule.DEFERRED:
            return False
        return self.adapter is not None and self.streams is not None and self.carries_alone(self.streams)

    def carries_alone(self, streams: StreamConfig) -> bool:
        """Whether streams of these settings can share a pass with the base's rows.

        Not with low-rank products of their own beside a tuned base, nor heads, which have no layers to share.
        """
        return not streams.heads and (not (streams.base_rank and streams.adapter_rank) or self.merges(streams))

    def _refuse_stream_options(self) -> None:
        said = [f.name for f in fields(self) if f.name in STREAM_OPTIONS and getattr(self, f.name) != f.default]
        if said or "streams" in self.schemes:
            flag = f"--{said[0].replace('_', '-')}" if said else "--scheme streams=..."
            raise PlanError(f"{flag} is about streams, and this export has none; leave it out, or name an --adapter")

    def _choose(self) -> None:
        """Put the target's defaults in the place of `auto`, and refuse what the target does not know."""
        check_choice("--target", self.target, tuple(BACKENDS))
        backends = BACKENDS[self.target]
        if self.backend == AUTO:
            object.__setattr__(self, "backend", next(iter(backends)))
        check_choice("--backend", self.backend, tuple(backends), f" with --target {self.target}")
        choices = backends[self.backend]
        of_backend = f" with --target {self.target}" if len(backends) == 1 else f" with --backend {self.backend}"
        if self.quantize is Quantize.AUTO:
            # QNN has no product with integers in blocks, which ONNX Runtime's own operator is.
            usual = Quantize.NONE if self.target == "onnx" and self.provider == "qnn" else choices.quantize[0]
            object.__setattr__(self, "quantize", usual)
        check_choice("--quantize", self.quantize.value, tuple(q.value for q in choices.quantize), of_backend)
        if self.dtype == AUTO:
            object.__setattr__(self, "dtype", choices.dtype[0])
        check_choice("--dtype", self.dtype, choices.dtype, of_backend)
        check_choice("--layout", self.layout, LAYOUTS if self.target == "coreml" else LAYOUTS[:1], of_backend)
        check_choice("--merge-adapter", self.merge_adapter, (AUTO, "on", "off"))
        if self.layout == "ane" and self.schedule is not Schedule.DEFERRED:
            raise PlanError(f"--layout ane needs --schedule deferred, not {self.schedule.value}")
        core_ml = "coreml" in (self.target, self.backend), "--target coreml or --backend coreml"
        self._choose_for("compute_units", COMPUTE_UNITS, "cpu_and_ne", *core_ml)
        self._choose_for("minimum_deployment_target", DEPLOYMENT_TARGETS, "iOS18", *core_ml)
        self._choose_for("soc", SOCS, "SM8650", self.backend == "qnn", "--backend qnn")
        self._choose_for("weight_sharing", ("on", "off"), "on", self.backend == "qnn", "--backend qnn")
        self._choose_for("device", DEVICES, "cpu", self.backend == "openvino", "--backend openvino")
        self._choose_for("provider", tuple(PROVIDERS), CPU, self.target == "onnx", "--target onnx")

    def _choose_for(self, name: str, choices: tuple[str, ...], usual: str, applies: bool, to: str) -> None:
        """An option that one backend has; with another it stays `auto`."""
        flag, value = f"--{name.replace('_', '-')}", getattr(self, name)
        if value != AUTO:
            check_choice(flag, value, choices)
        if applies:
            object.__setattr__(self, name, usual if value == AUTO else value)
        elif value != AUTO:
            raise PlanError(f"{flag} goes with {to}, not with --backend {self.backend}")

    def _check_stream_nodes(self) -> None:
        if self.stream_nodes == AUTO:
            return
        if self.schedule is Schedule.DEFERRED:
            raise PlanError(
                "--stream-nodes goes with --schedule fused or both; deferred streams have a pass of their own"
            )
        if self.stream_nodes != ALL:
            if isinstance(self.stream_nodes, str):
                raise PlanError(f"--stream-nodes must be a number, numbers by width, or all, not {self.stream_nodes}")
            self._check_per_width("--stream-nodes", self.stream_nodes, 1)

    def _check_per_width(self, flag: str, value: int | Mapping[int, int], low: int) -> None:
        for width, number in ({} if isinstance(value, int) else value).items():
            if width not in self.widths:
                raise PlanError(f"{flag} names the width {width}, which is not one of --widths {_listed(self.widths)}")
            _check(flag, number, low, width)
        if isinstance(value, int):
            _check(flag, value, low, 64)

    def _check_schemes(self) -> None:
        if self.kernels and self.group_size != GROUP:
            raise PlanError(f"--group-size must be {GROUP} with --backend kernels, not {self.group_size}")
        if self.backend == "xnnpack" and self.schemes:
            raise PlanError("--scheme does not go with --backend xnnpack, whose graphs have one scheme per part")
        for part, scheme in self.schemes.items():
            if not self.kernels:
                parse_scheme(part, scheme, self.group_size, self.dtype)
            elif part not in PARTS[1:] or scheme not in GRIDS:
                raise PlanError(
                    f"--scheme must be PART=GRID with a part of {', '.join(PARTS[1:])} and a grid of "
                    f"{', '.join(GRIDS)} with --backend kernels, not {part}={scheme}"
                )

        for part in PARTS:
            if self.backend == "vulkan":
                self._check_vulkan(part)
            elif self.backend == "qnn":
                self._check_qnn(part)

    def _check_qnn(self, part: Part) -> None:
        """The delegate's products take int8 by channel beside float16, and int4 too beside 16-bit integers."""
        scheme, bits = self.part_scheme(part), (4, 8) if self.quantize.integer_activations else (8,)
        if scheme.bits >= 16 or (
            part != "embedding" and scheme.bits in bits and scheme.group_size is None and scheme.symmetric
        ):
            return
        allowed = ["float"] + ([] if part == "embedding" else [f"int{n}:channel:symmetric" for n in reversed(bits)])
        raise PlanError(
            f"--scheme {part} must be {' or '.join(allowed)} with --backend qnn --quantize {self.quantize.value}, "
            f"not {scheme.name}"
        )

    def _check_vulkan(self, part: Part) -> None:
        """The delegate's products take int4 in groups and int8 by channel."""
        scheme = self.part_scheme(part)
        if scheme.bits == 4 and part == "embedding":
            raise PlanError("--scheme embedding must be float or int8 with --backend vulkan, not int4")
        if scheme.bits == 4 and scheme.group_size is None:
            raise PlanError(f"--scheme {part}=int4 needs a group size with --backend vulkan, not channel")
        if scheme.bits == 8 and scheme.group_size is not None and part != "embedding":
            raise PlanError(f"--scheme {part}=int8 must be int8:channel with --backend vulkan, not {scheme.name}")

    @property
    def kernels(self) -> bool:
        """Whether the graphs use the operators of kernels/."""
        return self.backend == "kernels"

    @property
    def shapes(self) -> GraphShapes:
        if self.adapter is None:
            whole = tuple((width, width) for width in self.widths)
            return GraphShapes(
                self.max_context_len, self.prefill_len, whole, 0, (0,) * len(whole), extra_methods=self.extra_methods
            )
        keep = tuple((width, min(width, _at(self.prune_keep, width, width))) for width in self.widths)
        nodes = (0,) * len(keep)
        if self.schedule is Schedule.DEFERRED:
            nodes = tuple(int(width == 1) for width, _ in keep)
        else:
            said = _USUAL_STREAM_NODES if self.stream_nodes == AUTO else self.stream_nodes
            nodes = tuple(k if isinstance(said, str) else min(k, _at(said, w, k)) for w, k in keep)
        deferred = self.schedule is not Schedule.FUSED
        return GraphShapes(
            self.max_context_len,
            self.prefill_len,
            keep,
            self.top_k,
            nodes,
            deferred,
            self.prune_threshold,
            self.extra_methods,
        )

    @property
    def grids(self) -> Schemes | None:
        """The grids of the kernels' operators; None elsewhere."""
        if not self.kernels:
            return None
        layers = {"attention": self.quantize.value, "mlp": self.quantize.value}
        return Schemes(**{**layers, **self.schemes})

    def merges(self, streams: StreamConfig) -> bool:
        """Whether the low-rank adapters that tune the base are added to its weights.

        docs/quantization.md has what four bits cost a tuned model otherwise.
        """
        if self.merge_adapter != AUTO:
            return self.merge_adapter == "on"
        return not self.four_bits or bool(streams.adapter_rank and not self.keeps_two_kinds)

    @property
    def keeps_two_kinds(self) -> bool:
        """Whether stream rows can have adapters of their own beside a base that is tuned and not merged.

        A product takes one kind. Deferred streams have a pass of their own, where the two are joined to one.
        """
        return self.kernels and self.schedule is Schedule.DEFERRED

    @property
    def four_bits(self) -> bool:
        """Whether weights of the layers are stored in four bits."""
        grids = self.grids
        if grids is not None:
            return "q4_1" in (grids.attention, grids.mlp)
        return 4 in (self.part_scheme("attention").bits, self.part_scheme("mlp").bits)

    @property
    def quantization_floor(self) -> Floor:
        """What integer weights must reach against the float32 model."""
        return FLOORS["int4" if self.four_bits else "int8"]

    def part_scheme(self, part: Part) -> PartScheme:
        """How a part's weights are stored; not for the kernels, whose grids `grids` has."""
        if part in self.schemes:
            return parse_scheme(part, self.schemes[part], self.group_size, self.dtype)
        looked_up = self.backend == "qnn" and part == "embedding"  # the processor has products of integers alone
        bits = DTYPE_BITS[self.dtype] if looked_up else self.quantize.bits or DTYPE_BITS[self.dtype]
        scheme = default_scheme(part, bits, self.group_size, self.target != "executorch")
        return replace(scheme, group_size=None, symmetric=True) if self.quantize.integer_activations else scheme


def options_of(said: Mapping[str, Any]) -> dict[str, Any]:
    """Options of an ExportPlan as a caller said them: lists become tuples, words the enums that they name.

    TypeError for a name that no option has; PlanError for a word that an enum does not know.
    """
    given = ("model", "adapter", "output_dir", "streams")
    known = [option.name for option in fields(ExportPlan) if option.name not in given]
    for name in said:
        if name not in known:
            raise TypeError(f"export has no option {name}; its options are {', '.join(known)}")
    found: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in said.items()}
    if isinstance(found.get("allow_parity_below"), str):
        found["allow_parity_below"] = (found["allow_parity_below"],)
    if isinstance(said.get("calibration_text"), str):
        found["calibration_text"] = Path(said["calibration_text"])
    enums: tuple[tuple[str, type[Enum]], ...] = (("quantize", Quantize), ("schedule", Schedule))
    for name, kind in enums:
        if isinstance(found.get(name), str):
            check_choice(f"--{name}", str(getattr(found[name], "value", found[name])), tuple(k.value for k in kind))
            found[name] = kind(found[name])
    return found


def _at(value: int | Mapping[int, int], width: int, otherwise: int) -> int:
    return value if isinstance(value, int) else value.get(width, otherwise)


def _check(flag: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise PlanError(f"{flag} must be from {low} to {high}, not {value}")


def _listed(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))
