"""A bundle of `--backend coreml` through the native engine, with the emulator as its delegate.

Run: PYTHONPATH=src:tests/helpers python tests/helpers/coreml_delegate.py BUNDLE FOLDER

Builds coreml_delegate.cpp in FOLDER. Prints JSON: `functions`, the methods that the engine opened; `snr_db` of every
method's logits with those that the bundle asks for; and `texts`, tokens and accepted drafts, plain and speculative.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from executorch.backends.apple.coreml import executorchcoreml
from export_samples import TEXT

from streamfuse.bundle import Bundle, open_bundle
from streamfuse.emulator import CoreMLEmulator
from streamfuse.export.selftest import Script
from streamfuse.native.build import executorch_root
from streamfuse.runtime.backends.executorch import ExecuTorchBackend, ExecuTorchProgram
from streamfuse.runtime.config import GenerationConfig, SamplingConfig
from streamfuse.runtime.session import Session

SOURCE = Path(__file__).with_name("coreml_delegate.cpp")
TYPES = {3: np.int32, 4: np.int64, 5: np.float16, 6: np.float32}  # ExecuTorch's scalar types
TOKENS, SAMPLING = 24, SamplingConfig(temperature=1.5, seed=3)


class Value(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int32),
        ("dims", ctypes.c_int32),
        ("sizes", ctypes.POINTER(ctypes.c_int32)),
        ("data", ctypes.c_void_p),
    )

    def array(self) -> np.ndarray[Any, Any]:
        """The tensor's own memory."""
        shape, dtype = self.sizes[: self.dims], np.dtype(TYPES[self.type])
        count = int(np.prod(shape)) * dtype.itemsize
        memory = (ctypes.c_char * count).from_address(self.data)
        return np.frombuffer(memory, dtype).reshape(shape)


OPEN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)
RUN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(Value), ctypes.c_int)


class Delegate:
    """What ExecuTorch's delegate does: unpacks the program once, runs a function per pass, converts its results."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.functions = folder, list[tuple[str, str]]()
        self.emulator: CoreMLEmulator | None = None
        self.names: dict[str, Any] = {}
        self.calls = OPEN(self._open), RUN(self._run)  # kept for as long as the library calls them

    def _open(self, method: bytes, reference: bytes, program: int, size: int) -> int:
        if self.emulator is None:
            self.folder.mkdir()
            executorchcoreml.unflatten_directory_contents(ctypes.string_at(program, size), str(self.folder))
            (root,) = self.folder.iterdir()
            self.names = json.loads((root / "metadata.json").read_text())["methods"]
            self.emulator = CoreMLEmulator(root / "model.mlpackage")
        function = json.loads(reference.removeprefix(b"CMJR"))["functionName"]
        self.functions.append((method.decode(), function))
        return len(self.functions) - 1

    def _run(self, place: int, values: Any, count: int) -> int:
        assert self.emulator is not None
        method, function = self.functions[place]
        inputs, outputs = self.names[method]["inputNames"], self.names[method]["outputNames"]
        arrays = [values[i].array() for i in range(count)]
        assert count == len(inputs) + len(outputs)
        found = self.emulator.predict(dict(zip(inputs, arrays, strict=False)), function)
        for name, array in zip(outputs, arrays[len(inputs) :], strict=True):
            array[...] = found[name]
        return 0


def build(folder: Path) -> Path:
    root, library = executorch_root(), folder / "libcoreml_delegate.so"
    command = [os.environ.get("CXX", "c++"), "-std=c++20", "-O1", "-fPIC", "-shared", str(SOURCE), "-o", str(library)]
    headers = root / "include"
    command += [
        f"-I{headers}",
        f"-I{headers / 'executorch/runtime/core/portable_type/c10'}",
        "-DC10_USING_CUSTOM_GENERATED_MACROS",
        "-DET_EVENT_TRACER_ENABLED",
    ]
    command += [f"-L{root / 'lib'}", "-lexecutorch", f"-Wl,-rpath,{root / 'lib'}"]
    subprocess.run(command, check=True)
    return library


def parity(bundle: Bundle, backend: ExecuTorchBackend) -> dict[str, float]:
    """Decibels between this engine's logits and those of the bundle's self-test."""
    figures = {}
    with np.load(bundle.folder / "selftest.npz") as arrays:
        for result in Script.of(bundle.spec(), arrays["text"].tolist()).run(backend):
            if f"{result.method}.logits" not in arrays:
                continue
            theirs = dict(
                zip(arrays[f"{result.method}.nodes"].tolist(), arrays[f"{result.method}.logits"], strict=True)
            )
            shared = sorted(set(theirs) & set(result.logits))
            a, b = (np.stack([rows[node] for node in shared]) for rows in (result.logits, theirs))
            figures[result.method] = float(10 * np.log10((b**2).sum() / ((a - b) ** 2).sum()))
    return figures


def main(folder: Path, place: Path) -> None:
    bundle, delegate = open_bundle(folder), Delegate(place / "program")
    library = ctypes.CDLL(str(build(place)))
    assert library.set_functions(*delegate.calls) == 0
    program, spec = ExecuTorchProgram(bundle.graph, num_threads=1), bundle.spec()
    tables = bundle.tables
    with ExecuTorchBackend(program, spec) as backend:
        figures = parity(bundle, backend)
    texts, width = {}, max(rows for rows, _ in spec.widths.values())
    for name in ("plain", "speculative"):
        settings = GenerationConfig(TOKENS, SAMPLING, speculative=name == "speculative", width=width)
        with Session(ExecuTorchBackend(program, spec), tables) as session:
            generation = session.generate(TEXT[:30], settings)
            generation.finish()
            texts[name] = {"tokens": generation.token_ids, "accepted": generation.statistics.draft_tokens_accepted}
    opened = sorted({method for method, _ in delegate.functions})
    print(json.dumps({"functions": opened, "snr_db": figures, "texts": texts}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
