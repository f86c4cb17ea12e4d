"""llama.cpp, to compare with: plain decoding through its C interface, so that little Python stands between its tokens.

All of its native code runs in a `Child`: `open_child` there, `quantize` and `open_system` in it.

Needs llama-cpp-python (extra `llama-cpp`), compiled on the machine that is measured; `pip install --no-binary` it, or
a wheel for an older processor is measured instead.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from streamfuse.bench.shared.systems import LLAMA_CPP, Answer, ExternalSystemError, Request, System
from streamfuse.digest import stamp_of
from streamfuse.model.fields import CheckpointError

from .child import Child

_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])  # llama_token_data
QUANTIZATIONS = ("Q4_0", "Q4_1", "Q8_0")
_FLOATS = ("ALL_F32", "F16", "BF16")
_GET = "llama.cpp needs llama-cpp-python{}: pip install 'streamfuse[llama-cpp]', or drop it from --systems"


def check_installed() -> None:
    """ExternalSystemError where llama-cpp-python is not installed. Nothing of it is loaded."""
    if find_spec("llama_cpp") is None:
        raise ExternalSystemError(_GET.format(""))


def open_child(child: Child, source: Path, kind: str, folder: Path, **arguments: Any) -> System:
    """A `LlamaCpp` in the child, of `source` (a GGUF of any precision) in one of `kinds_of` it.

    Args:
        folder: gets the quantized file, once.
        arguments: of `LlamaCpp`.

    Raises:
        ExternalSystemError: llama.cpp cannot read, quantize or load the file.
        ExternalSystemDied: its process ended.
    """
    file = quantized(child, source, kind, folder)
    return child.open(LLAMA_CPP, f"{__name__}:open_system", path=str(file), **arguments)


def open_system(path: str, threads: int, capacity: int, stop_ids: Sequence[int]) -> LlamaCpp:
    """`LlamaCpp`, of arguments that are JSON."""
    return LlamaCpp(Path(path), threads, capacity, stop_ids)


def library() -> ModuleType:
    """llama-cpp-python's binding of llama.h, silent.

    Raises:
        ExternalSystemError: it is not installed, or its shared library does not load.
    """
    try:
        from llama_cpp import llama_cpp
    except (ImportError, OSError, RuntimeError) as error:
        raise ExternalSystemError(_GET.format(f" ({error})")) from None
    llama_cpp.llama_log_set(_silence(llama_cpp), None)
    binding: ModuleType = llama_cpp
    return binding


def gbnf_of(schema: str) -> str:
    """A JSON schema as a grammar of llama.cpp, by llama-cpp-python. ExternalSystemError where it cannot tell one."""
    from llama_cpp.llama_grammar import json_schema_to_gbnf

    try:
        grammar: str = json_schema_to_gbnf(schema)
    except Exception as error:  # assertions, attributes of None: whatever its translation meets
        raise ExternalSystemError(f"llama.cpp refuses the schema ({type(error).__name__}: {error})") from None
    return grammar


class LlamaCpp:
    """One GGUF, one context. Decodes plainly, greedily or at a temperature; a constraint is a JSON schema.

    Args:
        path: the model.
        threads: for single tokens and for prompts alike.
        capacity: tokens of context.
        stop_ids: tokens that end an answer, as in the bundle that it is compared with.

    Raises:
        ExternalSystemError: llama.cpp is not there, or refuses the file.
    """

    name = LLAMA_CPP

    def __init__(self, path: Path, threads: int, capacity: int, stop_ids: Sequence[int]) -> None:
        self._api = api = library()
        self._stop_ids = frozenset(stop_ids)
        self._context: Any = None
        loading = api.llama_model_default_params()
        loading.n_gpu_layers = 0  # on the CPU, as streamfuse runs
        self._model = api.llama_model_load_from_file(os.fsencode(path), loading)
        if not self._model:
            raise ExternalSystemError(
                f"{path}: llama.cpp cannot load this file; name a GGUF of the same weights with --gguf"
            )
        self._vocab_size = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))
        settings = api.llama_context_default_params()
        settings.n_ctx = settings.n_batch = capacity
        settings.n_threads = settings.n_threads_batch = threads
        settings.op_offload = False  # else a GPU processes prompts, even with all weights in CPU memory
        self._context = api.llama_init_from_model(self._model, settings)
        if not self._context:
            self.close()
            raise ExternalSystemError(f"{path}: llama.cpp cannot make a context of {capacity} tokens")

    def answer(self, request: Request) -> Answer:
        api, context = self._api, self._context
        started = time.perf_counter()
        grammar = self._grammar(request)
        compile_ms = 1000 * (time.perf_counter() - started)
        sampler = self._sampler(request, grammar)
        api.llama_memory_clear(api.llama_get_memory(context), False)
        if request.prompt_ids[:-1]:
            self._decode(request.prompt_ids[:-1])
        tokens: list[int] = []
        start, start_cpu = time.perf_counter(), time.process_time()
        token = request.prompt_ids[-1]
        try:
            while len(tokens) < request.max_new_tokens:
                self._decode([token])
                if sampler is not None:
                    token = api.llama_sampler_sample(sampler, context, -1)
                else:
                    token = int(self._logits().argmax()) if grammar is None else self._best(grammar)
                if token in self._stop_ids:
                    break
                tokens.append(token)
            decode_ms = 1000 * (time.perf_counter() - start)
            cpu_ms = 1000 * (time.process_time() - start_cpu)
        finally:
            owner = grammar if sampler is None else sampler  # a chain frees its parts
            if owner is not None:
                api.llama_sampler_free(owner)
        statistics = {"compile_ms": compile_ms, "cpu_ms": cpu_ms} if request.constraint else None
        return Answer(tuple(tokens), decode_ms, statistics)

    def close(self) -> None:
        """Give the memory back."""
        if self._context:
            self._api.llama_free(self._context)
        if self._model:
            self._api.llama_model_free(self._model)
        self._context = self._model = None

    def _decode(self, tokens: Sequence[int]) -> None:
        ids = (self._api.llama_token * len(tokens))(*tokens)  # the batch holds a bare pointer to it
        code = self._api.llama_decode(self._context, self._api.llama_batch_get_one(ids, len(tokens)))
        if code:
            raise ExternalSystemError(f"llama.cpp stopped with code {code}")

    def _logits(self) -> npt.NDArray[np.float32]:
        """Of the last row, float32 [vocab_size]; greedy choice from them is faster than llama.cpp's own sampler."""
        return np.ctypeslib.as_array(self._api.llama_get_logits_ith(self._context, -1), (self._vocab_size,))

    def _grammar(self, request: Request) -> Any:
        """A sampler of the request's schema; None where nothing restricts the answer."""
        if not request.constraint:
            return None
        schema = request.constraint.get("schema")
        if schema is None:
            raise ExternalSystemError(f"llama.cpp takes a JSON schema, and the task has a {min(request.constraint)}")
        vocab = self._api.llama_model_get_vocab(self._model)
        grammar = self._api.llama_sampler_init_grammar(vocab, gbnf_of(schema).encode(), b"root")
        if not grammar:
            raise ExternalSystemError("llama.cpp cannot read the grammar that it made of the schema")
        return grammar

    def _best(self, grammar: Any) -> int:
        """The best token that the grammar allows, which it is then told.

        As in llama.cpp's own programs the best of all is asked about alone, and all others only where it is refused.
        """
        logits = self._logits()
        best = np.array([logits.argmax()])
        allowed = self._restricted(grammar, best, logits[best])
        if not np.isfinite(allowed[0]):
            allowed = self._restricted(grammar, np.arange(self._vocab_size), logits)
            best = np.array([allowed.argmax()])
            if not np.isfinite(allowed[best[0]]):
                raise ExternalSystemError("llama.cpp's grammar allows no token")
        token = int(best[0])
        self._api.llama_sampler_accept(grammar, token)
        return token

    def _restricted(self, grammar: Any, tokens: npt.NDArray[Any], logits: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """The logits of tokens, minus infinity for those that the grammar refuses."""
        candidates = np.zeros(len(tokens), _CANDIDATE)
        candidates["id"], candidates["logit"] = tokens, logits
        data = candidates.ctypes.data_as(ctypes.POINTER(self._api.llama_token_data))
        array = self._api.llama_token_data_array(data=data, size=len(tokens), selected=-1, sorted=False)
        self._api.llama_sampler_apply(grammar, ctypes.pointer(array))
        return np.ascontiguousarray(candidates["logit"])

    def _sampler(self, request: Request, grammar: Any) -> Any:
        """None for greedy."""
        if request.temperature == 0:
            return None
        api = self._api
        chain = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
        if grammar is not None:
            api.llama_sampler_chain_add(chain, grammar)
        api.llama_sampler_chain_add(chain, api.llama_sampler_init_temp(request.temperature))
        api.llama_sampler_chain_add(chain, api.llama_sampler_init_dist(request.seed & 0xFFFFFFFF))
        return chain


def quantized(child: Child, source: Path, kind: str, folder: Path) -> Path:
    """The GGUF in one of `kinds_of` it, written to `folder` once. Raises as `open_child` does.

    All models share the folder, so the file name identifies the source.
    """
    if _kind_of(source) == kind:
        return source
    out = folder / f"{source.stem}-{stamp_of(source)}-{kind}.gguf"
    if out.is_file():
        return out
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as staging:  # removed here, also if the child dies
        temporary = Path(staging) / out.name
        child.run(f"{__name__}:quantize", source=str(source), out=str(temporary), kind=kind)
        temporary.replace(out)
    return out


def quantize(source: str, out: str, kind: str) -> None:
    """ExternalSystemError where llama.cpp cannot quantize the file."""
    api = library()
    settings = api.llama_model_quantize_default_params()
    settings.ftype = getattr(api, f"LLAMA_FTYPE_MOSTLY_{kind}")
    settings.allow_requantize = True
    if api.llama_model_quantize(os.fsencode(source), os.fsencode(out), ctypes.byref(settings)):
        raise ExternalSystemError(f"{source}: llama.cpp cannot quantize this file to {kind}")


def kinds_of(source: Path) -> tuple[str, ...]:
    """`QUANTIZATIONS`, after the type of a GGUF's weights if that is another one of integers, such as Q4_K_M.

    Raises:
        ExternalSystemError: it is no GGUF.
    """
    own = _kind_of(source)
    return QUANTIZATIONS if own is None or own in _FLOATS + QUANTIZATIONS else (own, *QUANTIZATIONS)


def _kind_of(path: Path) -> str | None:
    """The type of most of a GGUF's weights, as llama.cpp calls it; None if the file or gguf-py does not name it."""
    import gguf

    from streamfuse.model.gguf import open_gguf

    try:
        field = open_gguf(path).fields.get("general.file_type")
        number = None if field is None else field.contents()
        names = {int(one): one.name for one in gguf.LlamaFileType if one is not gguf.LlamaFileType.GUESSED}
        return names[number].rpartition("MOSTLY_")[2] if number in names else None
    except CheckpointError as error:
        raise ExternalSystemError(str(error)) from None


_silent: list[Any] = []  # llama.cpp keeps the pointer, so the callback must live as long as the process


def _silence(api: ModuleType) -> Any:
    if not _silent:
        _silent.append(api.llama_log_callback(lambda level, text, data: None))
    return _silent[0]
