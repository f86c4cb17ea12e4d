"""A conversation with one model: each generation continues from what the cache holds. The loop is the core's."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from streamfuse.options import OptionError
from streamfuse.runtime.backend import Backend
from streamfuse.runtime.config import GenerationConfig, Schema
from streamfuse.runtime.constraint import Constraint
from streamfuse.runtime.core import Clock, CoreError, CoreModel, CoreSession
from streamfuse.runtime.statistics import Statistics
from streamfuse.runtime.text import TextError, TextStream, Tokenizer

if TYPE_CHECKING:
    from streamfuse.runtime.reference.watch import Pass


@dataclass(frozen=True, slots=True)
class Piece:
    """A step of a generation: a token, the text that it completes (often none, sometimes more than its own), and who
    drafted it: "streams", "lookup", "table", or "model" where nobody did.

    The last piece may carry no token: it is text that was held back as the possible beginning of a stop string.
    """

    text: str
    token: int | None
    source: str = "model"

    @property
    def drafted(self) -> bool:
        return self.source != "model"


class ParsedError(ValueError):
    """An answer that is no object; the message is one sentence with the reason and the next step."""


@dataclass(frozen=True)
class Result:
    """An answer, as far as it was delivered."""

    text: str
    tokens: list[int]
    statistics: Statistics = field(repr=False)
    schema: Schema | None = field(default=None, repr=False)

    @property
    def finish_reason(self) -> str:
        """Why the answer ended: "stop", "length", "context" or "stopped"; "incomplete" where a limit came before its
        schema, regex or grammar allowed an end."""
        return self.statistics.finish_reason

    @cached_property
    def parsed(self) -> Any:
        """The object that the text spells: dictionaries and lists for a schema in JSON, an instance for a class.

        Raises:
            ParsedError: there is no schema, or the text ended inside the object.
            pydantic.ValidationError: a check of the class that its JSON schema does not express refuses the object.
        """
        if self.schema is None:
            raise ParsedError("there is no parsed object: give a schema to the call that generates the answer")
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
    """One running generation. Iterate for pieces; `stop()` from any thread; leaving early is safe at any token.

    `on_end` is called once, when all pieces were delivered, or it was closed or failed.
    """

    def __init__(
        self,
        core: CoreSession,
        text: TextStream | None,
        on_end: Callable[[Generation], None] | None = None,
        schema: Schema | None = None,
    ) -> None:
        self._core, self._stream, self._on_end, self._schema = core, text, on_end, schema
        self._statistics: Statistics | None = None  # once it has ended
        self.token_ids: list[int] = []  # delivered so far, prompt excluded
        self.text = ""  # likewise

    @property
    def statistics(self) -> Statistics:
        """Complete once the generation has ended."""
        return self._core.statistics if self._statistics is None else self._statistics

    @property
    def result(self) -> Result:
        """What was delivered so far."""
        return Result(self.text, list(self.token_ids), self.statistics, self._schema)

    def stop(self) -> None:
        """End at the next token. Any thread may call it."""
        if self._statistics is None:
            self._core.stop()

    def finish(self) -> str:
        """Run to the end; all the text."""
        for _ in self:
            pass
        return self.text

    def close(self) -> None:
        """End now. The cache keeps what was delivered. Nothing happens where the generation has ended."""
        self._end()
        if self._stream is not None:
            self._stream.flush()  # what it holds back belongs to tokens that count, but was never shown
        self._tell_end()

    def __next__(self) -> Piece:
        token = self._next_token() if self._statistics is None else None
        if token is not None:
            return token
        held = "" if self._stream is None else self._stream.flush()
        if not held:
            self._tell_end()
            raise StopIteration
        self.text += held
        return Piece(held, None)

    def __enter__(self) -> Generation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _next_token(self) -> Piece | None:
        """The next token with the text that it completes; None where the generation has ended."""
        core, stream = self._core, self._stream
        try:
            token = core.next()
            if token is None:
                self._end()
                return None
            self.token_ids.append(token.id)
            shown = "" if stream is None else stream.push(token.id)
            self.text += shown
            if stream is not None and stream.stopped:
                core.finish("stop")
        except BaseException:
            with suppress(CoreError):  # closed by another thread
                self.close()
            raise
        return Piece(shown, token.id, token.source)

    def _tell_end(self) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(self)

    def _end(self) -> None:
        if self._statistics is None:
            self._core.finish()
            self._statistics = self._core.statistics


class Session:
    """One engine, one sequence of tokens. Not thread-safe, except `stop`.

    `tables` are the arrays of the bundle's draft.safetensors, `tokenizer` turns token ids into text (None: the session
    speaks ids alone). A generation without a width is planned by cost: `costs` (frozen), or what the core measures
    before the first of them and keeps in `cost_file`, for the bundle `identity` on `device`. What a plan learns stays
    for the next generations. The engine is closed with the session.
    """

    def __init__(
        self,
        backend: Backend,
        tables: Mapping[str, npt.NDArray[Any]] | None = None,
        tokenizer: Tokenizer | None = None,
        *,
        identity: str = "",
        costs: Mapping[str, float | tuple[float, float]] | None = None,
        cost_file: str | os.PathLike[str] | None = None,
        device: str = "",
        model_load_ms: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        self.backend = backend
        self.core = CoreSession(
            CoreModel(backend.spec, tables, identity), backend, clock=clock,
            cost_file=None if cost_file is None else os.fspath(cost_file), device=device, model_load_ms=model_load_ms,
        )  # fmt: skip
        if costs is not None:
            self.core.set_costs(costs, frozen=True)
        self._tokenizer = tokenizer
        self._generation: Generation | None = None
        self._observed = False

    @property
    def tokens(self) -> list[int]:
        """The last prompt and all that was delivered after it."""
        return self.core.tokens

    def prepare(self) -> None:
        """Measure now what passes cost, so that the first generation need not."""
        self._close_generation()
        self.core.prepare()

    def generate(
        self,
        prompt_ids: Sequence[int],
        config: GenerationConfig | None = None,
        observe: Callable[[Pass], None] | None = None,
        *,
        raw: bool = False,
        on_end: Callable[[Generation], None] | None = None,
        constraint: Constraint | None = None,
    ) -> Generation:
        """Start a generation after the whole context `prompt_ids` (all turns so far, not only the new one).

        What the prompt shares with the cache from the start on is not read again. A generation that still runs is
        closed. `observe` sees every pass. A `raw` prompt is continued, with a space before the first word where one
        belongs there; otherwise the text is one of its own. The generation takes `constraint` over, which restricts the
        text instead of the configuration's schema, regex or grammar. PromptError or ValueError leave the session as it
        was.
        """
        config = config or GenerationConfig()
        if config.stop_strings and self._tokenizer is None:
            raise ValueError("stop strings need a tokenizer, and this session has none")
        constraint = constraint or constraint_of(config, self._tokenizer)
        self._close_generation()
        if observe is not None or self._observed:
            from streamfuse.runtime.reference.watch import observe as watch

            watch(self.core, observe)
            self._observed = observe is not None
        self.core.start(prompt_ids, config, constraint)
        tokenizer, before = self._tokenizer, prompt_ids if raw else ()
        text = None if tokenizer is None else tokenizer.stream(config.stop_strings, before)
        self._generation = Generation(self.core, text, on_end, config.schema)
        return self._generation

    def stop(self) -> None:
        """End the running generation at its next token. Any thread may call it."""
        self.core.stop()

    def save(self, path: str | os.PathLike[str], note: bytes = b"") -> None:
        """Tokens, cache and a note to a file, in one piece or not at all. What runs is ended. CoreError names it.
        ValueError for a path with a zero byte, here as in `restore`."""
        self._close_generation()
        self.core.save(os.fspath(path), note)

    def restore(self, path: str | os.PathLike[str], take: Callable[[bytes], object] | None = None) -> bytes:
        """Read back what `save` wrote; its note. CoreError for a damaged file, or another bundle's: nothing changed.
        `take` gets the note before anything changes, and refuses the file by raising."""
        self._close_generation()
        return self.core.restore(os.fspath(path), take)

    def reset(self) -> None:
        """Forget everything: the next prompt is read from its first token."""
        self._close_generation()
        self.core.reset()

    def close(self) -> None:
        """End what runs and give the engine's memory back. Any thread may call it: a pass that another one waits for is
        the last, and that thread's next call says that the session is closed."""
        self.core.stop()
        self.core.handle.closing()
        with suppress(CoreError):  # in another thread, or closed already
            self._close_generation()
        self.core.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _close_generation(self) -> None:
        generation, self._generation = self._generation, None
        if generation is not None:
            generation.close()


def constraint_of(config: GenerationConfig, tokenizer: Tokenizer | None) -> Constraint | None:
    """What the configuration's schema, regex or grammar allows, for one text; None without one. OptionError names the
    option that the tokenizer's library refuses."""
    if not config.restricted:
        return None
    if tokenizer is None:
        raise ValueError(f"{config.restricted} needs a tokenizer, and this session has none")
    schema = None if config.schema is None else config.schema.text
    try:
        return tokenizer.constraint(schema=schema, regex=config.regex, grammar=config.grammar)
    except TextError as error:
        why = re.sub(r"^the (schema|regular expression|grammar): ", "", str(error))
        raise OptionError(f"--{config.restricted}: {why}") from None
