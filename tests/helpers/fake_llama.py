"""llama.h as far as `bench/external/llama_cpp.py` uses it, in Python."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class _ElementType:
    """`llama_token * n` makes the type of an array of n."""

    def __mul__(self, count: int) -> Any:
        return lambda *ids: list(ids)


class _Settings(ctypes.Structure):
    """Passed by reference."""

    _fields_ = [("ftype", ctypes.c_int), ("allow_requantize", ctypes.c_bool)]


class _Candidate(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int32), ("logit", ctypes.c_float), ("p", ctypes.c_float)]


class _Candidates(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.POINTER(_Candidate)),
        ("size", ctypes.c_size_t),
        ("selected", ctypes.c_int64),
        ("sorted", ctypes.c_bool),
    ]


class FakeGrammar:
    """Refuses the tokens that its text lists; `asked` has how many candidates each question had."""

    def __init__(self, text: str) -> None:
        self.refused = {int(word) for word in text.split()}
        self.asked: list[int] = []
        self.accepted: list[int] = []


class FakeLlama:
    """The functions of llama.h that benches call. The next token is the sum of the context modulo 50, else one more."""

    llama_token = _ElementType()
    llama_token_data, llama_token_data_array = _Candidate, _Candidates
    LLAMA_FTYPE_MOSTLY_Q4_0, LLAMA_FTYPE_MOSTLY_Q8_0 = 2, 7

    def __init__(self) -> None:
        self.context: list[int] = []
        self.batches: list[int] = []
        self.freed: list[str] = []
        self.samplers: list[Any] = []
        self.grammar: FakeGrammar | None = None

    def __getattr__(self, name: str) -> Any:
        if name.endswith("_params"):
            return SimpleNamespace
        if "free" in name:
            return lambda thing: self.freed.append(name)
        raise AttributeError(name)

    def llama_log_callback(self, function: Any) -> Any:
        return function

    def llama_log_set(self, callback: object, data: object) -> None:
        """Nothing to be silent about."""

    def llama_model_quantize_default_params(self) -> Any:
        return _Settings()

    def llama_model_quantize(self, source: bytes, out: bytes, settings: object) -> int:
        Path(os.fsdecode(out)).write_bytes(Path(os.fsdecode(source)).read_bytes())
        return 0

    def llama_model_load_from_file(self, path: bytes, settings: object) -> str | None:
        return None if b"missing" in path else "model"

    def llama_init_from_model(self, model: str, settings: Any) -> str:
        self.settings = settings
        return "context"

    def llama_get_memory(self, context: str) -> str:
        return "memory"

    def llama_memory_clear(self, memory: str, data: bool) -> None:
        self.context = []

    def llama_batch_get_one(self, ids: Sequence[int], count: int) -> list[int]:
        return list(ids)[:count]

    def llama_decode(self, context: str, batch: list[int]) -> int:
        self.context += batch
        self.batches.append(len(batch))
        return 0

    def llama_sampler_chain_init(self, settings: object) -> list[Any]:
        return []

    def llama_model_get_vocab(self, model: str) -> str:
        return "vocabulary"

    def llama_vocab_n_tokens(self, vocabulary: str) -> int:
        return 50

    def llama_get_logits_ith(self, context: str, index: int) -> Any:
        logits = (ctypes.c_float * 50)()
        logits[sum(self.context) % 50] = 1.0
        logits[(sum(self.context) + 1) % 50] = 0.5
        return logits

    def llama_sampler_init_grammar(self, vocabulary: str, text: bytes, root: bytes) -> FakeGrammar | None:
        assert root == b"root"
        self.grammar = None if text == b"not a grammar" else FakeGrammar(text.decode())
        return self.grammar

    def llama_sampler_apply(self, grammar: FakeGrammar, candidates: Any) -> None:
        array = candidates.contents
        grammar.asked.append(array.size)
        for place in range(array.size):
            if array.data[place].id in grammar.refused:
                array.data[place].logit = float("-inf")

    def llama_sampler_accept(self, grammar: FakeGrammar, token: int) -> None:
        grammar.accepted.append(token)

    def llama_sampler_init_temp(self, temperature: float) -> tuple[str, float]:
        return ("temperature", temperature)

    def llama_sampler_init_dist(self, seed: int) -> tuple[str, int]:
        return ("seed", seed)

    def llama_sampler_chain_add(self, chain: list[Any], sampler: Any) -> None:
        chain.append(sampler)
        self.samplers.append(sampler)

    def llama_sampler_sample(self, chain: list[Any], context: str, index: int) -> int:
        return sum(self.context) % 50
