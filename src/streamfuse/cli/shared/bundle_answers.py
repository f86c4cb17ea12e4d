"""Answers for `data distill` by a bundle's own engine: speculative, one answer per core at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from streamfuse.api import load
from streamfuse.bundle import Bundle
from streamfuse.options import OptionError
from streamfuse.runtime.config import GenerationConfig, SamplingConfig
from streamfuse.runtime.cores import cores
from streamfuse.runtime.session import Session
from streamfuse.train.distill import seed_of, settings_of

if TYPE_CHECKING:
    from streamfuse.train.config import DistillConfig
    from streamfuse.train.distill import Answer, Answering, Item


def bundle_provenance(bundle: Bundle, config: DistillConfig) -> dict[str, Any]:
    """What determines a file's texts besides their prompts, as `train.distill.provenance_of` has it for a model."""
    return {"bundle": bundle.identity[:16], **settings_of(config)}


def check_context(bundle: Bundle, config: DistillConfig) -> None:
    """OptionError if the bundle's context is shorter than the longest prompt with its answer."""
    capacity = bundle.spec().capacity
    if config.max_prompt_tokens + config.max_new_tokens > capacity:
        raise OptionError(
            f"--bundle {bundle.folder} holds {capacity} tokens, fewer than --max-prompt-tokens "
            f"{config.max_prompt_tokens} and --max-new-tokens {config.max_new_tokens} together; lower one of them, or "
            "export the bundle with a larger --max-context-len"
        )


def by_bundle(bundle: Bundle) -> Answering:
    """Answers by the bundle, in the order in which they end.

    With the streamfuse kernels each core generates an answer of its own, which gives more tokens per second than all
    cores on one answer. Engines of other backends have threads of their own, so there is one answer at a time. Token
    ids include the end-of-sequence token.
    """

    def answering(items: list[Item], config: DistillConfig) -> Iterator[list[Answer]]:
        own_threads = bundle.manifest.backend != "kernels"
        if not items:
            return
        workers = 1 if own_threads else min(cores(), len(items))
        with ExitStack() as stack:
            # Latencies that are measured beside other answers are not for later sessions.
            model = stack.enter_context(load(bundle, threads=None if own_threads else 1, cost_cache=False))
            sessions = [model.session(text=False) for _ in range(workers)]
            answers = _Answers(sessions, config, frozenset(bundle.spec().eos_token_ids))
            pool = stack.enter_context(ThreadPoolExecutor(workers))
            stack.callback(answers.stop)  # before the pool waits for its threads
            for answer in _as_they_end(pool, answers, items, ahead=2 * workers):
                yield [answer]

    return answering


class _Answers:
    """Sessions that generate answers in several threads until they are stopped."""

    def __init__(self, sessions: list[Session], config: DistillConfig, ends: frozenset[int]) -> None:
        self._sessions, self._config, self._ends = sessions, config, ends
        self._free: SimpleQueue[Session] = SimpleQueue()
        for session in sessions:
            self._free.put(session)
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End the running answers at their next token; answers that have not begun are left out."""
        self._stopped.set()
        for session in self._sessions:
            session.stop()

    def __call__(self, item: Item) -> Answer:
        session, tokens = self._free.get(), list[int]()
        try:
            sampling = SamplingConfig(
                self._config.temperature, top_p=self._config.top_p, seed=seed_of(item, self._config)
            )
            # Tokens that end a text are not delivered, so they are treated as tokens like others.
            asked = GenerationConfig(self._config.max_new_tokens, sampling, ignore_eos=True)
            generation = None if self._stopped.is_set() else session.generate(item["input_ids"], asked)
            for piece in generation or ():
                if piece.token is not None:
                    tokens.append(piece.token)
                if self._stopped.is_set() or piece.token in self._ends:
                    break
            session.end_generation()
            return item, tokens, bool(tokens) and tokens[-1] in self._ends
        finally:
            self._free.put(session)


def _as_they_end(pool: ThreadPoolExecutor, answers: _Answers, items: list[Item], ahead: int) -> Iterator[Answer]:
    done: SimpleQueue[Future[Answer]] = SimpleQueue()
    for number, item in enumerate(items):
        pool.submit(answers, item).add_done_callback(done.put)
        if number >= ahead:
            yield done.get().result()
    for _ in range(min(ahead, len(items))):
        yield done.get().result()
