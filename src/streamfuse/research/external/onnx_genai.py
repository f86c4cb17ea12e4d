"""ONNX Runtime GenAI: plain decoding of a model that its own builder made, in four bits, on the processor.

Needs onnxruntime-genai (the extra `research`). All runs in a `Child`: `open_system` is called there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from streamfuse.bench.shared.children import ChildError, run_module
from streamfuse.bench.shared.systems import Answer, ExternalSystemError, Request
from streamfuse.extras import need

from .answers import answer_of

_BUILDER = "onnxruntime_genai.models.builder"


def library() -> ModuleType:
    """The package.

    Raises:
        MissingExtra: it is not installed.
        ExternalSystemError: its shared library does not load.
    """
    need("peer-onnx-genai")
    try:
        import onnxruntime_genai
    except (ImportError, OSError) as error:
        raise ExternalSystemError(f"ONNX Runtime GenAI does not load ({error}); drop it from --peers") from None
    found: ModuleType = onnxruntime_genai
    return found


def open_system(name: str, folder: str, threads: int, capacity: int, stop_ids: Sequence[int]) -> OnnxGenai:
    """`OnnxGenai`, of arguments that are JSON."""
    return OnnxGenai(name, library(), Path(folder), threads, capacity, stop_ids)


def build(checkpoint: Path, folder: Path) -> None:
    """Make the model: its matrices rounded to four bits by the builder, as it does it by default.

    The builder may leave a folder `cache` next to it. ExternalSystemError where it fails.
    """
    words = [_BUILDER, "-i", checkpoint, "-o", folder, "-p", "int4", "-e", "cpu", "-c", folder.with_name("cache")]
    try:
        run_module(*map(str, words), line=lambda line: None)
    except ChildError as error:
        raise ExternalSystemError(
            f"{checkpoint}: ONNX Runtime GenAI's builder failed ({error}); drop it from --peers"
        ) from None


class OnnxGenai:
    """Plain decoding. The clock runs from the pass of the last prompt token on, as that of our own systems.

    Args:
        api: the package, `library()`.
        folder: what `build` made.
        threads: of ONNX Runtime inside an operator.
        capacity: tokens of context.
        stop_ids: tokens that end an answer, as in the bundle that it is compared with.

    Raises:
        ExternalSystemError: the package refuses the folder, or stops in an answer.
    """

    def __init__(self, name: str, api: Any, folder: Path, threads: int, capacity: int, stop_ids: Sequence[int]) -> None:
        self.name = name
        self._version = f"onnxruntime-genai {api.__version__}"
        self._api, self._capacity, self._stop_ids = api, capacity, frozenset(stop_ids)
        session = {"intra_op_num_threads": threads}
        settings = {"model": {"eos_token_id": sorted(stop_ids), "decoder": {"session_options": session}}}
        try:
            config = api.Config(str(folder))
            config.overlay(json.dumps(settings))
            self._model = api.Model(config)
        except RuntimeError as error:
            raise ExternalSystemError(
                f"{folder}: ONNX Runtime GenAI cannot load it ({error}); delete it to build it again"
            ) from None

    def answer(self, request: Request) -> Answer:
        try:
            return self._answer(request)
        except RuntimeError as error:
            raise ExternalSystemError(f"{self.name} stopped in an answer ({error}); drop it from --peers") from None

    def _answer(self, request: Request) -> Answer:
        parameters = self._api.GeneratorParams(self._model)
        options: dict[str, Any] = {"max_length": self._capacity, "do_sample": request.temperature > 0}
        if request.temperature > 0:
            options |= {"temperature": request.temperature, "top_k": 0, "top_p": 1.0, "random_seed": request.seed}
        parameters.set_search_options(**options)
        generator = self._api.Generator(self._model, parameters)
        head, last = list(request.prompt_ids[:-1]), list(request.prompt_ids[-1:])
        began = time.perf_counter()
        if head:
            generator.append_tokens(head)
        start = time.perf_counter()
        generator.append_tokens(last)
        tokens: list[int] = []
        first_ms = 0.0
        while len(tokens) < request.max_new_tokens and not self._stop_ids.intersection(tokens[-1:]):
            generator.generate_next_token()
            tokens.append(int(generator.get_next_tokens()[0]))
            first_ms = first_ms or 1000 * (time.perf_counter() - began)
        decode_ms = 1000 * (time.perf_counter() - start)
        return answer_of(tokens, self._stop_ids, len(tokens), len(tokens), decode_ms, first_ms, self._version)
