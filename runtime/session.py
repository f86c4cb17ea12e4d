"""A conversation with one model: each generation continues from what the cache already holds."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType

from streamfuse.runtime.accept import Acceptor, MatchAcceptor
from streamfuse.runtime.adaptive import AdaptivePlan
from streamfuse.runtime.backend import Backend
from streamfuse.runtime.config import GenerationConfig, check_prompt
from streamfuse.runtime.costs import CostTable, measure
from streamfuse.runtime.draft import Drafter, DraftTables, StreamDrafter
from streamfuse.runtime.loop import Emitted, Loop, Round
from streamfuse.runtime.sampling import Draw
from streamfuse.runtime.stats import Clock, Statistics, Stopwatch
from streamfuse.runtime.text import Detokenizer, TextStream


@dataclass(frozen=True, slots=True)
class Piece:
    """A step of a generation: a token and the text that it completes (often none, sometimes more than its own).

    The last piece may carry no token: it is text that was held back as the possible beginning of a stop string.
    """

    text: str
    token: int | None
    drafted: bool = False


class Generation(Iterator[Piece]):
    """One running generation. Iterate for pieces; `stop()` from any thread; leaving early is safe at any token."""

    def __init__(self, loop: Loop, text: TextStream | None) -> None:
        self._loop = loop
        self._stream = text
        self._pieces = self._run()
        self._prompt_length = len(loop.tokens)
        self._last_text = ""
        self.text = ""  # delivered so far
        loop.watch = self._watch

    @property
    def token_ids(self) -> list[int]:
        """The tokens delivered so far, prompt excluded."""
        return self._loop.tokens[self._prompt_length :]

    @property
    def statistics(self) -> Statistics:
        """Complete once the generation has ended."""
        return self._loop.statistics

    def stop(self) -> None:
        """End at the next token. Any thread may call it, also before the first token is asked for."""
        self._loop.stop.set()

    def finish(self) -> str:
        """Run to the end; all the text."""
        for _ in self:
            pass
        return self.text

    def close(self) -> None:
        """End now. The cache keeps what was delivered. Nothing happens where the generation has ended."""
        self._pieces.close()

    def __next__(self) -> Piece:
        return next(self._pieces)

    def __enter__(self) -> Generation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _watch(self, token: int) -> bool:
        if self._stream is None:
            return False
        self._last_text = self._stream.push(token)
        return self._stream.stopped

    def _run(self) -> Generator[Piece, None, None]:
        emitted = self._loop.run()
        try:
            for one in emitted:
                yield self._piece(one)
        finally:
            emitted.close()
        rest = self._stream.flush() if self._stream else ""
        if rest:
            self.text += rest
            yield Piece(rest, None)

    def _piece(self, one: Emitted) -> Piece:
        self.text += self._last_text
        return Piece(self._last_text, one.token, one.drafted)


class Session:
    """One backend, one sequence of tokens. Not thread-safe, except `stop`.

    A generation without a width is planned by cost: `costs`, or else what the first such generation measures before it
    begins. What the plan learns stays for the next generations. A drafter of the caller's own runs at one width always.
    `draw` is a faster way to sampled tokens (runtime/native_sample.py). ValueError for another model's tables.
    """

    def __init__(
        self,
        backend: Backend,
        tables: DraftTables | None = None,
        decode: Detokenizer | None = None,
        *,
        drafter: Drafter | None = None,
        acceptor: Acceptor | None = None,
        draw: Draw | None = None,
        costs: CostTable | None = None,
        model_load_ms: float = 0.0,
        clock: Clock = time.perf_counter,
    ) -> None:
        if tables is not None:
            tables.check(backend.spec.num_streams, backend.spec.vocab_size)
        self.backend = backend
        self._decode = decode
        self._drafter = drafter if drafter is not None else StreamDrafter(tables)
        self._costs = costs
        self._plan: AdaptivePlan | None = None
        self._acceptor = acceptor if acceptor is not None else MatchAcceptor()
        self._draw = draw
        self._model_load_ms = model_load_ms
        self._clock = clock
        self._tokens: list[int] = []
        self._generation: Generation | None = None

    @property
    def tokens(self) -> list[int]:
        """The last prompt and all that was delivered after it; the cache holds its first `backend.length` tokens."""
        return list(self._tokens)

    def generate(
        self,
        prompt_ids: Sequence[int],
        config: GenerationConfig | None = None,
        observe: Callable[[Round], None] | None = None,
    ) -> Generation:
        """Start a generation after the whole context `prompt_ids` (all turns so far, not only the new one).

        What the prompt shares with the cache from the start on is not read again. A generation that still runs is
        closed. `observe` sees every pass. PromptError or ValueError leave the session as it was.
        """
        config = config or GenerationConfig()
        check_prompt(prompt_ids, self.backend.spec)
        config.width_for(self.backend.spec)
        if config.stop_strings and self._decode is None:
            raise ValueError("stop strings need a detokenizer, and this session has none")
        self._close_generation()
        plan = self._plan_for(config)
        tokens = [int(token) for token in prompt_ids]
        self.backend.truncate(_shared(self._tokens[: self.backend.length], tokens[:-1]))
        self._tokens = tokens
        statistics = Statistics(Stopwatch(self._clock), self._model_load_ms)
        if plan is not None:
            statistics.cost_ms = plan.costs.of_full_passes()
        loop = Loop(
            self.backend,
            tokens,
            config,
            self._drafter,
            self._acceptor,
            statistics=statistics,
            plan=plan,
            draw=self._draw,
        )
        loop.observe = observe
        text = TextStream(self._decode, config.stop_strings) if self._decode else None
        self._generation = Generation(loop, text)
        return self._generation

    def stop(self) -> None:
        """End the running generation at its next token. Any thread may call it."""
        generation = self._generation
        if generation is not None:
            generation.stop()

    def reset(self) -> None:
        """Forget everything: the next prompt is read from its first token."""
        self._close_generation()
        self.backend.truncate(0)
        self._tokens = []

    def close(self) -> None:
        """End what runs and give the engine's memory back."""
        self._close_generation()
        self.backend.close()

    def _plan_for(self, config: GenerationConfig) -> AdaptivePlan | None:
        """None where the configuration fixes the width, or where there is nothing to choose."""
        spec = self.backend.spec
        if config.width is not None or config.fallback_reason(spec) is not None:
            return None
        if self._plan is None and isinstance(self._drafter, StreamDrafter):
            if self._costs is None:
                self.backend.truncate(0)
                self._costs = measure(self.backend, self._clock)
            self._plan = AdaptivePlan(spec, self._costs, self._drafter)
        return self._plan

    def _close_generation(self) -> None:
        if self._generation is not None:
            self._generation.close()
            self._generation = None


def _shared(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    for index, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return index
    return min(len(first), len(second))
