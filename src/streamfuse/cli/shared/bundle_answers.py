"""Answers for `data distill` by a bundle's own engine: speculative, one answer per core at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from streamfuse.api import load
from streamfuse.bundle import Bundle
from streamfuse.options import OptionError
from streamfuse.runtime.config import GenerationConfig, SamplingConfig
from streamfuse.runtime.cores import cores
from streamfuse.runtime.session import Session
from streamfuse.train.distill import settings_of

if TYPE_CHECKING:
    from streamfuse.train.config import DistillConfig
    from streamfuse.train.distill import Answer, Answering, Item

_GROUP = 16  # answers that are written together


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

    With the streamfuse kernels each core writes an answer of its own, which is faster than all cores at one answer.
    Engines of other backends have threads of their own, so there is one answer at a time. Token ids include the
    end-of-sequence token.
    """

    def answering(items: list[Item], config: DistillConfig) -> Iterator[list[Answer]]:
        own_threads = bundle.manifest.backend != "kernels"
        workers = 1 if own_threads else cores()
        with ExitStack() as stack:
            model = stack.enter_context(load(bundle, threads=None if own_threads else 1))
            free: SimpleQueue[Session] = SimpleQueue()
            for _ in range(workers):
                free.put(model.session(text=False))
            stopped = threading.Event()
            pool = stack.enter_context(ThreadPoolExecutor(workers))
            stack.callback(stopped.set)  # before the pool waits for its threads
            ends = set(bundle.spec().eos_token_ids)
            yield from _grouped(pool, iter(items), lambda item: _answer(free, item, config, ends, stopped), workers)

    return answering


def _answer(
    free: SimpleQueue[Session], item: Item, config: DistillConfig, ends: set[int], stopped: threading.Event
) -> Answer:
    from streamfuse.train.distill import seed_of

    session = free.get()
    try:
        sampling = SamplingConfig(config.temperature, top_p=config.top_p, seed=seed_of(item, config))
        # The tokens that end a text are not delivered, so they are made tokens like others.
        asked = GenerationConfig(config.max_new_tokens, sampling, ignore_eos=True)
        tokens: list[int] = []
        generation = session.generate(item["input_ids"], asked)
        for piece in generation:
            if piece.token is not None:
                tokens.append(piece.token)
            if stopped.is_set() or piece.token in ends:
                break
        generation.close()
        return item, tokens, tokens[-1] in ends
    finally:
        free.put(session)


def _grouped(pool: ThreadPoolExecutor, items: Iterator[Item], answer: Any, workers: int) -> Iterator[list[Answer]]:
    """Answers as they end, in groups; few are begun ahead, so that an interrupted run loses little."""
    done: SimpleQueue[Future[Answer]] = SimpleQueue()
    group: list[Answer] = []
    running = 0
    for item in islice(items, 2 * workers):
        pool.submit(answer, item).add_done_callback(done.put)
        running += 1
    while running:
        group.append(done.get().result())
        running -= 1
        for item in islice(items, 1):
            pool.submit(answer, item).add_done_callback(done.put)
            running += 1
        if len(group) == _GROUP or not running:
            yield group
            group = []
