"""An export, the same for every target: load, reference, quantize, lower, parity, write."""

from __future__ import annotations

import math
import resource
import shutil
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from streamfuse import __version__
from streamfuse.bundle import BundleWriter
from streamfuse.bundle.reader import DRAFT_FILE, SELFTEST_FILE, adapter_file
from streamfuse.json_text import dump_strict
from streamfuse.model.checkpoint import load_base
from streamfuse.model.config import CheckpointError, ModelConfig
from streamfuse.model.streams import StreamFused
from streamfuse.model.transformer import Transformer
from streamfuse.options import check_choice
from streamfuse.runtime.backend import ModelSpec

from . import facts, selftest
from .calibrate import calibrate, prompts_of
from .config import ExportConfig
from .draft import draft_arrays, write_tensors
from .graphs import Method, Weights, build_methods
from .grid import HALF_MAX
from .operators.reference import unpacked_once
from .preview import Preview, check_fit, check_text, with_streams
from .reference import Form, reference_backend
from .sampling import sampling_defaults
from .selftest import PassResult, Script
from .target import Progress, Target, TargetFacts, make_target

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

Results: TypeAlias = list[PassResult]


@dataclass
class Findings:
    """What an export found out about a model or a task adapter; the attributes are those of Report."""

    parity: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    calibration: list[float] = field(default_factory=list)
    below_floor: list[dict[str, Any]] = field(default_factory=list)

    def prove(
        self, name: str, results: Results, against: Results, floor: selftest.Floor, allow_parity_below: Collection[str]
    ) -> None:
        """Note a comparison; ParityError where it is below the floor, unless that is named as allowed."""
        self.parity[name] = selftest.compare(results, against)
        missed = selftest.check(self.parity[name], floor, allow_parity_below)
        self.below_floor += [{"comparison": name, **asdict(miss)} for miss in missed]


@dataclass
class Report(Findings):
    """What an export did. Lies in the bundle as export_report.json.

    Attributes:
        config: the options as `--config` takes them.
        seconds: per stage, by the clock; `cpu_seconds` likewise, of this process.
        parity: per comparison and method: `quantization` is the integer weights against float32, both in PyTorch;
            `lowering` the emitted graphs against PyTorch on the same weights; `float32` the emitted graphs against the
            float32 model.
        bytes: per file.
        calibration: of the drafts, hits per predicted hit at each depth.
        below_floor: figures of `parity` that missed their floor and were let through by name.
        target: what the target has to say, for example how many groups of weights were carried over bit for bit.
        tasks: parity, calibration and below_floor of each task adapter, by name.
    """

    config: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    peak_memory_bytes: int = 0
    bytes: dict[str, int] = field(default_factory=dict)
    target: dict[str, Any] = field(default_factory=dict)
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Notes what a stage takes."""
        started, cpu_started = time.perf_counter(), time.process_time()
        yield
        self.seconds[stage] = round(time.perf_counter() - started, 2)
        self.cpu_seconds[stage] = round(time.process_time() - cpu_started, 2)


STAGES = ("load", "reference", "quantize", "lower", "parity", "write")  # of Report.seconds


def run_export(
    config: ExportConfig,
    progress: Progress = lambda _: None,
    asked: Mapping[str, str] | None = None,
    sign_key: Ed25519PrivateKey | None = None,
) -> Report:
    """Write the bundle of a resolved configuration, atomically.

    Args:
        asked: what the user wrote for `model` and `adapter`, for the report, which has paths otherwise.
        sign_key: signs the bundle; None: it is not signed.

    Raises:
        OptionError, CheckpointError, BundleError, LoweringError, ParityError: one sentence each; nothing is left
            behind.
    """
    report = Report(config={**config.to_dict(), **(asked or {})})
    with torch.inference_mode(), BundleWriter(config.output_dir, config.overwrite, sign_key) as writer:
        folder = writer.folder

        with report.timed("load"):
            progress("loading the model")
            tokenizer = check_text(config, ModelConfig.load(config.model))
            base = load_base(config.model)
            model = with_streams(config, base)
            check_fit(config, model)
            merges = config.merges(model.streams_config)
            model = model.merged() if merges else model
            merged = f"{config.model} with {config.adapter_file} merged"
            _check_range(config, model, merged if merges else str(config.model))
            spec, floor = facts.model_spec(model, config), config.weight_floor
            target = make_target(config, model, spec, folder, progress)
            for name in config.allow_parity_below:
                held = tuple(dict.fromkeys((target.floor.name, floor)))
                check_choice("--allow-parity-below", name, held, ", which this export is held to")
            text = tokenizer.encode(selftest.TEXT)
            whole = _Part(None, config, model, spec, target, report, Script.of(spec, text))
            parts = [whole, *(_task(whole, name, own, base, text) for name, own in config.tasks.items())]
            report.tasks = {str(part.name): vars(part.found) for part in parts[1:]}

        with report.timed("reference"):  # the self-test on the models' own float32 layers
            progress("running the float32 reference")
            for part in parts:
                part.run_reference()

        with report.timed("quantize"), unpacked_once():  # the same on the weights as the target will store them
            progress("quantizing")
            for part in parts:
                part.quantize(selftest.FLOORS[floor])

        with report.timed("lower"):
            for part in parts:
                part.target.lower()  # it tells progress of its own steps

        with report.timed("parity"):  # the self-test through the target's own engine
            progress("checking parity")
            for part in parts:
                part.check_parity()

        with report.timed("write"):
            progress("writing the bundle")
            shutil.copyfile(config.model / "tokenizer.json", folder / "tokenizer.json")
            for part in parts:
                part.write(folder)
            files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
            report.bytes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
            report.target = whole.facts.report

        report.peak_memory_bytes = peak_memory(resource.getrusage(resource.RUSAGE_SELF))
        (folder / "export_report.json").write_text(dump_strict(vars(report), indent=2) + "\n", encoding="utf-8")
        writer.write_manifest(**_manifest(whole), adapters={str(part.name): _adapter(part) for part in parts[1:]})
    return report


@dataclass
class _Part:
    """What one bundle holds of a model: its base with the streams (`name` None), or a task adapter.

    Its methods are called one after another, each for all parts before the next: a target may free the base's weights
    when they are packed.
    """

    name: str | None
    config: ExportConfig
    model: StreamFused
    spec: ModelSpec
    target: Target
    found: Findings
    script: Script
    exact: Results = field(default_factory=list)  # in float32
    expected: Results = field(default_factory=list)  # with weights as the target stores them
    measured: Results = field(default_factory=list)  # of the emitted graphs
    facts: TargetFacts = field(init=False)  # once the graphs are emitted

    def run_reference(self) -> None:
        self.exact = self._run(build_methods(Weights(self.model, self.config.shapes, Form()).eval()))
        check_finite(self.config, self.model, self.exact)

    def quantize(self, floor: selftest.Floor) -> None:
        methods = self.target.quantize()
        self.expected = self.exact if methods is None else self._run(methods)
        if methods is not None:
            self._prove("quantization", self.expected, self.exact, floor)

    def check_parity(self) -> None:
        with closing(self.target.open()) as backend:
            self.measured = self.script.run(backend)
        self.facts = self.target.facts()
        self._prove("lowering", self.measured, self.expected, self.target.floor)
        self.found.parity["float32"] = selftest.compare(self.measured, self.exact)

    def write(self, folder: Path) -> None:
        """The drafting tables, and the self-test of the base."""
        if self.name is None:
            # Our operators give the same bits on every machine, so the bundle can ask other engines for them.
            results = self.measured if self.facts.kernels else self.expected
            np.savez(folder / SELFTEST_FILE, **self.script.to_arrays(results))
        else:
            folder = (folder / adapter_file(self.name, DRAFT_FILE)).parent
        tables = draft_arrays(self.model)
        if tables:
            folder.mkdir(parents=True, exist_ok=True)
            write_tensors(folder / DRAFT_FILE, tables)
        if tables and self.facts.kernels:
            self.found.calibration = calibrate(self.target.open(), tables, prompts_of(self.config, self.model))
        if self.found.calibration:
            write_tensors(folder / DRAFT_FILE, {**tables, "calibration": np.array(self.found.calibration, np.float32)})

    def _run(self, methods: dict[str, Method]) -> Results:
        """The self-test on PyTorch modules."""
        with closing(reference_backend(methods, self.model, self.spec)) as backend:
            return self.script.run(backend)

    def _prove(self, name: str, results: Results, against: Results, floor: selftest.Floor) -> None:
        try:
            self.found.prove(name, results, against, floor, self.config.allow_parity_below)
        except selftest.ParityError as error:
            raise error if self.name is None else selftest.ParityError(f"task {self.name}: {error.flags}") from None


def _task(whole: _Part, name: str, config: ExportConfig, base: Transformer, text: list[int]) -> _Part:
    """A task adapter, which shares the base's weights."""
    model = with_streams(config, base)
    check_fit(config, model)
    _check_range(config, model, str(config.model))
    spec = facts.model_spec(model, config)
    return _Part(
        name, config, model, spec, whole.target.task(name, config, model, spec), Findings(), Script.of(spec, text)
    )


def _check_range(config: ExportConfig, model: StreamFused, base: str) -> None:
    """CheckpointError if a weight is beyond the float16 range, in which all weights of a float16 export are, and the
    scales of integer matrices. No trained model has one. `base` says where the base's weights are from."""
    merged = (  # made one after another
        (f"adapters.{i}.{name}", value)
        for i, block in enumerate(model.merged_stream_blocks() if config.merges_streams else ())
        for name, value in block.named_parameters()
    )
    for name, value in chain(model.named_parameters(), merged):
        stored = config.dtype == "float16" or (config.quantized and value.ndim == 2)
        if stored and (largest := _magnitude(value)) >= HALF_MAX:
            file = base if name.startswith("base.") else config.adapter_file
            raise CheckpointError(
                f"{file}: tensor {name.removeprefix('base.')!r} has a weight of magnitude {largest:.4g}, and the "
                f"largest that 16-bit floats and the scales of integers hold is {HALF_MAX:.0f}; the file may be "
                "damaged: download it again, or train the adapter again"
            )


def check_finite(config: ExportConfig, model: StreamFused, exact: Results) -> None:
    """CheckpointError if results of the float32 model are not finite, which no export can be compared with."""
    if all(np.isfinite(numbers).all() for result in exact for numbers in result.numbers()):
        return
    found = ((_magnitude(value), name) for name, value in model.named_parameters())
    largest, name = max(found, key=lambda one: (not math.isfinite(one[0]), one[0]))  # NaN and infinity come first
    with_adapter = f" with {config.adapter_file}" if config.adapter_file else ""
    raise CheckpointError(
        f"{config.model}{with_adapter}: results are NaN or infinite in float32 already; tensor "
        f"{name.removeprefix('base.')!r} has a weight of magnitude {largest:.4g}; a file may be damaged: download it "
        "again, or train the adapter again"
    )


def _magnitude(value: torch.Tensor) -> float:
    """The largest magnitude of an element."""
    return max(map(abs, map(float, value.aminmax()))) if value.numel() else 0.0


def count_steps(expected: Preview) -> int:
    """How often an export calls `progress`, for a progress bar."""
    delegates, methods = sum(expected.delegates.values()), len(expected.delegates)
    return len(STAGES) - 1 + delegates + methods + 1  # lowering speaks of its own steps only: these, and the file


def _manifest(whole: _Part) -> dict[str, Any]:
    """What the manifest says, but for the files and the adapters."""
    config, found = whole.config, whole.facts
    return {
        "exporter_version": __version__,
        "target": config.target,
        "backend": found.backend,
        "kernels": found.kernels,
        "required_operators": found.required_operators,
        "model": facts.model_facts(config, whole.model),
        "sampling_defaults": sampling_defaults(config.model, config.sampling).values,
        "cache": {"layout": found.cache_layout, "capacity": config.max_context_len, "dtype": found.cache_dtype},
        **_of_part(whole),
    }


def _adapter(task: _Part) -> dict[str, Any]:
    """What the manifest says of a task adapter."""
    return {"chat_template": facts.chat_template(task.config), **_of_part(task)}


def _of_part(part: _Part) -> dict[str, Any]:
    """The fields that a task adapter has too."""
    config, found = part.config, part.facts
    return {
        "methods": found.methods,
        "speculation": facts.speculation_facts(config, part.model),
        "quantization": found.quantization,
        "parity": {
            name: {"floor": part.target.floor.name, "metrics": row}
            for name, row in part.found.parity["lowering"].items()
            if name in found.methods
        },
        "below_floor": part.found.below_floor,
    }


def peak_memory(usage: resource.struct_rusage) -> int:
    """Largest resident size that the system counted, in bytes."""
    return usage.ru_maxrss if sys.platform == "darwin" else usage.ru_maxrss * 1024
