"""What `pip install streamfuse` leaves out: which packages a piece of work needs, and the extra that brings them.

Commands ask before they begin, so that nobody waits for a download to read that something is not installed. Nothing is
imported to find out.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.util import find_spec
from types import ModuleType
from typing import cast


class MissingExtra(ImportError):
    """Required packages are not installed; the message has the command that installs them."""


@dataclass(frozen=True, slots=True)
class Need:
    """What needs packages (`work`, for the message), the modules that it needs, and the extras that install them."""

    work: str
    modules: tuple[str, ...]
    extras: str

    @property
    def missing(self) -> list[str]:
        """The missing packages, by their names for pip."""
        return [package_of(module) for module in self.modules if not _is_installed(module)]

    @property
    def pip(self) -> str:
        """The line that brings them."""
        return f"pip install 'streamfuse[{self.extras}]'"


_CHECKPOINT = ("filelock", "gguf", "huggingface_hub", "safetensors")
_MODEL = ("torch", *_CHECKPOINT)
_EXPORT = ("torch", "executorch", "yaml", *_CHECKPOINT)

NEEDS = {
    "pull": Need("pulling", _CHECKPOINT, "export"),
    "export": Need("exporting", _EXPORT, "export"),
    "export-coreml": Need("exporting for Core ML", (*_EXPORT, "coremltools"), "export,coreml"),
    "export-onnx": Need("exporting to ONNX", (*_EXPORT, "onnx", "onnx_ir", "onnxruntime"), "export,onnx"),
    "export-openvino": Need("exporting for OpenVINO", (*_EXPORT, "openvino"), "openvino"),
    "transport": Need("the optimal transport plan", ("scipy",), "research"),
    "layer-skip": Need("the search for layers to leave out", ("optuna",), "research"),
    "serve": Need("serving", ("starlette", "uvicorn"), "serve"),
    "sign": Need("a signature", ("cryptography",), "sign"),
    "run-coreml": Need("running a Core ML bundle on a Mac", ("coremltools",), "coreml"),
    "run-onnx": Need("running an ONNX bundle", ("onnxruntime",), "onnx"),
    "synthesize": Need("writing prompts", _MODEL, "export"),
    "distill": Need("distilling", _MODEL, "export"),
    "convert": Need("converting an adapter", _MODEL, "export"),
    "average": Need("averaging adapters", _MODEL, "export"),
    "ngrams": Need("counting n-grams", _MODEL, "export"),
    "train": Need("training", (*_MODEL, "accelerate", "transformers"), "train"),
    "report": Need("a report", ("jinja2", "matplotlib"), "bench"),
    "bench-report": Need("bench report", ("jinja2",), "bench"),
    "row-template": Need("a template of rows with {{ }}", ("jinja2",), "export"),
    "bench-acceptance": Need("comparing texts with their references", ("rouge_score",), "bench"),
    "bench-adapter": Need("measuring an adapter", _MODEL, "export"),
    "bench-ablations": Need("bench ablations", (*_MODEL, "accelerate", "transformers", "matplotlib"), "train"),
    "bench-latency": Need("bench latency", ("torch", "executorch"), "export"),
    "bench-quantization": Need("bench quantization", _MODEL, "export"),
    "bench-structured": Need("bench structured", ("jsonschema", "lark"), "bench"),
    "bench-scale": Need("bench scale", _EXPORT, "export"),
    "peer-hugging-face": Need("Hugging Face as a peer", ("torch", "transformers"), "research"),
    "onnx-genai": Need("ONNX Runtime GenAI", ("onnxruntime_genai", "onnx_ir", "torch", "transformers"), "onnx-genai"),
    "llama-cpp": Need("making the weights for llama.cpp", _MODEL, "llama-cpp"),
}
_OTHER_NAMES = {
    "yaml": "pyyaml",
    "llama_cpp": "llama-cpp-python",
}  # what pip calls a module, where it differs by more than a dash


def package_of(module: str) -> str:
    """The name that pip knows."""
    return _OTHER_NAMES.get(module, module.replace("_", "-"))


def need(name: str) -> None:
    """Nothing where every package of that work is installed.

    Raises:
        MissingExtra: for example "pulling needs gguf, safetensors: pip install 'streamfuse[export]'".
    """
    work = NEEDS[name]
    if missing := work.missing:
        raise MissingExtra(f"{work.work} needs {', '.join(missing)}: {work.pip}")


def need_export(target: str, backend: str) -> None:
    """`need` for an export to a target by a backend; empty words are the defaults."""
    for name in ("onnx", "coreml", "openvino"):
        if name in (target, backend):
            return need(f"export-{name}")
    return need("export")


def need_native() -> None:
    """LibraryError where a native library is not built that every bundle needs, also for an export's proofs."""
    from streamfuse.native.library import find_core, find_text

    find_core()
    find_text()


def _is_installed(module: str) -> bool:
    return sys.modules[module] is not None if module in sys.modules else find_spec(module) is not None


def silence_openvino() -> None:
    """Keep `import openvino` from sending usage statistics, which it does from a forked process unless its package for
    that is missing. Without effect if OpenVINO was imported before."""
    if "openvino" not in sys.modules:
        sys.modules.setdefault("openvino_telemetry", cast("ModuleType", None))
