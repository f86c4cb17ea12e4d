"""What `streamfuse doctor` finds out. Each fact is looked up where the product itself looks, so that they agree."""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from streamfuse import __version__, engines
from streamfuse.bench.shared.machine import ReadBandwidth
from streamfuse.bundle import open_bundle
from streamfuse.cli.shared import devices_facts
from streamfuse.cli.shared.errors import describe
from streamfuse.extras import NEEDS, need
from streamfuse.native.library import LibraryError, find_library, load_library
from streamfuse.runtime.backend import BackendError
from streamfuse.runtime.core import load_core
from streamfuse.runtime.cores import cores
from streamfuse.runtime.text import Tokenizer
from streamfuse.runtime.text_library import text_library

_PACKAGES = ("torch", "executorch", "onnxruntime", "coremltools", "transformers", "numpy")
_RUNS = {
    "kernels": "by the native engine",
    "xnnpack": "by the native engine",
    "openvino": "by OpenVINO",
    "onnxruntime": "by ONNX Runtime",
}


def examine(named: Sequence[str]) -> dict[str, Any]:
    """All facts, as JSON takes them. Only named bundles and models are opened, because the graphs of a bundle are code.
    Takes a second or two."""
    found_engines = _engines()
    core = found_engines["native"]["problem"] is None
    models = [_model(folder) for folder in named if _is_model(folder)]
    bundles = [_bundle(folder) for folder in named if not _is_model(folder)]
    instruction_set = next((one["instruction_set"] for one in bundles if one["instruction_set"]), None)
    missing = _missing()
    to_do = [facts["to_do"] for facts in found_engines.values() if facts["to_do"]]
    to_do += [_named(one) for one in [*bundles, *models] if one["problem"]]
    return {
        "usable": core and not any(one["problem"] for one in [*bundles, *models]),
        "streamfuse": __version__,
        "python": platform.python_version(),
        "machine": _machine(),
        "memory_gb_per_s": _memory(),
        "instruction_set": instruction_set,
        "forced_isa": os.environ.get("STREAMFUSE_ISA") or None,
        "engines": found_engines,
        "cost_cache": _cost_cache(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "bundles": bundles,
        "models": models,
        "missing": missing,
        "to_do": to_do,
    }


def _named(one: dict[str, Any]) -> str:
    """The problem of a bundle or model, with its folder once."""
    folder, problem = str(Path(one["folder"])), str(one["problem"])
    return problem if problem.startswith(folder) else f"{folder}: {problem}"


def _engines() -> dict[str, dict[str, Any]]:
    """By name: `about`, or the `problem`, and what `to_do` where nothing runs without it; of ONNX Runtime's `providers`
    why each cannot be used, or null."""
    native: dict[str, Any] = {"about": None, "problem": None, "to_do": None}
    try:
        load_core()
        text_library()
        load_library()
        here = ", ".join(name for name, reason in devices_facts.backends().items() if reason is None)
        native["about"] = f"runs ExecuTorch bundles ({here}): {find_library()}"
    except (LibraryError, BackendError) as error:
        native["problem"] = str(error)
        native["to_do"] = f"no bundle runs without the native libraries: {error}"
    onnx = NEEDS["run-onnx"]
    found = {"native": native, "onnxruntime": {"about": None, "problem": None, "to_do": None}}
    if onnx.missing:
        found["onnxruntime"]["problem"] = f"not installed; ONNX bundles need it: {onnx.pip}"
    else:
        from streamfuse.runtime.backends.onnx_providers import installed

        reasons = devices_facts.providers()
        here = ", ".join(name for name, reason in reasons.items() if reason is None)
        found["onnxruntime"]["about"] = f"runs ONNX bundles: {installed()}; providers: {here}"
        found["onnxruntime"]["providers"] = reasons
    lacks, runs = devices_facts.coreml()
    found["coreml"] = {"about": runs, "problem": lacks, "to_do": None}
    return found


def _bundle(folder: str) -> dict[str, Any]:
    """Opened, hashed, its graphs loaded; `problem` is the sentence that `streamfuse run` would say."""
    facts: dict[str, Any] = dict.fromkeys(("model", "target", "backend", "runs", "instruction_set", "problem"))
    try:
        bundle = open_bundle(folder)
        manifest = bundle.manifest
        facts.update(model=manifest.model.name, target=manifest.target, backend=manifest.backend)
        backend = engines.engines_of(bundle, None)()
        try:
            facts["instruction_set"] = getattr(backend, "description", {}).get("instruction_set")
        finally:
            backend.close()
        bundle.tokenizer.check_chat()
        emulated = "by the emulator here" if engines.emulated(bundle) else "by Core ML"
        facts["runs"] = _RUNS.get(manifest.backend, emulated)
    except Exception as error:  # whatever it is, it is what this command is asked for
        facts["problem"] = describe(error)[0]
    return {"folder": folder, **facts}


def _is_model(folder: str) -> bool:
    """Whether a folder is a checkpoint, and not a bundle."""
    there = [(Path(folder) / name).is_file() for name in ("manifest.json", "config.json", "adapter_config.json")]
    return not there[0] and any(there)


def _model(folder: str) -> dict[str, Any]:
    """A checkpoint, as an export would take it; `problem` is the sentence that `streamfuse export` would say."""
    facts: dict[str, Any] = {"folder": folder, "about": None, "problem": None}
    try:
        need("export")
        from streamfuse.model.checkpoint import load_config, own_template
        from streamfuse.model.pull import check_folder

        path = Path(folder)
        check_folder(path)
        config = load_config(path)
        text = Tokenizer(path / "tokenizer.json", own_template(path), config.bos_token_id, config.eos_token_ids)
        text.check_chat()
        chats = "with a chat template" if text.can_chat else "without a chat template"
        facts["about"] = f"{config.architecture}, {config.num_layers} layers, {chats}"
    except Exception as error:  # whatever it is, it is what this command is asked for
        facts["problem"] = describe(error)[0]
    return facts


def _missing() -> list[dict[str, Any]]:
    """Per line of pip: the works that it makes possible, and what it brings."""
    found: dict[str, dict[str, Any]] = {}
    for work in NEEDS.values():
        if packages := work.missing:
            row = found.setdefault(work.pip, {"work": [], "packages": [], "pip": work.pip})
            row["work"].append(work.work)
            row["packages"] += [name for name in packages if name not in row["packages"]]
    return [{**row, "work": ", ".join(row["work"])} for row in found.values()]


def _memory() -> dict[str, Any]:
    threads = cores()
    read = ReadBandwidth(threads)
    speed = read()
    by = "the native engine" if read.is_native else "numpy, about three quarters of it"
    return {"value": round(speed, 1), "threads": threads, "measured_by": by}


def _cost_cache() -> dict[str, Any]:
    folder = engines.cost_folder()
    entries = list(folder.glob("*.costs")) if folder.is_dir() else []
    return {"folder": str(folder), "entries": len(entries), "clear": f"rm -r {shlex.quote(str(folder))}"}


def _machine() -> str:
    return f"{platform.system()} {platform.machine()}, {engines.processor()}, {cores()} cores"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
