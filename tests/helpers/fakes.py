"""Fakes, not mocks: an arithmetic language model behind the Backend protocol, defined in tests/traces/README.md.

Its logits depend on every token of the context in order, so a wrong commit, a wrong path or a wrong position changes
the text; its integers make the same model easy to write in Kotlin and Swift.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Any

import numpy as np

from streamfuse.runtime.backend import (
    DECODE,
    PREFILL,
    BackendError,
    BoolArray,
    FloatArray,
    IntArray,
    ModelSpec,
    PassOutput,
)
from streamfuse.runtime.statistics import Statistics

SUCCESSOR_BONUS = 4.0


def spec(
    capacity: int = 96,
    vocab_size: int = 64,
    num_streams: int = 3,
    top_k: int = 3,
    prefill_rows: int = 8,
    widths: dict[str, tuple[int, int]] | None = None,
    eos_token_ids: tuple[int, ...] = (),
    default_width: int | None = None,
    stream_nodes: dict[str, int] | None = None,
    deferred: bool = False,
) -> ModelSpec:
    widths = {"verify_2": (2, 2), "verify_4": (4, 4), "verify_8": (8, 6)} if widths is None else widths
    return ModelSpec(
        capacity, vocab_size, num_streams, top_k, prefill_rows, widths, eos_token_ids, default_width,
        stream_nodes or {}, deferred,
    )  # fmt: skip


def context_hash(tokens: Sequence[int]) -> int:
    """Unsigned 32-bit, order matters."""
    value = 0
    for token in tokens:
        value = (value * 31 + token + 7) % 2**32  # longer_hash, which would be a call for each token
    return value


def longer_hash(value: int, token: int) -> int:
    """The hash of a context with one more token."""
    return (value * 31 + token + 7) % 2**32


def mix(value: int, salt: IntArray) -> IntArray:
    """The finaliser of MurmurHash3 over value XOR salt * 2654435761, unsigned 32-bit; salt int64 [n] -> int64 [n]."""
    x = np.uint64(value) ^ (salt.astype(np.uint64) * np.uint64(2654435761) & np.uint64(0xFFFFFFFF))
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = ((x ^ (x >> np.uint64(shift))) * np.uint64(factor)) & np.uint64(0xFFFFFFFF)
    return (x ^ (x >> np.uint64(16))).astype(np.int64)


def mix_one(value: int, salt: int) -> int:
    """`mix` of one salt, without the cost of an array."""
    x = value ^ (salt * 2654435761 & 0xFFFFFFFF)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = (x ^ (x >> shift)) * factor & 0xFFFFFFFF
    return x ^ (x >> 16)


def logits_after(tokens: Sequence[int], vocab_size: int) -> FloatArray:
    """float32 [V], multiples of 1/16 in [0, 8); the successor (31 t + 7) mod V of the last token t gets 4 more."""
    return _logits(context_hash(tokens), tokens[-1], vocab_size)


def _logits(context: int, last: int, vocab_size: int) -> FloatArray:
    logits = (mix(context, np.arange(vocab_size)) >> 25).astype(np.float32) / np.float32(16)
    logits[(31 * last + 7) % vocab_size] += np.float32(SUCCESSOR_BONUS)
    return logits


def greedy_after(tokens: Sequence[int], vocab_size: int) -> int:
    return _greedy(context_hash(tokens), tokens[-1], vocab_size)


@lru_cache(maxsize=4096)  # the streams of a context ask for the same tokens, and so do the core and the reference loop
def _greedy(context: int, last: int, vocab_size: int) -> int:
    return int(np.argmax(_logits(context, last, vocab_size)))


def plainly(prompt: Sequence[int], count: int, vocab_size: int = 64) -> list[int]:
    """The greedy continuation."""
    text = list(prompt)
    for _ in range(count):
        text.append(greedy_after(text, vocab_size))
    return text[len(prompt) :]


class ArithmeticBackend:
    """The arithmetic model. `accuracy` is how often (in sixteenths of cases, by hash) a stream's first candidate is
    the greedy continuation; 0 makes the divergent twin, whose greedy drafts are always wrong.

    `script` gives the streams their candidates by position instead: stream j of a node at position t proposes
    script[t + 1 + j] first. With the text of a plain run as script, every draft is accepted.

    `mixed` gives the survivors in the order of a hash, in which a child may stand before its parent, and no logits
    unless they are asked for.
    """

    def __init__(
        self, spec: ModelSpec, accuracy: int = 12, script: Sequence[int] | None = None, mixed: bool = False
    ) -> None:
        self.spec = spec
        self.accuracy = accuracy
        self.script = script
        self.mixed = mixed
        self.cache: list[int] = []  # a committed row is its token
        self.calls: list[tuple[str, int]] = []
        self.closed = False
        self._paths: dict[int, list[int]] = {}  # surviving row of the last run -> its whole context
        self._survivors: list[int] = []

    @property
    def length(self) -> int:
        return len(self.cache)

    def run(
        self,
        method: str,
        input_ids: IntArray,
        position_ids: IntArray,
        ancestors: BoolArray,
        want_logits: bool = False,
    ) -> PassOutput:
        rows = self.spec.rows(method)
        assert 1 <= len(input_ids) <= rows, (method, len(input_ids))
        assert input_ids.dtype == np.int64
        assert position_ids.dtype == np.int64
        assert ancestors.dtype == np.bool_
        assert ancestors.shape == (len(input_ids),) * 2
        assert not np.triu(ancestors, 1).any(), "parents come first"
        self.calls.append((method, len(input_ids)))
        paths = [self.cache + input_ids[np.flatnonzero(row)].tolist() for row in ancestors]
        assert position_ids.tolist() == [len(path) - 1 for path in paths]
        assert max(position_ids) < self.spec.capacity
        if method == PREFILL:
            self._paths = dict(enumerate(paths))
            return PassOutput.of_prefill()
        kept = self._kept(paths, ancestors, 1 if method == DECODE else self.spec.widths[method][1])
        if self.mixed:
            kept.sort(key=lambda row: mix_one(context_hash(paths[row]), 2))
        self._paths = {row: paths[row] for row in kept}
        self._survivors = kept
        logits = np.stack([logits_after(paths[row], self.spec.vocab_size) for row in kept])
        if method == DECODE:
            return PassOutput.of_decode(None if self.mixed and not want_logits else logits, logits.argmax(axis=1))
        ids, log_probs = self._streams([paths[row] for row in kept[: self.spec.streams_of(method)]])
        best = logits.argmax(axis=1)
        given = None if self.mixed and not want_logits else logits
        return PassOutput(given, best, np.array(kept, np.int64), ids, log_probs)

    def streams(self, index: int, next_token: int) -> PassOutput:
        if not self.spec.deferred:
            raise BackendError("this bundle has no deferred streams")
        path = self._paths[self._survivors[index]]
        assert path == self.cache, "deferred streams are those of the last committed node"
        self.calls.append(("streams", 1))
        nobody = np.zeros(0, np.int64)
        return PassOutput(None, nobody, nobody, *self._streams([path]))

    def _streams(self, paths: list[list[int]]) -> tuple[IntArray, FloatArray]:
        """[n, G, k] ids and log-probabilities of n contexts."""
        streams = [[self._candidates(path, j) for j in range(1, self.spec.num_streams + 1)] for path in paths]
        log_probs = np.log(np.float32(0.5)) * np.arange(1, self.spec.top_k + 1, dtype=np.float32)
        shape = (len(paths), self.spec.num_streams, self.spec.top_k)
        return np.array(streams, np.int64).reshape(shape), np.broadcast_to(log_probs, shape)

    def _kept(self, paths: list[list[int]], ancestors: BoolArray, keep: int) -> list[int]:
        """The best `keep` rows by path score, best first: the least hash along the path, the root's being highest."""
        own = [2**32] + [mix_one(context_hash(path), 1) for path in paths[1:]]
        scores = [min(own[j] for j in np.flatnonzero(row)) for row in ancestors]
        return sorted(range(len(paths)), key=lambda row: (-scores[row], row))[:keep]

    def _candidates(self, path: list[int], stream: int) -> list[int]:
        vocab, k = self.spec.vocab_size, self.spec.top_k
        if self.script is not None:
            place = len(path) + stream  # the position that this stream predicts
            first = self.script[place] if place < len(self.script) else 0
            return [(first + rank) % vocab for rank in range(k)]
        value, last = context_hash(path), path[-1]
        lucky = mix_one(value, 100 + stream) % 16 < self.accuracy
        for _ in range(stream + 1):
            last = _greedy(value, last, vocab)
            value = longer_hash(value, last)
        return [(last + rank + (not lucky)) % vocab for rank in range(k)]

    def commit(self, rows: Sequence[int]) -> None:
        for row in rows:
            if row not in self._paths:
                raise BackendError(f"row {row} did not survive the last pass")
            assert self._paths[row][:-1] == self.cache, "a committed row must continue the cache"
            if len(self.cache) == self.spec.capacity:
                raise BackendError("the cache is full")
            self.cache.append(self._paths[row][-1])

    def truncate(self, length: int) -> None:
        if not 0 <= length <= len(self.cache):
            raise BackendError(f"cannot truncate {len(self.cache)} rows to {length}")
        del self.cache[length:]
        self._paths = {}

    def close(self) -> None:
        self.closed = True


class StubbornBackend(ArithmeticBackend):
    """The next `truncate` raises BackendError after a test has set `fails`."""

    fails = False

    def truncate(self, length: int) -> None:
        if self.fails:
            self.fails = False
            raise BackendError("cannot go back")
        super().truncate(length)


def decode_letters(ids: Sequence[int]) -> str:
    """A detokenizer for tests: one printable character per token."""
    return "".join(chr(48 + token) for token in ids)


def statistics_of(**given: Any) -> Statistics:
    """Statistics of nothing, but for what is given."""
    nothing = {"int": 0, "float": 0.0, "bool": False, "str": "", "list": [], "dict": {}}
    named = {one.name: nothing.get(str(one.type).partition("[")[0]) for one in fields(Statistics)}
    return Statistics(**{**named, **given})
