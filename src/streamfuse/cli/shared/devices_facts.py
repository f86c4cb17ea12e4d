"""What `streamfuse devices` lists. `streamfuse doctor` takes the same facts."""

from __future__ import annotations

import json
import platform
from importlib.util import find_spec
from typing import Any

from streamfuse.bundle import Bundle, open_bundle
from streamfuse.extras import NEEDS, silence_openvino
from streamfuse.native.library import LibraryError, list_backends

_REPORT = "export_report.json"
_SHARED = "graphs that share their weights run on a phone only: export with --weight-sharing off to run them here"


def examine(folder: str | None) -> dict[str, Any]:
    """`devices`: rows of `target`, `name`, `usable`, `about` and `problem`; `bundle`: what that one needs, or null."""
    rows = [
        *(_row("executorch", name, reason) for name, reason in backends().items()),
        *(_row("onnx", name, reason) for name, reason in providers().items()),
        _row("coreml", "mlprogram", *coreml()),
    ]
    bundle = None if folder is None else _bundle(open_bundle(folder, verify=False), folder, rows)
    return {"devices": rows, "bundle": bundle}


def backends() -> dict[str, str | None]:
    """ExecuTorch's backends in the native engine: why each cannot run here, or None."""
    try:
        return list_backends()
    except LibraryError as error:
        return {"kernels": str(error)}


def providers() -> dict[str, str | None]:
    """ONNX Runtime's execution providers: why each cannot be used here, or None."""
    from streamfuse.runtime.backends.onnx_providers import PROVIDERS

    need = NEEDS["run-onnx"]
    if need.missing:
        return dict.fromkeys(PROVIDERS, f"onnxruntime is not installed; ONNX bundles need it: {need.pip}")
    return {name: provider.missing() for name, provider in PROVIDERS.items()}


def coreml() -> tuple[str | None, str]:
    """Why Core ML bundles cannot run here, or None, and what runs them."""
    if platform.system() != "Darwin":
        return None, "not on this system; streamfuse's emulator runs Core ML bundles, slowly"
    need = NEEDS["run-coreml"]
    lacks = f"not installed; Core ML bundles need coremltools: {need.pip}" if need.missing else None
    return lacks, "runs Core ML bundles"


def _row(target: str, name: str, problem: str | None, about: str | None = None) -> dict[str, Any]:
    return {"target": target, "name": name, "usable": problem is None, "about": about, "problem": problem}


def _bundle(bundle: Bundle, folder: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    manifest = bundle.manifest
    name = "cpu" if manifest.target == "onnx" else manifest.backend  # every ONNX bundle runs on the CPU too
    problem = next(
        (one["problem"] for one in rows if (one["target"], one["name"]) == (manifest.target, name)),
        f"no library of streamfuse carries {name} here; export it with --backend kernels to run it here",
    )
    compiled = {}
    if _REPORT in manifest.files:
        compiled = json.loads(bundle.file(_REPORT).read_text(encoding="utf-8")).get("target", {})
    if problem is None and compiled.get("weight_sharing") == "on":
        problem = _SHARED
    if problem is None and manifest.backend == "openvino":
        problem = _absent(compiled.get("device", "cpu"))
    provider = compiled.get("provider")
    provider_problem = next(
        (one["problem"] for one in rows if (one["target"], one["name"]) == ("onnx", provider)), None
    )
    return {
        "folder": folder,
        "target": manifest.target,
        "backend": manifest.backend,
        "soc": compiled.get("soc"),
        "weight_sharing": compiled.get("weight_sharing"),
        "device": compiled.get("device"),
        "provider": provider,
        "provider_problem": provider_problem,
        "usable": problem is None,
        "problem": problem,
    }


def _absent(device: str) -> str | None:
    """Why OpenVINO cannot run a bundle for that device here, or None, also where only its C library is here to ask."""
    if device == "cpu" or find_spec("openvino") is None:
        return None
    silence_openvino()
    from openvino import Core

    here = sorted({name.partition(".")[0].lower() for name in Core().available_devices})
    if device in here:
        return None
    return f"OpenVINO has {', '.join(here) or 'no device'} here, not {device}: export with --device of one of those"
