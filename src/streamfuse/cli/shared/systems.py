"""The option --systems of benchmarks over the systems of a task, and the other programs among them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from streamfuse.cli.shared.console import err, say
from streamfuse.extras import MissingExtra

if TYPE_CHECKING:
    from streamfuse.bench.shared.comparison import TaskSettings
    from streamfuse.bench.shared.systems import System
    from streamfuse.bundle import Manifest

T = TypeVar("T")
_MODULES = {"llama.cpp": "llama_cpp", "onnx-genai": "onnxruntime_genai"}


def system_names(systems: str | None, names: Collection[str]) -> list[str]:
    """The systems in --systems, all of which are among `names`; without it plain, speculative and the other programs of
    `names` that are installed. BadParameter names the flag."""
    from streamfuse.bench.shared.systems import PLAIN, PROGRAMS, SPECULATIVE

    if systems is None:
        programs = [name for name in PROGRAMS if name in names and find_spec(_MODULES[name])]
        return [PLAIN, SPECULATIVE, *programs]
    found = [name.strip() for name in systems.split(",") if name.strip()]
    if not found or len(set(found)) != len(found) or set(found) - set(names):
        raise typer.BadParameter(f"--systems names some of {', '.join(names)}, each once, not {systems!r}")
    return found


class Programs:
    """Other programs of a benchmark, with the weights of a bundle.

    Args:
        names: of streamfuse.bench.shared.systems.PROGRAMS.
        required: they were asked for by name, so one that cannot run is an error; otherwise it is left out.

    Attributes:
        left_out: by name, why a program does not run.
        facts: what the choice among a program's quantizations measured.
    """

    def __init__(self, names: Sequence[str], required: bool) -> None:
        self._names, self._required = names, required
        self._weights: dict[str, Path] = {}
        self.left_out: dict[str, str] = {}
        self.facts: dict[str, Any] = {}

    def prepare(self, manifest: Manifest, gguf: Path | None, adapter: Path | None) -> None:
        """Convert the weights for each program, unless that was done before.

        Args:
            gguf: the weights for llama.cpp; None: those of the bundle's checkpoint.
            adapter: that the bundle was exported with; None: the one that the manifest names.

        Raises:
            ExternalSystemError, MissingExtra, CheckpointError, FileNotFoundError: why a required program cannot run.
        """
        from streamfuse.bench.external import opening
        from streamfuse.bench.shared.systems import LLAMA_CPP, ONNX_GENAI

        convert: dict[str, Callable[[], Path]] = {
            LLAMA_CPP: lambda: opening.llama_cpp_weights(manifest, gguf, adapter),
            ONNX_GENAI: lambda: opening.onnx_genai_model(manifest, adapter),
        }
        for name in self._names:
            with err.status(f"weights for {name}"):
                path = self._attempt(name, convert[name])
            if path is not None:
                self._weights[name] = path

    def open(
        self,
        stack: ExitStack,
        threads: int,
        manifest: Manifest,
        prompt_ids: Sequence[int],
        settings: TaskSettings,
        forced_tokens: bool = False,
    ) -> list[System]:
        """Start the programs in child processes, which end with `stack`.

        Args:
            prompt_ids: of the prompt that decides among the quantizations of llama.cpp.
            forced_tokens: also open ONNX Runtime GenAI with `ff_tokens`.

        Raises:
            ExternalSystemError: a required program cannot load the weights.
        """
        from streamfuse.bench.external import opening
        from streamfuse.bench.shared.systems import LLAMA_CPP

        def start(name: str) -> list[System]:
            if name != LLAMA_CPP:
                return opening.open_onnx_genai(stack, self._weights[name], threads, manifest, forced_tokens)
            fastest, self.facts["llama_cpp_trial_token_per_sec"] = opening.fastest_llama_cpp(
                stack, self._weights[name], threads, manifest, prompt_ids, settings, without
            )
            return [fastest]

        opened: list[System] = []
        for name in self._weights:
            with err.status(f"opening {name}"):
                opened += self._attempt(name, lambda name=name: start(name)) or []  # type: ignore[misc]
        return opened

    def _attempt(self, name: str, make: Callable[[], T]) -> T | None:
        """None where a program that is not required cannot run, or one died."""
        from streamfuse.bench.shared.systems import ExternalSystemDied, ExternalSystemError
        from streamfuse.model.config import CheckpointError

        try:
            return make()
        except (ExternalSystemError, MissingExtra, CheckpointError, FileNotFoundError) as error:
            if self._required and not isinstance(error, ExternalSystemDied):
                raise
            self.left_out[name] = str(error)
            without(f"Without {name}: {error}")
            return None


def without(line: str) -> None:
    """Print what a benchmark leaves out."""
    say(line, "yellow")
