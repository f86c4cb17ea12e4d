"""An export, the same for every target: load, reference, quantize, lower, parity, write."""

from __future__ import annotations

import resource
import shutil
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from streamfuse import __version__
from streamfuse.bundle import BundleWriter
from streamfuse.bundle.reader import DRAFT_FILE, SELFTEST_FILE
from streamfuse.json_text import dump_strict
from streamfuse.model.checkpoint import load_base
from streamfuse.model.config import ModelConfig
from streamfuse.model.streams import StreamFused
from streamfuse.options import check_choice
from streamfuse.runtime.backend import ModelSpec

from . import facts, selftest
from .calibrate import calibrate, prompts_of
from .config import ExportConfig
from .draft import draft_arrays, write_tensors
from .graphs import Method, Weights, build_methods
from .preview import Preview, check_fit, check_text, with_streams
from .reference import Form, reference_backend
from .sampling import sampling_defaults
from .selftest import PassResult, Script
from .target import Progress, Target, TargetFacts, make_target

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

Results: TypeAlias = list[PassResult]


@dataclass
class Report:
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
    """

    config: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    peak_memory_bytes: int = 0
    parity: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    calibration: list[float] = field(default_factory=list)
    below_floor: list[dict[str, Any]] = field(default_factory=list)
    target: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Notes what a stage takes."""
        started, cpu_started = time.perf_counter(), time.process_time()
        yield
        self.seconds[stage] = round(time.perf_counter() - started, 2)
        self.cpu_seconds[stage] = round(time.process_time() - cpu_started, 2)

    def prove(
        self, name: str, results: Results, against: Results, floor: selftest.Floor, allow_parity_below: Collection[str]
    ) -> None:
        """Note a comparison; ParityError where it is below the floor, unless that is named as allowed."""
        self.parity[name] = selftest.compare(results, against)
        missed = selftest.check(self.parity[name], floor, allow_parity_below)
        self.below_floor += [{"comparison": name, **asdict(miss)} for miss in missed]


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
    allowed, int_floor = config.allow_parity_below, selftest.FLOORS["int4" if config.four_bits else "int8"]
    with torch.inference_mode(), BundleWriter(config.output_dir, config.overwrite, sign_key) as writer:
        folder = writer.folder

        with report.timed("load"):
            progress("loading the model")
            tokenizer = check_text(config, ModelConfig.load(config.model))
            model = with_streams(config, load_base(config.model))
            check_fit(config, model)
            model = model.merged() if config.merges(model.streams_config) else model
            spec = facts.model_spec(model, config)
            target = make_target(config, model, spec, folder, progress)
            for name in allowed:
                held_to = (target.floor.name, int_floor.name)
                check_choice("--allow-parity-below", name, held_to, ", which this export is held to")
            script = Script.of(spec, tokenizer.encode(selftest.TEXT))

        with report.timed("reference"):  # the self-test on the model's own float32 layers
            progress("running the float32 reference")
            exact = _run(build_methods(Weights(model, config.shapes, Form()).eval()), model, spec, script)

        with report.timed("quantize"):  # the same on the weights as the target will store them
            progress("quantizing")
            methods = target.quantize()
            expected = exact if methods is None else _run(methods, model, spec, script)
            if methods is not None:
                report.prove("quantization", expected, exact, int_floor, allowed)

        with report.timed("lower"):
            target.lower()  # it tells progress of its own steps

        with report.timed("parity"):  # the self-test through the target's own engine
            progress("checking parity")
            with closing(target.open()) as backend:
                found = script.run(backend)
            target_facts = target.facts()
            report.prove("lowering", found, expected, target.floor, allowed)
            report.parity["float32"] = selftest.compare(found, exact)

        with report.timed("write"):
            progress("writing the bundle")
            # Our operators give the same bits on every machine, so the bundle can ask other engines for them.
            np.savez(folder / SELFTEST_FILE, **script.to_arrays(found if target_facts.kernels else expected))
            shutil.copyfile(config.model / "tokenizer.json", folder / "tokenizer.json")
            tables = draft_arrays(model)
            if tables:
                write_tensors(folder / DRAFT_FILE, tables)
            if tables and target_facts.kernels:
                report.calibration = _calibrate(config, model, target, folder / DRAFT_FILE, tables)
            files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
            report.bytes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
            report.target = target_facts.report

        report.peak_memory_bytes = peak_memory(resource.getrusage(resource.RUSAGE_SELF))
        (folder / "export_report.json").write_text(dump_strict(vars(report), indent=2) + "\n", encoding="utf-8")
        writer.write_manifest(**_manifest(config, model, target, target_facts, report))
    return report


def count_steps(expected: Preview) -> int:
    """How often an export calls `progress`, for a progress bar."""
    delegates, methods = sum(expected.delegates.values()), len(expected.delegates)
    return len(STAGES) - 1 + delegates + methods + 1  # lowering speaks of its own steps only: these, and the file


def _run(methods: dict[str, Method], model: StreamFused, spec: ModelSpec, script: Script) -> Results:
    """The self-test on PyTorch modules."""
    with closing(reference_backend(methods, model, spec)) as backend:
        return script.run(backend)


def _calibrate(
    config: ExportConfig, model: StreamFused, target: Target, draft: Path, tables: dict[str, npt.NDArray[Any]]
) -> list[float]:
    """Adds `calibration` to draft.safetensors, by a few answers of the bundle itself."""
    ratios = calibrate(target.open(), tables, prompts_of(config, model))
    if ratios:
        write_tensors(draft, {**tables, "calibration": np.array(ratios, np.float32)})
    return ratios


def _manifest(
    config: ExportConfig, model: StreamFused, target: Target, found: TargetFacts, report: Report
) -> dict[str, Any]:
    """What the manifest says, but for the files."""
    measured = report.parity["lowering"]
    return {
        "exporter_version": __version__,
        "target": config.target,
        "backend": found.backend,
        "kernels": found.kernels,
        "required_operators": found.required_operators,
        "model": facts.model_facts(config, model),
        "methods": found.methods,
        "speculation": facts.speculation_facts(config, model),
        "cache": {"layout": found.cache_layout, "capacity": config.max_context_len, "dtype": found.cache_dtype},
        "quantization": found.quantization,
        "sampling_defaults": sampling_defaults(config.model, config.sampling).values,
        "parity": {
            name: {"floor": target.floor.name, "metrics": row}
            for name, row in measured.items()
            if name in found.methods
        },
        "below_floor": report.below_floor,
    }


def peak_memory(usage: resource.struct_rusage) -> int:
    """Largest resident size that the system counted, in bytes."""
    return usage.ru_maxrss if sys.platform == "darwin" else usage.ru_maxrss * 1024
