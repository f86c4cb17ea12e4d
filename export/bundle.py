"""The stages of an export to ExecuTorch: load -> reference -> quantize -> lower -> parity -> write."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from streamfuse import __version__
from streamfuse.bundle import BundleWriter
from streamfuse.model.checkpoint import load_base, load_stream_fused
from streamfuse.model.streams import StreamFused
from streamfuse.runtime.backends.executorch import ExecuTorchBackend
from streamfuse.runtime.backends.reference import ReferenceBackend

from . import facts, native, selftest
from .graphs import Weights, build_methods
from .lower import lower_methods, required_operators
from .parts import manifest_parts, part_sizes
from .plan import ExportPlan, Quantize
from .preview import Preview, check_fit
from .quantize import quantize_weights

Progress = Callable[[str], None]

_STAGES = ("load", "reference", "quantize", "lower", "parity", "write")
_SELFTEST_TEXT = (
    "The lighthouse stood at the edge of the cliff, and every evening the keeper climbed the one hundred and twelve "
    "steps to light the lamp. Ships far out at sea counted the seconds between its flashes: 3, 2, 1, and then the "
    "light again. One winter the lamp went dark, and the whole village walked up the hill with lanterns in their hands "
    "until the keeper found the broken gear and mended it."
)


@dataclass
class Report:
    """What an export did: seconds per stage, parity per method, bytes per file. Lies in the bundle as JSON.

    `grid` says per part how many groups of weights were carried over bit for bit; kernels' operators only.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    peak_memory_bytes: int = 0
    grid: dict[str, dict[str, float]] = field(default_factory=dict)
    parity: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)


def export_executorch(plan: ExportPlan, progress: Progress = lambda _: None) -> Report:
    """Write the bundle of `plan`, atomically.

    Raises:
        PlanError, CheckpointError, BundleError, LoweringError, ParityError: one sentence each; nothing is left behind.
    """
    with torch.inference_mode(), BundleWriter(plan.output_dir, overwrite=plan.overwrite) as writer:
        return _Export(plan, writer, progress).run()


def count_steps(expected: Preview) -> int:
    """How often an export calls `progress`, for a progress bar."""
    delegates, methods = sum(expected.delegates.values()), len(expected.delegates)
    return len(_STAGES) - 1 + delegates + methods + 2  # lowering speaks of its own steps only


class _Export:
    """One export; a stage works on what the stages before it left in the attributes."""

    def __init__(self, plan: ExportPlan, writer: BundleWriter, progress: Progress) -> None:
        self.plan, self.writer, self.progress = plan, writer, progress
        self.report = Report()
        self.floor = selftest.FLOORS["kernels" if plan.kernels else plan.quantize.value]

    def run(self) -> Report:
        for name in _STAGES:
            with self._timed(name):
                getattr(self, name)()
        self.report.peak_memory_bytes = _peak_memory()
        path = self.writer.folder / "export_report.json"
        path.write_text(json.dumps(vars(self.report), indent=2) + "\n", encoding="utf-8")
        self._write_manifest()
        return self.report

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.report.seconds[stage] = round(time.perf_counter() - started, 2)

    def load(self) -> None:
        self.progress("loading the model")
        self.model = load_stream_fused(load_base(self.plan.model), self.plan.adapter)
        check_fit(self.plan, self.model)
        self.weights = Weights(self.model, self.plan.shapes).eval()
        self.methods = build_methods(self.weights)
        self.spec = facts.model_spec(self.model, self.plan)
        tokenizer = Tokenizer.from_file(str(self.plan.model / "tokenizer.json"))
        self.script = selftest.Script.of(self.spec, tokenizer.encode(_SELFTEST_TEXT).ids)

    def reference(self) -> None:
        self.progress("running the float32 reference")
        self.exact = self.expected = self.script.run(self._reference())

    def quantize(self) -> None:
        self.progress("quantizing")
        if self.plan.quantize is Quantize.NONE:
            return
        if self.plan.grids is None:
            quantize_weights(self.weights, self.plan.group_size)
        else:
            form = native.Form(self.plan.grids)
            self.weights = Weights(self.model, self.plan.shapes, form).eval()
            self.report.grid = {part: grid.to_dict() for part, grid in form.report.items()}
        self.methods = build_methods(self.weights)
        self.expected = self.script.run(self._reference())
        self._prove("quantization", self.expected, self.exact, selftest.QUANTIZATION_FLOOR)

    def lower(self) -> None:
        config, streams = self.model.base.config, self.model.streams_config
        constants = facts.constant_methods(config, self.plan, streams.num_streams, streams.num_msa_layers)
        program = lower_methods(self.weights, self.methods, constants, self.progress)
        self.operators = required_operators(program)
        with (self.writer.folder / "model.pte").open("wb") as file:
            program.write_to_file(file)

    def parity(self) -> None:
        self.progress("checking parity")
        with ExecuTorchBackend(self.writer.folder / "model.pte", self.spec) as backend:
            found = self.script.run(backend)
        self._prove("lowering", found, self.expected, self.floor)
        if self.plan.kernels:  # our operators give the same bits on every machine, so the bundle can ask for them
            self.expected = found

    def write(self) -> None:
        self.progress("writing the bundle")
        folder = self.writer.folder
        np.savez(folder / "selftest.npz", **self.script.to_arrays(self.expected))
        _write_draft(self.model, folder / "draft.npz")
        (folder / "tokenizer.json").write_bytes((self.plan.model / "tokenizer.json").read_bytes())
        self.report.bytes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}

    def _prove(
        self, name: str, results: list[selftest.PassResult], against: list[selftest.PassResult], floor: selftest.Floor
    ) -> None:
        self.report.parity[name] = selftest.compare(results, against)
        selftest.check(self.report.parity[name], floor)

    def _reference(self) -> ReferenceBackend:
        config, top = self.model.base.config, self.model.streams_config.num_msa_layers
        return ReferenceBackend(self.methods, self.spec, config.num_layers, top, config.num_kv_heads, config.head_dim)

    def _write_manifest(self) -> None:
        plan, model = self.plan, self.model
        config, streams = model.base.config, model.streams_config
        sizes = part_sizes(config, streams, len(model.stream_vocab), plan)
        measured = self.report.parity["lowering"]
        self.writer.write_manifest(
            exporter_version=__version__,
            target="executorch",
            backend="kernels" if plan.kernels else "xnnpack",
            kernels=plan.kernels,
            required_operators=self.operators,
            model=facts.model_facts(plan, model),
            methods={name: facts.method_facts(method, self.weights) for name, method in self.methods.items()},
            speculation=facts.speculation_facts(plan, model),
            cache={"layout": "position_head_dim", "capacity": plan.max_context_len, "dtype": "float32"},
            quantization=manifest_parts(sizes, plan),
            sampling_defaults={"temperature": 0.0, "max_new_tokens": 128},
            parity={
                name: {"floor": self.floor.name, "metrics": row}
                for name, row in measured.items()
                if name in self.methods
            },
        )


def _peak_memory() -> int:
    """Largest resident size of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _write_draft(model: StreamFused, path: Path) -> None:
    """The host's drafting data, docs/contracts.md section 4."""
    vocab, rank = model.stream_vocab, model.streams_config.parent_rank
    left = torch.zeros(model.base.config.vocab_size, 0)
    right, gate = torch.zeros(len(vocab), 0), torch.zeros(model.streams_config.num_streams, 0)
    if rank:
        left = model.parent.left_rows(model.base.embed_tokens.weight)
        right, gate = model.parent.right_rows(model.head_rows()), model.parent.gate
    np.savez(
        path,
        parent_left=left.to(torch.float16).numpy(),
        parent_right=right.to(torch.float16).numpy(),
        gate=gate.to(torch.float32).numpy(),
        stream_vocab=vocab.to(torch.int32).numpy(),
    )
