"""The stages of an export, the same for every target: load -> reference -> quantize -> lower -> parity -> write."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from streamfuse import __version__
from streamfuse.bundle import BundleWriter
from streamfuse.bundle.reader import DRAFT_FILE, SELFTEST_FILE
from streamfuse.model.checkpoint import load_base, load_stream_fused
from streamfuse.runtime.backends.reference import ReferenceBackend
from streamfuse.runtime.strict_json import dump_strict
from streamfuse.text_io import TextIO, load_tokenizer

from . import facts, reference, selftest
from .calibrate import calibrate, held_out_prompts, questions
from .config import to_config
from .draft import draft_arrays, write_tensors
from .graphs import Method, Weights, build_methods
from .plan import ExportPlan
from .preview import Preview, check_fit
from .target import Progress, make_target

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_STAGES = ("load", "reference", "quantize", "lower", "parity", "write")
_SELFTEST_TEXT = (
    "The lighthouse stood at the edge of the cliff, and every evening the keeper climbed the one hundred and twelve "
    "steps to light the lamp. Ships far out at sea counted the seconds between its flashes: 3, 2, 1, and then the "
    "light again. One winter the lamp went dark, and the whole village walked up the hill with lanterns in their hands "
    "until the keeper found the broken gear and mended it. Nobody in the harbour forgot that night, and when the "
    "keeper grew old the children took turns on the stairs, because a light that goes out once may go out again."
)


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
        target: what the target has to say, for example how many groups of weights were carried over bit for bit.
    """

    config: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    cpu_seconds: dict[str, float] = field(default_factory=dict)
    peak_memory_bytes: int = 0
    parity: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    calibration: list[float] = field(default_factory=list)
    target: dict[str, Any] = field(default_factory=dict)


def export_bundle(
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
    with torch.inference_mode(), BundleWriter(plan.output_dir, plan.overwrite, sign_key) as writer:
        return _Export(plan, writer, progress, said or {}).run()


def count_steps(expected: Preview) -> int:
    """How often an export calls `progress`, for a progress bar."""
    delegates, methods = sum(expected.delegates.values()), len(expected.delegates)
    return len(_STAGES) - 1 + delegates + methods + 1  # lowering speaks of its own steps only: these, and the file


class _Export:
    """One export; a stage works on what the stages before it left in the attributes."""

    def __init__(self, plan: ExportPlan, writer: BundleWriter, progress: Progress, said: Mapping[str, str]) -> None:
        self.plan, self.writer, self.progress = plan, writer, progress
        self.report = Report(config={**to_config(plan), **said})

    def run(self) -> Report:
        for name in _STAGES:
            with self._timed(name):
                getattr(self, name)()
        self.report.peak_memory_bytes = peak_memory(resource.getrusage(resource.RUSAGE_SELF))
        path = self.writer.folder / "export_report.json"
        path.write_text(dump_strict(vars(self.report), indent=2) + "\n", encoding="utf-8")
        self._write_manifest()
        return self.report

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        started, cpu_started = time.perf_counter(), time.process_time()
        yield
        self.report.seconds[stage] = round(time.perf_counter() - started, 2)
        self.report.cpu_seconds[stage] = round(time.process_time() - cpu_started, 2)

    def load(self) -> None:
        self.progress("loading the model")
        model = load_stream_fused(load_base(self.plan.model), self.plan.adapter, merge=False)
        check_fit(self.plan, model)
        self.model = model.merged() if self.plan.merges(model.streams_config) else model
        self.spec = facts.model_spec(self.model, self.plan)
        self.target = make_target(self.plan, self.model, self.spec, self.writer.folder, self.progress)
        tokenizer = load_tokenizer(self.plan.model / "tokenizer.json")
        self.script = selftest.Script.of(self.spec, tokenizer.encode(_SELFTEST_TEXT).ids)

    def reference(self) -> None:
        self.progress("running the float32 reference")
        methods = build_methods(Weights(self.model, self.plan.shapes, reference.Form()).eval())
        self.exact = self.expected = self._run(methods)

    def quantize(self) -> None:
        self.progress("quantizing")
        methods = self.target.quantize()
        if methods is not None:
            self.expected = self._run(methods)
            self._prove(
                "quantization", self.expected, self.exact, selftest.FLOORS["int4" if self.plan.four_bits else "int8"]
            )

    def lower(self) -> None:
        self.target.lower()

    def parity(self) -> None:
        self.progress("checking parity")
        with closing(self.target.open()) as backend:
            found = self.script.run(backend)
        self.facts = self.target.facts()
        self._prove("lowering", found, self.expected, self.target.floor)
        self.report.parity["float32"] = selftest.compare(found, self.exact)
        if self.facts.kernels:  # our operators give the same bits on every machine, so the bundle can ask for them
            self.expected = found

    def write(self) -> None:
        self.progress("writing the bundle")
        folder = self.writer.folder
        np.savez(folder / SELFTEST_FILE, **self.script.to_arrays(self.expected))
        write_tensors(folder / DRAFT_FILE, draft_arrays(self.model))
        (folder / "tokenizer.json").write_bytes((self.plan.model / "tokenizer.json").read_bytes())
        if self.facts.kernels:
            self.report.calibration = self._calibrate(folder / DRAFT_FILE)
        files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
        self.report.bytes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
        self.report.target = self.facts.report

    def _calibrate(self, draft: Path) -> list[float]:
        """Adds `calibration` to draft.safetensors, by a few answers of the bundle itself."""
        model = facts.model_facts(self.plan, self.model)
        marks = model["bos_token_id"], model["eos_token_ids"]
        text = TextIO(draft.parent / "tokenizer.json", model["chat_template"], *marks)
        prompts = held_out_prompts(self.plan.adapter, self.model.base.config.vocab_size) or questions(text)
        arrays = draft_arrays(self.model)
        ratios = calibrate(self.target.open(), arrays, prompts)
        if ratios:
            write_tensors(draft, {**arrays, "calibration": np.array(ratios, np.float32)})
        return ratios

    def _prove(
        self, name: str, results: list[selftest.PassResult], against: list[selftest.PassResult], floor: selftest.Floor
    ) -> None:
        self.report.parity[name] = selftest.compare(results, against)
        selftest.check(self.report.parity[name], floor)

    def _run(self, methods: dict[str, Method]) -> list[selftest.PassResult]:
        """The self-test on PyTorch modules."""
        config, top = self.model.base.config, self.model.streams_config.num_msa_layers
        sizes = (config.num_layers, top, config.num_kv_heads, config.head_dim)
        with closing(ReferenceBackend(methods, self.spec, *sizes)) as backend:
            return self.script.run(backend)

    def _write_manifest(self) -> None:
        plan, model, found = self.plan, self.model, self.facts
        floor, measured = self.target.floor.name, self.report.parity["lowering"]
        self.writer.write_manifest(
            exporter_version=__version__,
            target=plan.target,
            backend=found.backend,
            kernels=found.kernels,
            required_operators=found.required_operators,
            model=facts.model_facts(plan, model),
            methods=found.methods,
            speculation=facts.speculation_facts(plan, model),
            cache={
                "layout": found.cache_layout,
                "capacity": plan.max_context_len,
                "dtype": found.cache_dtype,
            },
            quantization=found.quantization,
            sampling_defaults={"temperature": 0.0, "max_new_tokens": 128},
            parity={name: {"floor": floor, "metrics": row} for name, row in measured.items() if name in found.methods},
        )


def peak_memory(usage: resource.struct_rusage) -> int:
    """Largest resident size that the system counted, in bytes."""
    return usage.ru_maxrss if sys.platform == "darwin" else usage.ru_maxrss * 1024
