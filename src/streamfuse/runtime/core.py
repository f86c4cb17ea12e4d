"""The core by ctypes (core/streamfuse_core.h): facts and tables of a model, sessions on any engine. Needs numpy."""

from __future__ import annotations

import ctypes
import json
import math
from collections.abc import Callable, Mapping, Sequence
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_uint64, c_void_p
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from streamfuse.native.library import LibraryError, find_core, load_typed, path_argument
from streamfuse.runtime.backend import Backend, BackendError, ModelSpec
from streamfuse.runtime.clock import Clock, set_clock
from streamfuse.runtime.config import MOST_TOP_LOG_PROBS, GenerationConfig, PromptError, token_ids_of
from streamfuse.runtime.constraint import Constraint
from streamfuse.runtime.constraint import table_of as table_of_constraint
from streamfuse.runtime.handle import Handle
from streamfuse.runtime.statistics import Statistics
from streamfuse.runtime.structures import TAKE, CToken, Method, Options, SequenceOptions, Spec, Tensor, TopToken
from streamfuse.runtime.tables import DTYPES
from streamfuse.runtime.text_library import BAD_ARGUMENT, BAD_FILE, BAD_GRAMMAR, BAD_TABLES, CANCELLED, END, OK

# Who drafted a token, by sf_token.source; the model itself where nobody did.
SOURCES = ("model", "streams", "lookup", "table", "grammar", "memory")
_NUMBERS = {dtype: number for number, dtype in DTYPES.items()}  # sf_tensor's


class CoreError(BackendError):
    """What the core refuses or an engine failed at, in one sentence."""


class GrammarStopped(CoreError):
    """The schema, regular expression or grammar of a text reached a limit while it was generated."""


class TablesError(CoreError):
    """Drafting tables that contradict themselves or the model."""


class Stopped(CoreError):
    """`stop` was called, and there is no part of a result to return."""


_ERRORS: dict[int, type[CoreError]] = {BAD_GRAMMAR: GrammarStopped, CANCELLED: Stopped}


def view(address: int | None, dtype: Any, *shape: int) -> npt.NDArray[Any]:
    """The array that lies at an address; valid as long as its owner says."""
    if not address or 0 in shape:
        return np.zeros(shape if 0 in shape else (0,), dtype)
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = (ctypes.c_char * count).from_address(address)
    found: npt.NDArray[Any] = np.frombuffer(memory, dtype).reshape(shape)
    return found


def copied(address: int | None, dtype: Any, *shape: int) -> npt.NDArray[Any]:
    """Likewise, the caller's own."""
    return view(address, dtype, *shape).copy()


def spec_struct(spec: ModelSpec, identity: str = "") -> tuple[ctypes.Structure, list[Any]]:
    """sf_spec, and what it points to."""
    methods = (Method * len(spec.widths))(
        *(Method(name.encode(), *rows_and_keep, spec.streams_of(name)) for name, rows_and_keep in spec.widths.items())
    )
    stops = np.asarray(spec.eos_token_ids, np.int64)
    given = Spec(
        capacity=spec.capacity, vocab_size=spec.vocab_size, num_streams=spec.num_streams, top_k=spec.top_k,
        prefill_rows=spec.prefill_rows, verify=methods,
        verify_count=len(methods), deferred=spec.deferred, stop_ids=stops.ctypes.data, stop_count=len(stops),
        stream_vocab_size=spec.stream_vocab_size, identity=identity.encode(),
    )  # fmt: skip
    return given, [methods, stops]


class CoreModel:
    """A bundle's facts and drafting tables, for any number of sessions. CoreError says what is wrong with them.

    `tensors` are the arrays of draft.safetensors (Bundle.tables); `identity` tells the bundle from others.
    """

    def __init__(
        self, spec: ModelSpec, tensors: Mapping[str, npt.NDArray[Any]] | None = None, identity: str = ""
    ) -> None:
        self.spec, self.library = spec, load_core()
        given, _kept = spec_struct(spec, identity)
        self._arrays = {name: np.asarray(array, order="C") for name, array in (tensors or {}).items()}
        tables = (Tensor * len(self._arrays))()
        for table, (name, array) in zip(tables, self._arrays.items(), strict=True):
            table.name, table.dtype, table.rank = name.encode(), _NUMBERS.get(array.dtype, 0), array.ndim
            table.shape[:] = [*array.shape[:2], 1, 1][:2]
            table.data = array.ctypes.data
        pointer = c_void_p()
        code = self.library.sf_core_model_open(byref(given), tables, len(self._arrays), byref(pointer))
        self.handle = Handle(pointer, self.library.sf_core_model_close, "model", CoreError)
        if code != OK:
            with self.handle:
                sentence = self.library.sf_core_model_error(pointer).decode(errors="replace")
            self.close()
            raise (TablesError if code == BAD_TABLES else CoreError)(sentence)

    def remember(self, path: str | None = None, tokens: int = 0) -> None:
        """Let later sessions also look up in the answers of earlier ones, the latest `tokens` (0: 65,536), which the
        file `path` keeps between processes. CoreError for a file that is something else, or cannot be written."""
        self._call(self.library.sf_core_model_remember, None if path is None else path_argument(path), tokens)

    def forget(self) -> None:
        """Drop these answers, also from the file. Any thread may call it."""
        self._call(self.library.sf_core_model_forget)

    def add_prefix(self, path: str) -> None:
        """Let later sessions begin texts with the cache in this file of `CoreSession.save`, if the prompt begins with
        its cached tokens. CoreError for a file of another bundle; `prefix_refused` of the statistics then says why."""
        self._call(self.library.sf_core_model_add_prefix, path_argument(path))

    def self_test(self, engine: Backend, arrays: Any, count: int) -> bytes:
        """Repeat recorded passes and compare the outputs.

        Args:
            engine: closed at the end.
            arrays: `count` structures `Tensor` in C, an array or a pointer to the first, as `Bundle.selftest` has them.

        Returns:
            The report as JSON (`self_test.SelfTest`).

        Raises:
            CoreError: the arrays do not fit the model. What an engine written in Python raises is raised again.
        """
        from streamfuse.runtime.backends.callbacks import table_of

        reports = list[bytes]()

        def put(_: object, report: int, size: int) -> int:
            reports.append(ctypes.string_at(report, size))
            return OK

        with self.handle as handle:
            table = table_of(engine)
            code = self.library.sf_core_model_self_test(handle, byref(table.struct), arrays, count, TAKE(put), None)
            if table.guard.failure:
                raise table.guard.failure[0]
            if code != OK:
                sentence = self.library.sf_core_model_error(handle).decode(errors="replace")
                raise table.guard.raised_as(sentence) or CoreError(sentence)
        return reports[0]

    def close(self) -> None:
        """Sessions that were made from it go on."""
        self.handle.close()

    def _call(self, function: Callable[..., int], *arguments: Any) -> None:
        with self.handle as handle:
            if function(handle, *arguments) != OK:
                raise CoreError(self.library.sf_core_model_error(handle).decode(errors="replace"))


class TokenLogProb(NamedTuple):
    """A token, the natural logarithm of its probability as in `Piece`, and its text (U+FFFD for part of a character) or
    the name of a special token; empty from a session without a tokenizer."""

    token: int
    log_prob: float
    text: str = ""


class Token(NamedTuple):
    """A delivered token and the source that drafted it (SOURCES); if requested, also its log-probability and the most
    probable tokens at its position, best first."""

    id: int
    source: str
    log_prob: float | None = None
    top: tuple[TokenLogProb, ...] = ()


@dataclass(frozen=True, slots=True)
class Score:
    """How probable a model finds given tokens: `log_probs` has the natural logarithm of the probability of each of
    `tokens` after all tokens before it (softmax over the whole vocabulary, without temperature and filters). If they
    were requested, `top_log_probs` has the most probable tokens at the position of each, best first."""

    tokens: list[int]
    log_probs: list[float]
    top_log_probs: list[tuple[TokenLogProb, ...]] = field(default_factory=list, repr=False)

    @property
    def log_prob(self) -> float:
        """The natural logarithm of the probability of all tokens together."""
        return math.fsum(self.log_probs)

    @property
    def perplexity(self) -> float:
        """exp(-log_prob / number of tokens)."""
        return math.exp(-self.log_prob / len(self.log_probs))


class CoreSession:
    """One sequence on one engine; the names are the header's. One thread at a time, but for `stop` and `close`.

    `engine` is a runtime.backend.Backend, or one that has a table of its own (`engine_table`). It is closed with the
    session.
    """

    def __init__(
        self,
        model: CoreModel,
        engine: Backend,
        *,
        clock: Clock | None = None,
        cost_folder: str | None = None,
        device: str = "",
        model_load_ms: float = 0.0,
    ) -> None:
        from streamfuse.runtime.backends.callbacks import table_of

        self.library = model.library
        self.kept: dict[str, Any] = {"model": model, "engine": engine, "constraints": []}  # what C points to
        self.methods, self.vocab_size = list(model.spec.widths), model.spec.vocab_size
        options = SequenceOptions(device=device.encode(), model_load_ms=model_load_ms)
        if cost_folder is not None:
            options.cost_folder = path_argument(cost_folder)
        pointer = c_void_p()
        with model.handle as shared:  # first: a closed model raises here and does not own the engine
            self._table = table_of(engine)
            if clock is not None:
                self.kept["clock"] = set_clock(options, clock, self.library, self._table.guard.failure)
            code = self.library.sf_sequence_new(shared, byref(self._table.struct), byref(options), byref(pointer))
        self.failure = self._table.guard.failure  # what the next call raises even if it succeeds
        needed = (self.library.sf_sequence_free, self.kept, self._table)

        def free(own: c_void_p) -> None:  # what C points to lives as long as the handle, maybe longer than this object
            needed[0](own)

        self.handle = Handle(pointer, free, "session", CoreError, one_thread=True)
        if code != OK:
            sentence = self._sentence()
            self.close()
            raise CoreError(sentence)
        self._token = CToken()
        self._token_address = ctypes.addressof(self._token)
        self._wants_top = False

    def prepare(self) -> None:
        """End a running text, and measure the latency of passes unless it is known; at most about 250 ms."""
        self._call(self.library.sf_sequence_prepare)

    def start(
        self,
        token_ids: Sequence[int] | npt.NDArray[np.int64],
        config: GenerationConfig,
        constraint: Constraint | None = None,
        dropped: tuple[int, int] = (0, 0),
    ) -> None:
        """Begin a text after the whole context.

        Args:
            token_ids: all turns so far, not only the new one.
            constraint: restricts the text, which takes it over: it cannot be given to another one.
            dropped: for the statistics: turns that were dropped for this text, and their length in tokens.

        Raises:
            PromptError: the context is empty or too long, or not token ids of the vocabulary; the session is as before.
            ValueError: a setting is out of range, or does not fit the bundle; the session is as before.
            CoreError: the session is closed or at work in another thread, or the engine failed. What an engine or a
                constraint written in Python raises is raised again.
        """
        ids = np.array(token_ids_of(token_ids), np.int64)
        stops, sampling = np.asarray(config.stop_token_ids, np.int64), config.sampling
        options = Options(  # the core counts in 64 bits; no text is longer
            max_new_tokens=min(config.max_new_tokens, 1 << 62), temperature=sampling.temperature,
            top_k=min(sampling.top_k, 1 << 62), top_p=sampling.top_p, min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty, seed=sampling.seed, stop_ids=stops.ctypes.data,
            stop_count=len(stops), ignore_eos=config.ignore_eos, speculative=config.speculative,
            width=config.width or 0, sources=sum({1 << SOURCES.index(source) for source in config.sources or ()}),
            log_probs=config.log_probs, dropped_turns=dropped[0], dropped_tokens=dropped[1],
            top_log_probs=config.top_log_probs,
        )  # fmt: skip
        self._wants_top = config.top_log_probs > 0
        with self.handle:  # first: a closed session raises here and does not own the constraint
            if constraint is not None:
                restricted = table_of_constraint(constraint, self.vocab_size, self.failure)
                options.constraint = ctypes.pointer(restricted.struct)
                # The running text's constraint and this one are kept until released: after a failed or
                # interrupted start, the core may use either.
                self.kept["constraints"] = [one for one in self.kept["constraints"] if one.in_use] + [restricted]
            code = self._call(
                self.library.sf_sequence_start, ids.ctypes.data, len(ids), byref(options), allowed=BAD_ARGUMENT
            )
            if code == BAD_ARGUMENT:
                sentence = self._sentence()
                raise PromptError(sentence) if sentence.startswith("the prompt") else ValueError(sentence)

    def read(self) -> bool:
        """Process the next part of the prompt, in one pass; False where all of it is processed."""
        return self._call(self.library.sf_sequence_read, None, None, allowed=END) == OK

    def next(self) -> Token | None:
        """The next token; None where the text has ended."""
        with self.handle as handle:
            if self._call(self.library.sf_sequence_next, self._token_address, allowed=END) == END:
                return None
            token = self._token
            log_prob = None if math.isnan(token.log_prob) else token.log_prob
            return Token(token.id, SOURCES[token.source], log_prob, self._top(handle) if self._wants_top else ())

    def _top(self, handle: c_void_p) -> tuple[TokenLogProb, ...]:
        found = POINTER(TopToken)()
        count = self.library.sf_sequence_top(handle, byref(found))
        return tuple(TokenLogProb(one.id, one.log_prob) for one in found[:count])

    def score(self, token_ids: Sequence[int] | npt.NDArray[np.int64], first: int, top_log_probs: int = 0) -> Score:
        """How probable the model finds each of token_ids[first:] after the tokens before it. Ends a running text;
        afterwards `tokens` are these, all but the last of them cached. `stop` makes it raise Stopped.

        Args:
            first: at least 1, because the first token follows nothing.
            top_log_probs: number of most probable tokens to report per position, 0 to 20.

        Raises:
            PromptError: `first` is out of range, or there are too many tokens, or other things than token ids.
            ValueError: `top_log_probs` is out of range.
            CoreError: as in `start`.
        """
        ids = np.array(token_ids_of(token_ids), np.int64)
        count, most = max(0, len(ids) - max(1, first)), max(0, min(top_log_probs, MOST_TOP_LOG_PROBS))
        log_probs, top = (c_float * count)(), (TopToken * (count * most))()
        with self.handle:
            code = self._call(
                self.library.sf_sequence_score, ids.ctypes.data, len(ids), first, top_log_probs, log_probs, top,
                allowed=BAD_ARGUMENT,
            )  # fmt: skip
            if code == BAD_ARGUMENT:
                sentence = self._sentence()
                raise ValueError(sentence) if sentence.startswith("the number") else PromptError(sentence)
        found = [TokenLogProb(one.id, one.log_prob) for one in top]
        rows = [tuple(found[at : at + most]) for at in range(0, len(found), most)] if most else []
        return Score(ids[first:].tolist(), list(log_probs), rows)

    def finish(self, reason: str | None = None) -> None:
        """End the text after what was delivered; `reason` as in the statistics, "stopped" by default."""
        self._call(self.library.sf_sequence_finish, reason.encode() if reason else None)

    def stop(self) -> None:
        """End the text at its next token. Any thread may call it."""
        self.handle.signal(self.library.sf_sequence_stop)

    def reset(self) -> None:
        """Forget all tokens."""
        self._call(self.library.sf_sequence_reset)

    def trim(self) -> None:
        """Drop the cache and return its memory to the system; the tokens stay, and the next text processes them."""
        self._call(self.library.sf_sequence_trim)

    def save(self, path: str, note: bytes = b"") -> None:
        """Tokens, cache and a note of the caller to a file, in one piece or not at all."""
        self._call(self.library.sf_sequence_save, path_argument(path), note, len(note))

    def restore(self, path: str, take: Callable[[bytes], object] | None = None) -> bytes:
        """Read them back; the note. CoreError for a file of another bundle, or a damaged one: nothing has changed.
        `take` gets the note before anything changes, and refuses the file by raising. If the engine cannot load the
        cache, CoreError or its own exception; then the sequence is empty."""
        notes: list[bytes] = []

        def given(_: object, note: int | None, size: int) -> int:
            notes.append(ctypes.string_at(note, size) if note else b"")
            try:
                if take is not None:
                    take(notes[0])
            except BaseException as error:
                self.failure.append(error)
                return BAD_FILE
            return OK

        self._call(self.library.sf_sequence_restore, path_argument(path), TAKE(given), None)
        return notes[0]

    @property
    def tokens(self) -> list[int]:
        """The context and all tokens delivered after it."""
        ids, n = c_void_p(), c_int64()
        with self.handle:
            self._call(self.library.sf_sequence_tokens, byref(ids), byref(n), None)
            found: list[int] = view(ids.value, np.int64, n.value).tolist()
        return found

    @property
    def token_count(self) -> int:
        """The length of `tokens`."""
        n = c_int64()
        self._call(self.library.sf_sequence_tokens, None, byref(n), None)
        return n.value

    @property
    def cached(self) -> int:
        """How many of them the cache holds."""
        cached = c_int64()
        self._call(self.library.sf_sequence_tokens, None, None, byref(cached))
        return cached.value

    @property
    def statistics(self) -> Statistics:
        """Of the last text."""
        with self.handle as handle:
            found = self.library.sf_sequence_statistics(handle)
            if found is None:
                raise CoreError(self._sentence())
        return Statistics(**json.loads(found))

    def set_costs(self, ms: Mapping[str, float | tuple[float, float]], frozen: bool = False) -> None:
        """Milliseconds per method, of a pass with the fewest real rows that no narrower one takes and with all.

        For tests and simulations.
        """
        names = ["decode", *self.methods, *(["streams"] if "streams" in ms else [])]
        pairs = np.array([np.broadcast_to(ms[name], 2) for name in names], np.float64).T.copy()
        self._call(self.library.sf_sequence_set_costs, *(row.ctypes.data for row in pairs), len(names), frozen)

    def close(self) -> None:
        """Give everything back, the engine too; where a call is inside, when it returns. Any thread may call it."""
        self.stop()
        self.handle.close()

    def __enter__(self) -> CoreSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _sentence(self) -> str:
        with self.handle as handle:
            return str(self.library.sf_sequence_error(handle).decode(errors="replace"))

    def _call(self, function: Callable[..., int], *arguments: Any, allowed: int = OK) -> int:
        """Returns SF_OK or `allowed`; otherwise raises the engine's or constraint's exception, or CoreError."""
        with self.handle as handle:
            code = function(handle, *arguments)
            if self.failure:
                error = self.failure[0]
                self.failure.clear()
                raise error
            if code not in (OK, allowed):
                sentence = self._sentence()
                for table in (self._table, *reversed(self.kept["constraints"])):
                    if (error := table.guard.raised_as(sentence)) is not None:
                        raise error
                raise _ERRORS.get(code, CoreError)(sentence)
        return code


_handle, _text, _number = c_void_p, c_char_p, c_int64
SIGNATURES: dict[str, tuple[Any, list[Any]]] = {  # of core/streamfuse_core.h and streamfuse_low.h; a test compares them
    "sf_core_model_open": (ctypes.c_int, [c_void_p, c_void_p, c_int32, POINTER(c_void_p)]),
    "sf_core_model_close": (None, [_handle]),
    "sf_core_model_error": (_text, [_handle]),
    "sf_core_model_remember": (ctypes.c_int, [_handle, _text, _number]),
    "sf_core_model_forget": (ctypes.c_int, [_handle]),
    "sf_core_model_add_prefix": (ctypes.c_int, [_handle, _text]),
    "sf_core_model_self_test": (ctypes.c_int, [_handle, c_void_p, c_void_p, c_int32, TAKE, c_void_p]),
    "sf_sequence_new": (ctypes.c_int, [_handle, c_void_p, c_void_p, POINTER(c_void_p)]),
    "sf_sequence_free": (None, [_handle]),
    "sf_sequence_error": (_text, [_handle]),
    "sf_sequence_prepare": (ctypes.c_int, [_handle]),
    "sf_sequence_start": (ctypes.c_int, [_handle, c_void_p, _number, c_void_p]),
    "sf_sequence_read": (ctypes.c_int, [_handle, c_void_p, c_void_p]),
    "sf_sequence_next": (ctypes.c_int, [_handle, c_void_p]),
    "sf_sequence_top": (c_int32, [_handle, POINTER(POINTER(TopToken))]),
    "sf_sequence_score": (ctypes.c_int, [_handle, c_void_p, _number, _number, c_int32, c_void_p, c_void_p]),
    "sf_sequence_finish": (ctypes.c_int, [_handle, _text]),
    "sf_sequence_stop": (None, [_handle]),
    "sf_sequence_reset": (ctypes.c_int, [_handle]),
    "sf_sequence_trim": (ctypes.c_int, [_handle]),
    "sf_sequence_tokens": (ctypes.c_int, [_handle, c_void_p, c_void_p, c_void_p]),
    "sf_sequence_statistics": (_text, [_handle]),
    "sf_sequence_save": (ctypes.c_int, [_handle, _text, _text, c_size_t]),
    "sf_sequence_restore": (ctypes.c_int, [_handle, _text, TAKE, c_void_p]),
    "sf_sequence_set_costs": (ctypes.c_int, [_handle, c_void_p, c_void_p, c_int32, c_int32]),
    "sf_grow_streams": (
        _number,
        [_handle, _number, c_void_p, c_void_p, _number, c_void_p, _number, _number, *[c_void_p] * 3],
    ),
    "sf_grow_lookup": (_number, [c_void_p, _number, _number, c_void_p, _number, _number, *[c_void_p] * 3]),
    "sf_grow_table": (_number, [_handle, c_void_p, _number, c_void_p, _number, _number, *[c_void_p] * 3]),
    "sf_choose": (_number, [c_void_p, _number, c_void_p, _number, _number, c_void_p, c_void_p]),
    "sf_noise": (c_double, [c_uint64, _number, _number, _number]),
    "sf_exp": (None, [c_void_p, c_void_p, _number]),
    "sf_log": (None, [c_void_p, c_void_p, _number]),
    "sf_cold_clock_now": (c_double, [c_void_p]),
}


@lru_cache(maxsize=1)
def load_core() -> ctypes.CDLL:
    """The core's library with the types of its two headers. CoreError where it is not built."""
    try:
        return load_typed(find_core(), SIGNATURES)
    except LibraryError as error:
        raise CoreError(str(error)) from error
