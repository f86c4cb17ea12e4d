"""A model and those who wait for it: one answer at a time, in the order of the requests."""

from __future__ import annotations

import asyncio
import math
import random
import secrets
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from streamfuse.api import AsyncGeneration, GenerationOptions, Model, Piece, TokenLogProb
from streamfuse.runtime.config import PromptError
from streamfuse.runtime.text import Message, TextError
from streamfuse.serve.errors import RequestError
from streamfuse.serve.fields import Request

_MOST_RETRY_SECONDS = 60


class Service:
    """Answers requests with one sequence of a model, so what a prompt shares with the last one is not read again. Each
    task adapter of its bundle is a model too, NAME:ADAPTER, with a sequence of its own.

    `queue` requests may wait, `max_new_tokens` is the limit of those that have none (None: what the context holds), and
    `speculative` is False for plain decoding. For one event loop, but for `stop`.
    """

    def __init__(
        self, model: Model, name: str, queue: int, max_new_tokens: int | None = None, speculative: bool = True
    ) -> None:
        self.models: dict[str, str | None] = {name: None}  # adapters by name, the base model first
        self.models |= {f"{name}:{adapter}": adapter for adapter in model.adapters}
        self.fingerprint = f"fp_{model.bundle.identity[:16]}"
        self.context_tokens = model.context_length
        self._model, self._most, self._max_new_tokens, self._speculative = model, queue + 1, max_new_tokens, speculative
        self._line: list[asyncio.Event] = []  # first come, first served; the event of the first is set
        self._seconds = 1.0  # of an answer, the latest counting most
        self._closed = False

    @asynccontextmanager
    async def turn(self, request: Request) -> AsyncIterator[list[Prepared]]:
        """Waits for the request's turn, and yields an answer for each of its prompts, to be begun in this order. The
        turn ends with the block.

        Raises:
            RequestError: the queue is full, the server is shutting down, or a prompt does not fit the context.
            OptionError, PromptError, TextError: of the API, before it waits.
        """
        self._check_open()
        if len(self._line) >= self._most:
            latest = min(2 * math.ceil(len(self._line) * self._seconds) + 1, _MOST_RETRY_SECONDS)
            seconds = random.randint(latest // 2, latest)  # so that clients refused together do not return together
            message = f"the queue is full ({self.waiting} wait); try again in {seconds} seconds"
            raise RequestError(429, message, code="queue_full", headers={"Retry-After": str(seconds)})
        turn = asyncio.Event()
        self._line.append(turn)
        self._line[0].set()
        try:
            answers = await asyncio.to_thread(self._prepared, request)
            await turn.wait()
            self._check_open()
            started = time.monotonic()
            yield answers
            self._seconds += 0.3 * (time.monotonic() - started - self._seconds)
        finally:
            self._line.remove(turn)
            if self._line:
                self._line[0].set()

    async def count(self, request: Request) -> int:
        """The number of tokens of a chat's prompt, after truncation. RequestError without a chat template; OptionError,
        PromptError and TextError as `turn`."""
        model, options = self._model_of(request), request.options

        def counted() -> int:
            messages = request.messages or []
            if request.drops_oldest:
                messages = self._truncated(model, messages, options)
            return len(model.encode(messages=messages, **options))

        return await asyncio.to_thread(counted)

    @property
    def sampling(self) -> dict[str, float]:
        """The default temperature and top_p."""
        defaults = self._model.manifest.sampling_defaults
        return {"temperature": defaults.temperature, "top_p": defaults.top_p}

    @property
    def waiting(self) -> int:
        """Requests that wait for their turn."""
        return max(len(self._line) - 1, 0)

    def close(self) -> None:
        """Refuse requests from now on, those who wait included: they are told at once."""
        self._closed = True
        for turn in self._line:
            turn.set()

    def stop(self) -> None:
        """End the answer that is written."""
        self._model.stop()

    def _check_open(self) -> None:
        if self._closed:
            raise RequestError(
                503, "the server is shutting down; try again later", code="shutting_down", headers={"Retry-After": "5"}
            )

    def _prepared(self, request: Request) -> list[Prepared]:
        """Everything checked, nothing begun. Any thread may call it, also while an answer is written."""
        model, prompts = self._model_of(request), request.prompts
        if request.is_chat:
            return [self._answer(model, request, None, request.prompt_field)]
        if len(prompts) == 1:
            return [self._answer(model, request, prompts[0], request.prompt_field)]
        answers = []
        for place, prompt in enumerate(prompts):
            param = f"prompt[{place}]"
            try:
                answers.append(self._answer(model, request, prompt, param))
            except (PromptError, TextError) as error:
                raise RequestError(400, f"{param}: {error}", param, "invalid_prompt") from None
        return answers

    def _model_of(self, request: Request) -> Model:
        """The model that answers it. RequestError if it cannot."""
        adapter = self.models[request.model]
        model = self._model if adapter is None else self._model.adapter(adapter)
        if request.is_chat and not model.tokenizer.can_chat:
            message = "this bundle has no chat template; use /v1/completions"
            raise RequestError(400, message, code="no_chat_template")
        return model

    def _truncated(self, model: Model, messages: list[Message], options: GenerationOptions) -> list[Message]:
        """Drops the fewest of the oldest turns so that the prompt and its token limit fit; without a limit, a quarter
        of the context is left for the answer. Messages before the first user message are kept. If it still does not
        fit, only the last turn is left."""
        asked, quarter = options.get("max_new_tokens"), self.context_tokens // 4
        least = asked if type(asked) is int else min(self._max_new_tokens or quarter, quarter)
        room = self.context_tokens - least
        turns = [place for place, message in enumerate(messages) if message["role"] == "user"] or [0]

        def without(count: int) -> list[Message]:
            return messages if count == 0 else [*messages[: turns[0]], *messages[turns[count] :]]

        def fits(count: int) -> bool:
            return len(model.encode(messages=without(count), **options)) <= room

        return without(bisect_left(range(len(turns) - 1), True, key=fits))

    def _answer(self, model: Model, request: Request, prompt: str | list[int] | None, param: str) -> Prepared:
        """The answer to a prompt, or to the messages; `param` is its field."""
        options, raw, messages = GenerationOptions(**request.options), not request.is_chat, request.messages
        options.setdefault("seed", secrets.randbits(63))
        options.setdefault("speculative", self._speculative)
        if request.drops_oldest and messages:
            messages = self._truncated(model, messages, options)
        ids = prompt if isinstance(prompt, list) else model.encode(prompt, messages=messages, raw=raw, **options)
        room, asked = self.context_tokens - len(ids), options.get("max_new_tokens")
        which, code = param if len(request.prompts) > 1 else "the prompt", "context_length_exceeded"
        # Some clients look for these words of OpenAI's, others for Anthropic's "prompt is too long".
        most = f"this model's maximum context length is {self.context_tokens} tokens"
        if room < (0 if request.only_echo else 1):
            why = "" if request.only_echo else " and needs room for an answer"
            message = f"{which} is too long: {most}, but it has {len(ids)}{why}; shorten it"
            raise RequestError(400, message, param, code)
        if isinstance(asked, int) and asked > room and not request.only_echo:
            message = (
                f"{most}, but {which} has {len(ids)} and {request.limit_field} is {asked}; ask for at most {room}, or "
                f"leave {request.limit_field} out"
            )
            raise RequestError(400, message, request.limit_field, code)
        if asked is None:
            options["max_new_tokens"] = min(room, self._max_new_tokens or room)
        generation = model.astream(prompt, messages=messages, raw=raw, **options)
        echo = partial(_echoed, model, ids, options) if request.echo else list[Piece]
        return Prepared(generation, echo, model.stop_score)


@dataclass(frozen=True)
class Prepared:
    """An answer that has not begun, what makes the pieces of its prompt (none, unless the answer repeats it), and what
    stops that."""

    generation: AsyncGeneration
    echo: Callable[[], list[Piece]]
    stop_echo: Callable[[], None]

    @asynccontextmanager
    async def begun(self) -> AsyncIterator[tuple[list[Piece], AsyncGeneration]]:
        """The pieces of the prompt and the generation, which ends with the block."""
        async with self.generation:
            yield await _finished(self.echo, self.stop_echo), self.generation


async def _finished(work: Callable[[], list[Piece]], stop: Callable[[], None]) -> list[Piece]:
    """Run it in a thread. If the client leaves, stop it and wait: the sequence is the next request's."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():  # a stop before the first pass has no effect
            stop()
            await asyncio.wait([task], timeout=0.05)
        if not task.cancelled():
            task.exception()  # asyncio logs one that nobody has asked for
        raise


def _echoed(model: Model, ids: list[int], options: GenerationOptions) -> list[Piece]:
    """The tokens of a prompt as pieces, with log-probabilities if they are asked for: NaN for the first, which follows
    nothing."""
    top: list[tuple[TokenLogProb, ...]] = [()] * len(ids)
    log_probs: list[float | None] = [None] * len(ids)
    if options.get("log_probs"):
        log_probs[0] = math.nan
        if len(ids) > 1:
            found = model.score(ids[:1], ids[1:], top_log_probs=options.get("top_log_probs") or 0)
            log_probs[1:] = found.log_probs
            top[1:] = found.top_log_probs or top[1:]
    text = model.tokenizer.stream()
    texts = ["".join(part for _, part in text.push(token)) for token in ids]
    return [
        Piece(*one[:2], log_prob=one[2], top_log_probs=one[3]) for one in zip(texts, ids, log_probs, top, strict=True)
    ]
