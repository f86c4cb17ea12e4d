"""The --systems option of the benchmarks, and the other programs that it can name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from streamfuse.bench.shared.systems import (
    LLAMA_CPP,
    ONNX_GENAI,
    PLAIN,
    PROGRAMS,
    SPECULATIVE,
    ExternalSystemDied,
    ExternalSystemError,
    System,
)
from streamfuse.cli.shared import options
from streamfuse.cli.shared.console import err, say
from streamfuse.extras import MissingExtra, package_of

if TYPE_CHECKING:
    from streamfuse.bench.shared.comparison import TaskSettings
    from streamfuse.bundle import Manifest

T = TypeVar("T")
_MODULES = {LLAMA_CPP: "llama_cpp", ONNX_GENAI: "onnxruntime_genai"}


def system_names(systems: str | None, names: Collection[str]) -> list[str]:
    """The systems of --systems, or by default plain, speculative and the installed programs among `names`. BadParameter
    if one is not in `names`."""
    if systems is None:
        programs = [name for name in PROGRAMS if name in names and find_spec(_MODULES[name])]
        return [PLAIN, SPECULATIVE, *programs]
    found = [name.strip() for name in systems.split(",") if name.strip()]
    if not found or len(set(found)) != len(found) or set(found) - set(names):
        raise typer.BadParameter(f"--systems names some of {', '.join(names)}, each once, not {systems!r}")
    return found


def refuse_unused_weights(ctx: Any, programs: Collection[str]) -> None:
    """BadParameter if --gguf or --trained-adapter was given, and none of the programs that run uses it."""
    if LLAMA_CPP not in programs:
        options.refuse_unread(ctx, f"without {LLAMA_CPP} among the systems (extra llama-cpp)", "gguf")
    if not programs:
        case = "without another program among the systems (extras llama-cpp, onnx-genai)"
        options.refuse_unread(ctx, case, "trained_adapter")


class Programs:
    """The other programs that a benchmark runs.

    Args:
        names: some of PROGRAMS.
        required: they were asked for by name, so one that cannot run is an error; otherwise it is left out.

    Attributes:
        left_out: by name, why a program does not run.
        facts: the programs' versions, and what the choice among quantizations measured.
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
            adapter: the bundle was exported with it; None: the one in the manifest.

        Raises:
            ExternalSystemError, MissingExtra, CheckpointError, FileNotFoundError: why a required program cannot run.
        """
        from streamfuse.bench.external import opening

        convert: dict[str, Callable[[], Path]] = {
            LLAMA_CPP: lambda: opening.llama_cpp_weights(manifest, gguf, adapter),
            ONNX_GENAI: lambda: opening.onnx_genai_model(manifest, adapter),
        }
        for name in self._names:
            with err.status(f"weights for {name}"):
                path = self.attempt(name, convert[name])
            if path is not None:
                self._weights[name] = path

    def open(
        self,
        stack: ExitStack,
        threads: int,
        manifest: Manifest,
        prompt_ids: Sequence[int],
        settings: TaskSettings,
        progress: Callable[[str], None],
        forced_tokens: bool = False,
    ) -> list[System]:
        """Start the programs in child processes, which end with `stack`.

        Args:
            prompt_ids: the prompt that decides among the quantizations of llama.cpp.
            progress: gets a line before each program.
            forced_tokens: also open ONNX Runtime GenAI with `ff_tokens`.

        Raises:
            ExternalSystemError: a required program cannot load the weights.
        """
        from streamfuse.bench.external import opening

        def start(name: str) -> list[System]:
            if name != LLAMA_CPP:
                return opening.open_onnx_genai(stack, self._weights[name], threads, manifest, forced_tokens)
            fastest, self.facts["llama_cpp_trial_token_per_sec"] = opening.fastest_llama_cpp(
                stack, self._weights[name], threads, manifest, prompt_ids, settings, warn
            )
            return [fastest]

        opened: list[System] = []
        for name in self._weights:
            progress(f"opening {name}")
            if (found := self.attempt(name, partial(start, name))) is not None:
                opened += found
                with suppress(PackageNotFoundError):
                    self.facts.setdefault("programs", {})[name] = version(package_of(_MODULES[name]))
        return opened

    def attempt(self, name: str, make: Callable[[], T]) -> T | None:
        """What `make` returns; None if the program is left out, because it cannot run and is not required, or died.

        Raises:
            ExternalSystemError, MissingExtra, CheckpointError, FileNotFoundError: why a required program cannot run.
        """
        from streamfuse.model.config import CheckpointError

        try:
            return make()
        except (ExternalSystemError, MissingExtra, CheckpointError, FileNotFoundError) as error:
            if self._required and not isinstance(error, ExternalSystemDied):
                raise
            self.left_out[name] = str(error)
            warn(f"Without {name}: {error}")
            return None


def warn(line: str) -> None:
    """Print a line in yellow."""
    say(line, "yellow")
