"""How cost grows with the size of a model and with its context: random models of published shapes, exported and run.

A shape passes through a folder of its own: random weights, deleted when they are exported; the bundle; `export.json`,
written last, which says what the export took and that the bundle is whole. Exporting and running are processes of
their own.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from streamfuse import __version__
from streamfuse.bench.shared.children import ChildKilled, Usage, run_module
from streamfuse.bench.shared.machine import available_bytes
from streamfuse.bundle.manifest import DECODE, MANIFEST_NAME, PREFILL, STREAMS
from streamfuse.durable import write_text
from streamfuse.export.adapter import resolve_for_adapter
from streamfuse.export.config import ExportConfig
from streamfuse.export.operators.layout import GROUP
from streamfuse.export.preview import preview
from streamfuse.model.config import ModelConfig
from streamfuse.model.random_model import ADAPTER, SHAPES, write_random_model
from streamfuse.model.transformer import Transformer
from streamfuse.options import OptionError

SIZES = {"135M": "smollm2-135m", "360M": "smollm2-360m", "1B": "llama-3.2-1b", "3B": "llama-3.2-3b"}
CONTEXTS = (64, 512, 2048, 4096)
VERIFY = "verify_8"
_PREFILL_ROWS = 64
_PROCESS_BYTES = 400_000_000  # of a run beside the bundle: Python, numpy, and what the read bandwidth is measured on
_WEIGHT_BYTES = 2  # bfloat16
_RECORD = "export.json"

Progress = Callable[[str], None]


class Run(Protocol):
    """`children.run_module`."""

    def __call__(self, *words: str, line: Callable[[str], None]) -> Usage: ...


class LeftOut(RuntimeError):
    """A shape that this machine has no room for; one sentence with what it needs."""


@dataclass(frozen=True, slots=True)
class ScaleSettings:
    """What to measure. OptionError names the option and its range.

    Attributes:
        contexts: tokens in the cache before the passes.
        repetitions: passes of each method behind each context.
        threads: of the engine; None: its choice.
    """

    contexts: Sequence[int] = CONTEXTS
    repetitions: int = 20
    threads: int | None = None

    def __post_init__(self) -> None:
        if not self.contexts or min(self.contexts) < 1:
            raise OptionError(f"--contexts must be numbers from 1 on, not {','.join(map(str, self.contexts))}")
        object.__setattr__(self, "contexts", tuple(sorted(set(self.contexts))))

    @property
    def capacity(self) -> int:
        """Of the caches: a whole prefill pass fits behind the longest context, in whole blocks of the cache."""
        return -(-(self.contexts[-1] + _PREFILL_ROWS) // GROUP) * GROUP

    def check(self, name: str, shape: Mapping[str, Any]) -> None:
        """OptionError where a context is longer than the shape's own."""
        room = shape["max_position_embeddings"] - _PREFILL_ROWS
        if self.contexts[-1] > room:
            raise OptionError(f"--contexts must be from 1 to {room} for {name}, not {self.contexts[-1]}")


@dataclass(frozen=True, slots=True)
class Record:
    """export.json: what a whole bundle in the work folder was made of, and what that took. `run_bytes`: to run it."""

    shape: dict[str, Any]
    capacity: int
    version: str
    parameters: int
    run_bytes: int
    bundle_bytes: int
    export: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> Record | None:
        """None where no whole bundle is."""
        try:
            return cls(**json.loads((folder / _RECORD).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, folder: Path) -> None:
        write_text(folder / _RECORD, json.dumps(asdict(self), indent=2) + "\n")


class Scale:
    """The bench over a work folder.

    Args:
        work: gets a folder per shape.
        available: bytes of memory that are free now.
        disk: bytes of disk that are free in a folder.
        run: runs a module in a process of its own.
        shapes: the `config.json` of a name; OptionError if there is none.
    """

    def __init__(
        self,
        work: Path,
        settings: ScaleSettings,
        progress: Progress = lambda line: None,
        available: Callable[[], int] = lambda: available_bytes(),
        disk: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free,
        run: Run = run_module,
        shapes: Callable[[str], dict[str, Any]] = lambda name: shape_of(name),
    ) -> None:
        self._work, self._settings, self._progress, self._shape_of = work, settings, progress, shapes
        self._available, self._disk, self._run_module = available, disk, run

    def measure(self, name: str) -> dict[str, Any]:
        """Export a shape, or take the export that is there, and run it: its object in `--json`.

        Raises:
            LeftOut: there is no room for it.
            OptionError: a context is too long for it.
            ChildError: an export or a run failed.
        """
        try:
            record = self.export(name)
            self._need(name, "running", "memory", record.run_bytes + _PROCESS_BYTES, self._available())
            opened, *contexts = self._run(name, self.bundle(name))
        except ChildKilled as error:
            raise LeftOut(f"{name} is left out: its process {error}") from None
        return {
            "shape": SIZES.get(name, name),
            "parameters": record.parameters,
            "bundle_bytes": record.bundle_bytes,
            "weight_bytes": contexts[0]["weight_bytes"],
            "export": record.export,
            "opened": opened,
            "contexts": contexts,
            "growth": growth(contexts),
        }

    def bundle(self, name: str) -> Path:
        """Where the bundle of a shape is."""
        return self._work / name / "bundle"

    def export(self, name: str) -> Record:
        """Export a shape, or take the export that is there. Raises as `measure`."""
        shape, folder = self._shape_of(name), self._work / name
        self._settings.check(name, shape)
        folder.mkdir(parents=True, exist_ok=True)
        return self._exported(name, folder, shape) or self._export(name, folder, shape)

    def remove(self, name: str) -> None:
        """Delete what belongs to a shape, and the work folder where nothing else lies in it."""
        shutil.rmtree(self._work / name, ignore_errors=True)
        if self._work.is_dir() and not any(self._work.iterdir()):
            self._work.rmdir()

    def _exported(self, name: str, folder: Path, shape: dict[str, Any]) -> Record | None:
        """What is there, if it is this shape with caches that are long enough, from this version."""
        record = Record.read(folder)
        if record is None or (record.shape, record.version) != (shape, __version__):
            return None
        if record.capacity < self._settings.capacity or not (folder / "bundle" / MANIFEST_NAME).is_file():
            return None
        self._progress(f"{name}: the export in {folder} is used again")
        return record

    def _export(self, name: str, folder: Path, shape: dict[str, Any]) -> Record:
        model, bundle = folder / "model", folder / "bundle"
        (folder / _RECORD).unlink(missing_ok=True)
        shutil.rmtree(model, ignore_errors=True)
        try:
            write_random_model(model, shape, weights=False)
            config = ExportConfig(
                model, model / ADAPTER, bundle, max_context_len=self._settings.capacity, prefill_len=_PREFILL_ROWS,
                overwrite=True,
            )  # fmt: skip
            config = resolve_for_adapter(config)
            expected, parameters = preview(config), count_parameters(shape)
            assert expected.cost is not None  # of the default target
            self._need(name, "exporting", "memory", expected.cost.peak_bytes, self._available())
            self._need(name, "running", "memory", expected.run_bytes + _PROCESS_BYTES, self._available())
            size = sum(expected.files.values())
            self._need(name, "exporting", f"disk in {folder}", _WEIGHT_BYTES * parameters + size, self._disk(folder))
            self._progress(f"{name}: writing {parameters / 1e6:.0f} million random weights")
            write_random_model(model, shape)
            self._progress(f"{name}: exporting, about {expected.cost.cpu_seconds:.0f} s of one core")
            usage = self._lower(config)
        finally:
            shutil.rmtree(model, ignore_errors=True)
        written = sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file())
        record = Record(
            shape, config.max_context_len, __version__, parameters, expected.run_bytes, written, usage.to_dict()
        )
        record.write(folder)
        return record

    def _lower(self, config: ExportConfig) -> Usage:
        lengths = ("--max-context-len", str(config.max_context_len), "--prefill-len", str(config.prefill_len))
        places = (
            "--model",
            str(config.model),
            "--adapter",
            str(config.adapter),
            "--output-dir",
            str(config.output_dir),
        )
        words = ("streamfuse", "export", *places, *lengths, "--overwrite", "--offline", "--json")
        return self._run_module(*words, line=lambda text: None)

    def _run(self, name: str, bundle: Path) -> list[dict[str, Any]]:
        """The opened bundle, then each context."""
        contexts = self._settings.contexts
        found: list[dict[str, Any]] = []

        def take(text: str) -> None:
            found.append(json.loads(text))
            if len(found) <= len(contexts):
                self._progress(f"{name}: measuring behind {contexts[len(found) - 1]} tokens")

        words = ["streamfuse.bench.scale.run", str(bundle), "--contexts", *map(str, contexts)]
        words += ["--repetitions", str(self._settings.repetitions)]
        if self._settings.threads is not None:
            words += ["--threads", str(self._settings.threads)]
        self._run_module(*words, line=take)
        return found

    def _need(self, name: str, work: str, what: str, needed: float, free: int) -> None:
        if needed > free:
            raise LeftOut(
                f"{name} is left out: {work} it needs about {needed / 1e9:.1f} GB of {what}, of which "
                f"{free / 1e9:.1f} GB are free"
            )


def shape_of(name: str) -> dict[str, Any]:
    """OptionError for a size that there is none of."""
    if name not in SIZES:
        raise OptionError(f"--shapes must be of {','.join(SIZES)}, not {name}")
    return SHAPES[SIZES[name]]


def count_parameters(shape: dict[str, Any]) -> int:
    """Of the base model, a tied head counted once."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Transformer(ModelConfig.from_hf(shape)).parameters())


def growth(contexts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the longest context costs, in what the shortest one does; by method, and of resident memory."""
    first, last = contexts[0], contexts[-1]
    found: dict[str, Any] = {"contexts": [first["context"], last["context"]]}
    for name in (DECODE, VERIFY, STREAMS, PREFILL):
        found[name] = last["methods"][name]["ms"] / first["methods"][name]["ms"]
    if first["resident_bytes"]:
        found["resident"] = last["resident_bytes"] / first["resident_bytes"]
    return found


def rows(found: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """A table of all shapes: columns, then a row per shape and context."""
    columns = [
        "context", "decode\nms", "of its\nroof-\nline", "verify_8\nms", "streams\nms", "both\nin de-\ncodes",
        "prompt\n1/s", "memory\nMB",
    ]  # fmt: skip
    lines = []
    for name, one in found.items():
        for context in one["contexts"]:
            ms = {method: facts["ms"] for method, facts in context["methods"].items()}
            resident = context["resident_bytes"]
            lines.append(
                [
                    f"{name} {context['context']:4}",
                    f"{ms[DECODE]:.2f}",
                    f"{context['decode_roofline_fraction']:.2f}",
                    f"{ms[VERIFY]:.2f}",
                    f"{ms[STREAMS]:.2f}",
                    f"{context['verify_8_cost']:.2f}",
                    f"{context['prefill_token_per_sec']:.0f}",
                    f"{resident / 1e6:.0f}" if resident else "-",
                ]
            )
    return columns, lines


def lines_of(name: str, one: Mapping[str, Any]) -> list[str]:
    """For a reader: what a shape weighs, what its export took, and how its costs grow with the context."""
    export, grown = one["export"], dict(one["growth"])
    first, last = grown.pop("contexts")
    ratios = ", ".join(f"{what} {ratio:.2f}" for what, ratio in grown.items())
    return [
        f"{name}: {one['weight_bytes'] / 1e6:.0f} MB of weights per token; exported in {export['seconds']:.0f} s "
        f"({export['cpu_seconds']:.0f} s of one core) with {export['peak_bytes'] / 1e9:.1f} GB",
        f"{name}, {last} tokens over {first}: {ratios}",
    ]
