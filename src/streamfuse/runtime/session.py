"""A conversation with one model: each generation continues from what the cache holds. The loop is the core's."""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from streamfuse.options import OptionError
from streamfuse.runtime.backend import Backend
from streamfuse.runtime.clock import Clock
from streamfuse.runtime.config import GenerationConfig, Schema
from streamfuse.runtime.constraint import Constraint
from streamfuse.runtime.core import CoreError, CoreModel, CoreSession, Score, Stopped, TokenLogProb
from streamfuse.runtime.statistics import Statistics
from streamfuse.runtime.stops import StopCount
from streamfuse.runtime.text import Conversation, TextError, TextStream, Tokenizer

if TYPE_CHECKING:
    from streamfuse.runtime.reference.watch import Pass


@dataclass(frozen=True, slots=True)
class Piece:
    """A step of a generation: a token, the text that it completes (often none, sometimes more than its own), and who
    drafted it: "streams", "lookup", "table", "memory" for look-up in earlier answers, "grammar" for what a constraint
    forces, or "model" where nobody did.

    A piece may carry no token: text that was held back as the possible beginning of a stop string or a tag, or a second
    part of a token's text. `channel` is "answer", or "thinking" or "tool_call" for what stands between the tags of the
    model's family, whose text is in no piece; a token that only completes a tag of thoughts is "thinking". With the
    option `log_probs`, `log_prob` is the natural logarithm of the model's probability of the token: softmax over the
    whole vocabulary, before temperature, filters, penalty and constraint. With `top_log_probs=n`, `top_log_probs` has
    the n most probable tokens at its position, best first, ties by the smaller id; a token that was sampled or
    constrained may be none of them.
    """

    text: str
    token: int | None
    source: str = "model"
    channel: str = "answer"
    log_prob: float | None = None
    top_log_probs: tuple[TokenLogProb, ...] = ()

    @property
    def drafted(self) -> bool:
        return self.source != "model"


class ParsedError(ValueError):
    """An answer that is no object; the message is one sentence with the reason and the next step."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that a model asks for: the name of a tool, and an object of arguments. `id` is its own within a chat."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Result:
    """An answer, as far as it was delivered. `text` is its channel "answer", `thinking` that of this name. With the
    option `log_probs`, `log_probs` has the log-probability of each of `tokens` (Piece); otherwise it is empty. The
    option `top_log_probs` implies it, and `top_log_probs` has the most probable tokens at the position of each."""

    text: str
    tokens: list[int]
    statistics: Statistics = field(repr=False)
    schema: Schema | None = field(default=None, repr=False)
    thinking: str = field(default="", repr=False)
    tool_calls: list[ToolCall] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list, repr=False)
    top_log_probs: list[tuple[TokenLogProb, ...]] = field(default_factory=list, repr=False)

    @property
    def finish_reason(self) -> str:
        """Why the answer ended: "stop", "length", "context" or "stopped"; "incomplete" where a limit came before its
        schema, regex or grammar allowed an end."""
        return self.statistics.finish_reason

    @cached_property
    def parsed(self) -> Any:
        """The object that the text spells: dictionaries and lists for a schema in JSON, an instance for a class.

        Raises:
            ParsedError: there is no schema, the answer is a tool call, or the text ended inside the object.
            pydantic.ValidationError: a check of the class that its JSON schema does not express refuses the object.
        """
        if self.schema is None:
            raise ParsedError("there is no parsed object: give a schema to the call that generates the answer")
        if self.tool_calls:
            raise ParsedError("the answer is a tool call, not an object; tool_calls has it")
        if self.finish_reason not in ("incomplete", "stopped") and _is_json(self.text):
            return self.schema.read(self.text)
        why, step = _NOT_PARSED.get(self.finish_reason, _NOT_PARSED["incomplete"])
        tokens = self.statistics.generated_tokens
        raise ParsedError(f"the answer is no whole object, because {why} after {tokens} tokens; {step}")


_NOT_PARSED = {  # by finish reason: why there is no object, and what to do
    "incomplete": ("a limit was reached", "raise max_new_tokens, or shorten the prompt if the context is full"),
    "stopped": ("it was stopped", "read the stream to its end"),
    "stop": ("a stop string or token ended it", "leave stop and stop_token_ids out: a schema ends the text by itself"),
}


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


class Generation(Iterator[Piece]):
    """One running generation. Iterate for pieces; `stop()` from any thread; leaving early is safe at any token."""

    def __init__(self, core: CoreSession, text: TextStream | None, schema: Schema | None = None) -> None:
        self._core, self._stream, self._schema = core, text, schema
        self._statistics: Statistics | None = None  # once the core has ended it
        self._has_ended = False  # the text too
        self._ready: deque[Piece] = deque()
        self._texts = defaultdict[str, str](str)  # by channel
        self._tool_calls: list[ToolCall] = []
        self.token_ids: list[int] = []  # delivered so far, prompt excluded
        self._log_probs: list[float] = []  # of `token_ids`, if they are asked for
        self._top_log_probs: list[tuple[TokenLogProb, ...]] = []  # the same

    @property
    def text(self) -> str:
        """The answer so far, without thinking and tool calls."""
        return self._texts["answer"]

    @property
    def statistics(self) -> Statistics:
        """Complete once the generation has ended."""
        return self._core.statistics if self._statistics is None else self._statistics

    @property
    def result(self) -> Result:
        """What was delivered so far. Tool calls are known at the end."""
        thinking, calls = self._texts["thinking"], list(self._tool_calls)
        return Result(
            self.text, list(self.token_ids), self.statistics, self._schema, thinking, calls, list(self._log_probs),
            list(self._top_log_probs),
        )  # fmt: skip

    def stop(self) -> None:
        """End at the next token. Any thread may call it."""
        if self._statistics is None:
            self._core.stop()

    def finish(self) -> str:
        """Run to the end; all the text of the answer."""
        for _ in self:
            pass
        return self.text

    def close(self) -> None:
        """End now. The cache keeps what was delivered. Nothing happens where the generation has ended."""
        self._end()
        self._ready.clear()  # it belongs to tokens that count, but was never shown

    def __next__(self) -> Piece:
        if not self._ready and self._statistics is None:
            self._step()
        if not self._ready:
            raise StopIteration
        piece = self._ready.popleft()
        self._texts[piece.channel] += piece.text
        return piece

    def __enter__(self) -> Generation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _step(self) -> None:
        """Make the pieces of the next token ready, or those of the end."""
        core, stream = self._core, self._stream
        try:
            token = core.next()
            if token is None:
                self._end()
                return
            self.token_ids.append(token.id)
            if token.log_prob is not None:
                self._log_probs.append(token.log_prob)
            top = token.top
            if top:
                top = top if stream is None else tuple(one._replace(text=stream.token_text(one.token)) for one in top)
                self._top_log_probs.append(top)
            parts = [] if stream is None else stream.push(token.id)
            channel, text = parts[0] if parts else ("answer", "")
            self._ready.append(Piece(text, token.id, token.source, channel, token.log_prob, top))
            self._ready.extend(Piece(text, None, channel=channel) for channel, text in parts[1:])
            if stream is not None and stream.stopped:
                core.finish("stop")
        except BaseException as error:
            was_closed = isinstance(error, TextError) and self._statistics is not None  # by another thread
            with suppress(CoreError):
                self.close()
            if was_closed:
                raise CoreError("this session is closed") from None
            raise

    def _end(self) -> None:
        if self._has_ended:
            return
        if self._statistics is None:
            self._core.finish()
            self._statistics = self._core.statistics
        if self._stream is not None:  # also after Ctrl-C came between the two; ending a text twice changes nothing
            rest = self._stream.end(self._statistics.finish_reason == "stopped")
            self._ready.extend(Piece(text, None, channel=channel) for channel, text in rest)
            self._tool_calls = [ToolCall(**call) for call in self._stream.tool_calls]
        self._has_ended = True


class Session:
    """One engine, one sequence of tokens. Not thread-safe, except `stop`.

    `tables` are the arrays of the bundle's draft.safetensors, `tokenizer` turns token ids into text (None: the session
    speaks ids alone). A generation without a width is planned by cost: `costs` (frozen), or what the core measures
    before the first of them and keeps in `cost_folder`, for the bundle `identity` on `device`. What a plan learns stays
    for the next generations. The engine is closed with the session. `model` replaces `tables` and `identity` where
    several sessions share one. `stops` counts `stop`, and with an outer count that of the sessions together.
    """

    def __init__(
        self,
        backend: Backend,
        tables: Mapping[str, npt.NDArray[Any]] | None = None,
        tokenizer: Tokenizer | None = None,
        *,
        identity: str = "",
        model: CoreModel | None = None,
        costs: Mapping[str, float | tuple[float, float]] | None = None,
        cost_folder: str | os.PathLike[str] | None = None,
        device: str = "",
        model_load_ms: float = 0.0,
        clock: Clock | None = None,
        stops: StopCount | None = None,
    ) -> None:
        self.backend = backend
        self.core = CoreSession(
            CoreModel(backend.spec, tables, identity) if model is None else model, backend, clock=clock,
            cost_folder=None if cost_folder is None else os.fspath(cost_folder), device=device,
            model_load_ms=model_load_ms,
        )  # fmt: skip
        if costs is not None:
            self.core.set_costs(costs, frozen=True)
        self._tokenizer = tokenizer
        self._stops = stops or StopCount()
        self._generation: Generation | None = None
        self._observed = False

    @property
    def tokens(self) -> list[int]:
        """The last prompt and all that was delivered after it."""
        return self.core.tokens

    def prepare(self) -> None:
        """End a running text, and measure the latency of passes now instead of in the first generation."""
        self.end_generation()
        self.core.prepare()

    def generate(
        self,
        prompt_ids: Sequence[int],
        config: GenerationConfig | None = None,
        observe: Callable[[Pass], None] | None = None,
        *,
        raw: bool = False,
        constraint: Constraint | None = None,
        text: TextStream | None = None,
        dropped: tuple[int, int] = (0, 0),
        stopped: Callable[[], bool] | None = None,
    ) -> Generation:
        """Start a generation after the whole context `prompt_ids` (all turns so far, not only the new one).

        What the prompt shares with the cache from the start on is not read again. A generation that still runs is
        closed. `observe` sees every pass. A `raw` prompt is continued, with a space before the first word where one
        belongs there; otherwise the text is one of its own. The generation takes `constraint` over, which restricts the
        text instead of the configuration's schema, regex or grammar. The answer is written to `text` instead of a new
        stream. `dropped` is for the statistics, as in `Conversation`. `stopped` is from `watch_stops` if the
        generation was requested before this call. PromptError or ValueError leave the session as it was.
        """
        stopped = stopped or self.watch_stops()
        config = config or GenerationConfig()
        if config.stop_strings and self._tokenizer is None:
            raise ValueError("stop strings need a tokenizer, and this session has none")
        constraint = constraint or constraint_of(config, self._tokenizer)
        self.end_generation()
        if observe is not None or self._observed:
            from streamfuse.runtime.reference.watch import observe as watch

            watch(self.core, observe)
            self._observed = observe is not None
        self.core.start(prompt_ids, config, constraint, dropped)
        if text is None and self._tokenizer is not None:
            text = self._tokenizer.stream(config.stop_strings, prompt_ids if raw else ())
        self._generation = Generation(self.core, text, config.schema)
        if stopped():
            self._generation.stop()
        return self._generation

    def score(
        self,
        token_ids: Sequence[int],
        first: int,
        top_log_probs: int = 0,
        stopped: Callable[[], bool] | None = None,
    ) -> Score:
        """How probable the model finds each of token_ids[first:] after the tokens before it. A generation that still
        runs is closed; what the tokens share with the cache from the start on, up to `first`, is not processed again.

        Args:
            first: from 1 to the last index of `token_ids`.
            top_log_probs: number of most probable tokens to report per position, 0 to 20.
            stopped: as in `generate`.

        Raises:
            PromptError: the tokens or `first` are out of range; the cache is unchanged.
            ValueError: `top_log_probs` is.
            Stopped: `stop` was called.
        """
        stopped = stopped or self.watch_stops()
        self.end_generation()
        if stopped():
            raise Stopped("the scoring was stopped before it began")
        found = self.core.score(token_ids, first, top_log_probs)
        if stopped():  # perhaps just before the call, which does not know of it
            raise Stopped("the scoring was stopped")
        if self._tokenizer is None:
            return found
        text = self._tokenizer.stream().token_text
        named = [tuple(one._replace(text=text(one.token)) for one in top) for top in found.top_log_probs]
        return replace(found, top_log_probs=named)

    def end_generation(self) -> None:
        """End the generation that runs, if any. The cache keeps what was delivered."""
        if self._generation is not None:
            self._generation.close()  # if it raises, there is still one to be closed
            self._generation = None

    def watch_stops(self) -> Callable[[], bool]:
        """Call this when a generation is requested that starts later. The returned function is the `stopped` of
        `generate`: it tells whether `stop` was called since."""
        return self._stops.watch()

    def stop(self) -> None:
        """End the running generation at its next token, and one that was requested before but has not started as soon
        as it starts. Any thread may call it."""
        self._stops.add()
        self.core.stop()

    def save(self, path: str | os.PathLike[str], note: bytes = b"") -> None:
        """Tokens, cache and a note to a file, in one piece or not at all. What runs is ended. CoreError names it.
        ValueError for a path with a zero byte, here as in `restore`."""
        self.end_generation()
        self.core.save(os.fspath(path), note)

    def restore(self, path: str | os.PathLike[str], take: Callable[[bytes], object] | None = None) -> bytes:
        """Read back what `save` wrote; its note. CoreError for a damaged file, or another bundle's: nothing changed.
        `take` gets the note before anything changes, and refuses the file by raising. If an engine cannot load the
        cache, CoreError or its own exception; then the sequence is empty."""
        self.end_generation()
        return self.core.restore(os.fspath(path), take)

    def trim(self) -> None:
        """Drop the cache and return its memory to the system; the tokens stay, and the next prompt that begins with
        them processes them again."""
        self.end_generation()
        self.core.trim()

    def reset(self) -> None:
        """Forget everything: the next prompt is read from its first token."""
        self.end_generation()
        self.core.reset()

    def close(self) -> None:
        """End what runs and give the engine's memory back. Any thread may call it: a pass that another one waits for is
        the last, and that thread's next call says that the session is closed."""
        self.core.stop()
        self.core.handle.closing()
        try:
            with suppress(CoreError):  # in another thread, or closed already
                self.end_generation()
        finally:  # also where the engine fails at what was not committed yet
            self.core.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def constraint_of(config: GenerationConfig, text: Tokenizer | Conversation | None) -> Constraint | None:
    """What the configuration's schema, regex or grammar allows, for one text; None without one. In a conversation the
    text may be a tool call instead. OptionError names the option that the library refuses."""
    if not config.restricted:
        return None
    if text is None:
        raise ValueError(f"{config.restricted} needs a tokenizer, and this session has none")
    schema = None if config.schema is None else config.schema.text
    make = text.answer_constraint if isinstance(text, Conversation) else text.constraint
    try:
        return make(schema=schema, regex=config.regex, grammar=config.grammar)
    except TextError as error:
        if str(error).startswith("the parameters of the function"):
            raise OptionError(f"--tools: {error}") from None
        why = re.sub(r"^the (schema|regular expression|grammar): ", "", str(error))
        raise OptionError(f"--{config.restricted}: {why}") from None
