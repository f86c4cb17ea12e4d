"""Peak resident memory of each system: a new process opens it, answers one prompt and reports its peak.

The peak of a process includes Python, numpy, the engine's library, its caches, and the pages of mapped weights that it
has read. Every process starts with the same modules, so the part before the system is opened is equal in all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from streamfuse.bench.external import llama_cpp
from streamfuse.bench.external.child import Child
from streamfuse.bench.shared import systems
from streamfuse.bench.shared.comparison import equality_line
from streamfuse.bench.shared.systems import LLAMA_CPP, PLAIN, SPECULATIVE, ExternalSystemError, Request, System
from streamfuse.bundle import Manifest

Opener = Callable[[Child], System]  # opens a system in a process that was just started


@dataclass(frozen=True, slots=True)
class Peak:
    """Resident memory of one process, in bytes, and its answer.

    Attributes:
        start_bytes: the peak before the system was opened: Python, numpy and the benchmark's modules.
        peak_bytes: the peak after the answer.
    """

    start_bytes: int
    peak_bytes: int
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MemoryResult:
    """The whole measurement; `to_dict` is the object of `--json`.

    Attributes:
        request: what every system answered.
        left_out: by system, why it has no figure.
    """

    request: Request
    systems: Mapping[str, Peak]
    facts: Mapping[str, Any] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def equal(self) -> bool | None:
        """Whether plain and speculative gave the same tokens; None unless both ran."""
        if not {PLAIN, SPECULATIVE} <= self.systems.keys():
            return None
        return self.systems[PLAIN].token_ids == self.systems[SPECULATIVE].token_ids

    def to_dict(self) -> dict[str, Any]:
        return {
            "systems": {
                name: {
                    "peak_memory_mb": one.peak_bytes / 1e6,
                    "start_memory_mb": one.start_bytes / 1e6,
                    "generated_tokens": len(one.token_ids),
                }
                for name, one in self.systems.items()
            },
            "equal": self.equal,
            "prompt_tokens": len(self.request.prompt_ids),
            "max_new_tokens": self.request.max_new_tokens,
            "left_out": self.left_out,
            **self.facts,
        }


def own_systems(
    bundle: Path, names: Sequence[str], adapter: str | None, threads: int | None, provider: str | None
) -> dict[str, Opener]:
    """Of `names`, those of this project (PLAIN, SPECULATIVE), on a bundle folder."""
    function = f"{systems.__name__}:{systems.open_own.__name__}"

    def opened(child: Child, name: str) -> System:
        return child.open(
            name, function, name=name, bundle=str(bundle.resolve()), adapter=adapter, threads=threads, provider=provider
        )

    return {name: partial(opened, name=name) for name in names if name in (PLAIN, SPECULATIVE)}


def llama_cpp_systems(weights: Path, threads: int, manifest: Manifest) -> dict[str, Opener]:
    """llama.cpp with the weights in each quantization. ExternalSystemError if they are no GGUF."""
    from streamfuse.model.pull import cache_root

    folder = cache_root() / LLAMA_CPP

    def opened(child: Child, kind: str) -> System:
        with Child(f"{LLAMA_CPP} ({kind})") as quantizer:  # quantizing takes more memory than running
            llama_cpp.quantized(quantizer, weights, kind, folder)
        return llama_cpp.open_child(
            child, weights, kind, folder, threads=threads, capacity=manifest.cache.capacity,
            stop_ids=list(manifest.model.eos_token_ids),
        )  # fmt: skip

    return {f"{LLAMA_CPP} {kind}": partial(opened, kind=kind) for kind in llama_cpp.kinds_of(weights)}


def measure(
    openers: Mapping[str, Opener],
    request: Request,
    facts: Mapping[str, Any] | None = None,
    left_out: Mapping[str, str] | None = None,
    progress: Callable[[str], None] = lambda line: None,
    without: Callable[[str], None] = lambda line: None,
) -> MemoryResult:
    """One process after the other.

    Args:
        openers: by name of the system.
        left_out: by name, why a system could not even be prepared.
        without: gets a sentence about each external system that failed, when it does.

    Raises:
        ExternalSystemError: a system of this project failed.
    """
    found, missing = dict[str, Peak](), dict(left_out or {})
    for name, opener in openers.items():
        progress(f"memory of {name}")
        try:
            with Child(name) as child:
                start = child.peak_bytes()
                tokens = opener(child).answer(request).token_ids
                found[name] = Peak(start, child.peak_bytes(), tokens)
        except ExternalSystemError as error:
            if name in (PLAIN, SPECULATIVE):
                raise
            missing[name] = str(error)
            without(f"Without {name}: {error}")
    return MemoryResult(request, found, facts or {}, missing)


def rows(result: MemoryResult) -> tuple[list[str], list[list[str]]]:
    """One row per system."""
    columns = ["system", "peak, MB", "before opening, MB", "tokens"]
    return columns, [
        [name, f"{one.peak_bytes / 1e6:.0f}", f"{one.start_bytes / 1e6:.0f}", str(len(one.token_ids))]
        for name, one in result.systems.items()
    ]


def summary(result: MemoryResult) -> list[str]:
    """What was answered, and whether the answers are equal."""
    lines = [f"a prompt of {len(result.request.prompt_ids)} tokens, at most {result.request.max_new_tokens} new ones"]
    if result.equal is not None:
        lines.append(equality_line(result.equal))
    return lines
