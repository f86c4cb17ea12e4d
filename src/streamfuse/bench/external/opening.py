"""The weights of a bundle in the forms that external systems read, and the systems opened on them."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from streamfuse.bench.shared.comparison import SETTLE_S, TaskSettings
from streamfuse.bench.shared.systems import (
    LLAMA_CPP,
    ONNX_GENAI,
    ONNX_GENAI_FF,
    ExternalSystemDied,
    ExternalSystemError,
    System,
)
from streamfuse.bundle import Manifest
from streamfuse.extras import need
from streamfuse.paths import own_name

from . import llama_cpp, onnx_genai
from .checkpoints import write_merged
from .child import Child
from .gguf_weights import gguf_of, merged_gguf

_TRIAL_TOKENS, _TRIAL_ROUNDS = 48, 3

Say = Callable[[str], None]


def llama_cpp_weights(manifest: Manifest, gguf: Path | None, adapter: Path | None) -> Path:
    """The GGUF of a bundle's weights.

    Args:
        gguf: the file, where it is known; else it is found, and an adapter merged into a copy.
        adapter: that the bundle was exported with; None: the one that the manifest names.

    Raises:
        ExternalSystemError, MissingExtra: llama.cpp is not installed, or there is no such file or checkpoint.
        CheckpointError, FileNotFoundError: the checkpoint is damaged, or the adapter is not there.
    """
    from streamfuse.model.pull import PullError, cache_root, resolve_model

    llama_cpp.check_installed()
    need("llama-cpp")
    if gguf is not None:
        return gguf
    try:
        checkpoint = resolve_model(manifest.model.name, offline=True)
    except PullError as error:  # as of a local GGUF, of which a manifest has the name but not the folder
        raise ExternalSystemError(f"{error}; name its GGUF with --gguf") from None
    source, file = gguf_of(checkpoint, manifest), adapter or _adapter_of(manifest)
    return source if file is None else merged_gguf(source, checkpoint, file, cache_root() / LLAMA_CPP)


def fastest_llama_cpp(
    stack: ExitStack,
    gguf: Path,
    threads: int,
    manifest: Manifest,
    prompt_ids: Sequence[int],
    settings: TaskSettings,
    without: Say,
) -> tuple[System, dict[str, float]]:
    """llama.cpp with the quantization that is fastest here, and tokens per second of all that run.

    Each runs in a child of its own, which ends with `stack`.

    Raises:
        ExternalSystemError: llama.cpp refuses the file.
        ExternalSystemDied: none runs.
    """
    from streamfuse.model.pull import cache_root

    candidates: dict[str, System] = {}
    for kind in llama_cpp.kinds_of(gguf):
        child = stack.enter_context(Child(f"{LLAMA_CPP} ({kind})"))
        try:
            candidates[kind] = llama_cpp.open_child(
                child, gguf, kind, cache_root() / LLAMA_CPP, threads=threads, capacity=manifest.cache.capacity,
                stop_ids=list(manifest.model.eos_token_ids),
            )  # fmt: skip
        except ExternalSystemDied as error:
            without(f"Without {kind}: {error}")
    rates = trial(candidates, prompt_ids, settings, without)
    if not rates:
        raise ExternalSystemDied("its processes ended with every quantization")
    return candidates[max(rates, key=lambda kind: rates[kind])], rates


def trial(
    candidates: Mapping[str, System],
    prompt_ids: Sequence[int],
    settings: TaskSettings,
    without: Say = lambda line: None,
) -> dict[str, float]:
    """Tokens per second of each candidate on one prompt, in turns, so that the fastest can stand for all.

    One that fails has none; `without` gets a sentence about it.
    """
    ms: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(-1, _TRIAL_ROUNDS):
        for name in list(ms):
            time.sleep(SETTLE_S)
            try:
                answer = candidates[name].answer(settings.request(0, prompt_ids, _TRIAL_TOKENS))
            except ExternalSystemError as error:
                del ms[name]
                without(f"Without {name}: {error}")
                continue
            if turn >= 0:
                ms[name].append(answer.decode_ms / max(1, len(answer.token_ids)))
    return {name: 1000 / float(np.median(per_token)) for name, per_token in ms.items()}


def trial_text(rates: Mapping[str, float]) -> str:
    """What `trial` found, as a line for a reader."""
    found = ", ".join(f"{kind} {rate:.1f}" for kind, rate in rates.items())
    return f"llama.cpp, tokens/s in a short trial: {found}; the fastest ran"


def onnx_genai_model(manifest: Manifest, adapter: Path | None) -> Path:
    """The folder of a bundle's weights that ONNX Runtime GenAI's builder makes, once, in the model cache.

    Raises:
        MissingExtra: a package that it needs is not installed.
        ExternalSystemError: its builder failed.
        CheckpointError, FileNotFoundError: the checkpoint or the adapter is not there.
    """
    from streamfuse.model.checkpoint import adapter_digest, read_adapter
    from streamfuse.model.pull import cache_root, resolve_model
    from streamfuse.model.shards import checkpoint_digest

    need("onnx-genai")
    checkpoint, file = resolve_model(manifest.model.name, offline=True), adapter or _adapter_of(manifest)
    tuned = file if file is not None and read_adapter(file)[0].base_rank else None
    name = f"{own_name(checkpoint)}-{checkpoint_digest(checkpoint)}"
    out = cache_root() / ONNX_GENAI / (name if tuned is None else f"{name}-{tuned.stem}-{adapter_digest(tuned)}")
    if out.is_dir():
        return out
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as staging:
        source, made = checkpoint, Path(staging) / out.name
        if tuned is not None:
            source = Path(staging) / "merged"
            write_merged(checkpoint, tuned, source)
        onnx_genai.build(source, made)
        try:
            made.rename(out)
        except OSError:  # another process has made it meanwhile
            if not out.is_dir():
                raise
    return out


def open_onnx_genai(
    stack: ExitStack, folder: Path, threads: int, manifest: Manifest, forced_tokens: bool
) -> list[System]:
    """ONNX Runtime GenAI in a child process, which ends with `stack`.

    Args:
        forced_tokens: also with its `ff_tokens`, in the same process.

    Raises:
        ExternalSystemError, ExternalSystemDied: it cannot load the folder.
    """
    child = stack.enter_context(Child(ONNX_GENAI))
    return [
        child.open(
            name, f"{onnx_genai.__name__}:open_system", name=name, folder=str(folder), threads=threads,
            capacity=manifest.cache.capacity, stop_ids=list(manifest.model.eos_token_ids),
            ff_tokens=name == ONNX_GENAI_FF,
        )
        for name in (ONNX_GENAI, *([ONNX_GENAI_FF] if forced_tokens else []))
    ]  # fmt: skip


def _adapter_of(manifest: Manifest) -> Path | None:
    from streamfuse.adapters import find

    name = manifest.speculation.adapter
    return None if name is None else find(name)
