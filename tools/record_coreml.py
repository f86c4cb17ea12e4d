"""Small Core ML bundles with all that the emulator was asked and answered, for tests of engines in other languages.

Run: PYTHONPATH=src:tests/helpers python tools/record_coreml.py FOLDER

For each kind of tests/helpers/coreml_bundles.py named below: FOLDER/KIND/bundle, calls.json and data.bin. calls.json
holds the package's `metadata`; `texts` (prompt, settings, tokens), one after the other on one session; and `calls`,
in order: the method, its inputs and outputs by name, each with dtype, shape, and where its numbers begin in data.bin.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from coreml_bundles import CONVOLUTIONS, RINGS, Made
from export_samples import TEXT

from streamfuse.export import selftest
from streamfuse.runtime.config import GenerationConfig, SamplingConfig
from streamfuse.runtime.session import Session

TEXTS: tuple[tuple[list[int], dict[str, Any]], ...] = (
    (TEXT[:5], {"max_new_tokens": 12, "width": 12}),
    (TEXT[:30], {"max_new_tokens": 8, "width": 12, "temperature": 0.8, "seed": 3}),
    (TEXT[:26], {"max_new_tokens": 6, "speculative": False}),
)
LONG = 7 * TEXT
# Into the second lap of the ring buffers, back to a position that they still have, and back to one that they have not.
LONG_TEXTS: tuple[tuple[list[int], dict[str, Any]], ...] = (
    (LONG[:300], {"max_new_tokens": 12, "width": 12}),
    (LONG[:280], {"max_new_tokens": 20, "width": 12, "temperature": 0.8, "seed": 3}),
    (LONG[:20], {"max_new_tokens": 6, "width": 12}),
)
# Both layouts, both float types, both schedules, logits in one piece and in three, ring buffers, convolutions.
KINDS = {"plain-float32": TEXTS, "ane-float16-int8": TEXTS, RINGS: LONG_TEXTS, CONVOLUTIONS: LONG_TEXTS}


class Recorder:
    """Writes down what a package is asked and what it answers."""

    def __init__(self, predict: Any, data: BinaryIO) -> None:
        self.calls: list[dict[str, Any]] = []
        self._predict, self._data = predict, data

    def __call__(self, method: str, inputs: Mapping[str, Any]) -> Mapping[str, Any]:
        asked = self._write(inputs)  # before the caches change
        outputs: Mapping[str, Any] = self._predict(method, inputs)
        self.calls.append({"method": method, "inputs": asked, "outputs": self._write(outputs)})
        return outputs

    def _write(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        facts = {}
        for name, tensor in tensors.items():
            array = np.ascontiguousarray(tensor)
            facts[name] = {"dtype": array.dtype.name, "shape": array.shape, "offset": self._data.tell()}
            self._data.write(array.tobytes())
        return facts


def config(
    max_new_tokens: int, width: int | None = None, speculative: bool = True, **sampling: Any
) -> GenerationConfig:
    return GenerationConfig(max_new_tokens, SamplingConfig(**sampling), speculative=speculative, width=width)


def record(kind: str, folder: Path) -> None:
    made = Made(kind, folder)
    backend, texts = made.backend(), []
    with (folder / "data.bin").open("wb") as data:
        backend.predict = recorder = Recorder(backend.predict, data)
        tables = made.bundle.tables
        with Session(backend, tables, identity=made.bundle.identity) as session:
            for prompt, settings in KINDS[kind]:
                generation = session.generate(prompt, config(**settings))
                generation.finish()
                texts.append({"prompt": list(prompt), "config": settings, "tokens": generation.token_ids})
    shutil.rmtree(folder / "checkpoint")
    (folder / kind).rename(folder / "bundle")
    document = {"metadata": made.package.user_metadata, "texts": texts, "calls": recorder.calls}
    (folder / "calls.json").write_text(json.dumps(document), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    selftest.WALK_TOKENS = 32  # tests/export/test_export_coreml.py compares more text with PyTorch
    for kind in KINDS:
        shutil.rmtree(folder / kind, ignore_errors=True)
        (folder / kind).mkdir(parents=True)
        record(kind, folder / kind)


if __name__ == "__main__":
    main()
