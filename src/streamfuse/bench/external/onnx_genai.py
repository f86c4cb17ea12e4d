"""ONNX Runtime GenAI: decoding of a model that its own builder made, in four bits, on the processor.

Constraints are its guidance, which the packages on PyPI are built with. Needs onnxruntime-genai (the extra
`onnx-genai`). All runs in a `Child`: `open_system` is called there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from streamfuse.bench.shared.children import ChildError, run_module
from streamfuse.bench.shared.systems import Answer, ExternalSystemError, Request
from streamfuse.extras import need

from .answers import answer_of

_BUILDER = "onnxruntime_genai.models.builder"
_LEAVE_OUT = "leave it out with --systems (bench tasks, structured) or --peers (research compare)"
_GUIDANCE = {"schema": "json_schema", "regex": "regex", "grammar": "lark_grammar"}  # our words to its own


def library() -> ModuleType:
    """The package.

    Raises:
        MissingExtra: it is not installed.
        ExternalSystemError: its shared library does not load.
    """
    need("onnx-genai")
    try:
        import onnxruntime_genai
    except (ImportError, OSError) as error:
        raise ExternalSystemError(f"ONNX Runtime GenAI does not load ({error}); {_LEAVE_OUT}") from None
    found: ModuleType = onnxruntime_genai
    return found


def open_system(
    name: str, folder: str, threads: int, capacity: int, stop_ids: Sequence[int], ff_tokens: bool = False
) -> OnnxGenai:
    """`OnnxGenai`, of arguments that are JSON."""
    return OnnxGenai(name, library(), Path(folder), threads, capacity, stop_ids, ff_tokens)


def build(checkpoint: Path, folder: Path) -> None:
    """Make the model: its matrices rounded to four bits by the builder, as it does it by default.

    The builder may leave a folder `cache` next to it. ExternalSystemError where it fails.
    """
    words = [_BUILDER, "-i", checkpoint, "-o", folder, "-p", "int4", "-e", "cpu", "-c", folder.with_name("cache")]
    try:
        run_module(*map(str, words), line=lambda line: None)
    except ChildError as error:
        raise ExternalSystemError(
            f"{checkpoint}: ONNX Runtime GenAI's builder failed ({error}); {_LEAVE_OUT}"
        ) from None


class OnnxGenai:
    """One token per pass. The clock runs from the pass of the last prompt token on, as that of our own systems.

    Args:
        api: the package, `library()`.
        folder: what `build` made.
        threads: of ONNX Runtime inside an operator.
        capacity: tokens of context.
        stop_ids: tokens that end an answer, as in the bundle that it is compared with.
        ff_tokens: tokens that a constraint forces are not computed one by one (`enable_ff_tokens` of the package).

    Raises:
        ExternalSystemError: the package refuses the folder or a constraint, or stops in an answer.
    """

    def __init__(
        self,
        name: str,
        api: Any,
        folder: Path,
        threads: int,
        capacity: int,
        stop_ids: Sequence[int],
        ff_tokens: bool = False,
    ) -> None:
        self.name = name
        self._version = f"onnxruntime-genai {api.__version__}"
        self._api, self._capacity, self._stop_ids = api, capacity, frozenset(stop_ids)
        self._ff_tokens = ff_tokens
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
        generator, compile_ms = self._generator(request)
        try:
            answer, cpu_ms = self._answer(request, generator)
        except RuntimeError as error:
            raise ExternalSystemError(f"{self.name} stopped in an answer ({error}); {_LEAVE_OUT}") from None
        return replace(answer, statistics={**(answer.statistics or {}), "compile_ms": compile_ms, "cpu_ms": cpu_ms})

    def _generator(self, request: Request) -> tuple[Any, float]:
        """One that has read nothing yet, and the milliseconds to make it with its constraint."""
        parameters = self._api.GeneratorParams(self._model)
        options: dict[str, Any] = {"max_length": self._capacity, "do_sample": request.temperature > 0}
        if request.temperature > 0:
            options |= {"temperature": request.temperature, "top_k": 0, "top_p": 1.0, "random_seed": request.seed}
        parameters.set_search_options(**options)
        for kind, text in request.constraint.items():
            parameters.set_guidance(_GUIDANCE[kind], compact(text) if kind == "schema" else text, self._ff_tokens)
        started = time.perf_counter()
        try:
            generator = self._api.Generator(self._model, parameters)
        except RuntimeError as error:
            raise ExternalSystemError(f"{self.name} refuses the constraint: {error}") from None
        return generator, 1000 * (time.perf_counter() - started)

    def _answer(self, request: Request, generator: Any) -> tuple[Answer, float]:
        """Generate an answer; returns it with the CPU time of decoding in milliseconds."""
        head, last = list(request.prompt_ids[:-1]), list(request.prompt_ids[-1:])
        prompt, most = len(request.prompt_ids), request.max_new_tokens
        began = time.perf_counter()
        if head:
            generator.append_tokens(head)
        start, start_cpu = time.perf_counter(), time.process_time()
        generator.append_tokens(last)
        passes, first_ms = 0, 0.0
        while generator.token_count() < prompt + most and not generator.is_done():
            generator.generate_next_token()
            passes += 1
            first_ms = first_ms or 1000 * (time.perf_counter() - began)
        decode_ms = 1000 * (time.perf_counter() - start)
        cpu_ms = 1000 * (time.process_time() - start_cpu)
        tokens = [int(token) for token in generator.get_sequence(0)[prompt:]][:most]
        emitted = len(tokens) + bool(generator.is_done())
        return answer_of(tokens, self._stop_ids, emitted, passes, decode_ms, first_ms, self._version), cpu_ms


def compact(schema: str) -> str:
    """A schema whose texts have no white space between their parts, as ours have: the model may not end such space."""
    loaded: Any = json.loads(schema)
    options: Mapping[str, Any] = {"whitespace_flexible": False}
    return json.dumps({**loaded, "x-guidance": {**options, **loaded.get("x-guidance", {})}}, ensure_ascii=False)
