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
from streamfuse.runtime.backend import ModelSpec

from . import facts, selftest
from .calibrate import calibrate, prompts_of
from .choices import check_choice
from .draft import draft_arrays, write_tensors
from .graphs import Method, Weights, build_methods
from .plan import ExportPlan
from .plan_file import to_config
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
        config: the plan as `--config` takes it.
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


def load(plan: ExportPlan, folder: Path, progress: Progress) -> tuple[StreamFused, ModelSpec, Target, Script]:
    """The model of the plan, what the loop will need of it, its target, and the passes that prove it."""
    progress("loading the model")
    tokenizer = check_text(plan, ModelConfig.load(plan.model))
    model = with_streams(plan, load_base(plan.model))
    check_fit(plan, model)
    model = model.merged() if plan.merges(model.streams_config) else model
    spec = facts.model_spec(model, plan)
    target = make_target(plan, model, spec, folder, progress)
    held_to = (target.floor.name, plan.quantization_floor.name)
    for name in plan.allow_parity_below:
        check_choice("--allow-parity-below", name, held_to, ", which this plan is held to")
    return model, spec, target, Script.of(spec, tokenizer.encode(selftest.TEXT))


def reference(plan: ExportPlan, progress: Progress, model: StreamFused, spec: ModelSpec, script: Script) -> Results:
    """The self-test on the model's own float32 layers."""
    progress("running the float32 reference")
    methods = build_methods(Weights(model, plan.shapes, Form()).eval())
    return _run(methods, model, spec, script)


def quantize(
    plan: ExportPlan,
    progress: Progress,
    report: Report,
    model: StreamFused,
    spec: ModelSpec,
    target: Target,
    script: Script,
    exact: Results,
) -> Results:
    """The self-test on the weights as the target will store them: what its graphs are expected to give."""
    progress("quantizing")
    methods = target.quantize()
    if methods is None:
        return exact
    rounded = _run(methods, model, spec, script)
    report.prove("quantization", rounded, exact, plan.quantization_floor, plan.allow_parity_below)
    return rounded


def parity(
    plan: ExportPlan,
    progress: Progress,
    report: Report,
    target: Target,
    script: Script,
    exact: Results,
    expected: Results,
) -> tuple[TargetFacts, Results]:
    """The self-test through the target's own engine; what the bundle will ask of every other one."""
    progress("checking parity")
    with closing(target.open()) as backend:
        found = script.run(backend)
    target_facts = target.facts()
    report.prove("lowering", found, expected, target.floor, plan.allow_parity_below)
    report.parity["float32"] = selftest.compare(found, exact)
    # Our operators give the same bits on every machine, so the bundle can ask for them.
    return target_facts, found if target_facts.kernels else expected


def write(
    plan: ExportPlan,
    folder: Path,
    progress: Progress,
    report: Report,
    model: StreamFused,
    target: Target,
    script: Script,
    target_facts: TargetFacts,
    asked: Results,
) -> None:
    """What lies beside the graphs, but for the report and the manifest."""
    progress("writing the bundle")
    np.savez(folder / SELFTEST_FILE, **script.to_arrays(asked))
    tables = draft_arrays(model)
    if tables:
        write_tensors(folder / DRAFT_FILE, tables)
    shutil.copyfile(plan.model / "tokenizer.json", folder / "tokenizer.json")
    if tables and target_facts.kernels:
        report.calibration = _calibrate(plan, model, target, folder / DRAFT_FILE, tables)
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    report.bytes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
    report.target = target_facts.report


STAGES = ("load", "reference", "quantize", "lower", "parity", "write")  # of Report.seconds


def export_plan(
    plan: ExportPlan,
    progress: Progress = lambda _: None,
    said: Mapping[str, str] | None = None,
    sign_key: Ed25519PrivateKey | None = None,
) -> Report:
    """Write the bundle of `plan`, atomically.

    Args:
        said: what the user said in the place of paths, for the report: `model`, `adapter`.
        sign_key: signs the bundle; None: it is not signed.

    Raises:
        PlanError, CheckpointError, BundleError, LoweringError, ParityError: one sentence each; nothing is left behind.
    """
    report = Report(config={**to_config(plan), **(said or {})})
    with torch.inference_mode(), BundleWriter(plan.output_dir, plan.overwrite, sign_key) as writer:
        folder = writer.folder
        with report.timed("load"):
            model, spec, target, script = load(plan, folder, progress)
        with report.timed("reference"):
            exact = reference(plan, progress, model, spec, script)
        with report.timed("quantize"):
            expected = quantize(plan, progress, report, model, spec, target, script, exact)
        with report.timed("lower"):
            target.lower()  # it tells progress of its own steps
        with report.timed("parity"):
            target_facts, asked = parity(plan, progress, report, target, script, exact, expected)
        with report.timed("write"):
            write(plan, folder, progress, report, model, target, script, target_facts, asked)
        report.peak_memory_bytes = peak_memory(resource.getrusage(resource.RUSAGE_SELF))
        (folder / "export_report.json").write_text(dump_strict(vars(report), indent=2) + "\n", encoding="utf-8")
        writer.write_manifest(**_manifest(plan, model, target, target_facts, report))
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
    plan: ExportPlan, model: StreamFused, target: Target, draft: Path, tables: dict[str, npt.NDArray[Any]]
) -> list[float]:
    """Adds `calibration` to draft.safetensors, by a few answers of the bundle itself."""
    ratios = calibrate(target.open(), tables, prompts_of(plan, model))
    if ratios:
        write_tensors(draft, {**tables, "calibration": np.array(ratios, np.float32)})
    return ratios


def _manifest(
    plan: ExportPlan, model: StreamFused, target: Target, found: TargetFacts, report: Report
) -> dict[str, Any]:
    """What the manifest says, but for the files."""
    measured = report.parity["lowering"]
    return {
        "exporter_version": __version__,
        "target": plan.target,
        "backend": found.backend,
        "kernels": found.kernels,
        "required_operators": found.required_operators,
        "model": facts.model_facts(plan, model),
        "methods": found.methods,
        "speculation": facts.speculation_facts(plan, model),
        "cache": {"layout": found.cache_layout, "capacity": plan.max_context_len, "dtype": found.cache_dtype},
        "quantization": found.quantization,
        "sampling_defaults": sampling_defaults(plan.model, plan.sampling).values,
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
