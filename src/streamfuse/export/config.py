"""What to export: the options of `streamfuse export` and `streamfuse.export_bundle`, each declared once.

A configuration is plain values. `resolve.resolve` checks one against what its target can do (capabilities.py) and puts
the target's defaults in place of `auto`; the stages of an export read configurations that were resolved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict

from streamfuse.model.config import StreamConfig
from streamfuse.model.delta_config import PASS_ROWS
from streamfuse.options import AUTO, declared, option

from .schemes import (
    BITS,
    DTYPE_BITS,
    INTEGER_ACTIVATIONS,
    PARTS,
    Part,
    PartScheme,
    Schemes,
    default_scheme,
    parse_scheme,
)

ALL, NO_ADAPTER = "all", "none"
USUAL_KEEP = 8
USUAL_STREAM_NODES = 4
FORMAT, WEIGHTS, SIZES, STREAMS = "Backend and format", "Weights", "Graph sizes", "Streams"
TASKS, RUN = "Task adapters", "This export"

MethodMaker: TypeAlias = Callable[[Any], Any]  # graphs.Weights -> a module with the inputs and outputs of `decode`
Target = Literal["executorch", "coreml", "onnx"]
Backend = Literal["auto", "kernels", "xnnpack", "coreml", "vulkan", "qnn", "openvino", "mlprogram", "onnxruntime"]
Dtype = Literal["auto", "float16", "float32"]
Layout = Literal["plain", "ane"]
ComputeUnits = Literal["auto", "all", "cpu_and_ne", "cpu_and_gpu", "cpu_only"]
DeploymentTarget = Literal["auto", "iOS18", "iOS26", "macOS15", "macOS26"]
Soc = Literal["auto", "SM8550", "SM8650", "SM8750", "SM8850"]
OnOff = Literal["auto", "on", "off"]
AdapterDtype = Literal["auto", "float16", "int8"]
Device = Literal["auto", "cpu", "gpu", "npu"]
Provider = Literal["auto", "cpu", "webgpu", "qnn", "coreml", "directml"]
Quantize = Literal["auto", "q4_1", "q8_0", "8da4w", "int4", "int8", "16a8w", "16a4w", "none"]
Schedule = Literal["fused", "deferred", "both"]
Sampling = Literal["model", "greedy"]
PerWidth: TypeAlias = int | Mapping[int, int]
TaskFiles: TypeAlias = Mapping[str, str | Path]


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
        prune_threshold: probability of an edge below which the pruner, if there is one, drops a child with all that
            follow it.
        extra_methods: as of ExportConfig.
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

    @property
    def ordering(self) -> bool:
        """Whether a width has streams for only some of the nodes that it keeps, so that their order matters."""
        return any(0 < carrying < keep for _, keep, carrying in self.verify)

    @property
    def needs_pruner(self) -> bool:
        """Whether a verify pass drops nodes, or orders those that it keeps."""
        return self.pruning or self.ordering


@dataclass(frozen=True, slots=True)
class ExportConfig:
    """One export: the checkpoint's folder, the adapter's file or None (no streams), and the options.

    Attributes:
        ngrams: the adapter's file if it has no streams, only an n-gram table or tuning of the base; then `adapter` is
            None.
        widths: nodes T of each verify method; 1 is a plain pass that also computes streams.
        prune_keep: nodes K that survive the pruner if T is larger, one number or one per width.
        stream_nodes: survivors M that carry streams, likewise, or all. Deferred streams have a pass of their own.
        tasks: the resolved configurations of the adapters of `task`, by name (adapter.py sets them).
        asked: with tasks, this configuration before it was resolved.
        eos_token_id: the token that ends the adapter's answers, if it is not the base's (adapter.py sets it).
        extra_methods: more methods of the program, by name, each made of the `graphs.Weights` that all share; kernels.
            The manifest does not name them, so readers of bundles ignore them.
    """

    model: Path
    adapter: Path | None
    output_dir: Path
    target: Target = option("executorch", "Format of the graphs.", FORMAT, common=True)
    backend: Backend = option(
        "auto",
        "Backend that runs the graphs. mlprogram goes with --target coreml, onnxruntime with onnx, the others with "
        "executorch. kernels are streamfuse's own operators; vulkan needs an Android library built with it.",
        FORMAT,
        shown="kernels, mlprogram or onnxruntime",
        common=True,
    )
    dtype: Dtype = option(
        "auto",
        "Type of activations and unquantized weights; kernels, xnnpack, openvino: float32 only; qnn: float16 only.",
        FORMAT,
        shown="float16 for coreml, vulkan and qnn, else float32",
    )
    layout: Layout = option(
        "plain",
        "Tensor layout, with --target coreml; ane: channels first with 1x1 convolutions, for the Neural Engine.",
        FORMAT,
    )
    compute_units: ComputeUnits = option(
        "auto",
        "Compute units that Core ML may use; with --target coreml or --backend coreml.",
        FORMAT,
        shown="cpu_and_ne",
    )
    minimum_deployment_target: DeploymentTarget = option(
        "auto",
        "Oldest system that the Core ML model supports; with --target coreml or --backend coreml.",
        FORMAT,
        shown="iOS18",
    )
    soc: Soc = option(
        "auto",
        "Snapdragon to compile for, with --backend qnn: 8 Gen 2, 8 Gen 3, 8 Elite, 8 Elite Gen 5.",
        FORMAT,
        shown="SM8650",
    )
    weight_sharing: OnOff = option(
        "auto",
        "Share one copy of the weights between methods, with --backend qnn; the desktop simulator needs off.",
        FORMAT,
        shown="on",
    )
    device: Device = option(
        "auto", "Device to compile for, with --backend openvino; this machine must have it.", FORMAT, shown="cpu"
    )
    provider: Provider = option("auto", "ONNX Runtime execution provider, with --target onnx.", FORMAT, shown="cpu")
    quantize: Quantize = option(
        "auto",
        "Weight format. The first that a backend has is its default. kernels: the GGUF formats q4_1 and q8_0; "
        "xnnpack: 8da4w, none; coreml, vulkan: none, int4, int8; qnn: none, int8, 16a8w, 16a4w; all others: int4, "
        "int8, none.",
        WEIGHTS,
        shown="q4_1 with kernels",
        common=True,
    )
    scheme: Mapping[str, str] = option(
        {},
        "Override the scheme of embedding, attention, mlp, head or streams; repeatable. kernels: q4_1 or q8_0. "
        "Others: int4, int8 or float, then :GROUP or :channel, then :symmetric or :affine; vulkan has no :affine, qnn "
        "only :channel:symmetric, xnnpack no schemes.",
        WEIGHTS,
        shown="from --quantize",
        metavar="PART=SCHEME",
    )
    calibration_text: Path | None = option(
        None,
        "UTF-8 text file to calibrate activation ranges on, with 16a8w and 16a4w.",
        WEIGHTS,
        shown="the adapter's held-out prompts, or a few questions",
    )
    group_size: int = option(32, "Weights per scale of int4: 32, 64, 128 or 256.", WEIGHTS)
    adapter_dtype: AdapterDtype = option(
        "auto",
        "Type of the adapters' low-rank matrices unless they are merged, with --backend kernels; int8 halves them.",
        WEIGHTS,
        shown="float16",
    )
    max_context_len: int = option(1024, "KV cache capacity in tokens.", SIZES, least=32, most=131072, common=True)
    prefill_len: int = option(64, "Prompt tokens per prefill pass.", SIZES, least=1, most=PASS_ROWS)
    widths: tuple[int, ...] = option(
        (),
        "Tree nodes of each verify method, ascending; 1: a plain pass that also computes streams.",
        SIZES,
        shown="4,8,16; with the kernels also 1, unless the streams are merged",
        metavar="N,...",
    )
    default_width: int | None = option(
        None, "Verify width used by default.", SIZES, shown="the widest of at most 8, else the narrowest"
    )
    merge_adapter: OnOff = option(
        "auto",
        "Merge the adapter's low-rank update of the base model into its weights; auto: on, but off for 4-bit "
        "weights if the streams have no adapters of their own, or with --backend kernels --schedule deferred.",
        STREAMS,
    )
    merge_streams: OnOff = option(
        "auto",
        "Merge the streams' low-rank adapters into a copy of their layers' matrices for the `streams` pass, instead of "
        "computing them separately. Needs --backend kernels, --schedule deferred, and no width 1; auto: on where these "
        "are met and the copy is smaller than the adapters.",
        STREAMS,
    )
    num_streams: int | None = option(None, "Keep only the first streams of the adapter.", STREAMS, shown="all")
    top_k: int = option(32, "Candidates that the graph returns per stream and node.", STREAMS, least=1, most=64)
    schedule: Schedule = option(
        "deferred",
        "Compute streams in the verify pass (fused), in a pass after it (deferred), or export both.",
        STREAMS,
    )
    prune_keep: PerWidth | Literal["auto"] = option(
        "auto",
        "Number of nodes that the pruner keeps in wider verify passes.",
        STREAMS,
        shown=f"{USUAL_KEEP}; all with an adapter that has no pruner",
        metavar="N|WIDTH:N,...",
    )
    prune_threshold: float = option(
        0.0,
        "Drop a node and its descendants if the pruner gives its edge a probability below P; 0 drops none.",
        STREAMS,
        metavar="P",
        least=0,
        below=1,
    )
    stream_nodes: PerWidth | Literal["auto", "all"] = option(
        "auto",
        "Number of kept nodes that compute streams, those most likely to end the accepted path; with --schedule fused "
        "or both.",
        STREAMS,
        shown=str(USUAL_STREAM_NODES),
        metavar="N|WIDTH:N,...|all",
    )
    ngram_table_mb: float = option(
        8.0,
        "Maximum size of the n-gram table; contexts with the highest gain are kept. 0: no table.",
        STREAMS,
        metavar="MB",
        least=0,
        most=24,
    )
    task: TaskFiles = option(
        {},
        "Add a task adapter, which a session chooses by NAME. Repeatable. FILE is a shipped adapter, or a file from "
        "`streamfuse train` or `adapter convert`. Tasks share the base model's weights; only with --backend kernels.",
        TASKS,
        metavar="NAME=FILE",
        common=True,
    )
    ngrams: Path | None = None
    tasks: Mapping[str, ExportConfig] = field(default_factory=dict)
    asked: ExportConfig | None = None
    eos_token_id: int | None = None
    extra_methods: Mapping[str, MethodMaker] = field(default_factory=dict)
    sampling: Sampling = option(
        "model",
        "Sampling defaults of the bundle; model: from generation_config.json, or greedy if it has none. Flags of "
        "`streamfuse run` override them.",
        RUN,
    )
    allow_parity_below: tuple[str, ...] = option(
        (),
        "Export even if results are below this parity floor (float32, float16, 16a8w, int8, int4, 8da4w, "
        "kernels); the manifest records them and `bundle inspect` shows them. Repeatable.",
        RUN,
        metavar="FLOOR",
    )
    overwrite: bool = option(False, "Replace an existing bundle.", RUN, common=True)

    @property
    def adapter_file(self) -> Path | None:
        """The adapter's file, with streams or without."""
        return self.adapter or self.ngrams

    @property
    def kernels(self) -> bool:
        """Whether the graphs use the operators of kernels/."""
        return self.backend == "kernels"

    @property
    def quantized(self) -> bool:
        """Whether weights are stored as integers."""
        return self.quantize != "none"

    @property
    def integer_activations(self) -> bool:
        """Whether activations are integers whose ranges are calibrated."""
        return self.quantize in INTEGER_ACTIVATIONS

    @property
    def copies_weights(self) -> bool:
        """Whether each method's delegate has its own copy of the weights that it reads."""
        return self.backend == "openvino" or (self.backend == "qnn" and self.weight_sharing == "off")

    @property
    def shapes(self) -> GraphShapes:
        sizes = self.max_context_len, self.prefill_len
        if self.adapter is None:
            whole = tuple((width, width) for width in self.widths)
            return GraphShapes(*sizes, whole, 0, (0,) * len(whole), extra_methods=self.extra_methods)
        most = USUAL_KEEP if isinstance(self.prune_keep, str) else self.prune_keep
        keep = tuple((width, min(width, _at(most, width, width))) for width in self.widths)
        if self.schedule == "deferred":
            nodes = tuple(int(width == 1) for width, _ in keep)
        else:
            asked = USUAL_STREAM_NODES if self.stream_nodes == AUTO else self.stream_nodes
            nodes = tuple(k if isinstance(asked, str) else min(k, _at(asked, w, k)) for w, k in keep)
        deferred = self.schedule != "fused"
        return GraphShapes(*sizes, keep, self.top_k, nodes, deferred, self.prune_threshold, self.extra_methods)

    @property
    def grids(self) -> Schemes | None:
        """The grids of the kernels' operators; None elsewhere."""
        if not self.kernels:
            return None
        formats = {"attention": self.quantize, "mlp": self.quantize, **self.scheme}
        if "q4_1" not in (formats["attention"], formats["mlp"]):
            # The parity floor is then that of 8 bits (`weight_floor`), which streams in 4 bits do not reach.
            formats = {"streams": "q8_0", **formats}
        return Schemes(**formats)

    def merges(self, streams: StreamConfig) -> bool:
        """Whether the low-rank adapters that tune the base are added to its weights.

        docs/export.md has what four bits cost a tuned model otherwise.
        """
        if self.merge_adapter != AUTO:
            return self.merge_adapter == "on"
        return not self.four_bits or bool(streams.adapter_rank and not self.keeps_two_kinds)

    @property
    def keeps_two_kinds(self) -> bool:
        """Whether stream rows can have adapters of their own beside a base that is tuned and not merged.

        A product takes one kind. Deferred streams have a pass of their own, in which the two are joined to one.
        """
        return self.kernels and self.schedule == "deferred"

    @property
    def merges_streams(self) -> bool:
        """Whether the `streams` pass has matrices of its own; adapter.py decides about `auto`, if it is worth it."""
        return self.merge_streams == "on"

    def carries_alone(self, streams: StreamConfig) -> bool:
        """Whether streams of these settings can share a pass with the base's rows.

        Not with matrices of their own, nor low-rank products of their own beside a tuned base, nor heads, which have no
        layers to share.
        """
        return not (streams.heads or self.merges_streams) and (
            not (streams.base_rank and streams.adapter_rank) or self.merges(streams)
        )

    @property
    def weight_floor(self) -> str:
        """The name of the floor of the stored weights, compared with the checkpoint's."""
        if self.four_bits:
            return "int4"
        integers = self.grids is not None or any(self.part_scheme(part).bits < 16 for part in PARTS)
        return "int8" if integers else self.dtype

    @property
    def four_bits(self) -> bool:
        """Whether weights of the layers are stored in four bits."""
        grids = self.grids
        if grids is not None:
            return "q4_1" in (grids.attention, grids.mlp)
        return 4 in (self.part_scheme("attention").bits, self.part_scheme("mlp").bits)

    def part_scheme(self, part: Part) -> PartScheme:
        """How a part's weights are stored; not for the kernels, whose grids `grids` has."""
        if part in self.scheme:
            parsed = parse_scheme(part, self.scheme[part], self.group_size, self.dtype)
            return replace(parsed, symmetric=True) if self.backend == "vulkan" else parsed
        looked_up = self.backend == "qnn" and part == "embedding"  # the processor has products of integers alone
        bits = DTYPE_BITS[self.dtype] if looked_up else BITS[self.quantize] or DTYPE_BITS[self.dtype]
        scheme = default_scheme(part, bits, self.group_size, self.target != "executorch")
        if self.integer_activations:
            return replace(scheme, group_size=None, symmetric=True)
        # The products of the Vulkan delegate have no zero points.
        return replace(scheme, symmetric=True) if self.backend == "vulkan" else scheme

    def to_dict(self) -> dict[str, Any]:
        """The options by name, as a configuration file has them and as JSON and YAML can represent them: they reproduce
        the export.

        The output folder and `overwrite` are left out, and stream options if there are no streams. Options that each
        task resolves itself are as they were given.
        """
        without = {"overwrite", *(() if self.adapter or self.tasks else without_streams(self.adapter_file))}
        names = [f.name for f in fields(self) if f.name in declared(ExportConfig) and f.name not in without]
        found = {"model": self.model, "adapter": self.adapter_file or NO_ADAPTER}
        for name in names:
            value = getattr(self.asked if self.asked and name in _OF_EACH_ADAPTER else self, name)
            if value not in (None, ()):
                found[name] = value
        return {name: _plain(value) for name, value in found.items()}


STREAM_OPTIONS = tuple(name for name, facts in declared(ExportConfig).items() if facts.group == STREAMS)
_OF_EACH_ADAPTER = ("widths", "default_width", "scheme", *STREAM_OPTIONS)


def without_streams(adapter: Path | None) -> tuple[str, ...]:
    """The options that have no effect without streams; with an adapter that has none, two more have one."""
    of_adapters = () if adapter is None else ("merge_adapter", "ngram_table_mb")
    return tuple(name for name in STREAM_OPTIONS if name not in of_adapters)


class ExportOptions(TypedDict, total=False):
    """The options of ExportConfig as keywords, in the types that callers have at hand (a test compares the two)."""

    target: Target
    backend: Backend
    dtype: Dtype
    layout: Layout
    compute_units: ComputeUnits
    minimum_deployment_target: DeploymentTarget
    soc: Soc
    weight_sharing: OnOff
    device: Device
    provider: Provider
    quantize: Quantize
    scheme: Mapping[str, str]
    calibration_text: str | PathLike[str] | None
    group_size: int
    adapter_dtype: AdapterDtype
    max_context_len: int
    prefill_len: int
    widths: Sequence[int]
    default_width: int | None
    merge_adapter: OnOff
    merge_streams: OnOff
    num_streams: int | None
    top_k: int
    schedule: Schedule
    prune_keep: PerWidth | Literal["auto"]
    prune_threshold: float
    stream_nodes: PerWidth | Literal["auto", "all"]
    ngram_table_mb: float
    task: TaskFiles
    extra_methods: Mapping[str, MethodMaker]
    sampling: Sampling
    allow_parity_below: str | Sequence[str]
    overwrite: bool


def _at(value: PerWidth, width: int, otherwise: int) -> int:
    return value if isinstance(value, int) else value.get(width, otherwise)


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return list(value) if isinstance(value, tuple) else value
