"""From what a caller asks to what an export does: defaults in place of `auto`, and every option checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from streamfuse.model.config import StreamConfig
from streamfuse.options import AUTO, OptionError, check, check_choice, flag_of

from .capabilities import BACKENDS
from .config import ALL, USUAL_KEEP, ExportConfig, without_streams
from .schemes import GRIDS, GROUP, INTEGER_ACTIVATIONS, PARTS, Part, parse_scheme
from .selftest import FLOORS

_USUAL_WIDTHS, _USUAL_WIDTH = (4, 8, 16), 8
_WITHOUT_STREAMS = "is about streams, and this export has none; leave it out, or name an --adapter"


def resolve(config: ExportConfig, streams: StreamConfig | None = None) -> ExportConfig:
    """The configuration with the defaults of its target in place of `auto`; every option is checked.

    Nothing is read but the arguments. `streams` are the settings in the adapter's file (adapter.py reads them); None:
    not known, and the defaults are those that every adapter can serve.

    Raises:
        OptionError: an option is out of range, or does not go with another one.
    """
    config, of_backend = _with_defaults(config)
    check(config)
    if config.kernels and config.max_context_len % GROUP:
        raise OptionError(
            f"--max-context-len must be a multiple of {GROUP} with --backend kernels, whose cache has blocks of so "
            f"many positions, not {config.max_context_len}"
        )
    _check_range("--prefill-len", config.prefill_len, 1, min(128, config.max_context_len))
    check_choice("--group-size", config.group_size, BACKENDS[config.target][config.backend].group_sizes, of_backend)
    if config.layout == "ane" and config.schedule != "deferred":
        raise OptionError(f"--layout ane needs --schedule deferred, not {config.schedule}")
    config = _with_kept_nodes(_with_widths(config, streams), streams)
    if config.merges_streams:
        _check_merges_streams(config, streams)
    if config.prune_keep != AUTO:
        _check_per_width(config, "--prune-keep", config.prune_keep)
    if config.prune_threshold and not config.shapes.pruning:
        raise OptionError("--prune-threshold needs a width that is pruned; give --prune-keep fewer nodes than --widths")
    if config.stream_nodes != AUTO and config.schedule == "deferred":
        raise OptionError(
            "--stream-nodes goes with --schedule fused or both; deferred streams have a pass of their own"
        )
    if config.stream_nodes not in (AUTO, ALL):
        _check_per_width(config, "--stream-nodes", config.stream_nodes)
    _check_schemes(config)
    for name in config.allow_parity_below:
        check_choice("--allow-parity-below", name, tuple(FLOORS))
    if config.calibration_text is not None and not config.integer_activations:
        raise OptionError(
            f"--calibration-text goes with --quantize {' or '.join(INTEGER_ACTIVATIONS)}, not with {config.quantize}, "
            "which has no activations to calibrate"
        )
    if config.adapter is None and not config.task:
        _refuse_stream_options(config)
    return config


def _with_defaults(config: ExportConfig) -> tuple[ExportConfig, str]:
    """The target's defaults in place of `auto`, and the words that name the target or backend in an error."""
    check_choice("--target", config.target, tuple(BACKENDS))
    backends = BACKENDS[config.target]
    backend = next(iter(backends)) if config.backend == AUTO else config.backend
    check_choice("--backend", backend, tuple(backends), f" with --target {config.target}")
    can, of_backend = backends[backend], f" with {_place(config.target, backend)}"
    for option in fields(config):
        places = _places(option.name)
        if option.name not in can.own and places and getattr(config, option.name) not in (option.default, {}):
            raise OptionError(f"{flag_of(option.name)} goes with {' or '.join(places)}, not{of_backend}")
    # QNN has no product with integers in blocks, which ONNX Runtime's own operator is. The other two are untested.
    quantize = "none" if config.provider in ("qnn", "coreml", "directml") else can.quantize[0]
    usual = {"quantize": quantize, "dtype": can.dtype[0], **can.own}
    values: dict[str, Any] = {name: usual[name] for name in usual if getattr(config, name) == AUTO}
    config = replace(config, **{**values, "backend": backend})
    check_choice("--quantize", config.quantize, can.quantize, of_backend)
    check_choice("--dtype", config.dtype, can.dtype, of_backend)
    return config, of_backend


def _places(name: str) -> list[str]:
    """The targets and backends that have this option as their own; none for an option of all."""
    found = ((target, backend, can) for target, backends in BACKENDS.items() for backend, can in backends.items())
    return [_place(target, backend) for target, backend, can in found if name in can.own]


def _place(target: str, backend: str) -> str:
    return f"--backend {backend}" if len(BACKENDS[target]) > 1 else f"--target {target}"


def _with_widths(config: ExportConfig, streams: StreamConfig | None) -> ExportConfig:
    """The default widths, if none are named, and the default width."""
    widths = config.widths or ((1, *_USUAL_WIDTHS) if _measured_to_carry(config, streams) else _USUAL_WIDTHS)
    if list(widths) != sorted(set(widths)):
        raise OptionError(f"--widths must be ascending and distinct, not {_listed(widths)}")
    for width in widths:
        _check_range("--widths", width, 1, min(64, config.max_context_len // 2))
    if widths[-1] == 1:
        raise OptionError("--widths must name a width above 1 too; 1 is a plain pass that carries its streams")
    if widths[0] == 1 and config.adapter is None:
        raise OptionError(f"--widths 1 {_WITHOUT_STREAMS}")
    trees = tuple(width for width in widths if width > 1)
    usual = max((width for width in trees if width <= _USUAL_WIDTH), default=trees[0])
    chosen = usual if config.default_width is None else config.default_width
    if chosen not in trees:
        raise OptionError(f"--default-width must be one of --widths {_listed(trees)}, not {chosen}")
    return replace(config, widths=widths, default_width=chosen)


def _measured_to_carry(config: ExportConfig, streams: StreamConfig | None) -> bool:
    """Whether a plain pass that carries streams was measured to pay: with the kernels, in the deferred schedule."""
    if not config.keeps_two_kinds or config.adapter is None:
        return False
    return streams is not None and config.carries_alone(streams)


def _check_merges_streams(config: ExportConfig, streams: StreamConfig | None) -> None:
    if config.schedule != "deferred":
        raise OptionError(
            f"--merge-streams on needs --schedule deferred, not {config.schedule}: fused streams run with the base's "
            "matrices"
        )
    if config.widths[0] == 1:
        raise OptionError(
            "--merge-streams on needs --widths without 1: verify_1 computes streams with the base's matrices"
        )
    if streams is not None and not streams.adapter_rank:
        raise OptionError(
            f"--merge-streams on needs streams with low-rank products of their own, which --adapter "
            f"{config.adapter and config.adapter.stem} does not have"
        )


def _with_kept_nodes(config: ExportConfig, streams: StreamConfig | None) -> ExportConfig:
    """How many nodes a pass keeps, and how many of them have streams: all, by default, if no pruner can choose."""
    if config.adapter is None or streams is None:
        return config
    if streams.pruner_rank:
        return replace(config, prune_keep=USUAL_KEEP) if config.prune_keep == AUTO else config
    all_kept = replace(config, prune_keep=config.widths[-1]) if config.prune_keep == AUTO else config
    fuses = config.schedule != "deferred" and config.stream_nodes == AUTO
    return replace(all_kept, stream_nodes="all") if fuses else all_kept


def _check_per_width(config: ExportConfig, flag: str, value: object) -> None:
    if isinstance(value, int):
        return _check_range(flag, value, 1, 64)
    if not isinstance(value, Mapping):
        words = "a number, numbers by width, or all" if flag == "--stream-nodes" else "a number, or numbers by width"
        raise OptionError(f"{flag} must be {words}, not {value}")
    for width, number in value.items():
        if width not in config.widths:
            raise OptionError(f"{flag} names the width {width}, which is not one of --widths {_listed(config.widths)}")
        _check_range(flag, number, 1, width)
    return None


def _refuse_stream_options(config: ExportConfig) -> None:
    usual = {f.name: f.default for f in fields(config)}
    meaningless = without_streams(config.adapter_file)
    flags = [flag_of(name) for name in meaningless if getattr(config, name) != usual[name]]
    flags += ["--scheme streams=..."] if "streams" in config.scheme else []
    if flags:
        raise OptionError(f"{flags[0]} {_WITHOUT_STREAMS}")
    if config.adapter_dtype == "int8" and config.adapter_file is None:
        raise OptionError("--adapter-dtype int8 needs an adapter; leave it out, or name an --adapter")


def _check_schemes(config: ExportConfig) -> None:
    if config.backend == "xnnpack" and config.scheme:
        raise OptionError("--scheme does not go with --backend xnnpack, whose graphs have one scheme per part")
    for part, scheme in config.scheme.items():
        if not config.kernels:
            parse_scheme(part, scheme, config.group_size, config.dtype)
        elif part not in PARTS[1:] or scheme not in GRIDS:
            raise OptionError(
                f"--scheme must be PART=GRID with a part of {', '.join(PARTS[1:])} and a grid of {', '.join(GRIDS)} "
                f"with --backend kernels, not {part}={scheme}"
            )
    usual = {option.name: option.default for option in fields(config)}["group_size"]
    if config.group_size != usual and all(config.part_scheme(part).group_size != config.group_size for part in PARTS):
        raise OptionError(
            f"--group-size {config.group_size} has no effect: with --backend {config.backend} --quantize "
            f"{config.quantize} no part has weights in groups of so many; leave it out"
        )
    for part in PARTS:
        if config.backend == "vulkan":
            _check_vulkan(config, part)
        elif config.backend == "qnn":
            _check_qnn(config, part)
    if config.backend == "openvino":
        table = config.part_scheme("embedding")
        if table.bits == 4 or (table.bits == 8 and not table.symmetric):
            raise OptionError(
                f"--scheme embedding must be float or symmetric int8 with --backend openvino, not {table.name}"
            )


def _check_qnn(config: ExportConfig, part: Part) -> None:
    """The delegate's products take int8 by channel beside float16, and int4 too beside 16-bit integers."""
    scheme, bits = config.part_scheme(part), (4, 8) if config.integer_activations else (8,)
    if scheme.bits >= 16 or (
        part != "embedding" and scheme.bits in bits and scheme.group_size is None and scheme.symmetric
    ):
        return
    allowed = ["float"] + ([] if part == "embedding" else [f"int{n}:channel:symmetric" for n in reversed(bits)])
    raise OptionError(
        f"--scheme {part} must be {' or '.join(allowed)} with --backend qnn --quantize {config.quantize}, not "
        f"{scheme.name}"
    )


def _check_vulkan(config: ExportConfig, part: Part) -> None:
    """The delegate's products take int4 in groups and int8 by channel."""
    scheme = config.part_scheme(part)
    if "affine" in config.scheme.get(part, "").split(":"):
        raise OptionError(
            f"--scheme {part}={config.scheme[part]} must be symmetric with --backend vulkan, whose products have no "
            "zero points; leave :affine out"
        )
    if scheme.bits == 4 and part == "embedding":
        raise OptionError("--scheme embedding must be float or int8 with --backend vulkan, not int4")
    if scheme.bits == 4 and scheme.group_size is None:
        raise OptionError(f"--scheme {part}=int4 needs a group size with --backend vulkan, not channel")
    if scheme.bits == 8 and scheme.group_size is not None and part != "embedding":
        raise OptionError(f"--scheme {part}=int8 must be int8:channel with --backend vulkan, not {scheme.name}")


def _check_range(flag: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise OptionError(f"{flag} must be from {low} to {high}, not {value}")


def _listed(numbers: tuple[int, ...]) -> str:
    return ",".join(map(str, numbers))
